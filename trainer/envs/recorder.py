"""The golden trace of a policy in training, recorded in the simulator it is trained in."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.extremes import extreme_inputs, join
from robot_runtime.policy.proof import roll
from robot_runtime.policy.state import Array
from robot_runtime.policy.trace import TraceInputs
from trainer.envs.config import RobotEnvConfig
from trainer.envs.robot_env import RobotEnv
from trainer.networks.policy import reset_policy
from trainer.tasks.base import ActMean
from trainer.tasks.randomization import NOMINAL

SEGMENT_S = 1.25
"""How long each command of the recorded schedule lasts, [s]."""

SCHEDULE = (
    ((0.0, 0.0, 0.0), (0.6, 0.0, 0.0)),
    ((0.0, 0.3, 0.0), (0.0, -0.3, 0.0)),
    ((0.0, 0.0, 0.9), (0.3, 0.0, 0.9)),
    ((-0.4, 0.2, -0.6), (0.0, 0.0, 0.0)),
)
"""Commands (forward [m/s], left [m/s], yaw [rad/s]) of the recorded episodes, one after the other.

The third turns by more than 90 degrees, and the headings at the start differ: a quaternion in the
wrong order looks right as long as the robot looks along x.
"""

_SEED = 0


class RobotDeployment:
    """`trainer.tasks.base.Deployment` of a task made of `RobotEnv`."""

    def __init__(self, config: RobotEnvConfig) -> None:
        """Prepare for recording.

        Args:
            config: The environment in training; the record is made without its randomness, apart
                from where and how the robot starts.
        """
        self._config = dataclasses.replace(
            config,
            randomization=dataclasses.replace(
                NOMINAL, start_joint_pos=0.1, start_lin_vel=0.2, start_yaw=math.pi
            ),
        )

    def contract_json(self) -> str:
        """The policy contract as JSON."""
        return self._config.contract.to_json()

    def record_trace(self, act: ActMean) -> dict[str, NDArray[Any]]:
        """Run the policy through the schedule and beyond every bound of its contract.

        Args:
            act: The deterministic policy.

        Returns:
            `GoldenTrace.to_arrays` of the record.

        Raises:
            RuntimeError: The environment computed other observations than the policy path of the
                runtime does from the same states.
        """
        contract = self._config.contract
        recorded, observation = _rollout(self._config, act)
        inputs = join(recorded, extreme_inputs(contract, _SEED))
        trace = roll(
            contract,
            inputs,
            lambda obs: act(obs.unsqueeze(0)).squeeze(0),
            origin="recorded",
            asarray=_tensor,
            reset=lambda: reset_policy(act),
        )
        rows = len(observation)
        _demand_equal(contract, observation, trace.observation[:rows])
        return trace.to_arrays()


@torch.no_grad()
def _rollout(config: RobotEnvConfig, act: ActMean) -> tuple[TraceInputs, NDArray[np.float32]]:
    """Walk the schedule in the training environment, every episode in a row of its own.

    Returns:
        What went in, episode after episode, and the observations the environment gave.
    """
    env = RobotEnv(config, num_envs=len(SCHEDULE), seed=_SEED, num_threads=1)
    steps = round(SEGMENT_S / config.contract.timing.control_dt)
    commands = torch.tensor(SCHEDULE, dtype=torch.float32)
    env.give_commands(commands[:, 0])
    reset_policy(act)
    obs = env.reset()["policy"]
    frames: list[dict[str, Tensor]] = []
    for k in range(steps * commands.shape[1]):
        raw = act(obs)
        frames.append({**_frame(env), "observation": obs, "raw_action": raw})
        env.give_commands(commands[:, (k + 1) // steps % commands.shape[1]])
        result = env.step(raw)
        reset_policy(act, result.terminated | result.truncated)
        obs = result.obs["policy"]
    columns = {
        name: torch.stack([frame[name] for frame in frames], dim=1).flatten(0, 1).numpy()
        for name in frames[0]
    }
    observation = columns.pop("observation")
    return TraceInputs(**columns), observation


def _frame(env: RobotEnv) -> dict[str, Tensor]:
    """The inputs of the next action, by their names in `TraceInputs`."""
    state, episodes = env.robot_state, env.episodes
    return {
        "start": episodes.step == 0,
        "elapsed": torch.as_tensor(state.time),
        "base_quat": state.base_quat,
        "base_ang_vel_b": state.base_ang_vel_b,
        "base_lin_vel_b": torch.as_tensor(state.base_lin_vel_b),
        "joint_pos": state.joint_pos,
        "joint_vel": state.joint_vel,
        "asked": episodes.asked,
    }


def _demand_equal(
    contract: PolicyContract, given: NDArray[np.float32], computed: NDArray[np.float32]
) -> None:
    """Training and runtime share their code; that they share its use is checked here."""
    error = np.abs(given - computed) / np.maximum(1.0, np.abs(computed))
    # Only the order of float32 operations may differ between one robot and a batch.
    if not error.max() <= 1e-6:  # written so that NaN differs
        row, feature = np.unravel_index(int(error.argmax()), error.shape)
        raise RuntimeError(
            f"contract '{contract.name}': feature {feature} of the training observation differs "
            f"from the runtime's by {error.max():.3g} in row {row} of the recorded run"
        )


def _tensor(values: Array) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float32)
