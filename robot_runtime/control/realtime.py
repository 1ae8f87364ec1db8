"""What the operating system can do for a loop: everything is tried, nothing is demanded."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
from collections.abc import Callable, Generator

_MCL_CURRENT_AND_FUTURE = 3
PRIORITY = 60
"""Default SCHED_FIFO priority: above interrupt threads' 50, below the kernel's watchdogs."""


@contextlib.contextmanager
def quiet_memory() -> Generator[None]:
    """Keep the garbage collector out of the loop: one full collection takes a tenth of a second.

    What exists is collected once and then left alone; new garbage waits until the end.
    """
    enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


@contextlib.contextmanager
def realtime(priority: int = PRIORITY, cpu: int | None = None) -> Generator[list[str]]:
    """Ask for real-time scheduling, locked memory and a processor, and give them back at the end.

    Enter it before a driver starts its threads, so that they inherit the priority, and after the
    flight recorder has started its process, which shall not.

    Args:
        priority: SCHED_FIFO priority, 1 to 99.
        cpu: Processor to stay on; None for any.

    Yields:
        A line for each thing that was not granted.
    """
    refused: list[str] = []
    with contextlib.ExitStack() as undo:
        undo.enter_context(quiet_memory())
        _try(refused, "SCHED_FIFO (needs CAP_SYS_NICE)", lambda: _fifo(priority, undo))
        _try(refused, "locked memory (needs an unlimited memlock)", lambda: _lock(undo))
        if cpu is not None:
            _try(refused, f"processor {cpu}", lambda: _pin(cpu, undo))
        yield refused


def _try(refused: list[str], what: str, function: Callable[[], None]) -> None:
    try:
        function()
    except (OSError, ValueError, AttributeError) as error:
        refused.append(f"without {what}: {error}")


def _fifo(priority: int, undo: contextlib.ExitStack) -> None:
    policy, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    undo.callback(_ignore_errors, lambda: os.sched_setscheduler(0, policy, parameter))


def _lock(undo: contextlib.ExitStack) -> None:
    # With a finite limit later allocations would fail in the middle of the run.
    limits = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limits[0] != resource.RLIM_INFINITY:
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, unlimited)
        undo.callback(_ignore_errors, lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, limits))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(_MCL_CURRENT_AND_FUTURE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    undo.callback(_ignore_errors, libc.munlockall)


def _pin(cpu: int, undo: contextlib.ExitStack) -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    undo.callback(_ignore_errors, lambda: os.sched_setaffinity(0, before))


def _ignore_errors(function: Callable[[], object]) -> None:
    with contextlib.suppress(OSError, ValueError):
        function()
