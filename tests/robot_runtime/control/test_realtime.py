"""Real-time settings: what is granted is given back, what is refused is said, nothing raises."""

import contextlib
import gc
import os
import resource

import numpy as np
import pytest

from robot_runtime.control import realtime as module
from robot_runtime.control.clock import Tick
from robot_runtime.control.realtime import quiet_memory, realtime
from robot_runtime.control.timing import TimingLog


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_quiet_inside_and_as_before_outside(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        with contextlib.suppress(RuntimeError), quiet_memory():
            assert not gc.isenabled()
            assert gc.get_freeze_count() > 0
            raise RuntimeError
        assert gc.isenabled() is enabled
        assert gc.get_freeze_count() == 0
    finally:
        gc.enable()


def test_whatever_the_machine_grants_is_given_back() -> None:
    def settings() -> tuple[object, ...]:
        return (
            os.sched_getscheduler(0),
            os.sched_getparam(0),
            os.sched_getaffinity(0),
            resource.getrlimit(resource.RLIMIT_MEMLOCK),
            gc.isenabled(),
        )

    before = settings()
    cpu = min(os.sched_getaffinity(0))
    with realtime(priority=1, cpu=cpu) as refused:
        text = " ".join(refused)
        # Each thing is either so or said.
        assert os.sched_getscheduler(0) == os.SCHED_FIFO or "SCHED_FIFO" in text
        assert os.sched_getaffinity(0) == {cpu} or f"processor {cpu}" in text
    assert settings() == before


def test_a_machine_that_grants_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(module.os, "sched_setscheduler", refuse)
    monkeypatch.setattr(module.resource, "getrlimit", lambda _: (65536, 65536))
    monkeypatch.setattr(module.resource, "setrlimit", refuse)
    monkeypatch.setattr(module.os, "sched_setaffinity", refuse)
    with realtime(cpu=0) as refused:
        assert not gc.isenabled()
    assert [line.split(":")[0] for line in refused] == [
        "without SCHED_FIFO (needs CAP_SYS_NICE)",
        "without locked memory (needs an unlimited memlock)",
        "without processor 0",
    ]


def test_timing_is_summed_up_like_numpy_does() -> None:
    rng = np.random.default_rng(0)
    computes, lates = rng.exponential(1e-3, 500), rng.exponential(1e-4, 500)
    log = TimingLog(0.02)
    for i in range(500):
        log.tick(10.0 + 0.02 * i, float(computes[i]))
        log.wait(Tick(lateness=float(lates[i]), skipped=i % 3, overrun=i % 5 == 0))
    timing = log.summary()
    # The first tick is never late, and the last wait belongs to a tick that did not run.
    lates = np.concatenate([[0.0], lates[:-1]])
    for spread, values in ((timing.compute, computes), (timing.lateness, lates)):
        assert spread.p50 == pytest.approx(np.quantile(values, 0.5))
        assert spread.p99 == pytest.approx(np.quantile(values, 0.99))
    assert timing.compute.max == computes.max()
    assert (timing.ticks, timing.skipped, timing.overruns) == (
        500,
        sum(i % 3 for i in range(500)),
        100,
    )
    assert timing.elapsed == pytest.approx(499 * 0.02)
    assert timing.rate == pytest.approx(50.0)
    log.reset()
    assert log.summary().ticks == 0
    assert log.summary().compute.max == 0.0
