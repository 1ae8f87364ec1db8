"""Ending with the others, where nobody answers any more."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from trainer.torchrun import Watch


def test_a_store_that_does_not_answer_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the computer of the first process has lost its power."""
    asked, answer = threading.Event(), threading.Event()
    told: list[str] = []

    def check(keys: list[str]) -> bool:
        asked.set()
        answer.wait()
        return False

    store = SimpleNamespace(check=check, set=lambda *said: told.extend(said))
    monkeypatch.setattr("torch.distributed.TCPStore", lambda *_, **__: store)
    monkeypatch.setattr("trainer.torchrun._PATIENCE", 0.1)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    watch = Watch(1)
    assert asked.wait(60.0)
    watch.fail()
    assert told == []
    answer.set()
