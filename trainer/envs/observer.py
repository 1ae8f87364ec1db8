"""What the learner sees: the observation groups of the robot environment."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robot_runtime.policy.observation import ObservationBuilder
from robot_runtime.policy.state import PolicyInputs, RobotState, as_float32
from trainer.env import Observations
from trainer.envs.config import RobotEnvConfig
from trainer.envs.ground import Ground, HeightScan
from trainer.envs.moment import FloatArray, Moment
from trainer.envs.motion_features import GROUP as MOTION_GROUP
from trainer.envs.motion_features import motion_features, motion_labels
from trainer.envs.privileged import privileged_dim, privileged_observation
from trainer.envs.random import Stream, uniform


class Observer:
    """Computes observations; remembers the history that the contract asks for.

    The group ``policy`` is what the contract says a robot measures, with its noise; ``critic`` adds
    what only a simulator knows. The frames are computed in NumPy: for some hundred robots beside a
    physics on the CPU that is cheaper than torch. What is given away are tensors.

    Attributes:
        dims: Length of each group.
    """

    def __init__(
        self, config: RobotEnvConfig, num_envs: int, ground: Ground, foot_radius: Tensor
    ) -> None:
        """Prepare the groups.

        Args:
            config: Contract, noise and scan.
            num_envs: Rows of the environment.
            ground: What is under the robots.
            foot_radius: Radius of each foot, [m], shape (num_feet,).
        """
        contract = config.contract
        self._builder = ObservationBuilder(contract, as_float32, (num_envs,))
        self._ground = ground
        self._foot_radius = foot_radius
        self._contact_height = config.gait.contact_height
        self._noise = config.randomization.sensor_noise
        self._control_dt = contract.timing.control_dt
        self._motion_dim = len(motion_labels([joint.name for joint in contract.joints]))
        self._scan = None
        self.dims = {
            "policy": contract.observation_dim,
            "critic": contract.observation_dim + privileged_dim(len(foot_radius)),
        }
        if config.scan is not None:
            self._scan = HeightScan(config.scan, ground, config.robot.profile.base_height)
            self.dims["scan"] = config.scan.dim

    def add_motion(self) -> None:
        """Give the group of `trainer.envs.motion_features` from now on."""
        self.dims = {**self.dims, MOTION_GROUP: self._motion_dim}

    def commit(self) -> None:
        """File what was observed last in the history."""
        self._builder.commit()

    def forget(self, rows: NDArray[np.bool_]) -> None:
        """Forget the history of rows, bool, shape (num_envs,)."""
        self._builder.reset(rows)

    def observe(self, now: Moment) -> Observations:
        """Observe every row."""
        frames, others = self._measure(now)
        return _groups(self._builder.arrange(frames), others)

    def observe_ends(
        self, now: Moment, ended: Moment, rows: NDArray[np.int64], begun: NDArray[np.bool_]
    ) -> tuple[Observations, Observations]:
        """Observe every row, and some at the end of their last episode, in one go.

        Args:
            now: Every row, after new episodes have begun.
            ended: Rows at the end of the episode before, leading shape (k,).
            rows: Their numbers, shape (k,).
            begun: Where an episode has begun, whose history is forgotten, shape (num_envs,).

        Returns:
            The observations, and the same with the ``rows`` as they were.
        """
        count = len(now.step)
        frames, others = self._measure(now.join(ended))
        last_frames = [_put_back(frame, count, rows) for frame in frames]
        last_others = {name: _put_back(value, count, rows) for name, value in others.items()}
        last = _groups(self._builder.arrange(last_frames), last_others)
        self._builder.reset(begun)
        policy = self._builder.arrange([frame[:count] for frame in frames])
        return _groups(policy, {name: value[:count] for name, value in others.items()}), last

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the history."""
        state = self._builder.state_dict()
        return {name: torch.from_numpy(value.copy()) for name, value in state.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where `state_dict` was called."""
        self._builder.load_state_dict({k: v.numpy().copy() for k, v in state.items()})

    def _measure(self, at: Moment) -> tuple[list[FloatArray], dict[str, FloatArray]]:
        """The frames of the policy's history, and what needs none, for any rows."""
        elapsed = at.step * self._control_dt
        state = RobotState(
            time=elapsed,
            base_quat=at.base_quat,
            base_ang_vel_b=at.base_ang_vel_b,
            base_lin_vel_b=at.base_lin_vel_b,
            joint_pos=at.joint_pos,
            joint_vel=at.joint_vel,
        )
        inputs = PolicyInputs(
            state=state,
            command=at.command,
            raw_action=at.raw_action,
            applied_action=at.action,
            elapsed=elapsed,
        )
        frames = self._builder.frames(inputs, self._draw_noise(at))
        base_pos_w, foot_pos_w = torch.from_numpy(at.base_pos_w), torch.from_numpy(at.foot_pos_w)
        base_height = self._ground.base_height(base_pos_w, foot_pos_w).numpy()
        foot_height = self._ground.clearance(foot_pos_w, self._foot_radius).numpy()
        others = {"privileged": self._privileged(at, base_height, foot_height)}
        if self._scan is not None:
            others["scan"] = self._scan(base_pos_w, torch.from_numpy(at.base_quat)).numpy()
        if MOTION_GROUP in self.dims:
            others[MOTION_GROUP] = motion_features(state, base_height)
        return frames, others

    def _privileged(
        self, at: Moment, base_height: FloatArray, foot_height: FloatArray
    ) -> FloatArray:
        return privileged_observation(
            {
                "base_lin_vel_b": at.base_lin_vel_b,
                "base_height": base_height,
                "mean_error": at.mean_error,
                "foot_height": foot_height,
                "foot_contact": foot_height < self._contact_height,
                "friction": at.friction,
                "base_mass": at.base_mass,
                "strength": torch.from_numpy(at.strength).mean(-1).numpy(),
                "delay": at.delay,
            }
        )

    def _draw_noise(self, at: Moment) -> FloatArray | None:
        if not self._noise > 0.0:
            return None
        u = uniform(at.key, Stream.SENSOR, at.step, self._builder.frame_dim).numpy()
        u *= 2.0 * self._noise
        u -= self._noise
        return u


def _groups(policy: FloatArray, others: dict[str, FloatArray]) -> Observations:
    critic = np.concatenate([policy, others["privileged"]], axis=-1)
    rest = {name: value for name, value in others.items() if name != "privileged"}
    groups = {"policy": policy, "critic": critic, **rest}
    return {name: torch.from_numpy(value) for name, value in groups.items()}


def _put_back(values: FloatArray, count: int, rows: NDArray[np.int64]) -> FloatArray:
    """The first ``count`` rows, but for the ``rows``, which are those behind them."""
    merged = values[:count].copy()
    merged[rows] = values[count:]
    return merged
