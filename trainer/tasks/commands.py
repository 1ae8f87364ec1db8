"""What the robot is asked to do while it learns."""

from __future__ import annotations

from dataclasses import dataclass

from array_api_compat import array_namespace

from robot_runtime.policy.state import Array


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandConfig:
    """How commands are drawn.

    Attributes:
        interval_s: Shortest and longest time a command lasts, [s].
        stand_probability: Share of commands that are zero.
        zero_probability: Share of each channel's draws that are zero, so that commands along one
            axis, which people give, are not rare among those along all.
        dead_zone: Commands whose norm is at most this are set to zero.
    """

    interval_s: tuple[float, float] = (3.0, 5.0)
    stand_probability: float = 0.1
    zero_probability: float = 0.4
    dead_zone: float = 0.1


def num_command_draws(num_commands: int) -> int:
    """How many numbers `draw_commands` needs per robot."""
    return 1 + 2 * num_commands


def draw_commands(u: Array, lower: Array, upper: Array, config: CommandConfig) -> Array:
    """Draw commands uniformly within their ranges, some of them or of their channels zero.

    Args:
        u: Draws in [0, 1), NumPy or torch, shape (n, num_command_draws(num_commands)).
        lower: Lowest command per channel, shape (num_commands,).
        upper: Highest command per channel, shape (num_commands,).
        config: How commands are drawn.

    Returns:
        Commands, shape (n, num_commands).
    """
    xp, count = array_namespace(u), len(lower)
    stand, keep, size = u[:, :1], u[:, 1 : 1 + count], u[:, 1 + count :]
    command = (lower + (upper - lower) * size) * (keep >= config.zero_probability)
    squared = xp.sum(command * command, axis=-1, keepdims=True)
    still = (stand < config.stand_probability) | (squared <= config.dead_zone**2)
    return xp.where(still, xp.zeros_like(command), command)


def draw_steps(u: Array, interval_s: tuple[float, float], control_dt: float) -> Array:
    """Draw how many control steps something lasts.

    Args:
        u: Draws in [0, 1), any shape.
        interval_s: Shortest and longest duration, [s].
        control_dt: Control period, [s].

    Returns:
        Steps, at least one, int64, the shape of ``u``.
    """
    shortest, longest = interval_s
    xp = array_namespace(u)
    steps = xp.round((shortest + (longest - shortest) * u) / control_dt)
    return xp.astype(xp.maximum(steps, xp.ones_like(steps)), xp.int64)
