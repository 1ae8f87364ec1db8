"""Processes of sim2sim: results in order, errors as they were, nobody waits for the dead."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import time
from contextlib import closing

import pytest

from robot_runtime.errors import BadInput, Refused
from sim2sim.pool import Workshop, run_tasks

_MORE_THAN_A_PIPE_TAKES = 10_000_000


def _prepare() -> int:
    return os.getpid()


def _nap(mine: int, seconds: float) -> tuple[float, bool]:
    time.sleep(seconds)
    return seconds, mine == os.getpid()


def _blob(_: int, size: int) -> bytes:
    return bytes(size)


def _fail(_: int, what: str) -> str:
    if what == "bad":
        raise BadInput("this one is bad")
    if what == "died":
        os.abort()
    if what == "unsendable":
        raise _Unsendable(lambda: None)
    return (lambda: what) if what == "lambda" else what  # pyright: ignore[reportReturnType]


class _Unsendable(Exception):
    pass


def test_results_come_in_the_order_of_the_tasks() -> None:
    naps = [0.2, 0.0, 0.05, 0.0, 0.1]
    assert list(run_tasks(Workshop(_prepare, _nap), naps, 3)) == [(nap, True) for nap in naps]
    assert multiprocessing.active_children() == []
    assert list(run_tasks(Workshop(_prepare, _nap), [], 3)) == []


def test_an_error_of_a_task_is_raised_with_its_traceback() -> None:
    with pytest.raises(BadInput, match="this one is bad") as caught:
        list(run_tasks(Workshop(_prepare, _fail), ["good", "bad", "good"], 2))
    assert "_fail" in str(caught.value.__cause__)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("what", ["lambda", "unsendable"])
def test_what_cannot_travel_is_an_error_and_no_wait(what: str) -> None:
    with pytest.raises(Exception, match=r"pickle|_Unsendable"):
        list(run_tasks(Workshop(_prepare, _fail), ["good", what], 2))


def test_a_process_that_dies_at_work_is_named() -> None:
    with pytest.raises(Refused, match=r"run 2 died \(exit code -6\)"):
        list(run_tasks(Workshop(_prepare, _fail), ["good", "died", "good"], 2))
    assert multiprocessing.active_children() == []


def test_a_process_killed_in_the_middle_of_a_message_is_named() -> None:
    """Half a message is what a reader would wait on for ever if others shared the pipe."""
    sizes = [1, _MORE_THAN_A_PIPE_TAKES]
    with closing(run_tasks(Workshop(_prepare, _blob), sizes, 1)) as running:
        assert next(running) == b"\0"
        (worker,) = inspect.getgeneratorlocals(running)["running"]
        # It is at its second result, of which nobody has read the end.
        assert worker.pipe.poll(200.0)
        (process,) = multiprocessing.active_children()
        process.kill()
        with pytest.raises(Refused, match=r"run 2 died \(exit code -9\)"):
            next(running)
    assert multiprocessing.active_children() == []


def test_leaving_it_ends_processes_that_are_still_writing() -> None:
    with closing(run_tasks(Workshop(_prepare, _blob), [1, *[_MORE_THAN_A_PIPE_TAKES] * 8], 3)) as r:
        next(r)
    assert multiprocessing.active_children() == []
