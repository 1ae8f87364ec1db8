"""`surefoot run` and `surefoot replay`, as a user calls them."""

import errno
import functools
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_runtime.cli import main
from robot_runtime.commands.run import main as run_verb
from robot_runtime.control.clock import MonotonicClock
from robot_runtime.control.flightlog import read_log
from robot_runtime.control.modes import Mode
from robot_runtime.drivers.mock import MockRobot
from robot_runtime.policy.spec import ActionSpec
from tests.helpers.contracts import joint_names, make_action, quadruped_contract
from tests.helpers.loops import FakeTime
from tests.helpers.policies import write_random_policy
from tests.helpers.processes import Start

# Small actions, so that a robot of random weights stays within every limit.
SMALL = quadruped_contract(
    action=ActionSpec(
        terms=(make_action("legs", joint_names(), scale=(0.05,) * 12),), hold=(), filter=1.0
    )
)
# The shortest run: a tick of nothing, a second of standing up, this much policy, one of damping.
SHORT = ("--duration", "0.3")


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_random_policy(tmp_path_factory.mktemp("policy") / "policy.onnx", SMALL))


# The command as it is, and a machine that may be busy: see the fixture `unhurried`.
PATIENT = """
import functools, sys
from robot_runtime.cli import main
from robot_runtime.control import loop
loop.SafetyLimits = functools.partial(loop.SafetyLimits, stall=60.0)
sys.exit(main())
"""

