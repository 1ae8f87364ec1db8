"""What chance decides about the robots: how each episode begins, its commands, its pushes."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from trainer.envs.config import RobotEnvConfig
from trainer.envs.moment import FloatArray
from trainer.envs.physics import PhysicsParams
from trainer.envs.random import DrawsAhead, Stream, UInt64Array, row_keys, uniform
from trainer.tasks.commands import draw_commands, draw_steps, num_command_draws
from trainer.tasks.randomization import draw_robots, draw_starts, num_robot_draws, num_start_draws

IntArray = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeDraw:
    """What is drawn for the episodes of some rows.

    Attributes:
        key: Keys of the episodes' later draws, uint64, shape (k,).
        friction: Sliding friction of every contact, shape (k,).
        base_mass: Mass of the base body, [kg], shape (k,).
        kp_scale: Factor on the contract's kp, shape (k, num_joints).
        kd_scale: Factor on the contract's kd, shape (k, num_joints).
        strength: Factor on every effort, shape (k, num_joints).
        delay: Delay of the targets, [PD periods], int64, shape (k,).
        base_quat: Orientation w, x, y, z, body to world, shape (k, 4).
        base_lin_vel_w: Velocity of the base, world frame, [m/s], shape (k, 3).
        base_ang_vel_b: Angular velocity, body frame, [rad/s], shape (k, 3).
        joint_pos: [rad], shape (k, num_joints), contract order.
        push_at: Step of the first push, int64, shape (k,).
        asked: First command, shape (k, num_commands).
        command_end: Step at which another command is drawn, int64, shape (k,).
    """

    key: UInt64Array
    friction: FloatArray
    base_mass: FloatArray
    kp_scale: FloatArray
    kd_scale: FloatArray
    strength: FloatArray
    delay: IntArray
    base_quat: FloatArray
    base_lin_vel_w: FloatArray
    base_ang_vel_b: FloatArray
    joint_pos: FloatArray
    push_at: IntArray
    asked: FloatArray
    command_end: IntArray


# The number of no episode: its row is to be drawn again.
_NOT_DRAWN = -1
_FIELDS = tuple(field.name for field in fields(EpisodeDraw))


class EpisodeDraws:
    """Draws for rows, each a function of (seed, row, episode) alone.

    So the next episodes of all rows can be drawn before their time, together: a few rows cost
    nearly as much as hundreds.

    Attributes:
        seed: Seed of every draw.
    """

    def __init__(self, config: RobotEnvConfig, nominal: PhysicsParams, seed: int) -> None:
        """Draw every row's first episode.

        Args:
            config: What is drawn, and from which ranges.
            nominal: The physics of every row as the model has it.
            seed: Seed of every draw.
        """
        contract = config.contract
        self._config = config
        self._friction, self._base_mass = nominal.friction.numpy(), nominal.base_mass.numpy()
        self._default, self._lower, self._upper = (
            contract.joint_array(name).astype(np.float32)
            for name in ("default_pos", "lower", "upper")
        )
        joints, commands = len(contract.joints), len(contract.commands)
        self._command_draws = num_command_draws(commands) + 1
        # Where the draws for the robot, its start, its first push and its first command end.
        sizes = (num_robot_draws(joints), num_start_draws(joints), 1, self._command_draws)
        self._ends = [int(end) for end in np.cumsum(sizes)]
        lower, upper = (
            [getattr(c, side) for c in contract.commands] for side in ("lower", "upper")
        )
        self._full_range = np.array([lower, upper], dtype=np.float32)
        self._command_range = self._full_range
        self._push_speed = config.randomization.push_speed
        self.seed = seed
        count = len(self._friction)
        self._commands = DrawsAhead(count, Stream.COMMAND, self._command_draws)
        self._pushes = DrawsAhead(count, Stream.PUSH, 3)
        self._number = np.zeros(count, dtype=np.int64)
        self._ahead = self._draw(np.arange(len(self._number)), self._number)

    def reseed(self, seed: int) -> None:
        """Draw from another seed from the next draw on."""
        self.seed = seed
        self._number.fill(_NOT_DRAWN)

    def set_command_share(self, share: float) -> None:
        """Draw commands from a share of their ranges, in [0, 1], from the next draw on."""
        command_range = share * self._full_range
        # A curriculum says it in every iteration.
        if not np.array_equal(command_range, self._command_range):
            self._command_range = command_range
            self._number.fill(_NOT_DRAWN)

    def set_push_share(self, share: float) -> None:
        """Push with a share of the largest speed, in [0, 1], from the next push on."""
        self._push_speed = share * self._config.randomization.push_speed

    def next(self, rows: IntArray, number: IntArray) -> EpisodeDraw:
        """What is drawn for the next episodes of some rows.

        Args:
            rows: Row numbers, shape (k,).
            number: Number of the current episode of every row, shape (n,).
        """
        if (self._number[rows] != number[rows] + 1).any():
            coming = number + 1
            stale = np.flatnonzero(self._number != coming)
            drawn = self._draw(stale, coming[stale])
            for name in _FIELDS:
                getattr(self._ahead, name)[stale] = getattr(drawn, name)
            self._number = coming
        return EpisodeDraw(**{name: getattr(self._ahead, name)[rows] for name in _FIELDS})

    def command(
        self, rows: IntArray, key: UInt64Array, step: IntArray
    ) -> tuple[FloatArray, IntArray]:
        """Draw the commands that begin at a step, and the steps at which they end.

        Args:
            rows: Row numbers, shape (k,).
            key: Keys of every row's episode, shape (n,).
            step: When every row's next command begins, shape (n,).
        """
        return self._command(self._commands.draw(rows, key, step), step[rows])

    def push(self, rows: IntArray, key: UInt64Array, step: IntArray) -> tuple[FloatArray, IntArray]:
        """Draw the pushes that happen at a step, and the steps of the next ones.

        Args:
            rows: Row numbers, shape (k,).
            key: Keys of every row's episode, shape (n,).
            step: When every row is pushed next, shape (n,).

        Returns:
            Change of the base velocity, world frame, [m/s], shape (k, 3), and steps, shape (k,).
        """
        u = self._pushes.draw(rows, key, step + 1)
        velocity = np.zeros((len(rows), 3), dtype=np.float32)
        velocity[:, :2] = self._push_speed * (2.0 * u[:, :2] - 1.0)
        interval = self._config.randomization.push_interval_s
        return velocity, step[rows] + self._steps(u[:, 2], interval)

    def _draw(self, rows: IntArray, number: IntArray) -> EpisodeDraw:
        config, contract = self._config.randomization, self._config.contract
        key = row_keys(self.seed, rows, number)
        u = uniform(key, Stream.START, 0, self._ends[-1]).numpy()
        robot, start, push, command = np.split(u, self._ends[:-1], axis=1)
        robots, starts = (
            draw_robots(robot, config, len(contract.joints)),
            draw_starts(start, config),
        )
        latency = np.rint(robots.latency / contract.timing.pd_dt).astype(np.int64)
        asked, command_end = self._command(command, 0)
        return EpisodeDraw(
            key=key,
            friction=self._friction[rows] if robots.friction is None else robots.friction,
            base_mass=self._base_mass[rows] + robots.payload,
            kp_scale=robots.kp_scale,
            kd_scale=robots.kd_scale,
            # Of all joints the same number, not a copy of it.
            strength=robots.strength.copy(),
            delay=contract.delay_steps + latency,
            base_quat=starts.quat,
            base_lin_vel_w=starts.lin_vel_w,
            base_ang_vel_b=starts.ang_vel_b,
            joint_pos=np.clip(self._default + starts.joint_offset, self._lower, self._upper),
            push_at=self._steps(push[:, 0], config.push_interval_s),
            asked=asked,
            command_end=command_end,
        )

    def _command(self, u: FloatArray, step: IntArray | int) -> tuple[FloatArray, IntArray]:
        config = self._config.commands
        lower, upper = self._command_range
        asked = draw_commands(u[:, :-1], lower, upper, config)
        return asked, step + self._steps(u[:, -1], config.interval_s)

    def _steps(self, u: FloatArray, interval_s: tuple[float, float]) -> IntArray:
        return draw_steps(u, interval_s, self._config.contract.timing.control_dt)
