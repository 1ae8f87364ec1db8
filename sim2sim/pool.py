"""Processes that run one task after another, and that may be killed at any moment.

The executor of the standard library shares one pipe and one lock among its processes: one that is
killed while it writes leaves half a message there, and whoever reads it waits for ever for the
rest. Here every process has a pipe of its own, and the only other end of it is its owner's: who
reads from a dead process is told so.
"""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
import signal
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from robot_runtime.errors import Refused

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Workshop(Generic[Task, Result]):
    """What every process does; a value of module-level functions, for it travels to them.

    Attributes:
        prepare: Called once in every process; what it returns is the first argument of `run`.
        run: Called for every task.
    """

    prepare: Callable[[], Any]
    run: Callable[[Any, Task], Result]


@dataclass(slots=True)
class _Worker:
    """A process and what it is at."""

    process: BaseProcess
    pipe: Connection[Any, Any]
    task: int


class _InProcess(Exception):
    """The traceback of an error, as the process that met it saw it."""


def run_tasks(
    workshop: Workshop[Task, Result], tasks: Sequence[Task], workers: int
) -> Generator[Result]:
    """Run tasks in processes of their own and give the results in the order of the tasks.

    However it ends, by the last result, an error or an interrupt: no process is left. Close the
    generator if you leave it before its end.

    Args:
        workshop: What to do.
        tasks: What to do it with.
        workers: How many processes, at most one for each task.

    Yields:
        The result of the next task.

    Raises:
        Refused: A process died (killed from outside, out of memory).
        Exception: What a task raised, of the first that did.
    """
    running: list[_Worker] = []
    waiting = iter(enumerate(tasks))
    found: dict[int, Result] = {}
    try:
        # Fresh processes: a fork would copy the threads of onnxruntime without their state.
        context = multiprocessing.get_context("spawn")
        with _deaf_children():
            for index, task in itertools.islice(waiting, workers):
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs, workshop), daemon=True)
                running.append(_Worker(process, ours, index))
                process.start()
                theirs.close()
                _give(running[-1], task)
        for wanted in range(len(tasks)):
            while wanted not in found:
                _collect(running, waiting, found)
            yield found.pop(wanted)
    finally:
        for worker in running:
            # Not SIGTERM: a control loop takes that for its own end, and would go on to its result.
            if worker.process.pid is not None:
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()


def _collect(
    running: list[_Worker], waiting: Iterator[tuple[int, Task]], found: dict[int, Result]
) -> None:
    """Take what is ready from the processes, and give those the next tasks."""
    ready = connection.wait([worker.pipe for worker in running if worker.task >= 0])
    for worker in running:
        if worker.pipe not in ready:
            continue
        try:
            good, value, where = worker.pipe.recv()
        except (EOFError, OSError) as error:
            worker.process.join()
            raise Refused(
                f"the process of run {worker.task + 1} died (exit code {worker.process.exitcode}); "
                "it was killed, or there was not enough memory for so many processes"
            ) from error
        if not good:
            raise value from _InProcess(where)
        found[worker.task] = value
        worker.task, task = next(waiting, (-1, None))
        if worker.task >= 0:
            _give(worker, task)


def _give(worker: _Worker, task: object) -> None:
    try:
        worker.pipe.send(task)
    except OSError:
        # It is dead, and whoever waits for its result will be told.
        return


def _serve(pipe: Connection[Any, Any], workshop: Workshop[Any, Any]) -> None:
    """What a process does: one task after another, until its owner is gone."""
    try:
        try:
            prepared = workshop.prepare()
            while True:
                pipe.send((True, workshop.run(prepared, pipe.recv()), ""))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return
        except BaseException as error:
            pipe.send((False, _sendable(error), traceback.format_exc()))
    except OSError:
        return


def _sendable(error: BaseException) -> BaseException:
    """The error itself, or its text where it cannot travel."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes that start in here leave Ctrl-C to this one, which ends them.

    A terminal sends it to all of them, and each would print a traceback of its own. They inherit
    the blocked signal; here it arrives when the block is left.
    """
    # It lets signals in again when it starts, so that must have happened before.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