Captured = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("unhurried")


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tick is late, whatever else the machine does; for what is not about time."""
    time = FakeTime()
    clock = functools.partial(MonotonicClock, now=time.now, sleep=time.sleep)
    monkeypatch.setattr("robot_runtime.commands.run.MonotonicClock", clock)
    robot = functools.partial(MockRobot, now=time.now)
    monkeypatch.setattr("robot_runtime.drivers.mock.MockRobot", robot)


def test_a_run_with_its_log_and_replay(policy: str, tmp_path: Path, capsys: Captured) -> None:
    log = str(tmp_path / "flight.npz")
    code = main(["run", policy, "--robot", "mock", *SHORT, "--log", log, "--json"])
    summary = json.loads(capsys.readouterr().out)
    assert code == 0
    assert summary["good"] is True
    assert summary["ended"] == "done"
    assert summary["mode"] == "DAMPING"
    assert summary["timing"]["period"] == 0.02
    # On a busy machine ticks are left out, also the last one.
    skipped = summary["timing"]["skipped"]
    assert summary["walked"] == pytest.approx(0.3, abs=0.05 + 0.02 * skipped)
    rows = read_log(Path(log)).rows
    assert len(rows) == summary["timing"]["ticks"]
    assert set(rows["mode"]) == {Mode.PASSIVE, Mode.STAND, Mode.POLICY, Mode.DAMPING}
    # The demo schedule asks to stand first.
    assert not rows["asked"].any()

    assert main(["replay", log, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["good"] is True
    assert result["compared"] == result["steps"] == np.count_nonzero(rows["step"])
    assert main(["replay", log, "--policy", policy]) == 0
    assert "steps equal, bit for bit" in capsys.readouterr().out


def test_a_run_for_people(policy: str, capsys: Captured) -> None:
    arguments = ["run", policy, "--robot", "mock", "--command", "0.2,0,0", *SHORT, "--rate-check"]
    code = main(arguments)
    out = capsys.readouterr().out
    assert "Running quadruped-test on mock at 50 Hz for 0.3 s" in out
    assert "ended          done" in out
    assert "Hz of 50 Hz" in out
    # On a machine that is too busy the check says so and fails; both are right.
    assert code == (1 if "too slow" in out else 0)


@pytest.mark.usefixtures("simulated")
def test_late_ticks_are_always_said_and_fail_on_a_real_robot(
    policy: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robot_runtime.commands.run._LOWEST_RATE", 1.5)
    run = ["run", policy, "--robot", "mock", "--no-realtime", "--duration", "0.1"]
    for robots, flags, expected in (
        (("mock",), [], 0),
        (("mock",), ["--rate-check"], 1),
        ((), [], 1),
        ((), ["--no-rate-check"], 0),
    ):
        monkeypatch.setattr("robot_runtime.commands.run._SIMULATED", robots)
        assert main([*run, *flags]) == expected
        assert "too slow: " in capsys.readouterr().out


@pytest.mark.usefixtures("simulated")
def test_a_fault_is_said_and_fails(policy: str, capsys: Captured) -> None:
    code = main(["run", policy, "--robot", "mock", "--option", "fail=tilt", "--option", "at=0.1"])
    assert code == 1
    assert "ended          fault: TILT: base leans 1.57 rad, limit 1.00" in capsys.readouterr().out


def test_a_command_beyond_its_range_is_said_once(policy: str, capsys: Captured) -> None:
    schedule = "0.1: 9,0,0; 0.1: 0,0,0; 0.1: 9,0,0"
    main(["run", policy, "--robot", "mock", "--command", schedule])
    highest = SMALL.commands[0].upper
    (line,) = [one for one in capsys.readouterr().err.splitlines() if "clipped" in one]
    assert line.startswith(f"surefoot run: lin_vel_x 9 is clipped to {highest:g}, the contract's ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--robot", "go7"], "no driver for a robot called 'go7'; there are: mock"),
        (["--robot", "mock", "--option", "fail"], "--option 'fail': expected name=value"),
        (["--robot", "mock", "--option", "x=1"], "no option 'x'; known: fail"),
        (["--robot", "mock", "--option", "at=1", "--option", "at=2"], "--option at: given twice"),
        (["--robot", "mock", "--command", "fast"], "expected three numbers vx,vy,wz"),
        (["--robot", "mock", "--command", "jump=1"], "no channel 'jump'"),
        (["--robot", "mock", "--duration", "-1"], "-1 s is not positive"),
        (["--robot", "mock", "--duration", "nan"], "nan s is not positive"),
        (["--robot", "mock", "--realtime", "--priority", "0"], "--priority: 0 is not in 1 ... 99"),
        (["--robot", "mock", "--priority", "100"], "--priority: 100 is not in 1 ... 99"),
        (["--robot", "mock", "--cpu", "0"], "--cpu: it is a part of --realtime, which is off"),
        (["--robot", "mock", "--command", "keyboard"], "the keyboard needs a terminal"),
        (["--robot", "mock", "--log", "/proc/no/flight.npz"], "cannot write into folder"),
        ([], "--robot"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    policy: str,
    arguments: list[str],
    message: str,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as stdin, os.fdopen(writing, "w"):
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main(["run", policy, *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("surefoot run: error: ")
    assert captured.err.count("\n") == 1
    assert "Running" not in captured.out


def test_a_policy_that_is_not_there(capsys: Captured) -> None:
    assert main(["run", "nothing.onnx", "--robot", "mock"]) == 2
    assert "'nothing.onnx' does not exist" in capsys.readouterr().err


def test_help_shows_an_example(capsys: Captured) -> None:
    for verb, example in (("run", "--robot mock --command"), ("replay", "surefoot replay flight")):
        assert main([verb, "--help"]) == 0
        assert example in capsys.readouterr().out


@pytest.mark.usefixtures("simulated")
def test_replay_wants_the_policy_that_was_recorded(
    policy: str, tmp_path: Path, capsys: Captured
) -> None:
    log = str(tmp_path / "flight.npz")
    moved = tmp_path / "moved.onnx"
    moved.write_bytes(Path(policy).read_bytes())
    assert main(["run", str(moved), "--robot", "mock", "--duration", "0.1", "--log", log]) == 0
    capsys.readouterr()
    moved.unlink()
    assert main(["replay", log]) == 2
    assert "say where it is with --policy FILE" in capsys.readouterr().err
    other = str(write_random_policy(tmp_path / "other.onnx", SMALL, seed=1))
    assert main(["replay", log, "--policy", other]) == 2
    assert "was recorded with policy" in capsys.readouterr().err
    assert main(["replay", log, "--policy", policy]) == 0
    assert main(["replay", str(tmp_path / "none.npz")]) == 2
    assert "No such file" in capsys.readouterr().err


@pytest.mark.usefixtures("simulated")
def test_replay_names_the_first_difference(policy: str, tmp_path: Path, capsys: Captured) -> None:
    log = tmp_path / "flight.npz"
    assert main(["run", policy, "--robot", "mock", "--duration", "0.2", "--log", str(log)]) == 0
    with np.load(log) as npz:
        arrays = {name: npz[name] for name in npz.files}
    steps = np.flatnonzero(arrays["step"])
    place = int(steps[len(steps) // 2])
    arrays["joint_vel"][place, 2] += 1.0
    with log.open("wb") as file:
        np.savez(file, **arrays)
    capsys.readouterr()
    assert main(["replay", str(log)]) == 1
    out = capsys.readouterr().out
    tick = arrays["tick"][place]
    assert f"first difference at tick {tick}: observation joint_vel[FL_calf_joint]" in out


def wait_for_bytes(process: subprocess.Popen[Any], folder: Path, wanted: int) -> None:
    """Wait until the log that a process writes into a folder has so many bytes."""
    while max((path.stat().st_size for path in folder.glob("*.part")), default=0) < wanted:
        assert process.poll() is None
        time.sleep(0.05)


@pytest.mark.usefixtures("simulated")
def test_a_log_that_cannot_be_finished_fails_the_run(
    policy: str, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("robot_runtime.control.recorder.write_log", full)
    log = str(tmp_path / "flight.npz")
    # Not 2, which says that nothing has moved.
    assert main(["run", policy, "--robot", "mock", *SHORT, "--log", log]) == 1
    said = capsys.readouterr()
    assert "ended          done" in said.out
    assert "flight log" not in said.out
    (part,) = tmp_path.iterdir()
    assert f"'{part}' has what was recorded" in said.err
    assert len(read_log(part).rows) > 50


def test_the_robot_is_let_go_when_nobody_reads_the_output(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*args: object) -> None:
        raise BrokenPipeError

    closed: list[MockRobot] = []
    monkeypatch.setattr("robot_runtime.commands.run._announce", gone)
    monkeypatch.setattr(MockRobot, "close", lambda robot: closed.append(robot))
    with pytest.raises(BrokenPipeError):
        run_verb([policy, "--robot", "mock", *SHORT])
    assert len(closed) == 1


def test_ctrl_c_ends_in_damping_and_a_whole_log(policy: str, tmp_path: Path, start: Start) -> None:
    log = tmp_path / "flight.npz"
    keys, device = pty.openpty()
    process = start(
        [sys.executable, "-c", PATIENT, "run", policy, "--robot", "mock", "--json",
         "--command", "keyboard", "--log", str(log)],
        stdin=device, stdout=subprocess.PIPE,
    )  # fmt: skip
    wait_for_bytes(process, tmp_path, 100_000)
    os.write(keys, b"ww")
    # Until ticks have come that began after the keys were pressed.
    written = max(path.stat().st_size for path in tmp_path.glob("*.part"))
    wait_for_bytes(process, tmp_path, written + 20_000)
    # To the whole group, as a terminal does: also to the process that writes the log.
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=300)
    os.close(keys)
    os.close(device)
    assert process.returncode == 0
    summary = json.loads(out)
    assert summary["ended"] == "stopped"
    rows = read_log(log).rows
    assert len(rows) == summary["timing"]["ticks"]
    assert (rows["mode"][-50:] == Mode.DAMPING).all()
    assert not rows["sent_kp"][-50:].any()
    np.testing.assert_allclose(rows["asked"][rows["mode"] == Mode.POLICY][-1], [0.2, 0.0, 0.0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP])
def test_an_endless_run_that_is_told_to_end_is_damped_with_a_whole_log(
    number: signal.Signals, policy: str, tmp_path: Path, start: Start
) -> None:
    log = tmp_path / "flight.npz"
    process = start(
        [sys.executable, "-c", PATIENT, "run", policy, "--robot", "mock", "--json",
         "--command", "0.1,0,0", "--duration", "inf", "--log", str(log)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_for_bytes(process, tmp_path, 150_000)
    process.send_signal(number)
    out, said = process.communicate(timeout=300)
    assert process.returncode == 0
    assert b"Traceback" not in said
    assert json.loads(out)["ended"] == "stopped"
    rows = read_log(log).rows
    assert (rows["mode"][-50:] == Mode.DAMPING).all()
    assert not rows["sent_kp"][-50:].any()
    assert os.listdir(tmp_path) == ["flight.npz"]


@pytest.mark.usefixtures("simulated")
def test_ctrl_c_while_the_log_is_finished_names_what_is_kept(
    policy: str, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("robot_runtime.control.recorder.write_log", interrupted)
    log = str(tmp_path / "flight.npz")
    assert main(["run", policy, "--robot", "mock", *SHORT, "--log", log]) == 130
    said = capsys.readouterr()
    assert "ended          done" in said.out
    assert "flight log" not in said.out
    (part,) = tmp_path.iterdir()
    assert said.err == f"surefoot run: interrupted: '{part}' has what was recorded\n"
    assert len(read_log(part).rows) > 50


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("fail", ["none", "stale", "nan", "tilt", "jump", "read", "write"])
def test_what_a_failing_robot_recorded_is_replayed_bit_for_bit(
    fail: str, policy: str, tmp_path: Path, capsys: Captured
) -> None:
    """Gaps, holds and NaN in the states: the replay takes the policy through the same."""
    log = str(tmp_path / "flight.npz")
    options = ["--option", f"fail={fail}", "--option", "at=1.2", "--option", "drop=0.4"]
    arguments = ["run", policy, "--robot", "mock", *options, "--duration", "0.4", "--log", log]
    assert main(arguments) in (0, 1)
    assert np.count_nonzero(read_log(Path(log)).rows["step"]) > 0
    capsys.readouterr()
    assert main(["replay", log, "--json"]) == 0, capsys.readouterr()
    assert json.loads(capsys.readouterr().out)["compared"] > 0
