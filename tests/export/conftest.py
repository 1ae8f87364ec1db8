"""One checkpoint and its export, made once; and exports without the slow part."""

from __future__ import annotations

import pytest

import export.write
from export.write import Exported, export_checkpoint
from robot_runtime.policy.onnx_bytes import split
from tests.helpers.checkpoints import CONSTANT, MadeCheckpoint, make_checkpoint


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeCheckpoint:
    """A checkpoint in a run folder, with two features that never changed."""
    run = tmp_path_factory.mktemp("run")
    return make_checkpoint(run / "checkpoints" / "iteration_0000012.pt", constant=CONSTANT)


@pytest.fixture(scope="session")
def exported(made: MadeCheckpoint) -> Exported:
    """Its export as both files. Tests only read them."""
    folder = made.path.parents[1]
    return export_checkpoint(
        folder, folder / "out" / "policy.onnx", torchscript=folder / "out" / "policy.pt"
    )


@pytest.fixture
def quick(exported: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports of the weights of `made` without running torch's exporter again."""
    model = split(exported.policy.model).model
    monkeypatch.setattr(export.write, "export_onnx", lambda *_: model)
