"""`make sync` says what it does: a line for each stage, and pip's progress at a terminal."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PYTHON = """#!/bin/sh
# Stands for Python: makes a .venv with itself in it, and notes what pip is asked for.
if [ "$2" = venv ]; then mkdir -p .venv/bin && cp "$0" .venv/bin/python; exit 0; fi
if [ "$2" = pip ]; then echo "$*" >> pip.log; [ ! -e broken ]; fi
"""

STAGES = ("1/3 making .venv with ", "2/3 installing torch==", "3/3 installing surefoot", "done: ")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """What `make sync` reads, and a Python that installs nothing."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return tmp_path


def sync(project: Path, *, terminal: bool = False, **environment: str) -> tuple[int, str]:
    """The exit code and what is said on standard output, a pipe or a terminal."""
    command = ["make", "sync", f"PYTHON={project / 'python'}"]
    # Not what the tests themselves were called with.
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k != "CI"}
    ours, theirs = pty.openpty() if terminal else os.pipe()
    with subprocess.Popen(
        command, cwd=project, env=kept | environment, stdout=theirs, stderr=subprocess.DEVNULL
    ) as process:
        os.close(theirs)
        said = b""
        try:
            while piece := os.read(ours, 4096):
                said += piece
        except OSError:
            pass  # A terminal whose other end is closed.
        os.close(ours)
    return process.returncode, said.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("terminal", "environment", "quiet"),
    [(False, {}, True), (True, {}, False), (True, {"CI": "true"}, True)],
    ids=["log", "terminal", "terminal of CI"],
)
def test_sync_says_every_stage_and_pip_shows_progress_to_people_alone(
    project: Path, terminal: bool, environment: dict[str, str], quiet: bool
) -> None:
    code, said = sync(project, terminal=terminal, **environment)
    assert code == 0
    lines = said.splitlines()
    assert len(lines) == len(STAGES)
    assert all(line.startswith(stage) for line, stage in zip(lines, STAGES, strict=True)), said
    asked = (project / "pip.log").read_text().splitlines()
    assert len(asked) == 2
    assert [("--quiet" in line) for line in asked] == [quiet, quiet]
    # What is there is not installed again.
    assert sync(project)[0] == 0
    assert len((project / "pip.log").read_text().splitlines()) == 2


def test_a_stage_that_fails_is_the_last_one_said_and_is_done_again(project: Path) -> None:
    (project / "broken").touch()
    code, said = sync(project)
    assert code != 0
    assert said.splitlines()[-1].startswith("2/3 ")
    (project / "broken").unlink()
    code, said = sync(project)
    assert code == 0
    assert [line.split()[0] for line in said.splitlines()] == ["2/3", "3/3", "done:"]
