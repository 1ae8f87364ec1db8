"""An import is compared with the user's own file, not with the copy of it that is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from export.importers import graph
from robot_runtime.errors import GateFailed
from tests.export.importers.test_fuzz import cases
from tests.export.importers.test_holosoma import HOLO_CONFIG, holosoma_case
from tests.export.importers.test_motion import Motion
from tests.export.importers.test_motion import holosoma_case as tracking_case
from tests.helpers.foreign import Case

FORMATS = ("deploy", "sar", "bhl", "leapp", "holosoma", "tracking", "mjlab", "motion")
"""Whose networks come as ONNX."""


def case_of(name: str, folder: Path) -> Any:
    """A whole import; those of the fuzz test have holosoma without what the config states."""
    if name == "holosoma":
        return holosoma_case(folder, 75, HOLO_CONFIG)
    if name == "tracking":
        return tracking_case(folder, Motion(34, last=True))
    return cases(folder)[name]


def network_of(case: Case) -> Path:
    (path,) = {path for path in case.folder.rglob("*.onnx") if path.name != "imported.onnx"}
    return path


def move_weights_out(path: Path) -> None:
    """The weights into a file beside the graph, as exporters of large networks do."""
    model = onnx.load(str(path))
    how: dict[str, Any] = {"location": "weights.data", "size_threshold": 200}
    onnx.save(model, str(path), save_as_external_data=True, **how)
    assert (path.parent / "weights.data").stat().st_size > 100


def damaged(inline: Callable[..., None]) -> Callable[..., None]:
    """Bringing weights in, and matrices wrongly."""

    def wrong(model: onnx.ModelProto, path: Path) -> None:
        inline(model, path)
        for weight in model.graph.initializer:
            values = numpy_helper.to_array(weight)
            if values.dtype == np.float32 and values.ndim == 2:
                weight.CopyFrom(numpy_helper.from_array(values * np.float32(1.01), weight.name))

    return wrong


@pytest.mark.parametrize(
    ("name", "beside"),
    # LEAPP's YAML states the hash of a graph with the weights inside.
    [
        (name, beside)
        for name in FORMATS
        for beside in (False, True)
        if (name, beside) != ("leapp", True)
    ],
)
def test_a_copy_that_was_read_wrongly_is_refused(
    name: str, beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of(name, tmp_path)
    path = network_of(case)
    if beside:
        move_weights_out(path)
    imported = case.run()
    assert imported.gate.error <= imported.gate.tolerance
    monkeypatch.setattr(graph, "_inline", damaged(graph._inline))
    with pytest.raises(GateFailed, match="foreign network and ours differ by"):
        case.run()


def test_what_onnxruntime_gets_is_the_users_file(tmp_path: Path) -> None:
    path = network_of(cases(tmp_path)["mjlab"])
    assert graph.original_of(path) == path.read_bytes()
    move_weights_out(path)
    assert graph.original_of(path) == str(path)
