"""Hostile files: exit code 2 and one line; no traceback, hang, full memory, and no code is run."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.hostile import Case, Originals, all_cases, made_on_purpose

ROOT = Path(__file__).resolve().parents[2]

MAX_SECONDS = 10.0
"""CPU time of one file, [s]: wall time tells nothing on a busy machine."""

MAX_MEGABYTES = 2048

PATIENCE = 120.0
"""Wall time after which a worker counts as hanging, [s]."""


class Worker:
    """A process that is fed one file at a time, started anew where one kills it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def answer(self, case: Case) -> dict[str, Any] | str:
        """What became of a file; a text where the process did not survive it."""
        path = self._folder / f"given{case.suffix}"
        path.write_bytes(case.data)
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"kind": case.kind, "path": str(path)}) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
        line = process.stdout.readline() if ready else ""
        if line:
            return json.loads(line)
        code = process.poll()
        self.close()
        return "hangs" if not ready else f"killed the process ({code})"

    def _start(self) -> subprocess.Popen[str]:
        environment = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")
        self._process = subprocess.Popen(
            [sys.executable, ROOT / "tests" / "fuzz" / "worker.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=self._folder,
            env=environment,
        )
        return self._process


def verdict(case: Case, answer: dict[str, Any] | str) -> str:
    """What is wrong with an answer; empty where nothing is."""
    if isinstance(answer, str):
        return answer
    code, lines = answer["code"], answer["stderr"]
    if answer["seconds"] > MAX_SECONDS:
        return f"took {answer['seconds']:.1f} s"
    if answer["megabytes"] > MAX_MEGABYTES:
        return f"took {answer['megabytes']} MiB"
    if code not in ((2,) if case.bad else (0, 1, 2)):
        return f"exit code {code}: {lines}"
    if code == 2 and len(lines) != 1:
        return f"{len(lines)} lines: {lines}"
    if any("Traceback" in line or "internal error" in line for line in lines):
        return f"{lines}"
    return ""


def feed(cases: Sequence[Case], folder: Path, exploded: Path) -> list[str]:
    """Feed every case to a worker; returns what went wrong."""
    worker, wrong = Worker(folder), []
    try:
        for case in cases:
            found = verdict(case, worker.answer(case))
            if exploded.exists():
                found = "ran code"
                exploded.rmdir()
            if found:
                wrong.append(f"{case.kind} of '{case.name}': {found}")
                # Memory is counted since the process began.
                worker.close()
    finally:
        worker.close()
    return wrong


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Originals:
    return Originals(tmp_path_factory.mktemp("originals"))


def test_some_hostile_files(originals: Originals, tmp_path: Path) -> None:
    """A few of every kind, drawn and thought of: the quick share of the test below."""
    cases = all_cases(originals)
    chosen = cases[:: max(1, len(cases) // 40)]
    thought_of = [case for case in made_on_purpose(originals)[::12] if case not in chosen]
    assert {case.kind for case in chosen} == {case.kind for case in cases}
    assert len(chosen) + len(thought_of) >= 50
    assert feed([*chosen, *thought_of], tmp_path, originals.bomb) == []


def test_the_originals_are_good(originals: Originals, tmp_path: Path) -> None:
    """What is not damaged is not refused: the refusals above are about the damage."""
    worker = Worker(tmp_path)
    for kind, suffix, data in (
        ("inspect", ".onnx", originals.policy),
        ("run", ".onnx", originals.policy),
        ("checkpoint", ".pt", originals.checkpoint),
    ):
        case = Case(name="original", kind=kind, suffix=suffix, data=data, bad=False)
        answer = worker.answer(case)
        assert isinstance(answer, dict)
        assert answer["code"] == 0, answer
    worker.close()


@pytest.mark.slow
def test_two_thousand_hostile_files(originals: Originals, tmp_path: Path) -> None:
    cases = all_cases(originals)
    assert len(cases) >= 2000
    assert feed(cases, tmp_path, originals.bomb) == []
