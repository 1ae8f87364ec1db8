"""The whole line by its commands: train, export, inspect, sim2sim, run, replay, resume."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from robot_runtime import cli
from robot_runtime.errors import ExitCode
from robot_runtime.policy.file import open_policy
from tests.helpers.processes import Start
from trainer.commands import demo
from trainer.commands.demo import FULL, QUICK, _wait, steps

SMALL = ("--num-envs", "16", "--iterations", "2", "--sim-threads", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained and exported policy, two iterations old."""
    folder = tmp_path_factory.mktemp("line")
    train = ["train", "quadruped-flat", *SMALL, "--seed", "3", "--out", str(folder / "train")]
    assert cli.main(train) == ExitCode.GOOD
    policy, script = str(folder / "policy.onnx"), str(folder / "policy.pt")
    export = ["export", str(folder / "train"), "-o", policy, "--torchscript", script]
    assert cli.main(export) == ExitCode.GOOD
    return folder


def run_json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict]:
    capsys.readouterr()
    code = cli.main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_file_proves_itself(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = open_policy(folder / "policy.onnx")
    assert policy.contract.name == "quadruped-flat"
    assert policy.trace.origin == "recorded"
    # A turn of more than 90 degrees is on the record: only then is a world-frame gyro seen.
    quat = policy.trace.inputs.base_quat
    assert (np.abs(quat[:, 3]) > np.sin(np.pi / 4)).any()
    code, shown = run_json(["inspect", str(folder / "policy.onnx")], capsys)
    assert code == ExitCode.GOOD
    assert "Traceback" not in json.dumps(shown)


def test_nothing_of_this_machine_is_in_the_file(folder: Path) -> None:
    data = (folder / "policy.onnx").read_bytes()
    assert str(folder).encode() not in data
    assert not re.search(rb"/(home|root|work|tmp)/", data)


def test_the_shipped_file_is_judged_and_a_raw_policy_fails(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = folder / "report.html"
    code, verdict = run_json(
        ["sim2sim", str(folder / "policy.onnx"), "--scenarios", "1", "--report", str(page)], capsys
    )
    assert code == ExitCode.FAILED
    assert verdict
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", text)


@pytest.mark.usefixtures("unhurried")
def test_it_runs_in_real_time_and_its_log_replays(folder: Path) -> None:
    log = folder / "flight.npz"
    policy = str(folder / "policy.onnx")
    assert cli.main(["run", policy, "--robot", "sim", "--duration", "1", "--log", str(log)]) == 0
    assert cli.main(["replay", str(log), "--policy", policy]) == ExitCode.GOOD


@pytest.mark.usefixtures("unhurried")
def test_a_log_of_another_policy_is_refused(folder: Path) -> None:
    """Two iterations more make another policy: its file must not pass for this one."""
    log, other = folder / "mock.npz", folder / "other.onnx"
    policy = str(folder / "policy.onnx")
    assert cli.main(["run", policy, "--robot", "mock", "--duration", "0.5", "--log", str(log)]) == 0
    more = [
        *("train", "quadruped-flat", "--resume", str(folder / "train"), "--iterations", "3"),
        *("--out", str(folder / "more")),
    ]
    assert cli.main(more) == ExitCode.GOOD
    assert cli.main(["export", str(folder / "more"), "-o", str(other)]) == ExitCode.GOOD
    assert cli.main(["replay", str(log), "--policy", str(other)]) == ExitCode.BAD_INPUT


@pytest.mark.parametrize("pace", [FULL, QUICK], ids=["full", "quick"])
def test_the_demo_calls_verbs_with_options_they_know(
    pace: object, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in steps(folder, pace, seed=1):  # type: ignore[arg-type]
        capsys.readouterr()
        assert cli.main([command[0], "--help"]) == ExitCode.GOOD
        help_page = capsys.readouterr().out
        for option in (word for word in command if word.startswith("-")):
            assert re.search(rf"{option}\b", help_page), f"{command[0]} has no {option}"


def test_a_demo_in_the_background_is_ended_by_another_signal(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Ctrl-C is ignored the verbs that it starts ignore it too."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        verb = start(["sleep", "200"])

        def interrupted() -> int:
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(verb, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            _wait(verb)
    finally:
        signal.signal(signal.SIGINT, before)
    assert verb.returncode == -signal.SIGTERM


def test_a_demo_that_is_refused_says_so_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "_call", lambda _: ExitCode.BAD_INPUT)
    out = tmp_path / "demo"
    assert cli.main(["demo", "--out", str(out)]) == ExitCode.BAD_INPUT
    assert "'surefoot train' ended with exit code 2" in capsys.readouterr().err
    assert not out.exists()
    out.mkdir()
    (out / "something").touch()
    assert cli.main(["demo", "--out", str(out)]) == ExitCode.BAD_INPUT
    assert f"folder '{out}' is not empty" in capsys.readouterr().err


def test_an_interrupted_demo_keeps_what_was_trained(tmp_path: Path, start: Start) -> None:
    """A terminal tells the whole group; training hears of it once and ends in its own way."""
    out = tmp_path / "demo"
    call = [sys.executable, "-m", "robot_runtime.cli", "demo", "--out", str(out)]
    running = start(call, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    metrics = out / "train" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text()):
        assert running.poll() is None
        time.sleep(0.1)
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=300)
    assert running.returncode == 130
    assert said.splitlines()[-1] == "surefoot demo: interrupted"
    assert list((out / "train" / "checkpoints").glob("iteration_*.pt"))
