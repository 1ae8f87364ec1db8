"""The record made in training proves itself in the runtime, and notices what is wrong."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.proof import TraceMismatch, replay
from robot_runtime.policy.rotation import heading
from robot_runtime.policy.trace import GoldenTrace
from tests.helpers.contracts import edited
from trainer.envs import recorder
from trainer.envs.recorder import RobotDeployment
from trainer.tasks.quadruped_flat import env_config

_WEIGHT = 0.2 * torch.randn(12, 47, generator=torch.Generator().manual_seed(0)) / 47**0.5


def _act(obs: torch.Tensor) -> torch.Tensor:
    return obs @ _WEIGHT.T


def _network(obs: np.ndarray) -> np.ndarray:
    return (torch.from_numpy(obs) @ _WEIGHT.T).numpy()


@pytest.fixture(scope="module")
def contract() -> PolicyContract:
    return PolicyContract.from_json(RobotDeployment(env_config()).contract_json())


@pytest.fixture(scope="module")
def trace() -> GoldenTrace:
    return GoldenTrace.from_arrays(RobotDeployment(env_config()).record_trace(_act))


def test_record_replays_on_the_robot(contract: PolicyContract, trace: GoldenTrace) -> None:
    assert trace.origin == "recorded"
    replay(contract, trace, _network)


def _numpy_state() -> Any:
    """The words of NumPy's global generator."""
    state: Any = np.random.get_state()  # noqa: NPY002
    return state[1].copy()


def test_record_is_repeatable_and_touches_no_global_generator(trace: GoldenTrace) -> None:
    torch_state, numpy_state = torch.get_rng_state(), _numpy_state()
    again = RobotDeployment(env_config()).record_trace(_act)
    assert GoldenTrace.from_arrays(again).to_bytes() == trace.to_bytes()
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (_numpy_state() == numpy_state).all()


def test_record_turns_walks_every_way_and_looks_elsewhere(trace: GoldenTrace) -> None:
    steps = len(recorder.SCHEDULE) * 2 * round(recorder.SEGMENT_S / 0.02)
    inputs = trace.inputs
    asked = inputs.asked[:steps]
    for channel in range(3):
        assert asked[:, channel].max() > 0.2
        assert asked[:, channel].min() < -0.2
    assert (asked == 0.0).all(axis=1).any(), "it also stands"
    headings = heading(inputs.base_quat[:steps][inputs.start[:steps]])
    assert np.abs(headings).max() > np.pi / 2
    # What it is asked to turn in one episode, [rad].
    turning = asked[2 * steps // 4 : 3 * steps // 4, 2]
    assert np.abs(turning.sum() * 0.02) > np.pi / 2
    # Rows beyond every bound follow.
    assert np.abs(inputs.raw_action[steps:]).max() > 6.0


@pytest.mark.parametrize(
    ("path", "value", "boundary"),
    [
        ("joints.4.default_pos", 0.95, "A .*joint_pos.FR_thigh_joint"),
        ("observation.0.terms.0.scale", [0.2], "A .*base_ang_vel"),
        ("phase.period", 0.5, "A .*phase"),
        ("action.terms.0.scale", [0.31] * 12, "C .*position target of FL_hip_joint"),
        ("joints.7.kp", 41.0, "C .*effort of RL_thigh_joint"),
    ],
)
def test_record_notices_an_edited_contract(
    contract: PolicyContract, trace: GoldenTrace, path: str, value: object, boundary: str
) -> None:
    with pytest.raises(TraceMismatch, match=boundary):
        replay(edited(contract, {path: value}), trace, _network)


def test_environment_that_observes_otherwise_is_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the environment's observations not those of the runtime, no trace would be made."""
    config = env_config()
    noisy = RobotDeployment(config)
    noisy._config = dataclasses.replace(
        noisy._config,
        randomization=dataclasses.replace(noisy._config.randomization, sensor_noise=1.0),
    )
    with pytest.raises(RuntimeError, match="training observation differs"):
        noisy.record_trace(_act)
