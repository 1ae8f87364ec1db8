"""A robot that learns to walk at a commanded velocity: batched, randomized, exactly resumable."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from array_api_compat import array_namespace
from numpy.typing import NDArray
from torch import Tensor

from robot_runtime.policy.action import ActionMapper
from robot_runtime.policy.command import CommandShaper
from robot_runtime.policy.gait import gait_phase, is_standing, standing_command
from robot_runtime.policy.observation import ObservationBuilder
from robot_runtime.policy.rotation import rotate_inverse
from robot_runtime.policy.state import PolicyInputs, RobotState
from trainer.env import Observations, StepResult
from trainer.envs.action_space import ActionSpace, action_bounds
from trainer.envs.config import RobotEnvConfig
from trainer.envs.episodes import Episodes
from trainer.envs.ground import HeightScan, make_site
from trainer.envs.levels import TerrainLevels
from trainer.envs.model import build_model, find_bodies, find_geoms
from trainer.envs.motion_features import GROUP as MOTION_GROUP
from trainer.envs.motion_features import motion_features, motion_labels
from trainer.envs.physics import BatchedPhysics, PhysicsState
from trainer.envs.privileged import privileged_dim, privileged_observation
from trainer.envs.random import Stream, row_keys, uniform
from trainer.envs.starts import EpisodeStarts
from trainer.envs.targets import TargetQueue
from trainer.tasks.commands import draw_commands, draw_steps, num_command_draws
from trainer.tasks.extra_rewards import evaluate_extra
from trainer.tasks.gait import gait_target
from trainer.tasks.rewards import RewardInputs, active_terms, evaluate_terms, total_reward

logger = logging.getLogger(__name__)

# The command, and how long it lasts.
_COMMAND_DRAWS = num_command_draws(3) + 1


class RobotEnv:
    """`trainer.env.VecEnv` of a legged robot in `mujoco.batch`, following velocity commands.

    The group ``policy`` is what the contract says a robot measures, with its noise; ``critic`` adds
    what only a simulator knows. Tensors in and out live on ``device``, the physics on the CPU.

    Attributes:
        config: Robot, contract and task.
        action_space: The joints that actions move, and where actions stop having an effect.
        physics: The simulated robots, to look at or to render.
        offers: Observation groups that `offer` adds; ``amp`` is what a reference motion is compared
            with (`trainer.envs.motion_features`).
        feature_names: What is in a group, feature by feature.
        step_dt: Duration of a step, [s].
    """

    offers = (MOTION_GROUP,)

    def __init__(
        self,
        config: RobotEnvConfig,
        *,
        num_envs: int,
        seed: int = 0,
        device: str = "cpu",
        num_threads: int = 0,
    ) -> None:
        """Build the model and every row; `reset` starts the episodes.

        Args:
            config: Robot, contract and task.
            num_envs: Environments stepped together.
            seed: Seed of every draw.
            device: Where tensors in and out live.
            num_threads: Threads to simulate with; 0: as many as there are usable cores.

        Raises:
            BadInput: The robot model lacks what contract or task name.
            Refused: The contract's actuators cannot be simulated.
        """
        contract = config.contract
        site = make_site(config.terrain)
        model = build_model(config.robot.xml_path, contract, config.solver, site.field)
        self.config = config
        self.num_envs = num_envs
        self.num_actions = contract.num_actions
        self.action_space = ActionSpace(
            kind="continuous",
            num_actions=contract.num_actions,
            names=contract.action_joints,
            bounds=action_bounds(contract),
        )
        self.max_episode_length = config.max_episode_length
        self.device = torch.device(device)
        self.physics = BatchedPhysics(model, contract, num_envs, num_threads or None)
        self._seed = seed
        self._contract = contract
        self._builder = ObservationBuilder(contract, _tensor, (num_envs,))
        self._mapper = ActionMapper(contract, _tensor)
        self._shaper = CommandShaper(contract, _tensor)
        latency = round(config.randomization.latency_s[1] / contract.timing.pd_dt)
        self._queue = TargetQueue(contract, num_envs, contract.delay_steps + latency)
        feet = config.robot.profile.foot_geoms
        self._feet = find_geoms(model, feet)
        self._ground, self._levels = site.ground, None
        if site.terrain is not None:
            self._levels = TerrainLevels(site.terrain, config.levels, num_envs)
        self._starts = EpisodeStarts(config, self.physics, site.ground, self._levels)
        self._foot_radius = self._starts.foot_radius
        self._clear = find_bodies(model, config.fall.clear_bodies)
        self._default = _tensor(contract.joint_array("default_pos"))
        self._full_command_range = (
            np.array([c.lower for c in contract.commands], dtype=np.float32),
            np.array([c.upper for c in contract.commands], dtype=np.float32),
        )
        self._command_range = self._full_command_range
        self._push_speed = config.randomization.push_speed
        self._offsets = torch.tensor(config.gait.offsets, dtype=torch.float64)
        self._pose_weight = torch.tensor(config.pose_weight)
        self._commands_given = False
        self.obs_dims: Mapping[str, int] = {
            "policy": contract.observation_dim,
            "critic": contract.observation_dim + privileged_dim(len(feet)),
        }
        self.feature_names = {MOTION_GROUP: motion_labels([j.name for j in contract.joints])}
        self.step_dt = contract.timing.control_dt
        self._scan = None
        if config.scan is not None:
            base_height = config.robot.profile.base_height
            self._scan = HeightScan(config.scan, site.ground, base_height)
            self.obs_dims = {**self.obs_dims, "scan": config.scan.dim}
        self._episodes = Episodes.empty(
            num_envs, len(contract.commands), contract.num_actions, len(feet)
        )
        self._keys = row_keys(seed, np.arange(num_envs), self._episodes.number.numpy())
        self._read()

    @torch.no_grad()
    def reset(self, *, random_episode_length: bool = False) -> Observations:
        """Start every episode anew; see `VecEnv.reset`."""
        self._start(torch.ones(self.num_envs, dtype=torch.bool))
        if random_episode_length:
            u = uniform(self._keys, Stream.AGE, 0, 1)[:, 0]
            self._episodes.age = (u * self.max_episode_length).to(torch.int64)
        return self._out(self._observe())

    @torch.no_grad()
    def reset_rows(self, rows: Tensor) -> Observations:
        """Restart some environments; the others keep their observation. See `VecEnv.reset_rows`."""
        self._start(rows.to("cpu", torch.bool))
        return self._out(self._observe())

    @torch.no_grad()
    def step(self, actions: Tensor) -> StepResult:
        """Advance every environment by one control period; see `VecEnv.step`.

        Raises:
            ValueError: ``actions`` has another shape than (num_envs, num_actions).
        """
        expected = (self.num_envs, self.num_actions)
        if tuple(actions.shape) != expected:
            raise ValueError(f"actions have shape {tuple(actions.shape)}, expected {expected}")
        self._builder.commit()
        earlier_action = self._episodes.last_action
        # A copy: what is remembered of an episode is zeroed when it ends, and the caller's stays.
        self._act(actions.to("cpu", torch.float32, copy=True))
        self._push()
        for pd_step in range(self._contract.decimation):
            self.physics.step_pd(self._queue.at(pd_step))
        self._episodes.step = self._episodes.step + 1
        self._read()
        inputs = self._reward_inputs(earlier_action)
        faulty = self._take_faults()
        terminated = self._fallen(inputs) | faulty
        truncated = self._episodes.step + self._episodes.age >= self.max_episode_length
        if self._levels is not None:
            # Who leaves the field has not failed: the episode is cut short.
            truncated = truncated | self._levels.track(self._base_pos_w, inputs.error[:, :2])
        reward, log = self._reward(inputs, terminated, faulty)
        self._next_commands()
        final_obs = obs = self._observe()
        done = terminated | truncated
        if bool(done.any()):
            if self._levels is not None:
                self._levels.finish(done, terminated, self._keys)
            self._start(done)
            obs = self._observe()
            if bool(faulty.any()):
                # What a broken simulation says about its last moment is worth nothing.
                final_obs = {
                    name: torch.where(faulty[:, None], obs[name], last)
                    for name, last in final_obs.items()
                }
        return StepResult(
            obs=self._out(obs),
            reward=reward.to(self.device),
            terminated=terminated.to(self.device),
            truncated=truncated.to(self.device),
            final_obs=self._out(final_obs),
            log=log,
        )

    def offer(self, name: str) -> None:
        """Give an observation group of `offers` from now on."""
        self.obs_dims = {**self.obs_dims, name: len(self.feature_names[name])}

    @property
    def robot_state(self) -> RobotState:
        """What the robots measure now, noise-free, contract order, leading shape (num_envs,)."""
        return self._state

    @property
    def episodes(self) -> Episodes:
        """What is remembered of the current episodes; to look at."""
        return self._episodes

    @torch.no_grad()
    def put(self, state: PhysicsState, step: Tensor) -> Observations:
        """Begin episodes in given states, the lowest foot on the ground.

        Args:
            state: A state for every row, leading shape (num_envs,); the base is moved up or down.
            step: Control steps since the episode began, int64, shape (num_envs,).

        Returns:
            The observations.
        """
        self._start(torch.ones(self.num_envs, dtype=torch.bool))
        self._episodes.foot_pos_w = self._starts.put(np.arange(self.num_envs), state)
        self._episodes.step = step.clone()
        self._read()
        return self._out(self._observe())

    def set_command_share(self, share: float) -> None:
        """Draw commands from a share of their ranges, in [0, 1], from the next draw on."""
        lower, upper = self._full_command_range
        self._command_range = (share * lower, share * upper)

    def set_push_share(self, share: float) -> None:
        """Push with a share of the largest speed, in [0, 1], from the next push on."""
        self._push_speed = share * self.config.randomization.push_speed

    def spread_levels(self) -> None:
        """Put as many robots on each tile of a terrain, from their next episode on, for good."""
        if self._levels is not None:
            self._levels.spread()

    def give_commands(self, command: Tensor) -> None:
        """Ask for commands from outside from now on, instead of drawing them.

        Args:
            command: What is asked of every row, shape (num_envs, num_commands). It shows in the
                observation after the next step or reset.
        """
        self._commands_given = True
        self._episodes.asked = command.to("cpu", torch.float32).clone()

    def state_dict(self) -> dict[str, Any]:
        """Everything the next step depends on; see `VecEnv.state_dict`."""
        levels = {} if self._levels is None else {"levels": self._levels.state_dict()}
        return {
            **levels,
            "seed": self._seed,
            "episodes": self._episodes.state_dict(),
            "history": {k: v.clone() for k, v in self._builder.state_dict().items()},
            "targets": self._queue.state_dict(),
            "physics": self.physics.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state`` was taken; see `VecEnv.load_state_dict`."""
        parts = ("seed", "episodes", "history", "targets", "physics")
        for part in parts if self._levels is None else (*parts, "levels"):
            if part not in state:
                raise ValueError(f"environment state: '{part}' is missing from {sorted(state)}")
        if self._levels is not None:
            self._levels.load_state_dict(state["levels"])
        self._episodes.load_state_dict(state["episodes"])
        self._queue.load_state_dict(state["targets"])
        self.physics.load_state_dict(state["physics"])
        self._builder.load_state_dict({k: v.clone() for k, v in state["history"].items()})
        self._seed = int(state["seed"])
        envs = np.arange(self.num_envs)
        self._keys = row_keys(self._seed, envs, self._episodes.number.numpy())
        # The frame that the next step files in the history is computed anew.
        self._read()
        self._observe()

    def _read(self) -> None:
        """Look at the robots as they are now."""
        state = self.physics.read()
        self._base_pos_w = state.base_pos_w
        self._base_lin_vel_b: Tensor = rotate_inverse(state.base_quat, state.base_lin_vel_w)
        self._state = RobotState(
            time=self._elapsed(),
            base_quat=state.base_quat,
            base_ang_vel_b=state.base_ang_vel_b,
            base_lin_vel_b=self._base_lin_vel_b,
            joint_pos=state.joint_pos,
            joint_vel=state.joint_vel,
        )

    def _act(self, raw: Tensor) -> None:
        """Take the policy's output and send the joint targets on their way."""
        episodes = self._episodes
        applied = self._mapper.apply(raw, episodes.action)
        episodes.raw_action, episodes.last_action, episodes.action = raw, episodes.action, applied
        self._queue.push(self._mapper.targets(applied, self._state.joint_pos))

    def _push(self) -> None:
        """Change the base velocity of the rows whose time has come."""
        config = self.config.randomization
        if config.push_speed == 0.0:
            return
        rows = _indices(self._episodes.push_at <= self._episodes.step)
        if not len(rows):
            return
        step = self._episodes.step.numpy()[rows]
        u = uniform(self._keys[rows], Stream.PUSH, step + 1, 3).numpy()
        velocity = torch.zeros(len(rows), 3)
        velocity.numpy()[:, :2] = self._push_speed * (2.0 * u[:, :2] - 1.0)
        self.physics.push_rows(rows, velocity)
        again = step + self._steps(u[:, 2], config.push_interval_s)
        self._episodes.push_at.numpy()[rows] = again

    def _next_commands(self) -> None:
        """Draw new commands where the old ones have ended, and tell the policy."""
        episodes = self._episodes
        rows = _indices(episodes.command_end <= episodes.step)
        if len(rows) and not self._commands_given:
            step = episodes.step.numpy()[rows]
            u = uniform(self._keys[rows], Stream.COMMAND, step, _COMMAND_DRAWS)
            self._ask(rows, step, u.numpy())
        episodes.command = self._shaper(episodes.asked, episodes.command)

    def _ask(
        self, rows: NDArray[np.int64], step: NDArray[np.int64] | int, u: NDArray[np.float32]
    ) -> None:
        """Ask rows for new commands, drawn from ``u`` of shape (k, _COMMAND_DRAWS)."""
        episodes, config = self._episodes, self.config.commands
        asked = draw_commands(u[:, :-1], *self._command_range, config)
        episodes.asked.numpy()[rows] = asked
        episodes.command_end.numpy()[rows] = step + self._steps(u[:, -1], config.interval_s)

    def _steps(self, u: NDArray[np.float32], interval_s: tuple[float, float]) -> NDArray[np.int64]:
        return draw_steps(u, interval_s, self._contract.timing.control_dt)

    def _start(self, where: Tensor) -> None:
        """Begin a new episode in some rows."""
        rows = _indices(where)
        if not len(rows):
            return
        episodes = self._episodes
        index = torch.from_numpy(rows)
        asked = episodes.asked[index]
        episodes.begin(rows)
        self._keys[rows] = row_keys(self._seed, rows, episodes.number.numpy()[rows])
        count = self._starts.num_draws
        u = uniform(self._keys[rows], Stream.START, 0, count + 1 + _COMMAND_DRAWS).numpy()
        delay, episodes.foot_pos_w[index] = self._starts.begin(rows, u[:, :count])
        self._queue.delay.numpy()[rows] = delay
        interval_s = self.config.randomization.push_interval_s
        episodes.push_at.numpy()[rows] = self._steps(u[:, count], interval_s)
        self._builder.reset(where)
        self._queue.reset(where)
        if self._commands_given:
            episodes.asked[index] = asked
        else:
            self._ask(rows, 0, u[:, count + 1 :])
        episodes.command[index] = self._shaper(episodes.asked[index], episodes.command[index])
        self._read()

    def _take_faults(self) -> Tensor:
        """Rows whose simulation broke in this step, bool, shape (num_envs,)."""
        faulty = torch.zeros(self.num_envs, dtype=torch.bool)
        for name, rows in self.physics.take_faults().items():
            faulty |= rows
            first = int(_indices(rows)[0])
            logger.warning(
                "physics fault '%s' in %d environments (first %d, step %d of its episode): reset",
                name,
                int(rows.sum()),
                first,
                int(self._episodes.step[first]),
            )
        return faulty

    def _fallen(self, inputs: RewardInputs) -> Tensor:
        fall = self.config.fall
        tilted = inputs.cos_tilt < math.cos(fall.max_tilt)
        low = inputs.base_height < fall.min_height
        if not len(self._clear):
            return tilted | low
        knees = self.physics.body_pos_w(self._clear)
        lowest = (knees[..., 2] - self._ground.height(knees)).amin(-1)
        return tilted | low | (lowest < fall.clear_height)

    def _reward_inputs(self, earlier_action: Tensor) -> RewardInputs:
        """Collect what the reward is computed from, and remember where the feet are."""
        episodes, clock, state = self._episodes, self._contract.phase, self._state
        assert clock is not None
        foot_pos_w = self.physics.geom_pos_w(self._feet)
        foot_vel_w = (foot_pos_w - episodes.foot_pos_w) / self._contract.timing.control_dt
        episodes.foot_pos_w = foot_pos_w
        foot_height = self._ground.clearance(foot_pos_w, self._foot_radius)
        velocity = torch.cat([self._base_lin_vel_b[:, :2], state.base_ang_vel_b[:, 2:]], dim=-1)
        error = velocity - episodes.command
        share = self._contract.timing.control_dt / self.config.rewards.mean_time_s
        episodes.mean_error = torch.lerp(episodes.mean_error, error, share)
        elapsed = state.time
        deciding = standing_command(self._contract, episodes.command)
        phase = gait_phase(clock, elapsed, deciding, array_namespace(elapsed))
        standing = is_standing(clock, deciding)
        return RewardInputs(
            standing=standing,
            error=error,
            mean_error=episodes.mean_error,
            base_lin_vel_b=self._base_lin_vel_b,
            base_ang_vel_b=state.base_ang_vel_b,
            # R_zz of the rotation matrix.
            cos_tilt=1.0 - 2.0 * state.base_quat[:, 1:3].square().sum(-1),
            base_height=self._ground.base_height(self._base_pos_w, foot_pos_w),
            joint_offset=state.joint_pos - self._default,
            joint_vel=state.joint_vel,
            joint_effort=self.physics.joint_effort(),
            action=episodes.action,
            last_action=episodes.last_action,
            earlier_action=earlier_action,
            foot_height=foot_height,
            foot_vel_w=foot_vel_w,
            foot_contact=foot_height < self.config.gait.contact_height,
            gait=gait_target(phase, standing, self.config.gait, self._offsets),
            pose_weight=self._pose_weight,
        )

    def _reward(
        self, inputs: RewardInputs, terminated: Tensor, faulty: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Reward of the step and what there is to log."""
        config = self.config.rewards
        terms, extra = evaluate_terms(inputs, config), self.config.extra_rewards
        if extra:
            terms = torch.cat([terms, evaluate_extra(inputs, extra)], dim=-1)
        forward, left, yaw = inputs.mean_error.unbind(-1)
        errors = torch.stack([torch.hypot(forward, left), yaw.abs()], dim=-1)
        shown = torch.cat([terms, errors], dim=-1)
        reward = total_reward(terms, terminated, config, self._contract.timing.control_dt)
        if bool(faulty.any()):
            shown = torch.where(faulty[:, None], 0.0, shown)
            reward = torch.where(faulty, 0.0, reward)
        active = (*active_terms(config), *(one.name for one in extra))
        names = [f"reward/{name}" for name in active]
        names += ["error/lin_vel", "error/ang_vel"]
        log = dict(zip(names, shown.mean(0).unbind(), strict=True))
        log["episode/falls"] = terminated.float().mean()
        log["nonfinite/state"] = faulty.float().sum()
        if self._levels is not None:
            log["terrain/level"] = self._levels.level.float().mean()
        return reward, log

    def _observe(self) -> Observations:
        """Observations of all groups, on the CPU."""
        episodes, scale = self._episodes, self.config.randomization.sensor_noise
        inputs = PolicyInputs(
            state=self._state,
            command=episodes.command,
            raw_action=episodes.raw_action,
            applied_action=episodes.action,
            elapsed=self._state.time,
        )
        noise = None
        if scale > 0.0:
            u = uniform(self._keys, Stream.SENSOR, episodes.step.numpy(), self._builder.frame_dim)
            noise = u.mul_(2.0 * scale).sub_(scale)
        policy = self._builder.compute(inputs, noise)
        foot_height = self._ground.clearance(episodes.foot_pos_w, self._foot_radius)
        params = self.physics.params
        privileged = privileged_observation(
            {
                "base_lin_vel_b": self._base_lin_vel_b,
                "base_height": self._ground.base_height(self._base_pos_w, episodes.foot_pos_w),
                "mean_error": episodes.mean_error,
                "foot_height": foot_height,
                "foot_contact": (foot_height < self.config.gait.contact_height).float(),
                "friction": params.friction,
                "base_mass": params.base_mass,
                "strength": params.strength.mean(-1),
                "delay": self._queue.delay.float(),
            }
        )
        obs = {"policy": policy, "critic": torch.cat([policy, privileged], dim=-1)}
        if self._scan is not None:
            obs["scan"] = self._scan(self._base_pos_w, self._state.base_quat)
        if MOTION_GROUP in self.obs_dims:
            height = self._ground.base_height(self._base_pos_w, episodes.foot_pos_w)
            obs[MOTION_GROUP] = motion_features(self._state, height)
        return obs

    def _elapsed(self) -> Tensor:
        """Time since each episode began, [s], float64, shape (num_envs,)."""
        return self._episodes.step.to(torch.float64) * self._contract.timing.control_dt

    def _out(self, obs: Observations) -> Observations:
        if self.device.type == "cpu":
            return obs
        return {name: value.to(self.device) for name, value in obs.items()}


def _tensor(values: NDArray[Any]) -> Tensor:
    """The `AsArray` of the environment: torch, float32, on the CPU."""
    return torch.as_tensor(values, dtype=torch.float32)


def _indices(where: Tensor) -> NDArray[np.int64]:
    return np.flatnonzero(where.numpy())
