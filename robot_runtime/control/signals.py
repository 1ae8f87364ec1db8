"""Ctrl-C and its relatives as a number the loop looks at, not an exception in its middle."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Counts SIGINT, SIGTERM and SIGHUP while it is open.

    Outside the main thread Python cannot take signals; there it counts nothing and leaves them to
    whoever has them.
    """

    def __init__(self) -> None:
        """Count from zero."""
        self.count = 0
        self._interrupts = 0
        self._before: list[tuple[signal.Signals, Callable[..., Any] | int | None]] = []

    @property
    def insistent(self) -> bool:
        """Whether somebody pressed Ctrl-C more than once; a SIGTERM that follows does not count."""
        return self._interrupts > 1

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._before.append((number, signal.signal(number, self._handle)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before:
            with contextlib.suppress(ValueError, TypeError, OSError):
                # None: a handler that was not set by Python and cannot be put back.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self._interrupts += number == signal.SIGINT
