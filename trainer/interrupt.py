"""Ctrl-C as a request: the iteration is finished and a checkpoint written."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopOnInterrupt:
    """Turns the first Ctrl-C into a request; the second one interrupts as usual."""

    def __init__(self) -> None:
        """Nothing is requested yet."""
        self.requested = False
        self._previous: Any = None

    def __enter__(self) -> StopOnInterrupt:
        """Take over SIGINT; signals belong to the main thread, elsewhere nothing happens."""
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._request)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give SIGINT back."""
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
