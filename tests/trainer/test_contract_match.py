"""A contract that the first checkpoint would stumble over is refused before anything is learned."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from robot_runtime.errors import BadInput
from robot_runtime.policy.contract import PolicyContract
from tests.helpers.contracts import quadruped_contract
from tests.trainer.toys.surefoot_toys import RECIPE, PointEnv
from trainer.checkpoint import load_checkpoint
from trainer.config import NetworkConfig, PPOConfig, TrainConfig
from trainer.env import StepResult
from trainer.tasks.base import TaskRun
from trainer.train import train

QUADRUPED = quadruped_contract()


class Still(PointEnv):
    """Steps by the shape of a contract; it counts them."""

    def __init__(self, obs: int, actions: int) -> None:
        self.steps = 0
        super().__init__(4)
        self.obs_dims: Mapping[str, int] = {"policy": obs}
        self.num_actions = actions

    def step(self, actions: Any) -> StepResult:
        self.steps += 1
        result = super().step(actions[:, :2])
        return dataclasses.replace(
            result, obs=self._observe(), final_obs=None if result.final_obs is None else
            {"policy": self._wide(result.final_obs["policy"])},
        )  # fmt: skip

    def _observe(self) -> Any:
        return {"policy": self._wide(self._position)}

    def _wide(self, x: Any) -> Any:
        dim = getattr(self, "obs_dims", {"policy": 2})["policy"]
        return x[:, :1].repeat(1, dim)


class Stated:
    """A deployment with a given contract."""

    def __init__(self, contract: str) -> None:
        self.contract = contract

    def contract_json(self) -> str:
        return self.contract

    def record_trace(self, act: Any) -> dict[str, Any]:
        del act
        return {}


def config(kind: Any) -> TrainConfig:
    network = NetworkConfig(kind=kind, rnn_hidden=4, actor_hidden=(4,), critic_hidden=(4,))
    ppo = PPOConfig(num_steps=4, epochs=1, minibatches=1)
    return dataclasses.replace(RECIPE, num_envs=4, iterations=1, network=network, ppo=ppo)


def run(env: Still, contract: str, kind: str, folder: Path) -> Path:
    settings = config(kind)
    task = TaskRun(env=env, train=settings, deployment=Stated(contract))
    return train("strange", task, settings, folder).checkpoint


def _without(field: str) -> str:
    plain = json.loads(QUADRUPED.to_json())
    del plain[field]
    return json.dumps(plain)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize(
    ("contract", "culprit"),
    [
        ('{"robot": "point"}', "contract.schema is missing"),
        ("no JSON", "contract"),
        ("[1, 2]", "contract"),
        (_without("joints"), "joints"),
        (_without("network"), "network"),
    ],
)
def test_a_recurrent_policy_needs_a_contract_that_can_hold_its_states(
    contract: str, culprit: str, kind: str, tmp_path: Path
) -> None:
    env = Still(2, 2)
    with pytest.raises(BadInput, match=f"task 'strange': what it states .*{culprit}"):
        run(env, contract, kind, tmp_path / "run")
    assert env.steps == 0
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["mlp", "gru"])
@pytest.mark.parametrize(
    ("obs", "actions", "message"),
    [
        (1, 0, r"observation group 'policy': \d+ numbers in the environment, \d+ in its contract"),
        (0, 1, r"actions: 13 numbers in the environment, 12 in its contract"),
    ],
)
def test_a_contract_of_another_size_is_refused(
    obs: int, actions: int, message: str, kind: str, tmp_path: Path
) -> None:
    env = Still(QUADRUPED.observation_dim + obs, QUADRUPED.num_actions + actions)
    with pytest.raises(BadInput, match=f"task 'strange': {message}"):
        run(env, QUADRUPED.to_json(), kind, tmp_path / "run")
    assert env.steps == 0


def test_what_fits_is_trained_and_kept_with_its_states(tmp_path: Path) -> None:
    env = Still(QUADRUPED.observation_dim, QUADRUPED.num_actions)
    kept = load_checkpoint(run(env, QUADRUPED.to_json(), "gru", tmp_path / "run")).contract
    assert kept is not None
    (state,) = PolicyContract.from_json(kept).network.states
    assert state.shape == (1, 1, 4)
    assert env.steps == 4
