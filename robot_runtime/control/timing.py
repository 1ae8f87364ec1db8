"""How well the loop kept its rate: collected without allocating, summed up at the end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robot_runtime.control.clock import Tick

_KEPT = 1 << 17
"""Ticks whose times are kept for percentiles: 43 minutes at 50 Hz, the newest ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Times of many ticks, [s]."""

    p50: float
    p99: float
    max: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopTiming:
    """Timing of a run.

    Attributes:
        period: What the contract asks for, [s].
        elapsed: From the first tick to the last, [s].
        ticks: Ticks that ran.
        skipped: Ticks that were left out because they could not start in time.
        overruns: Ticks whose work was not done when the next one was due.
        rate: Ticks per second that ran, [1/s].
        compute: Time from a tick's start to its command being sent and recorded, [s].
        lateness: Time from a tick's deadline to its start, [s].
    """

    period: float
    elapsed: float
    ticks: int
    skipped: int
    overruns: int
    rate: float
    compute: Spread
    lateness: Spread


class TimingLog:
    """Collects the times of ticks in memory that was set aside before."""

    def __init__(self, period: float) -> None:
        """Set the memory aside and touch it.

        Args:
            period: Period of the loop, [s].
        """
        self._period = period
        self._compute = np.full(_KEPT, np.nan)
        self._lateness = np.full(_KEPT, np.nan)
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._ticks = self._skipped = self._overruns = 0
        self._first = self._last = 0.0
        self._longest = self._latest = 0.0

    def tick(self, now: float, compute: float) -> None:
        """File the work of a tick.

        Args:
            now: When it started, [s].
            compute: How long it took, [s].
        """
        if self._ticks == 0:
            self._first = now
            self._lateness[0] = 0.0
        self._last = now
        self._compute[self._ticks % _KEPT] = compute
        self._longest = max(self._longest, compute)
        self._ticks += 1

    def wait(self, tick: Tick) -> None:
        """File how the wait after it ended."""
        self._lateness[self._ticks % _KEPT] = tick.lateness
        self._latest = max(self._latest, tick.lateness)
        self._skipped += tick.skipped
        self._overruns += tick.overrun

    def summary(self) -> LoopTiming:
        """What was collected."""
        count = min(self._ticks, _KEPT)
        elapsed = self._last - self._first
        return LoopTiming(
            period=self._period,
            elapsed=elapsed,
            ticks=self._ticks,
            skipped=self._skipped,
            overruns=self._overruns,
            rate=(self._ticks - 1) / elapsed if elapsed > 0.0 else 0.0,
            compute=_spread(self._compute[:count], self._longest),
            lateness=_spread(self._lateness[:count], self._latest),
        )


def _spread(values: NDArray[np.float64], largest: float) -> Spread:
    if not values.size:
        return Spread(p50=0.0, p99=0.0, max=0.0)
    p50, p99 = np.percentile(values, [50.0, 99.0])
    return Spread(p50=float(p50), p99=float(p99), max=largest)
