"""What every frozen setting checks itself with."""

from __future__ import annotations

import math

from robot_runtime.errors import BadInput

MOST_WIDTH = 2**16
"""Wider layers are a slip of the finger."""


class InvalidSetting(BadInput, ValueError):
    """A setting outside its range, or two settings that exclude each other."""


def check_widths(config: object, name: str) -> None:
    """Refuse a tuple with a number below 1, or beyond all that fits into memory.

    Raises:
        InvalidSetting: Names the field and its value.
    """
    widths = getattr(config, name)
    if any(width < 1 for width in widths):
        raise InvalidSetting(f"{name} = {widths}: every width must be at least 1")
    if any(width > MOST_WIDTH for width in widths):
        raise InvalidSetting(f"{name} = {widths}: every width must be at most {MOST_WIDTH}")


def check_range(
    config: object, name: str, *, low: float, high: float = math.inf, open_low: bool = False
) -> None:
    """Refuse a number outside ``low ... high``, a NaN or an infinity; None passes.

    Args:
        config: The settings.
        name: Which of them.
        low: Lower bound.
        high: Upper bound.
        open_low: Whether the lower bound itself is refused.

    Raises:
        InvalidSetting: Names the field, its value and what is allowed.
    """
    value = getattr(config, name)
    if value is None:
        return
    above = value > low if open_low else value >= low
    if not (above and value <= high and math.isfinite(value)):
        bound = f"{'above' if open_low else 'at least'} {low:g}"
        bound += f" and at most {high:g}" if math.isfinite(high) else " and finite"
        raise InvalidSetting(f"{name} = {value}: must be {bound}")
