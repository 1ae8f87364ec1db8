"""A robot that learns to walk at a commanded velocity: batched, randomized, exactly resumable."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_runtime.policy.state import RobotState
from trainer.env import Observations, StepResult
from trainer.envs.action_space import ActionSpace, action_bounds
from trainer.envs.config import RobotEnvConfig
from trainer.envs.episodes import Episodes
from trainer.envs.ground import make_site
from trainer.envs.levels import TerrainLevels
from trainer.envs.model import build_model
from trainer.envs.motion_features import GROUP as MOTION_GROUP
from trainer.envs.motion_features import motion_labels
from trainer.envs.observer import Observer
from trainer.envs.physics import BatchedPhysics, PhysicsState
from trainer.envs.random import Stream, uniform
from trainer.envs.robots import Robots
from trainer.envs.scoring import Scoring
from trainer.envs.starts import EpisodeStarts
from trainer.tasks.rewards import RewardInputs

logger = logging.getLogger(__name__)


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
        self._levels = None
        if site.terrain is not None:
            self._levels = TerrainLevels(site.terrain, config.levels, num_envs)
        starts = EpisodeStarts(config, self.physics, site.ground, self._levels)
        self._robots = Robots(config, self.physics, starts, seed)
        self._observer = Observer(config, num_envs, site.ground, starts.foot_radius)
        self._scoring = Scoring(config, self.physics, site.ground, starts.foot_radius)
        self.obs_dims: Mapping[str, int] = self._observer.dims
        self.feature_names = {MOTION_GROUP: motion_labels([j.name for j in contract.joints])}
        self.step_dt = contract.timing.control_dt

    @torch.no_grad()
    def reset(self, *, random_episode_length: bool = False) -> Observations:
        """Start every episode anew; see `VecEnv.reset`."""
        self._begin(torch.ones(self.num_envs, dtype=torch.bool))
        if random_episode_length:
            u = uniform(self._robots.key, Stream.AGE, 0, 1)[:, 0]
            self.episodes.age = (u * self.max_episode_length).to(torch.int64)
        return self._out(self._observer.observe(self._robots.moment()))

    @torch.no_grad()
    def reset_rows(self, rows: Tensor) -> Observations:
        """Restart some environments; the others keep their observation. See `VecEnv.reset_rows`."""
        self._begin(rows.to("cpu", torch.bool))
        return self._out(self._observer.observe(self._robots.moment()))

    @torch.no_grad()
    def step(self, actions: Tensor) -> StepResult:
        """Advance every environment by one control period; see `VecEnv.step`.

        Raises:
            ValueError: ``actions`` has another shape than (num_envs, num_actions).
        """
        expected = (self.num_envs, self.num_actions)
        if tuple(actions.shape) != expected:
            raise ValueError(f"actions have shape {tuple(actions.shape)}, expected {expected}")
        robots = self._robots
        self._observer.commit()
        earlier_action = self.episodes.last_action
        # A copy: what is remembered of an episode is zeroed when it ends, and the caller's stays.
        robots.act(actions.to("cpu", torch.float32, copy=True))
        robots.push()
        robots.advance()
        inputs = self._reward_inputs(earlier_action)
        faulty = self._take_faults()
        terminated = self._scoring.fallen(inputs)
        if faulty is not None:
            terminated = terminated | faulty
        truncated = self.episodes.step + self.episodes.age >= self.max_episode_length
        if self._levels is not None:
            # Who leaves the field has not failed: the episode is cut short.
            truncated = truncated | self._levels.track(robots.state.base_pos_w, inputs.error[:, :2])
        reward, log = self._scoring.reward(inputs, terminated, faulty)
        if self._levels is not None:
            log["terrain/level"] = self._levels.level.float().mean()
        robots.next_commands()
        obs, final_obs = self._observe(terminated, truncated, faulty)
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
        self._observer.add_motion()
        self.obs_dims = self._observer.dims

    @property
    def robot_state(self) -> RobotState:
        """What the robots measure now, noise-free, contract order, leading shape (num_envs,)."""
        return self._robots.measured()

    @property
    def episodes(self) -> Episodes:
        """What is remembered of the current episodes; to look at."""
        return self._robots.episodes

    @torch.no_grad()
    def put(self, state: PhysicsState, step: Tensor) -> Observations:
        """Begin episodes in given states, the lowest foot on the ground.

        Args:
            state: A state for every row, leading shape (num_envs,); the base is moved up or down.
            step: Control steps since the episode began, int64, shape (num_envs,).

        Returns:
            The observations.
        """
        self._begin(torch.ones(self.num_envs, dtype=torch.bool))
        self._robots.put(state, step)
        return self._out(self._observer.observe(self._robots.moment()))

    def set_command_share(self, share: float) -> None:
        """Draw commands from a share of their ranges, in [0, 1], from the next draw on."""
        self._robots.draws.set_command_share(share)

    def set_push_share(self, share: float) -> None:
        """Push with a share of the largest speed, in [0, 1], from the next push on."""
        self._robots.draws.set_push_share(share)

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
        self._robots.give_commands(command.to("cpu", torch.float32).clone())

    def state_dict(self) -> dict[str, Any]:
        """Everything the next step depends on; see `VecEnv.state_dict`."""
        levels = {} if self._levels is None else {"levels": self._levels.state_dict()}
        return {**levels, **self._robots.state_dict(), "history": self._observer.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state`` was taken; see `VecEnv.load_state_dict`."""
        parts = ("seed", "episodes", "history", "targets", "physics")
        for part in parts if self._levels is None else (*parts, "levels"):
            if part not in state:
                raise ValueError(f"environment state: '{part}' is missing from {sorted(state)}")
        if self._levels is not None:
            self._levels.load_state_dict(state["levels"])
        self._robots.load_state_dict(state)
        self._observer.load_state_dict(state["history"])
        # The frame that the next step files in the history is computed anew.
        self._observer.observe(self._robots.moment())

    def _begin(self, where: Tensor) -> None:
        """Begin a new episode in some rows, bool, shape (num_envs,), nothing observed yet."""
        rows = np.flatnonzero(where.numpy())
        if len(rows):
            self._robots.start(rows)
            self._robots.read()
            self._observer.forget(where.numpy())

    def _take_faults(self) -> Tensor | None:
        """Rows whose simulation broke in this step, bool, shape (num_envs,); None for none."""
        faulty = None
        for name, rows in self.physics.take_faults().items():
            faulty = rows if faulty is None else faulty | rows
            first = int(rows.nonzero()[0])
            logger.warning(
                "physics fault '%s' in %d environments (first %d, step %d of its episode): reset",
                name,
                int(rows.sum()),
                first,
                int(self.episodes.step[first]),
            )
        return faulty

    def _reward_inputs(self, earlier_action: Tensor) -> RewardInputs:
        """Collect what the reward is computed from, and remember what the next one needs of it."""
        robots, episodes = self._robots, self.episodes
        foot_pos_w = robots.foot_pos_w()
        inputs = self._scoring.inputs(
            robots.state, robots.base_lin_vel_b, foot_pos_w, episodes, earlier_action
        )
        episodes.foot_pos_w, episodes.mean_error = foot_pos_w, inputs.mean_error
        return inputs

    def _observe(
        self, terminated: Tensor, truncated: Tensor, faulty: Tensor | None
    ) -> tuple[Observations, Observations]:
        """Observe; episodes that have ended are followed by others. What ended, is kept apart."""
        done = terminated | truncated
        rows = ended = np.flatnonzero(done.numpy())
        now = self._robots.moment()
        if not len(rows):
            obs = self._observer.observe(now)
            return obs, obs
        if faulty is not None:
            # What a broken simulation says about its last moment is worth nothing.
            ended = np.flatnonzero((done & ~faulty).numpy())
            self._observer.forget(faulty.numpy())
        last = now.take(ended)
        if self._levels is not None:
            self._levels.finish(done, terminated, self._robots.key)
        self._robots.start(rows)
        self._robots.read()
        now = self._robots.moment()
        return self._observer.observe_ends(now, last, ended, begun=done.numpy())

    def _out(self, obs: Observations) -> Observations:
        if self.device.type == "cpu":
            return obs
        return {name: value.to(self.device) for name, value in obs.items()}
