"""Ending with the others, where nobody answers any more."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
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


def test_a_process_without_standard_error_ends_all_the_same() -> None:
    script = (
        "import sys, threading, time; from trainer.torchrun import _end; sys.stderr = None; "
        "threading.Thread(target=_end, args=('x',)).start(); time.sleep(100.0); sys.exit(7)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[2], timeout=200, check=False
    )
    assert done.returncode == 1
