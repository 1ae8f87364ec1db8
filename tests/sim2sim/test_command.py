"""The verb: what it prints, what it returns, and one clear line for everything bad."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from robot_runtime.cli import main
from sim2sim import command, viewer
from tests.helpers.processes import Start
from tests.helpers.tiny_robot import crowded_xml, tiny_contract, tiny_xml
from tests.sim2sim.conftest import write_still_policy

STAND = ["--command", "0,0,0", "--duration", "2"]


def _run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["sim2sim", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_standing_policy_passes_standing(
    still_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = _run(capsys, still_policy, *STAND)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "PASS"
    assert "1 of 1 reached their end" in out


def test_a_standing_policy_fails_walking(
    still_policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    arguments = ["--command", "lin_vel_x=0.5", "--duration", "2", "--report", page]
    code, out, _ = _run(capsys, still_policy, *arguments)
    assert code == 1
    assert "FAILED  command: velocity error: 0.4" in out
    assert out.splitlines()[-2:] == ["FAIL", f"report: {page}"]
    assert page.read_text().startswith("<!DOCTYPE html>")
    code, _, _ = _run(capsys, still_policy, *arguments[:4], "--max-lin-vel-error", "0.6")
    assert code == 0


def test_json_is_json_and_nothing_else(
    still_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = _run(capsys, still_policy, *STAND, "--json", "--physics-dt", "0.0025")
    result = json.loads(out)
    assert code == 0
    assert result["passed"] is True
    assert result["model"]["physics_dt"] == 0.0025
    assert [run["kind"] for run in result["runs"]] == ["command"]
    assert result["segments"][0]["command"] == [0.0, 0.0, 0.0]


def test_a_command_from_drawn_starts(
    still_policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = _run(capsys, still_policy, *STAND, "--scenarios", "3", "--seed", "4", "--json")
    runs = json.loads(out)["runs"]
    assert code == 0
    assert [(run["kind"], run["seed"], run["index"]) for run in runs] == [
        ("command", 4, 0),
        ("command", 4, 1),
        ("command", 4, 2),
    ]
    # Other starts, other runs.
    assert len({json.dumps(run["metrics"]) for run in runs}) == 3


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "--help")
    assert code == 0
    assert "surefoot sim2sim policy.onnx" in out


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        (["gone.onnx"], "gone.onnx"),
        (["{policy}", "--model", "gone.xml"], "gone.xml"),
        (["{policy}", "--model", "{tiny}"], "'trunk'"),
        (["{policy}", "--physics-dt", "0.003"], "0.003"),
        (["{policy}", "--scenarios", "0"], "nothing to run"),
        (["{policy}", "--scenarios", "-1"], "--scenarios -1"),
        (["{policy}", "--seed", "-1"], "--seed -1"),
        (["{policy}", "--command", "fast"], "'fast'"),
        (["{policy}", "--command", "jump=1"], "'jump'"),
        (["{policy}", "--command", "0,0,0", "--duration", "nan"], "--duration"),
        (["{policy}", "--command", "0,0,0", "--disturbed", "1"], "--disturbed"),
        (["{policy}", "--command", "0,0,0", "--scenarios", "0"], "nothing to run"),
        (["{policy}", "--max-lin-vel-error", "nan"], "--max-lin-vel-error"),
        (["{policy}", "--report", "{tiny}/x"], "tiny"),
        (["{policy}", "--command", "0,0,0", "--duration", "1e18"], "2 ... 3600 s"),
        (["{policy}", "--report", "/"], "must end in .html"),
        (["{policy}", "--film", "/dev/null"], "must end in .gif or .png"),
        (["{policy}", "--film", "gait.mp4"], "gait.mp4"),
        (
            ["{policy}", "--film", "{tiny}.gif", "--scenarios", "0", "--disturbed", "9"],
            "only nominal",
        ),
        (["{policy}", "--scenario", "1"], "--scenario"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    still_policy: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    culprit: str,
) -> None:
    tiny = tmp_path / "tiny.xml"
    tiny.write_text(tiny_xml())
    filled = [text.format(policy=still_policy, tiny=tiny) for text in arguments]
    code, out, err = _run(capsys, *filled)
    assert code == 2
    assert out == ""
    assert err.startswith("surefoot sim2sim: error: ")
    assert err.count("\n") == 1
    assert culprit in err


def test_a_film_that_cannot_be_drawn_is_refused_before_the_runs(
    still_policy: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(*_: object, **__: object) -> NoReturn:
        raise AssertionError("something ran")

    monkeypatch.setattr(command, "run_scenarios", run)
    monkeypatch.setenv("MUJOCO_GL", "disable")
    code, out, err = _run(capsys, str(still_policy), "--film", str(tmp_path / "gait.gif"))
    assert (code, out) == (2, "")
    assert "MUJOCO_GL=disable" in err


def test_an_interrupt_while_the_film_is_drawn_leaves_no_report(
    still_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[object] = []

    def draw(_: object, poses: np.ndarray) -> np.ndarray:
        drawn.append(poses)
        if len(drawn) > 1:
            raise KeyboardInterrupt
        return np.zeros((len(poses), 4, 4, 3), np.uint8)

    monkeypatch.setattr(viewer, "draw", draw)
    monkeypatch.setattr(command, "draw", draw)
    paths = ["--report", str(tmp_path / "page.html"), "--film", str(tmp_path / "gait.gif")]
    assert main(["sim2sim", str(still_policy), *STAND, *paths]) == 130
    assert len(drawn) == 2
    assert not list(tmp_path.iterdir())


_SLOW = """
import sys
from robot_runtime.cli import main
from sim2sim import command, evaluate

