"""Absolute deadlines: nothing accumulates, nothing bursts, what is missed is counted."""

import logging

import numpy as np
import pytest

from robot_runtime.control.clock import MonotonicClock, Tick
from tests.helpers.loops import FakeTime

PERIOD = 0.02


def run(time: FakeTime, clock: MonotonicClock, works: np.ndarray) -> tuple[np.ndarray, list[Tick]]:
    """Work for given times; returns the starts of the ticks and how the waits ended."""
    clock.start()
    starts, ticks = [time.now()], []
    for work in works:
        time.time += work
        ticks.append(clock.wait())
        starts.append(time.now())
    return np.array(starts), ticks


def test_the_rate_holds_and_nothing_bursts_after_a_stall() -> None:
    time = FakeTime()
    works = np.full(500, 0.003)
    works[250] = 0.2
    starts, ticks = run(time, time.clock(PERIOD), works)
    skipped = sum(tick.skipped for tick in ticks)
    elapsed = starts[-1] - starts[0]
    assert elapsed > 10.0
    assert (len(ticks) + skipped) / elapsed == pytest.approx(50.0, rel=1e-3)
    assert np.diff(starts).min() >= PERIOD / 2
    assert sum(tick.overrun for tick in ticks) == 1
    # The tick of 200 ms ends exactly at a deadline: nine were missed, the tenth starts in time.
    assert skipped == 9
    # The phase is kept: the starts stay whole periods apart, with a tolerance for float sums.
    assert np.abs((starts - starts[0]) / PERIOD - np.round((starts - starts[0]) / PERIOD)).max() < (
        1e-9
    )


@pytest.mark.parametrize("seed", range(5))
def test_random_work_and_late_wake_ups(seed: int) -> None:
    rng = np.random.default_rng(seed)
    time = FakeTime()
    time.oversleep = lambda: float(rng.choice([0.0, 0.0005, 0.012, 0.03], p=[0.6, 0.3, 0.07, 0.03]))
    works = rng.choice([0.001, 0.015, 0.0201, 0.031, 0.05, 0.2], size=2000)
    starts, ticks = run(time, time.clock(PERIOD), works)
    assert np.diff(starts).min() >= PERIOD / 2
    skipped = np.array([tick.skipped for tick in ticks])
    index = np.concatenate([[0], np.cumsum(1 + skipped)])
    lateness = starts - starts[0] - index * PERIOD
    # Every tick starts after its own deadline and less than half a period late, for ever.
    assert lateness.min() > -1e-9
    assert lateness.max() < PERIOD / 2
    np.testing.assert_allclose(lateness[1:], [tick.lateness for tick in ticks], atol=1e-9)
    assert [tick.overrun for tick in ticks] == list(
        starts[:-1] + works > starts[0] + (index[:-1] + 1) * PERIOD
    )


def test_a_slightly_late_tick_starts_at_once_and_keeps_the_phase() -> None:
    time = FakeTime()
    starts, ticks = run(time, time.clock(PERIOD), np.array([0.025, 0.001, 0.001]))
    np.testing.assert_allclose(starts - starts[0], [0.0, 0.025, 0.04, 0.06], atol=1e-9)
    assert [tick.skipped for tick in ticks] == [0, 0, 0]
    assert [tick.overrun for tick in ticks] == [True, False, False]


def test_a_sleep_that_ends_early_is_repeated() -> None:
    time = FakeTime()
    sleeps: list[float] = []

    def sleep(duration: float) -> None:
        sleeps.append(duration)
        time.time += 0.6 * duration if len(sleeps) < 4 else duration

    clock = MonotonicClock(PERIOD, now=time.now, sleep=sleep)
    clock.start()
    assert clock.wait().lateness == pytest.approx(0.0, abs=1e-9)
    assert len(sleeps) == 4


def test_a_long_suspend_is_skipped_in_one_go() -> None:
    time = FakeTime()
    clock = time.clock(PERIOD)
    clock.start()
    time.time += 3600.0
    tick = clock.wait()
    assert tick.overrun
    # An hour has 180,000 periods; the tick at its end still starts in time.
    assert tick.skipped == 179_999


def test_ten_million_periods_do_not_drift() -> None:
    time = FakeTime()
    clock = time.clock(0.002)
    clock.start()
    begin = time.now()
    time.time += 20_000.0
    clock.wait()
    clock.wait()
    # 10,000,001 periods of 2 ms; a float sum of that many is off by 1e-3 s.
    assert time.now() - begin == pytest.approx(20_000.002, abs=1e-7)


def test_the_loop_writes_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever reads slowly, such as a terminal after Ctrl-S, would be waited for."""
    time = FakeTime()
    with caplog.at_level(logging.DEBUG):
        _, ticks = run(time, time.clock(PERIOD), np.full(300, 0.05))
    assert all(tick.skipped for tick in ticks)
    assert not caplog.records


def test_starting_again_forgets_the_past() -> None:
    time = FakeTime()
    clock = time.clock(PERIOD)
    time.time += 5.0
    clock.start()
    tick = clock.wait()
    assert tick.lateness == pytest.approx(0.0, abs=1e-9)
    assert (tick.skipped, tick.overrun) == (0, False)
