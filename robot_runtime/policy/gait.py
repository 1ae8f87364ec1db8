"""The gait clock: the phase of a gait from the time since the policy began."""

from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.spec import PhaseClock
from robot_runtime.policy.state import Array, AsArray


def gait_phase(clock: PhaseClock, elapsed: Array, command: Array, xp: object) -> Array:
    """Phase of every output of the gait clock.

    Args:
        clock: The clock.
        elapsed: Time since the policy began, [s], float64, shape ``(...)``.
        command: What decides whether the robot stands, see `standing_command`, shape ``(..., n)``.
        xp: Array namespace to compute in.

    Returns:
        Phase, [cycles] in [0, 1), float64 so that a day of walking stays exact, shape
        ``(..., len(offsets))``.
    """
    ns: Array = xp
    time = ns.asarray(elapsed, dtype=ns.float64)[..., None]
    # A cycle ends a rounding error early rather than late: 1 and 0 are the same phase.
    starts = [clock.start + offset + 1e-9 for offset in clock.offsets]
    cycles = time / clock.period + ns.asarray(starts, dtype=ns.float64, device=time.device)
    cycles = cycles - ns.floor(cycles) - 1e-9
    cycles = ns.maximum(cycles, ns.zeros_like(cycles))
    if clock.stand == "fixed":
        standing = is_standing(clock, command)[..., None]
        cycles = ns.where(standing, ns.full_like(cycles, clock.stand_phase), cycles)
    return cycles


def standing_command(contract: PolicyContract, command: Array) -> Array:
    """The part of a command that decides whether the robot is asked to stand.

    Args:
        contract: A contract with a gait clock.
        command: The command, shape ``(..., num_commands)``.

    Returns:
        Its channels named by ``phase.stand_channels`` in that order, shape ``(..., n)``.
    """
    channels = None if contract.phase is None else contract.phase.stand_channels
    if channels is None or channels == contract.command_names:
        return command
    names = contract.command_names
    xp = array_namespace(command)
    return xp.stack([command[..., names.index(name)] for name in channels], axis=-1)


def is_standing(clock: PhaseClock, command: Array) -> Array:
    """Whether the command asks to stand, by the clock's norm and threshold.

    Args:
        clock: The clock.
        command: What decides it, see `standing_command`, shape ``(..., n)``.

    Returns:
        bool, shape ``(...)``.
    """
    # The method is in every array library, and costs a fraction of the namespace's function.
    limit, squares = clock.stand_threshold * clock.stand_threshold, command * command
    if clock.stand_norm == "euclidean":
        return squares.sum(axis=-1) <= limit
    planar = squares[..., :2].sum(axis=-1) <= limit
    turning = squares[..., 2:3].sum(axis=-1) <= limit
    return planar & turning


class RestartingClock:
    """Moves the origin of a clock that restarts at the first step after standing."""

    def __init__(self, clock: PhaseClock, asarray: AsArray, batch_shape: tuple[int, ...]) -> None:
        """Start with the origin where the policy begins.

        Args:
            clock: The clock; its ``restart`` is not None.
            asarray: Makes constants of the array library and device to compute with.
            batch_shape: Leading shape of every array in and out.
        """
        self._clock = clock
        # Where the phase would be `start`, so that it is `restart` at the first moving step.
        self._lead = ((clock.restart or 0.0) - clock.start) * clock.period
        like = asarray(np.zeros(batch_shape))
        xp = array_namespace(like)
        self.origin: Array = xp.zeros_like(like, dtype=xp.float64)
        self.stood: Array = xp.zeros_like(like, dtype=xp.bool)
        self._next: tuple[Array, Array] = (self.origin, self.stood)

    def since_origin(self, elapsed: Array, command: Array) -> Array:
        """Time on this clock, [s], shape ``(...)``; `commit` makes its restarts count."""
        xp = array_namespace(command)
        standing = is_standing(self._clock, command)
        origin = xp.where(self.stood & ~standing, elapsed - self._lead, self.origin)
        self._next = (origin, standing)
        return elapsed - origin

    def commit(self) -> None:
        """Make the step computed last the one before the next."""
        self.origin, self.stood = self._next

    def reset(self, rows: Array | None) -> None:
        """Back to the start, in the rows where bool ``rows`` is True, or everywhere."""
        xp = array_namespace(self.origin)
        zero, never = xp.zeros_like(self.origin), xp.zeros_like(self.stood)
        if rows is not None:
            zero, never = xp.where(rows, zero, self.origin), xp.where(rows, never, self.stood)
        self.origin, self.stood = zero, never
