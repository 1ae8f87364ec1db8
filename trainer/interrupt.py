"""Ctrl-C or SIGTERM as a request: the iteration is finished and a checkpoint written."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopOnInterrupt:
    """Turns the first Ctrl-C or SIGTERM into a request; the second one interrupts as usual."""

    def __init__(self) -> None:
        """Nothing is requested yet."""
        self.requested = False
        self._previous: list[tuple[signal.Signals, Any]] = []

    def __enter__(self) -> StopOnInterrupt:
        """Take over the signals; they belong to the main thread, elsewhere nothing happens."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._previous.append((number, signal.signal(number, self._request)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the signals back."""
        for number, handler in self._previous:
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        for each in _SIGNALS:
            signal.signal(each, signal.default_int_handler)
