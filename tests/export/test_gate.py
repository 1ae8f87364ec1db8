"""The gate: every planted fault is refused, and nothing is written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import export.write
from export.graph import Policy
from export.onnx import export_onnx
from export.torchscript import trace_module
from export.write import export_checkpoint
from robot_runtime.cli import main
from robot_runtime.errors import GateFailed
from tests.helpers.checkpoints import CONSTANT, MadeCheckpoint, make_actor, make_checkpoint
from trainer.checkpoint import load_checkpoint
from trainer.config import NetworkConfig
from trainer.normalizer import RunningNormalizer


class Broken(torch.nn.Module):
    """An actor with one planted fault."""

    def __init__(self, made: MadeCheckpoint, fault: str) -> None:
        super().__init__()
        self.actor = make_actor(
            made.contract, NetworkConfig(actor_hidden=(32, 16)), constant=CONSTANT
        )
        self.fault = fault
        if fault == "normalizer":
            self.actor.normalizer = torch.nn.Identity()
        if isinstance(self.actor.normalizer, RunningNormalizer) and fault == "unbounded normalizer":
            self.actor.normalizer.clip = 0.0
        if fault == "half weights":
            for weight in self.actor.net.parameters():
                weight.copy_(weight.half().float())
        if fault == "weight":
            self.actor.get_parameter("net.2.weight").data[3, 7] *= 1.01

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        if self.fault == "order":
            obs = torch.cat([obs[:, 3:6], obs[:, 0:3], obs[:, 6:]], dim=1)
        if self.fault == "half":
            weight, bias = (self.actor.get_parameter(f"net.0.{n}") for n in ("weight", "bias"))
            normalized = self.actor.normalizer(obs).half().float()
            first = torch.nn.functional.linear(normalized, weight.half().float(), bias)
            return self.actor.net[1:](first)
        return self.actor(obs) * (0.25 if self.fault == "scale" else 1.0)


CAUSES = {
    "normalizer": "the normalizer is missing",
    "unbounded normalizer": "the normalizer's bound of 10 deviations is missing",
    "weight": "weights differ from the checkpoint's: net.2.weight[3, 7]",
    "order": "the features are in another order: it takes base_ang_vel[x] for projected_gravity[x]",
    "scale": "scale or offset of the actions is lost: action of ",
    "half": "float16: ",
    "half weights": "float16: weights are rounded to it: net.0.weight",
}
"""What the gate says of each fault."""


@pytest.mark.parametrize(("fault", "cause"), CAUSES.items())
@pytest.mark.parametrize("form", ["export_onnx", "trace_module"])
@pytest.mark.usefixtures("quick")
def test_a_planted_fault_is_refused_and_nothing_written(
    tmp_path: Path,
    made: MadeCheckpoint,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    cause: str,
    form: str,
) -> None:
    """Lost: the normalizer, its bound, a hundredth of a weight, the order of terms, scale, digits.

    The message names the fault.
    """
    original: Any = {"export_onnx": export_onnx, "trace_module": trace_module}[form]
    broken = Policy(Broken(made, fault)).eval()
    monkeypatch.setattr(export.write, form, lambda module, *rest: original(broken, *rest))
    outputs = tmp_path / "out"
    outputs.mkdir()
    (outputs / "policy.onnx").write_bytes(b"the old one")
    with pytest.raises(GateFailed, match="nothing was written") as caught:
        export_checkpoint(made.path, outputs / "policy.onnx", torchscript=outputs / "policy.pt")
    name = "onnxruntime" if form == "export_onnx" else "TorchScript"
    assert f"checkpoint and {name}, batch 64 differ by" in str(caught.value)
    assert f"likely cause: {cause}" in str(caught.value)
    assert os.listdir(outputs) == ["policy.onnx"]
    assert (outputs / "policy.onnx").read_bytes() == b"the old one"


@pytest.mark.usefixtures("quick")
def test_a_trace_of_another_iteration_is_refused(tmp_path: Path, made: MadeCheckpoint) -> None:
    other = make_checkpoint(tmp_path / "other.pt")
    assert not torch.equal(other.normalizer.var, made.normalizer.var)
    trace = load_checkpoint(other.path).trace
    mixed = make_checkpoint(tmp_path / "mixed.pt", constant=CONSTANT, changes={"trace": trace})
    with pytest.raises(GateFailed, match="checkpoint and golden trace differ"):
        export_checkpoint(mixed.path, tmp_path / "out" / "p.onnx")
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.usefixtures("quick")
def test_a_trace_that_the_runtime_does_not_reproduce_is_refused(
    tmp_path: Path, made: MadeCheckpoint
) -> None:
    """Training computed another observation of the same states than the ground floor does."""
    checkpoint = load_checkpoint(made.path)
    assert checkpoint.trace is not None
    gyro = checkpoint.trace["base_ang_vel_b"]
    assert isinstance(gyro, torch.Tensor)
    trace = dict(checkpoint.trace) | {"base_ang_vel_b": gyro * 1.01}
    wrong = make_checkpoint(tmp_path / "x.pt", constant=CONSTANT, changes={"trace": trace})
    with pytest.raises(GateFailed, match=r"boundary A .* base_ang_vel\[.*nothing was written"):
        export_checkpoint(wrong.path, tmp_path / "out" / "p.onnx")
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.usefixtures("quick")
def test_a_failing_gate_is_code_one(
    tmp_path: Path,
    made: MadeCheckpoint,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken = Policy(Broken(made, "weight")).eval()
    monkeypatch.setattr(
        export.write, "trace_module", lambda m, contract: trace_module(broken, contract)
    )
    assert main(["export", str(made.path), "-o", str(tmp_path / "p.onnx")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "checkpoint and TorchScript, batch 64 differ by" in line
    assert os.listdir(tmp_path) == []
