"""`surefoot export` and `surefoot inspect` as a user calls them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest
import torch
import yaml

from export.command import describe
from export.write import Exported
from robot_runtime.cli import main
from robot_runtime.errors import BadInput
from robot_runtime.policy.file import open_policy
from tests.helpers.checkpoints import MadeCheckpoint


@pytest.mark.usefixtures("quick")
def test_the_verb_writes_and_reports(
    tmp_path: Path, made: MadeCheckpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new folder" / "policy.onnx"
    assert main(["export", str(made.path.parents[1]), "-o", str(output), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    opened = open_policy(output)
    assert printed["sha256"] == opened.sha256
    assert printed["gate"] == opened.report
    assert printed["checkpoint"] == str(made.path)
    assert printed["torchscript"] is None


@pytest.mark.usefixtures("quick")
def test_other_runtimes_get_their_own_files(
    tmp_path: Path, made: MadeCheckpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the policy file, of the same policy, and only where asked for."""
    output = tmp_path / "policy.onnx"
    asked = ["--format", "deploy-yaml", "--format", "leapp"]
    assert main(["export", str(made.path), "-o", str(output), *asked]) == 0
    assert sorted(os.listdir(tmp_path)) == ["deploy.yaml", "leapp.yaml", "policy.onnx"]
    said = capsys.readouterr().out
    assert all(f"{tmp_path / name}: written" in said for name in ("deploy.yaml", "leapp.yaml"))
    deploy = yaml.safe_load((tmp_path / "deploy.yaml").read_text())
    assert deploy["stiffness"] == [joint.kp for joint in made.contract.joints]
    leapp = yaml.safe_load((tmp_path / "leapp.yaml").read_text())
    parameters = leapp["models"]["policy"]["parameters"]
    assert parameters["model_path"] == "./policy.onnx"
    assert parameters["sha256sum"] == open_policy(output).sha256
    assert main(["export", str(made.path), "-o", str(output), "--format", "toml"]) == 2
    assert "invalid choice: 'toml'" in capsys.readouterr().err


def test_controllers_of_others_find_their_metadata(exported: Exported, tmp_path: Path) -> None:
    """As onnxruntime shows it to them; under the seal like everything else."""
    session = ort.InferenceSession(str(exported.policy.path), providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    contract = exported.policy.contract
    assert metadata["joint_names"].split(",") == list(contract.joint_names)
    stiffness = [float(text) for text in metadata["joint_stiffness"].split(",")]
    assert stiffness == [joint.kp for joint in contract.joints]
    model = onnx.load(str(exported.policy.path))
    for entry in model.metadata_props:
        if entry.key == "joint_stiffness":
            entry.value = entry.value.replace("25.0", "26.0", 1)
    onnx.save(model, str(tmp_path / "edited.onnx"))
    with pytest.raises(BadInput, match="its metadata joint_stiffness is not the one"):
        open_policy(tmp_path / "edited.onnx")


def test_the_verb_speaks_to_people(
    made: MadeCheckpoint, exported: Exported, capsys: pytest.CaptureFixture[str]
) -> None:
    text = describe(exported)
    assert "never changed in training (bounded at 10 deviations): projected_gravity[y]" in text
    assert "gate passed: 1000 random" in text
    assert main(["export", "--help"]) == 0
    assert "surefoot export runs/quadruped-flat -o policy.onnx" in capsys.readouterr().out


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["export", *argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("surefoot export: error: ")
    return line


def test_bad_input_is_one_line_and_code_two(
    tmp_path: Path, made: MadeCheckpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    good, out = str(made.path), str(tmp_path / "p.onnx")
    (tmp_path / "file").touch()
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "text.pt").write_text("weights")
    torch.save({"model": torch.zeros(3)}, tmp_path / "theirs.pt")
    (tmp_path / "cut.pt").write_bytes(made.path.read_bytes()[:2000])
    empty = tmp_path / "run"
    (empty / "checkpoints").mkdir(parents=True)
    assert "missing.pt" in refused([str(tmp_path / "missing.pt"), "-o", out], capsys)
    assert "has no checkpoint" in refused([str(empty), "-o", out], capsys)
    assert "text.pt" in refused([str(tmp_path / "text.pt"), "-o", out], capsys)
    assert "not a checkpoint of surefoot" in refused(
        [str(tmp_path / "theirs.pt"), "-o", out], capsys
    )
    assert "cut.pt" in refused([str(tmp_path / "cut.pt"), "-o", out], capsys)
    assert "end in .onnx" in refused([good, "-o", str(tmp_path / "p.pt")], capsys)
    assert "end in .pt" in refused([good, "-o", out, "--torchscript", out], capsys)
    assert "checkpoint itself" in refused([good, "-o", out, "--torchscript", good], capsys)
    assert "a folder" in refused([good, "-o", str(tmp_path / "folder.onnx")], capsys)
    assert "cannot write" in refused([good, "-o", str(tmp_path / "file" / "p.onnx")], capsys)
    assert main(["export", good]) == 2
    assert not (tmp_path / "p.onnx").exists()


def test_a_pickle_that_runs_code_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "exploded"),)

    torch.save({"format": "surefoot-checkpoint", "agent": Bomb()}, tmp_path / "bomb.pt")
    line = refused([str(tmp_path / "bomb.pt"), "-o", str(tmp_path / "p.onnx")], capsys)
    assert "could run code" in line
    assert not (tmp_path / "exploded").exists()