run = evaluate.run_scenarios

def noting(*args, **options):
    options["done"] = lambda _: print("one", flush=True)
    return run(*args, **options)

if __name__ == "__main__":
    command.run_scenarios = noting
    sys.exit(main())
"""
"""The verb, which says when the first run is done."""


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_at_once_without_a_traceback_or_a_file(
    number: signal.Signals, workers: str, still_policy: Path, tmp_path: Path, start: Start
) -> None:
    script = tmp_path / "slow.py"
    script.write_text(_SLOW)
    report = tmp_path / "page.html"
    process = start(
        [sys.executable, str(script), "sim2sim", str(still_policy), "--scenarios", "500",
         "--workers", workers, "--report", str(report)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "one\n"
    if number == signal.SIGINT:
        # To the whole group, as a terminal does.
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert said == "surefoot sim2sim: interrupted\n"
    assert [path.name for path in tmp_path.iterdir()] == ["slow.py"]


def test_physics_that_breaks_at_once_is_a_failed_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No contact memory: the first step fails, and what can be said is said."""
    path = write_still_policy(tmp_path / "tiny.onnx", tiny_contract())
    scene, page = tmp_path / "tiny.xml", tmp_path / "page.html"
    for memory, code, failure in (
        ("1M", 0, ""),
        ("40K", 1, "CLOCK_FAILED: PhysicsFault: MuJoCo warned at 0.000 s"),
    ):
        scene.write_text(crowded_xml(memory))
        arguments = [path, "--model", scene, "--json", "--report", page]
        found, out, _ = _run(capsys, *arguments, *STAND, "--max-lin-vel-error", "9")
        (run,) = json.loads(out)["runs"]
        assert found == code
        assert run["failure"].startswith(failure)
        assert bool(run["failure"]) == bool(failure)
        assert page.read_text().endswith("</html>\n")


def test_the_verb_never_loads_torch_or_the_trainer(still_policy: Path) -> None:
    script = (
        "import sys; from robot_runtime.cli import main; "
        f"code = main(['sim2sim', {str(still_policy)!r}, '--command', '0,0,0', '--duration', '2', "
        "'--json']); loaded = {m.partition('.')[0] for m in sys.modules}; "
        "print(sorted({'torch', 'trainer', 'export'} & loaded), code, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[] 0"
