"""Processes that tests start by the fixture `start`: none of them outlives its test."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

Start = Callable[..., subprocess.Popen[Any]]
"""What the fixture gives: `subprocess.Popen`, with a session of its own for each process."""

PATIENCE = 30.0
"""How long a process may take to end when it is told to, [s]."""


def end(process: subprocess.Popen[Any]) -> None:
    """End a process that a failed test has left; nothing where it has ended."""
    if process.poll() is None:
        # First as it likes to be told, for it may have processes of its own.
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
