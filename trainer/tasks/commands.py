"""What the robot is asked to do while it learns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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


def draw_commands(u: Tensor, lower: Tensor, upper: Tensor, config: CommandConfig) -> Tensor:
    """Draw commands uniformly within their ranges, some of them or of their channels zero.

    Args:
        u: Draws in [0, 1), shape (n, num_command_draws(num_commands)).
        lower: Lowest command per channel, shape (num_commands,).
        upper: Highest command per channel, shape (num_commands,).
        config: How commands are drawn.

    Returns:
        Commands, shape (n, num_commands).
    """
    stand, keep, size = u.split((1, len(lower), len(lower)), dim=-1)
    command = (lower + (upper - lower) * size) * (keep >= config.zero_probability)
    still = (stand < config.stand_probability) | (
        command.norm(dim=-1, keepdim=True) <= config.dead_zone
    )
    return torch.where(still, torch.zeros_like(command), command)


def draw_steps(u: Tensor, interval_s: tuple[float, float], control_dt: float) -> Tensor:
    """Draw how many control steps something lasts.

    Args:
        u: Draws in [0, 1), any shape.
        interval_s: Shortest and longest duration, [s].
        control_dt: Control period, [s].

    Returns:
        Steps, at least one, int64, the shape of ``u``.
    """
    shortest, longest = interval_s
    seconds = shortest + (longest - shortest) * u
    return (seconds / control_dt).round().to(torch.int64).clamp_min(1)
