"""What `surefoot inspect` says of files that are no policy files; nothing in them is run."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from robot_runtime.cli import main
from robot_runtime.policy.foreign import explain
from tests.helpers.checkpoints import make_checkpoint
from tests.helpers.contracts import quadruped_contract
from tests.helpers.policies import mlp_model, write_random_policy


def inspected(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What is printed of a file that is refused with one line."""
    assert main(["inspect", str(path)]) == 2
    shown = capsys.readouterr()
    assert len(shown.err.splitlines()) == 1
    return " ".join(shown.out.split())


def with_metadata(path: Path, **metadata: str) -> Path:
    model = onnx.load_from_string(mlp_model(quadruped_contract()))
    onnx.helper.set_model_props(model, metadata)
    onnx.save(model, str(path))
    return path


def test_an_onnx_model_without_a_contract(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = inspected(with_metadata(tmp_path / "net.onnx"), capsys)
    assert "an ONNX model without a contract" in text
    assert "opset 18, IR 8" in text
    assert "obs float32 [batch, 45]" in text
    assert "actions float32 [batch, 12]" in text
    assert "2 Gemm" in text
    for need in ("joint names in order", "stiffness and damping", "control period"):
        assert f"missing {need}" in text
    assert f"surefoot import custom {tmp_path / 'net.onnx'}" in text


@pytest.mark.parametrize(
    ("dialect", "keys"),
    [
        ("mjlab", ("joint_names", "joint_stiffness", "default_joint_pos", "observation_names")),
        ("beyondmimic", ("joint_stiffness", "default_joint_pos", "anchor_body_name")),
        ("holosoma", ("dof_names", "kp", "kd", "action_scale")),
    ],
)
def test_dialects_are_told_by_their_metadata(
    dialect: str, keys: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = with_metadata(tmp_path / "net.onnx", **dict.fromkeys(keys, "1"))
    text = inspected(path, capsys)
    assert f"dialect {dialect}" in text
    assert f"surefoot import {dialect} " in text
    assert "missing stiffness and damping" not in text
    assert "missing golden trace" in text


def test_torchscript(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    traced: Any = torch.jit.trace(Net(), torch.zeros(1, 3))
    torch.jit.save(traced, str(tmp_path / "net.pt"))
    text = inspected(tmp_path / "net.pt", capsys)
    assert "a TorchScript module without a contract" in text
    assert "forward(x: Tensor)" in text
    assert "--run-torchscript" in text


def test_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = make_checkpoint(tmp_path / "ours.pt").path
    text = inspected(ours, capsys)
    assert "a checkpoint of surefoot" in text
    assert f"surefoot export {ours}" in text
    torch.save(
        {"model_state_dict": {"actor.0.weight": torch.zeros(2)}, "iter": 3}, tmp_path / "t.pt"
    )
    text = inspected(tmp_path / "t.pt", capsys)
    assert "rsl_rl 1 to 3" in text
    command = ["import", "rsl_rl", str(tmp_path / "t.pt"), "--user", "contract.yaml"]
    assert f"surefoot {' '.join(command)} --model scene.xml -o policy.onnx" in text
    # The format is one there is: what is refused is the contract, which is not there.
    assert main([*command, "--model", "quadruped", "-o", str(tmp_path / "p.onnx")]) == 2
    assert "contract.yaml" in capsys.readouterr().err
    assert "actor.0.weight" in text
    assert "calls beyond tensors none" in text


def test_a_pickle_that_runs_code_is_named_and_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "exploded"),)

    torch.save({"model_state_dict": Bomb()}, tmp_path / "bomb.pt")
    text = inspected(tmp_path / "bomb.pt", capsys)
    assert "would run code when it is unpickled" in text
    assert f"{os.mkdir.__module__}.mkdir" in text
    assert not (tmp_path / "exploded").exists()


def test_json_is_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = with_metadata(tmp_path / "net.onnx", joint_names="a,b")
    assert main(["inspect", str(path), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "an ONNX model without a contract"
    assert "joint names in order" not in found["missing"]


def test_nothing_is_said_of_ours_and_of_what_is_not_known(tmp_path: Path) -> None:
    ours = write_random_policy(tmp_path / "p.onnx", quadruped_contract())
    assert explain(ours.read_bytes(), ours) is None
    assert explain(b"hello", Path("x")) is None
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    data = (tmp_path / "x.zip").read_bytes()
    assert explain(data, Path("x.zip")) is None
    assert explain(data[:-10], Path("x.zip")) is None
