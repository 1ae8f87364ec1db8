"""What a control step was worth, and who has fallen in it."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from robot_runtime.policy.gait import is_standing, standing_command
from trainer.envs.config import RobotEnvConfig
from trainer.envs.episodes import Episodes
from trainer.envs.ground import Ground
from trainer.envs.model import find_bodies
from trainer.envs.physics import BatchedPhysics, PhysicsState
from trainer.tasks.extra_rewards import evaluate_extra
from trainer.tasks.gait import GaitTable
from trainer.tasks.rewards import RewardInputs, active_terms, evaluate_terms, total_reward


class Scoring:
    """Judges the robots of an environment after every control step."""

    def __init__(
        self, config: RobotEnvConfig, physics: BatchedPhysics, ground: Ground, foot_radius: Tensor
    ) -> None:
        """Look up what is measured.

        Args:
            config: Rewards, gait and falls.
            physics: The robots.
            ground: What is under them.
            foot_radius: Radius of each foot, [m], shape (num_feet,).

        Raises:
            BadInput: The model lacks a body that falls are judged by.
        """
        self._config = config
        self._physics = physics
        self._ground = ground
        self._foot_radius = foot_radius
        contract, rewards = config.contract, config.rewards
        assert contract.phase is not None, "RobotEnvConfig sees to it"
        self._clock = contract.phase
        self._control_dt = contract.timing.control_dt
        self._mean_share = self._control_dt / rewards.mean_time_s
        self._gait = GaitTable(contract, config.gait)
        self._default = torch.tensor(contract.joint_array("default_pos"), dtype=torch.float32)
        self._pose_weight = torch.tensor(config.pose_weight)
        self._none = torch.zeros(())
        self._clear = find_bodies(physics.model, config.fall.clear_bodies)
        names = (*active_terms(rewards), *(one.name for one in config.extra_rewards))
        self._shown = [f"reward/{name}" for name in names] + ["error/lin_vel", "error/ang_vel"]

    def inputs(
        self,
        state: PhysicsState,
        base_lin_vel_b: Tensor,
        foot_pos_w: Tensor,
        episodes: Episodes,
        earlier_action: Tensor,
    ) -> RewardInputs:
        """Collect what the reward is computed from.

        Args:
            state: The robots after the step.
            base_lin_vel_b: Velocity of the bases, body frame, [m/s], shape (n, 3).
            foot_pos_w: Positions of the feet, world frame, [m], shape (n, num_feet, 3).
            episodes: What is remembered, ``foot_pos_w`` and ``mean_error`` from the step before.
            earlier_action: The applied action before ``episodes.last_action``, (n, num_actions).
        """
        command = episodes.command.numpy()
        velocity = [base_lin_vel_b.numpy()[:, :2], state.base_ang_vel_b.numpy()[:, 2:]]
        error = torch.from_numpy(np.concatenate(velocity, axis=-1) - command)
        foot_height = self._ground.clearance(foot_pos_w, self._foot_radius)
        deciding = standing_command(self._config.contract, command)
        standing = is_standing(self._clock, deciding)
        return RewardInputs(
            standing=torch.from_numpy(standing),
            error=error,
            mean_error=torch.lerp(episodes.mean_error, error, self._mean_share),
            base_lin_vel_b=base_lin_vel_b,
            base_ang_vel_b=state.base_ang_vel_b,
            # R_zz of the rotation matrix.
            cos_tilt=1.0 - 2.0 * state.base_quat[:, 1:3].square().sum(-1),
            base_height=self._ground.base_height(state.base_pos_w, foot_pos_w),
            joint_offset=state.joint_pos - self._default,
            joint_vel=state.joint_vel,
            joint_effort=self._physics.joint_effort(),
            action=episodes.action,
            last_action=episodes.last_action,
            earlier_action=earlier_action,
            foot_height=foot_height,
            foot_vel_w=(foot_pos_w - episodes.foot_pos_w) / self._control_dt,
            foot_contact=foot_height < self._config.gait.contact_height,
            gait=self._gait.target(episodes.step.numpy(), standing),
            pose_weight=self._pose_weight,
        )

    def fallen(self, inputs: RewardInputs) -> Tensor:
        """Return who has fallen, bool, shape (n,)."""
        fall = self._config.fall
        fallen = inputs.cos_tilt.numpy() < math.cos(fall.max_tilt)
        fallen |= inputs.base_height.numpy() < fall.min_height
        if len(self._clear):
            knees = self._physics.body_pos_w(self._clear)
            height = knees.numpy()[..., 2] - self._ground.height(knees).numpy()
            fallen |= height.min(-1) < fall.clear_height
        return torch.from_numpy(fallen)

    def reward(
        self, inputs: RewardInputs, terminated: Tensor, faulty: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the reward of the step and what there is to log.

        Args:
            inputs: From `inputs`.
            terminated: Whose episode has ended for good, bool, shape (n,).
            faulty: Whose simulation broke, bool, shape (n,): their numbers count for nothing.
                None where none did.

        Returns:
            Rewards, shape (n,), and scalars by name.
        """
        config, extra = self._config.rewards, self._config.extra_rewards
        terms = evaluate_terms(inputs, config)
        if extra:
            terms = torch.cat([terms, evaluate_extra(inputs, extra)], dim=-1)
        reward = total_reward(terms, terminated, config, self._control_dt)
        forward, left, yaw = inputs.mean_error.unbind(-1)
        errors = torch.stack([torch.hypot(forward, left), yaw.abs()], dim=-1)
        shown = torch.cat([terms, errors], dim=-1)
        if faulty is not None:
            shown = torch.where(faulty[:, None], 0.0, shown)
            reward = torch.where(faulty, 0.0, reward)
        log = dict(zip(self._shown, shown.mean(0).unbind(), strict=True))
        log["episode/falls"] = terminated.mean(dtype=torch.float32)
        log["nonfinite/state"] = self._none if faulty is None else faulty.float().sum()
        return reward, log
