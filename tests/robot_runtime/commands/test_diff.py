"""`surefoot diff`: every difference is found, named, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from robot_runtime.cli import main
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.diff import diff_graphs, diff_values
from robot_runtime.policy.file import write_policy
from robot_runtime.policy.onnx_graph import read_graph
from tests.helpers.contracts import edited, leaves, quadruped_contract, rich_contract
from tests.helpers.policies import mlp_model, random_weights, synthesized_trace


def write(path: Path, contract: PolicyContract, model: bytes, **provenance: Any) -> str:
    write_policy(
        path,
        model,
        contract=contract,
        trace=synthesized_trace(contract, model),
        provenance={"source": "test", **provenance},
        report={},
    )
    return str(path)


def differences(a: str, b: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    code = main(["diff", a, b, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == (0 if found["equal"] else 1)
    return found


def test_equal_policies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contract = rich_contract()
    model = mlp_model(contract)
    a = write(tmp_path / "a.onnx", contract, model)
    b = write(tmp_path / "b.onnx", contract, model)
    assert differences(a, b, capsys)["equal"]
    assert main(["diff", a, b]) == 0
    text = capsys.readouterr().out
    assert "are equal" in text
    assert "equal: contract, weights, network, provenance, golden trace" in text


def test_a_gain_is_named_with_its_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contract = quadruped_contract()
    model = mlp_model(contract)
    a = write(tmp_path / "a.onnx", contract, model)
    stiffer = edited(contract, {"joints.4.kp": 30.0, "action.terms.0.scale.2": 0.5})
    b = write(tmp_path / "b.onnx", stiffer, model)
    found = differences(a, b, capsys)
    assert found["contract"] == [
        {"path": "joints.FR_thigh_joint.kp", "a": 25.0, "b": 30.0, "unit": "Nm/rad"},
        {"path": "action.terms.legs.scale[FL_calf_joint]", "a": 0.25, "b": 0.5, "unit": ""},
    ]
    assert not found["weights"]
    assert {change["path"] for change in found["trace"]} == {
        "joint_effort",
        "raw_action",
        "target_pos",
        "observation",
        "network_action",
    } & {change["path"] for change in found["trace"]}
    assert main(["diff", a, b]) == 1
    assert "joints.FR_thigh_joint.kp" in capsys.readouterr().out


def test_a_weight_is_named_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contract = quadruped_contract()
    weights = random_weights(contract)
    a = write(tmp_path / "a.onnx", contract, mlp_model(contract, weights))
    weights[0][0][7, 3] += np.float32(0.5)
    b = write(tmp_path / "b.onnx", contract, mlp_model(contract, weights))
    (change,) = differences(a, b, capsys)["weights"]
    assert (change["name"], change["count"], change["place"]) == ("w0", 1, [7, 3])
    assert change["largest"] == pytest.approx(0.5, rel=1e-6)


def test_provenance_and_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contract = quadruped_contract()
    model = mlp_model(contract)
    a = write(tmp_path / "a.onnx", contract, model, seed=1, versions={"torch": "2.13"})
    b = write(tmp_path / "b.onnx", contract, model, seed=2, versions={"torch": "2.14"})
    found = differences(a, b, capsys)
    assert [change["path"] for change in found["provenance"]] == ["seed", "versions.torch"]
    assert not any(found[name] for name in ("contract", "weights", "network", "trace"))


def test_what_is_no_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contract = quadruped_contract()
    good = write(tmp_path / "a.onnx", contract, mlp_model(contract))
    (tmp_path / "bad.onnx").write_bytes(b"nonsense")
    for pair in ((good, str(tmp_path / "bad.onnx")), (str(tmp_path / "none.onnx"), good)):
        assert main(["diff", *pair]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("surefoot diff: error: ")


def test_every_field_of_a_contract_counts() -> None:
    """Each value of a contract that uses all of them, changed alone, is exactly one difference."""
    plain = rich_contract().to_dict()
    paths = [path for path, _ in leaves(plain)]
    assert len(paths) > 300
    for path in paths:
        other = json.loads(json.dumps(plain))
        place: Any = other
        *parents, last = path.split(".")
        for key in parents:
            place = place[int(key) if isinstance(place, list) else key]
        index: Any = int(last) if isinstance(place, list) else last
        place[index] = "other" if isinstance(place[index], str) else -7.5
        found = list(diff_values(plain, other))
        # Another name is one element gone and one come.
        renamed = last in ("name", "joint", "input")
        assert len(found) >= 1 if renamed else len(found) == 1, (path, found)


def test_order_is_told_apart_from_content() -> None:
    plain: Any = quadruped_contract().to_dict()
    turned = json.loads(json.dumps(plain))
    turned["joints"].reverse()
    (change,) = diff_values(plain, turned)
    assert change.path == "joints, order"
    assert change.b[0] == "RR_calf_joint"
    turned["joints"].pop()
    paths = [change.path for change in diff_values(plain, turned)]
    assert "joints.FL_hip_joint" in paths


def test_weights_of_another_exporter_are_found_by_shape() -> None:
    """Other names, in another order: no weight differs, and none is missing."""
    contract = quadruped_contract()
    model = onnx.load_from_string(mlp_model(contract))
    renamed = onnx.ModelProto.FromString(model.SerializeToString())
    names = {weight.name: f"x.{i}" for i, weight in enumerate(renamed.graph.initializer)}
    for weight in renamed.graph.initializer:
        weight.name = names[weight.name]
    for node in renamed.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    kept = list(renamed.graph.initializer)[::-1]
    del renamed.graph.initializer[:]
    renamed.graph.initializer.extend(kept)
    graphs = [read_graph(each.SerializeToString()) for each in (model, renamed)]
    assert diff_graphs(*graphs) == ((), ())
    wider = onnx.ModelProto.FromString(model.SerializeToString())
    wider.graph.initializer.append(numpy_helper.from_array(np.zeros(3, np.float32), "extra"))
    _, (change,) = diff_graphs(graphs[0], read_graph(wider.SerializeToString()))
    assert (change.path, change.b) == ("weight extra", "float32 [3]")
