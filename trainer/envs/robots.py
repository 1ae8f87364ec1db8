"""The robots of an environment: what acts on them, and what is remembered of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robot_runtime.policy.action import ActionMapper
from robot_runtime.policy.command import CommandShaper
from robot_runtime.policy.rotation import rotate_inverse
from robot_runtime.policy.state import RobotState, as_float32
from trainer.envs.config import RobotEnvConfig
from trainer.envs.draws import EpisodeDraws
from trainer.envs.episodes import Episodes
from trainer.envs.model import find_geoms
from trainer.envs.moment import Moment
from trainer.envs.physics import BatchedPhysics, PhysicsState
from trainer.envs.random import row_keys
from trainer.envs.starts import EpisodeStarts
from trainer.envs.targets import TargetQueue


class Robots:
    """Simulated robots with their actions, commands, pushes and episodes.

    What there is little to compute of is computed in NumPy: after a physics step, which leaves the
    processor's caches empty, its calls cost half of torch's.

    Attributes:
        physics: The simulation.
        episodes: What every row remembers.
        key: Keys of the current episodes' draws, uint64, shape (num_envs,).
        queue: Joint targets under way.
        draws: What chance decides.
        state: The robots when they were looked at last.
        base_lin_vel_b: Their base velocities, body frame, [m/s], shape (num_envs, 3).
    """

    def __init__(
        self, config: RobotEnvConfig, physics: BatchedPhysics, starts: EpisodeStarts, seed: int
    ) -> None:
        """Prepare every row; `start` begins the episodes.

        Args:
            config: Contract, commands and randomization.
            physics: The simulation.
            starts: Puts robots where episodes begin.
            seed: Seed of every draw.
        """
        contract = config.contract
        self.physics = physics
        self._starts = starts
        self._decimation = contract.decimation
        self._control_dt = contract.timing.control_dt
        self._pushed = config.randomization.push_speed != 0.0
        self._mapper = ActionMapper(contract, _tensor)
        self._shaper = CommandShaper(contract, as_float32)
        latency = round(config.randomization.latency_s[1] / contract.timing.pd_dt)
        self.queue = TargetQueue(contract, physics.num_envs, contract.delay_steps + latency)
        self.draws = EpisodeDraws(config, physics.nominal, seed)
        feet = config.robot.profile.foot_geoms
        self._feet = find_geoms(physics.model, feet)
        self._commands_given = False
        self.episodes = Episodes.empty(
            physics.num_envs, len(contract.commands), contract.num_actions, len(feet)
        )
        self.key = self._keys()
        self.read()

    def act(self, raw: Tensor) -> None:
        """Take the policy's output and send the joint targets on their way.

        Args:
            raw: Raw actions, kept and written to later, shape (num_envs, num_actions).
        """
        episodes = self.episodes
        applied = self._mapper.apply(raw, episodes.action)
        episodes.raw_action, episodes.last_action, episodes.action = raw, episodes.action, applied
        self.queue.push(self._mapper.targets(applied, self.state.joint_pos))

    def push(self) -> None:
        """Change the base velocity of the rows whose time has come."""
        if not self._pushed:
            return
        step, push_at = self.episodes.step.numpy(), self.episodes.push_at.numpy()
        rows = np.flatnonzero(push_at <= step)
        if len(rows):
            coming = np.maximum(push_at, step)
            velocity_w, push_at[rows] = self.draws.push(rows, self.key, coming)
            self.physics.push_rows(rows, torch.from_numpy(velocity_w))

    def advance(self) -> None:
        """Simulate one control period and look at the robots."""
        self.episodes.step = self.episodes.step + 1
        # All targets before the first step, while what computes them is in the caches.
        for targets in [self.queue.at(k) for k in range(self._decimation)]:
            self.physics.step_pd(targets)
        self.read()

    def read(self) -> None:
        """Look at the robots as they are now."""
        self.state: PhysicsState = self.physics.read()
        quat, velocity_w = self.state.base_quat, self.state.base_lin_vel_w
        self.base_lin_vel_b: Tensor = rotate_inverse(quat, velocity_w)

    def foot_pos_w(self) -> Tensor:
        """Where the feet are after a step, world frame, [m], shape (num_envs, num_feet, 3)."""
        return self.physics.geom_pos_w(self._feet)

    def next_commands(self) -> None:
        """Draw new commands where the old ones have ended, and tell the policy."""
        episodes = self.episodes
        step, asked, end = (
            values.numpy() for values in (episodes.step, episodes.asked, episodes.command_end)
        )
        rows = np.flatnonzero(end <= step)
        if len(rows) and not self._commands_given:
            coming = np.maximum(end, step)
            asked[rows], end[rows] = self.draws.command(rows, self.key, coming)
        episodes.command = torch.from_numpy(self._shaper(asked, episodes.command.numpy()))

    def give_commands(self, command: Tensor) -> None:
        """Ask for these from now on, shape (num_envs, num_commands), in place of drawn ones."""
        self._commands_given = True
        self.episodes.asked = command

    def start(self, rows: NDArray[np.int64]) -> None:
        """Begin a new episode in rows of these numbers, shape (k,)."""
        episodes = self.episodes
        number = episodes.number.numpy()
        draw = self.draws.next(rows, number)
        asked = episodes.asked.numpy()[rows] if self._commands_given else draw.asked
        first = {
            "number": number[rows] + 1,
            "asked": asked,
            "command": self._shaper(asked, np.zeros_like(asked)),
            "command_end": draw.command_end,
            "push_at": draw.push_at,
            "foot_pos_w": self._starts.begin(rows, draw).numpy(),
        }
        episodes.begin(rows, first)
        self.key[rows] = draw.key
        self.queue.restart(rows, draw.delay)

    def put(self, state: PhysicsState, step: Tensor) -> None:
        """Put every robot into a state, some control steps into its episode, shape (num_envs,)."""
        rows = np.arange(self.physics.num_envs)
        self.episodes.foot_pos_w = self._starts.put(rows, state)
        self.episodes.step = step.clone()
        self.read()

    def measured(self) -> RobotState:
        """What the robots measure, noise-free."""
        return RobotState(
            time=self.episodes.step.to(torch.float64) * self._control_dt,
            base_quat=self.state.base_quat,
            base_ang_vel_b=self.state.base_ang_vel_b,
            base_lin_vel_b=self.base_lin_vel_b,
            joint_pos=self.state.joint_pos,
            joint_vel=self.state.joint_vel,
        )

    def moment(self) -> Moment:
        """What the robots are observed by now; a view, up to date until the next look at them."""
        state, episodes, params = self.state, self.episodes, self.physics.params
        return Moment(
            key=self.key,
            step=episodes.step.numpy(),
            base_pos_w=state.base_pos_w.numpy(),
            base_quat=state.base_quat.numpy(),
            base_lin_vel_b=self.base_lin_vel_b.numpy(),
            base_ang_vel_b=state.base_ang_vel_b.numpy(),
            joint_pos=state.joint_pos.numpy(),
            joint_vel=state.joint_vel.numpy(),
            foot_pos_w=episodes.foot_pos_w.numpy(),
            command=episodes.command.numpy(),
            raw_action=episodes.raw_action.numpy(),
            action=episodes.action.numpy(),
            mean_error=episodes.mean_error.numpy(),
            friction=params.friction.numpy(),
            base_mass=params.base_mass.numpy(),
            strength=params.strength.numpy(),
            delay=self.queue.delay.numpy(),
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything that the robots do next depends on."""
        return {
            "seed": self.draws.seed,
            "episodes": self.episodes.state_dict(),
            "targets": self.queue.state_dict(),
            "physics": self.physics.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was called.

        Raises:
            ValueError: A part belongs to another environment.
        """
        self.episodes.load_state_dict(state["episodes"])
        self.queue.load_state_dict(state["targets"])
        self.physics.load_state_dict(state["physics"])
        self.draws.reseed(int(state["seed"]))
        self.key = self._keys()
        self.read()

    def _keys(self) -> NDArray[np.uint64]:
        rows = np.arange(self.physics.num_envs)
        return row_keys(self.draws.seed, rows, self.episodes.number.numpy())


def _tensor(values: NDArray[Any]) -> Tensor:
    """The `AsArray` of tensors: float32, on the CPU."""
    return torch.as_tensor(values, dtype=torch.float32)
