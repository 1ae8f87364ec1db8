"""The seam to time: when the next tick of the loop is due, and who waits for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

_LATEST = 0.4
"""Latest start of a tick after its deadline, in periods. Below one half, so that a scheduler that
takes the processor between two readings of the clock cannot bring two starts that close."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """How a wait ended.

    Attributes:
        lateness: Time from the tick's deadline to its start, [s]; 0 in simulated time.
        skipped: Ticks that were missed and left out since the one before.
        overrun: Whether the work of the tick before was not done at this tick's deadline.
    """

    lateness: float
    skipped: int
    overrun: bool


class Clock(Protocol):
    """Time as the loop knows it: monotonic time on a robot, the simulator's time in sim2sim."""

    @property
    def period(self) -> float:
        """Time between two ticks, [s]."""
        ...

    def now(self) -> float:
        """The time, [s]; never decreases."""
        ...

    def start(self) -> None:
        """Make this moment tick 0, from which all deadlines count."""
        ...

    def wait(self) -> Tick:
        """Let time pass until the next tick: sleep, or step the simulation."""
        ...


class MonotonicClock:
    """Absolute deadlines on monotonic time.

    The deadline of tick k is ``start + k * period``, so that nothing accumulates. A tick that can
    no longer start soon after its deadline is left out and counted, as in ros2_control and upkie:
    the phase is kept, late ticks never come in a burst, and no two ticks start less than half a
    period apart.
    """

    def __init__(
        self,
        period: float,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Begin now.

        Args:
            period: Time between two ticks, [s].
            now: Gives monotonic time, [s].
            sleep: Sleeps for a time, [s]; may wake up late.
        """
        self._period = period
        self._now = now
        self._sleep = sleep
        self._start = now()
        self._index = 0

    @property
    def period(self) -> float:
        """Time between two ticks, [s]."""
        return self._period

    def now(self) -> float:
        """Monotonic time, [s]."""
        return self._now()

    def start(self) -> None:
        """Make this moment tick 0."""
        self._start = self._now()
        self._index = 0

    def wait(self) -> Tick:
        """Sleep until the next tick that can still start in time."""
        due = self._index + 1
        now = self._now()
        overrun = now > self._deadline(due)
        index = due
        while True:
            index = max(index, self._first_in_time(now))
            left = self._deadline(index) - now
            if left <= 0.0:
                break
            self._sleep(left)
            # A sleep that ends early is repeated; one that ends too late costs this tick as well.
            now = self._now()
        self._index = index
        # Counted, not said: a terminal that is held by Ctrl-S would hold the loop.
        return Tick(lateness=-left, skipped=index - due, overrun=overrun)

    def _deadline(self, index: int) -> float:
        return self._start + index * self._period

    def _first_in_time(self, now: float) -> int:
        """The first tick whose deadline does not lie too far back."""
        return math.ceil((now - self._start) / self._period - _LATEST)
