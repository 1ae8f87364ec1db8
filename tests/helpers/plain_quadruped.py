"""The walking quadruped once more, as one plain environment of gymnasium in NumPy.

Written from the description of the task, without a line of `trainer.tasks` or `trainer.envs` but
for the compiled model and the numbers of the config. It is the oracle of the batched environment,
and its opponent in `benchmarks/env_step.py`.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import mujoco
import numpy as np
from numpy.typing import NDArray

from trainer.envs.config import RobotEnvConfig
from trainer.envs.model import build_model

Vector = NDArray[np.float64]


class PlainQuadruped(gymnasium.Env[Vector, Vector]):
    """One robot. The observation is what the critic sees: the policy's, then what is privileged."""

    def __init__(self, config: RobotEnvConfig) -> None:
        contract, profile = config.contract, config.robot.profile
        self.config = config
        self.model = build_model(config.robot.xml_path, contract, config.solver)
        self.data = mujoco.MjData(self.model)
        self.default = contract.joint_array("default_pos")
        self.lower, self.upper = contract.joint_array("lower"), contract.joint_array("upper")
        self.kp, self.kd = contract.joint_array("kp"), contract.joint_array("kd")
        self.limit = contract.joint_array("effort_limit")
        self.feet = [self.model.geom(name).id for name in profile.foot_geoms]
        self.radius = self.model.geom_size[self.feet, 0]
        self.knees = [self.model.body(name).id for name in config.fall.clear_bodies]
        self.base = self.model.body(profile.base_body).id
        self.base_mass = float(self.model.body_mass[self.base])
        self.base_inertia = self.model.body_inertia[self.base].copy()
        self.offsets = np.array(config.gait.offsets)
        self.pose_weight = np.array(config.pose_weight)
        self.command_lower = np.array([c.lower for c in contract.commands])
        self.command_upper = np.array([c.upper for c in contract.commands])
        terms = contract.observation[0].terms
        rates = [math.inf if c.max_rate is None else c.max_rate for c in contract.commands]
        self.command_step = np.array(rates) * contract.timing.control_dt
        self.noise = np.concatenate([[t.noise[0]] * contract.term_dim(t) for t in terms])
        self.scale = np.concatenate([[t.scale[0]] * contract.term_dim(t) for t in terms])
        bounds = [math.inf if t.clip is None else t.clip[1] for t in terms]
        self.clip = np.concatenate(
            [[b] * contract.term_dim(t) for b, t in zip(bounds, terms, strict=True)]
        )
        self.dt = contract.timing.control_dt
        size = len(self.scale) + 11 + 2 * len(self.feet)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.action_space = gymnasium.spaces.Box(-6.0, 6.0, (12,), np.float64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        super().reset(seed=seed)
        options, rng = options or {}, self.np_random
        self._randomize(rng)
        mujoco.mj_resetDataKeyframe(self.model, self.data, 0)
        self._place(rng)
        if "qpos" in options:
            self.data.qpos[:], self.data.qvel[:] = options["qpos"], options["qvel"]
        mujoco.mj_kinematics(self.model, self.data)
        low = np.min(self.data.geom_xpos[self.feet, 2] - self.radius) - 1e-4
        self.data.qpos[2] -= low
        self.foot_pos = self.data.geom_xpos[self.feet].copy()
        self.foot_pos[:, 2] -= low
        self.steps = 0
        self.action = self.last = self.earlier = np.zeros(12)
        self.previous_target: Vector | None = None
        self.mean_error = np.zeros(3)
        self.command = np.zeros(3)
        self._draw_command(rng)
        if "command" in options:
            self.asked, self.command_end = np.array(options["command"]), 10**9
        self._ramp_command()
        self.push_at = self._steps(self.config.randomization.push_interval_s)
        return self._observe(), {}

    def step(self, action: Vector) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        self.earlier, self.last = self.last, self.action
        self.action = np.clip(action, -6.0, 6.0)
        target = np.clip(self.default + 0.3 * self.action, self.lower, self.upper)
        previous = target if self.previous_target is None else self.previous_target
        self.previous_target = target
        if self.config.randomization.push_speed > 0.0 and self.steps >= self.push_at:
            speed = self.config.randomization.push_speed
            self.data.qvel[:2] += self.np_random.uniform(-speed, speed, 2)
            self.push_at = self.steps + self._steps(self.config.randomization.push_interval_s)
        for k in range(2):
            self.data.ctrl[:] = target if k >= self.delay else previous
            mujoco.mj_step(self.model, self.data)
        self.steps += 1
        reward, fallen = self._reward()
        if self.steps >= self.command_end:
            self._draw_command(self.np_random)
        self._ramp_command()
        truncated = self.steps >= self.config.max_episode_length
        return self._observe(), reward, fallen, truncated, {}

    def _randomize(self, rng: np.random.Generator) -> None:
        config = self.config.randomization
        model = self.model
        if config.friction is not None:
            model.geom_friction[:, 0] = rng.uniform(*config.friction)
        mass = self.base_mass + rng.uniform(*config.payload_kg)
        model.body_mass[self.base] = mass
        model.body_inertia[self.base] = self.base_inertia * (mass / self.base_mass)
        self.strength = rng.uniform(*config.strength)
        kp = self.kp * rng.uniform(*config.kp, 12) * self.strength
        kd = self.kd * rng.uniform(*config.kd, 12) * self.strength
        model.actuator_gainprm[:, 0] = kp
        model.actuator_biasprm[:, 1] = -kp
        model.actuator_biasprm[:, 2] = -kd
        model.actuator_forcerange[:, 0] = -self.strength * self.limit
        model.actuator_forcerange[:, 1] = self.strength * self.limit
        self.delay = round(rng.uniform(*config.latency_s) / 0.01)
        mujoco.mj_setConst(model, self.data)

    def _place(self, rng: np.random.Generator) -> None:
        config, data = self.config.randomization, self.data
        roll, pitch = rng.uniform(-1.0, 1.0, 2) * config.start_tilt
        yaw = rng.uniform(-1.0, 1.0) * config.start_yaw
        mujoco.mju_euler2Quat(data.qpos[3:7], np.array([roll, pitch, yaw]), "XYZ")
        joints = self.default + rng.uniform(-1.0, 1.0, 12) * config.start_joint_pos
        data.qpos[7:] = np.clip(joints, self.lower, self.upper)
        data.qvel[:3] = rng.uniform(-1.0, 1.0, 3) * config.start_lin_vel
        data.qvel[3:6] = rng.uniform(-1.0, 1.0, 3) * config.start_ang_vel

    def _steps(self, interval: tuple[float, float]) -> int:
        return max(1, round(self.np_random.uniform(*interval) / self.dt))

    def _draw_command(self, rng: np.random.Generator) -> None:
        config = self.config.commands
        self.asked = rng.uniform(self.command_lower, self.command_upper)
        self.asked[rng.random(3) < config.zero_probability] = 0.0
        if rng.random() < config.stand_probability or (
            np.linalg.norm(self.asked) <= config.dead_zone
        ):
            self.asked = np.zeros(3)
        self.command_end = getattr(self, "steps", 0) + self._steps(config.interval_s)

    def _ramp_command(self) -> None:
        change = np.clip(self.asked - self.command, -self.command_step, self.command_step)
        self.command = self.command + change

    def _measure(self) -> tuple[Vector, Vector, Vector]:
        """Velocity of the base and direction of gravity in its frame, and its rates."""
        rotation = np.zeros(9)
        mujoco.mju_quat2Mat(rotation, self.data.qpos[3:7])
        rotation = rotation.reshape(3, 3)
        return rotation.T @ self.data.qvel[:3], -rotation[2], self.data.qvel[3:6]

    def _standing(self) -> bool:
        return bool(np.linalg.norm(self.command) <= 0.1)

    def _reward(self) -> tuple[float, bool]:
        config, gait = self.config.rewards, self.config.gait
        lin_vel, gravity, rates = self._measure()
        standing = self._standing()
        foot_pos = self.data.geom_xpos[self.feet].copy()
        foot_vel = (foot_pos - self.foot_pos) / self.dt
        self.foot_pos = foot_pos
        height = foot_pos[:, 2] - self.radius
        contact = height < gait.contact_height
        phase = (self.steps * self.dt * 2.2 + self.offsets) % 1.0
        stance = (phase < gait.duty) | standing
        swing = (
            0.5
            * gait.swing_height
            * (1.0 - np.cos(2.0 * np.pi * (phase - gait.duty) / (1.0 - gait.duty)))
        )
        error = np.array([lin_vel[0], lin_vel[1], rates[2]]) - self.command
        self.mean_error = self.mean_error + self.dt / config.mean_time_s * (error - self.mean_error)
        offset, speed = self.data.qpos[7:] - self.default, self.data.qvel[6:]
        terms = {
            "track_lin_vel": np.exp(-np.sum(error[:2] ** 2) / config.lin_vel_width**2),
            "track_mean_lin_vel": np.exp(-np.linalg.norm(self.mean_error[:2]) / config.mean_width),
            "track_ang_vel": np.exp(-(error[2] ** 2) / config.ang_vel_width**2),
            "track_mean_ang_vel": np.exp(-abs(self.mean_error[2]) / config.mean_width),
            "gait": 2.0 * np.mean(contact == stance) - 1.0,
            "swing_height": np.sum((height - swing)[~stance] ** 2),
            "foot_slip": np.sum(foot_vel[contact, :2] ** 2),
            "lin_vel_z": lin_vel[2] ** 2,
            "ang_vel_xy": np.sum(rates[:2] ** 2),
            "orientation": np.sum(gravity[:2] ** 2),
            "base_height": (self.data.qpos[2] - config.height_target) ** 2,
            "pose": np.sum(self.pose_weight * offset**2),
            "stand_pose": np.sum(offset**2) if standing else 0.0,
            "stand_still": np.sum(speed**2) if standing else 0.0,
            "torque": np.sum(self.data.actuator_force**2),
            "action_rate": np.sum((self.action - self.last) ** 2),
            "action_smooth": np.sum((self.action - 2.0 * self.last + self.earlier) ** 2),
            "joint_vel": np.sum(speed**2),
        }
        total = sum(getattr(config, name) * value for name, value in terms.items())
        fallen = bool(
            gravity[2] > -math.cos(self.config.fall.max_tilt)
            or self.data.qpos[2] < self.config.fall.min_height
            or self.data.xpos[self.knees, 2].min() < self.config.fall.clear_height
        )
        if config.only_positive:
            total = max(total, 0.0)
        return float(total * self.dt + config.termination * fallen), fallen

    def _observe(self) -> Vector:
        lin_vel, gravity, rates = self._measure()
        cycle = 2.0 * np.pi * self.steps * self.dt * 2.2
        wave = np.zeros(2) if self._standing() else np.array([np.sin(cycle), np.cos(cycle)])
        values = np.concatenate(
            [
                rates,
                gravity,
                self.command,
                self.data.qpos[7:] - self.default,
                self.data.qvel[6:],
                self.action,
                wave,
            ]
        )
        if self.config.randomization.sensor_noise > 0.0:
            values += self.noise * self.np_random.uniform(-1.0, 1.0, len(values))
        height = self.foot_pos[:, 2] - self.radius
        privileged = [
            lin_vel,
            self.data.qpos[2:3],
            self.mean_error,
            height,
            height < self.config.gait.contact_height,
            [
                self.model.geom_friction[self.feet[0], 0],
                self.model.body_mass[self.base],
                self.strength,
                self.delay,
            ],
        ]
        return np.concatenate([self.scale * np.clip(values, -self.clip, self.clip), *privileged])
