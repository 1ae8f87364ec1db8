"""Bad input of every kind, to every verb that takes it: exit code 2 and one clear line."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from robot_runtime import cli
from robot_runtime.errors import ExitCode
from tests.helpers.contracts import quadruped_contract
from tests.helpers.policies import write_random_policy

POLICY_VERBS: dict[str, list[str]] = {
    "inspect": [],
    "sim2sim": ["--scenarios", "1"],
    "run": ["--robot", "mock", "--duration", "0.1"],
}


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a verb refuses with."""
    capsys.readouterr()
    code = cli.main(arguments)
    shown = capsys.readouterr()
    assert code == ExitCode.BAD_INPUT, shown
    lines = shown.err.strip().splitlines()
    assert len(lines) == 1, shown.err
    assert "Traceback" not in shown.err
    assert "internal error" not in shown.err
    return lines[0]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "policy.onnx"
    write_random_policy(path, quadruped_contract())
    return path


def missing(good: Path, path: Path) -> str:
    return ""


def folder(good: Path, path: Path) -> str:
    path.mkdir()
    return "folder"


def truncated(good: Path, path: Path) -> str:
    data = good.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return ""


def empty(good: Path, path: Path) -> str:
    path.write_bytes(b"")
    return "empty"


def text(good: Path, path: Path) -> str:
    path.write_text("hello")
    return "ONNX"


def no_contract(good: Path, path: Path) -> str:
    node = helper.make_node("Identity", ["x"], ["y"])
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in ("x", "y")]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph), str(path))
    return "contract"


def newer_schema(good: Path, path: Path) -> str:
    model = onnx.load(str(good))
    for entry in model.metadata_props:
        if entry.key == "surefoot.contract":
            plain = json.loads(entry.value)
            plain["schema"] += 1
            entry.value = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    onnx.save(model, str(path))
    return ""


@pytest.mark.parametrize("verb", sorted(POLICY_VERBS))
@pytest.mark.parametrize(
    "make", [missing, folder, truncated, empty, text, no_contract, newer_schema]
)
def test_what_is_no_policy_file(
    verb: str,
    make: Callable[[Path, Path], str],
    good: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "given.onnx"
    says = make(good, path)
    line = refusal([verb, str(path), *POLICY_VERBS[verb]], capsys)
    assert "given.onnx" in line
    assert says in line


class RunsCode:
    """Unpickling this makes a folder: what a hostile checkpoint would do."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (self.folder,)


def hostile(path: Path) -> None:
    torch.save({"weights": RunsCode(str(path.parent / "owned"))}, path)


def bare_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(RunsCode(str(path.parent / "owned"))))


def foreign(path: Path) -> None:
    torch.save({"model_state_dict": {}, "iter": 3}, path)


def half(path: Path) -> None:
    torch.save({"weights": torch.zeros(1000)}, path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize("make", [hostile, bare_pickle, foreign, half])
@pytest.mark.parametrize("verb", ["export", "train"])
def test_what_is_no_checkpoint_of_ours(
    make: Callable[[Path], None], verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "given.pt"
    make(path)
    out = tmp_path / "out.onnx"
    arguments = {
        "export": ["export", str(path), "-o", str(out)],
        "train": ["train", "quadruped-flat", "--resume", str(path), "--out", str(tmp_path / "r")],
    }
    assert "given.pt" in refusal(arguments[verb], capsys)
    assert not (tmp_path / "owned").exists(), "the file's code was run"
    assert not out.exists()


def test_a_model_without_the_named_joints(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = tmp_path / "scene.xml"
    scene.write_text(
        "<mujoco><worldbody><body name='trunk'><freejoint/><geom size='.1'/>"
        "<body><joint name='knee'/><geom size='.1'/></body></body></worldbody></mujoco>"
    )
    line = refusal(["sim2sim", str(good), "--model", str(scene), "--scenarios", "1"], capsys)
    assert "FL_hip_joint" in line
    assert "knee" in line


def test_an_unknown_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(["train", "octopus", "--out", str(tmp_path / "x")], capsys)
    assert "octopus" in line
    assert "quadruped-flat" in line


@pytest.mark.parametrize("value", ["nan", "ten", "-3"])
def test_a_setting_that_is_no_number_of_its_kind(
    value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "quadruped-flat", "--out", str(tmp_path / "x"), f"--iterations={value}"]
    assert "iterations" in refusal(arguments, capsys)


@pytest.mark.parametrize("verb", ["train", "sim2sim", "run"])
def test_a_folder_that_cannot_be_written(
    verb: str, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Below a file there is no folder: holds for root too, whom permissions do not stop."""
    (tmp_path / "file").write_text("x")
    target = str(tmp_path / "file" / "below")
    arguments = {
        "train": ["train", "quadruped-flat", "--iterations", "1", "--out", target],
        "sim2sim": ["sim2sim", str(good), "--scenarios", "1", "--report", f"{target}.html"],
        "run": ["run", str(good), "--robot", "mock", "--duration", "0.1", "--log", f"{target}.npz"],
    }
    assert "file" in refusal(arguments[verb], capsys)


def test_an_unknown_driver(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(["run", str(good), "--robot", "dragon"], capsys)
    assert "dragon" in line
    assert "mock" in line


@pytest.mark.parametrize("step", ["1e-9", "0", "nan", "0.0033", "1"])
def test_a_physics_step_that_never_ends_or_does_not_divide(
    step: str, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "physics step" in refusal(["sim2sim", str(good), f"--physics-dt={step}"], capsys)


@pytest.mark.parametrize("option", ["offset=nan", "at=nan", "response=inf", "drop=2", "fail=x"])
def test_an_option_that_is_no_behaviour(
    option: str, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(["run", str(good), "--robot", "mock", "--option", option], capsys)
    assert option.split("=")[0] in line
