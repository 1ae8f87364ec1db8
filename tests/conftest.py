"""What every test shares: one thread for all numerics, and where recorded policies lie."""

import os

# Before anything imports numpy, onnxruntime or torch: two pytest workers on two cores must not
# start four spinning threads, and bit-identical results are promised for one torch thread.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import contextlib
import functools
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from robot_runtime.control.safety import SafetyLimits
from tests.helpers.processes import Start, end

# The same examples in every run, and no deadline: a busy machine is no bug.
hypothesis.settings.register_profile("house", deadline=None, derandomize=True)
hypothesis.settings.load_profile("house")

NUM_GPUS = 0
with contextlib.suppress(ModuleNotFoundError):
    import torch

    torch.set_num_threads(1)
    NUM_GPUS = torch.cuda.device_count()


def pytest_configure() -> None:
    """Take the signals that a parent had ignored: a job in the background, or one under nohup.

    Whatever tests start inherits that, and would never notice that it is interrupted.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none, and be patient with what is slow."""
    for item in items:
        if item.get_closest_marker("gpu") and not NUM_GPUS:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(3600))


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes as `subprocess.Popen` does, and ends those that a failed test leaves."""
    started: list[subprocess.Popen[Any]] = []

    def popen(arguments: list[str], **options: Any) -> subprocess.Popen[Any]:
        started.append(subprocess.Popen(arguments, start_new_session=True, **options))
        return started[-1]

    yield popen
    for process in started:
        end(process)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in real time that succeed although a busy machine left the loop without a processor."""
    patient = functools.partial(SafetyLimits, stall=60.0)
    monkeypatch.setattr("robot_runtime.control.loop.SafetyLimits", patient)


@pytest.fixture(scope="session")
def real_dir() -> Path:
    """The folder of recorded policies of other projects, which are not ours to ship."""
    folder = os.environ.get("SUREFOOT_REAL", "")
    if not folder:
        pytest.skip("SUREFOOT_REAL does not name the folder of recorded policies")
    path = Path(folder)
    # A wrong name must not look like a pass.
    assert path.is_dir(), f"SUREFOOT_REAL={folder} is not a folder"
    return path
