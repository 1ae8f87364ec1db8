"""ONNX models taken apart without the onnx package, and what is refused before they run."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

from robot_runtime.errors import BadInput
from robot_runtime.policy.onnx_graph import check_graph, read_graph
from tests.helpers.contracts import quadruped_contract, rich_contract
from tests.helpers.policies import mlp_model


def with_weight(tensor: onnx.TensorProto) -> bytes:
    """A model of one weight."""
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [port], [out])
    graph.initializer.append(tensor)
    return helper.make_model(graph, ir_version=8).SerializeToString()


def test_a_model_is_read_as_the_onnx_package_reads_it() -> None:
    contract = rich_contract()
    data = mlp_model(contract)
    graph, model = read_graph(data), onnx.load_from_string(data)
    assert graph.opsets == {"": 18}
    assert graph.ir_version == model.ir_version
    assert {port.name: port.shape for port in graph.inputs} == {
        name: ("batch", dim) for name, dim in contract.inputs().items()
    }
    assert [port.dtype for port in graph.outputs] == ["float32"]
    kinds = [(o.kind, o.inputs, o.outputs) for o in graph.operators]
    nodes = model.graph.node
    assert kinds == [(n.op_type, tuple(n.input), tuple(n.output)) for n in nodes]
    assert set(graph.weights) == {tensor.name for tensor in model.graph.initializer}
    for tensor in model.graph.initializer:
        np.testing.assert_array_equal(
            graph.weights[tensor.name].values, numpy_helper.to_array(tensor)
        )
    check_graph(graph)


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "float16", "int64", "int32", "int8", "uint8", "uint64", "bool"],
)
@pytest.mark.parametrize("raw", [True, False])
def test_weights_of_every_type_and_both_ways_of_writing(dtype: str, raw: bool) -> None:
    values = np.array([[0, 1, 2], [3, 100, 0]]).astype(dtype)
    if np.dtype(dtype).kind in "fi" and dtype != "uint8":
        values[0, 1] = -1
    kind = helper.np_dtype_to_tensor_dtype(values.dtype)
    flat = values.tobytes() if raw else values.ravel().tolist()
    tensor = helper.make_tensor("w", kind, values.shape, flat, raw=raw)
    found = read_graph(with_weight(tensor)).weights["w"]
    assert (found.dtype, found.shape) == (dtype, (2, 3))
    np.testing.assert_array_equal(found.values, numpy_helper.to_array(tensor))


def test_constants_count_as_weights_and_listed_weights_not_as_inputs() -> None:
    """Models of an old format list their weights among the inputs."""
    value = numpy_helper.from_array(np.array([1.5, 2.5], np.float32), "value")
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("x", "w", "y")]
    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["c"], value=value),
            helper.make_node("Add", ["x", "c"], ["z"]),
            helper.make_node("Add", ["z", "w"], ["y"]),
        ],
        "g",
        ports[:2],
        ports[2:],
        [numpy_helper.from_array(np.zeros(2, np.float32), "w")],
    )
    found = read_graph(helper.make_model(graph).SerializeToString())
    assert [port.name for port in found.inputs] == ["x"]
    assert found.weights["c"].values is not None
    assert found.weights["c"].values.tolist() == [1.5, 2.5]


def test_subgraphs_are_walked() -> None:
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    inner = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [], [out])
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    graph = helper.make_graph([node], "g", [], [out])
    kinds = [o.kind for o in read_graph(helper.make_model(graph).SerializeToString()).operators]
    assert kinds == ["If", "Neg", "Neg"]


@pytest.mark.parametrize("length", [0, 1, 2, 50, 500, -1])
def test_what_is_cut_off_is_refused(length: int) -> None:
    with pytest.raises(BadInput):
        read_graph(mlp_model(quadruped_contract())[:length])


@pytest.mark.parametrize(
    ("dims", "words"),
    [
        ([2**40], r"claims the shape \[1099511627776\]"),
        ([-2, -2], r"claims the shape \[-2, -2\]"),
        ([5], "has 4 numbers, not 5"),
        ([1] * 40, "claims the shape"),
    ],
)
def test_a_weight_that_claims_another_size_is_refused(dims: list[int], words: str) -> None:
    tensor = numpy_helper.from_array(np.zeros(4, np.float32), "w")
    tensor.dims[:] = dims
    with pytest.raises(BadInput, match=words):
        read_graph(with_weight(tensor))


def test_weights_that_are_elsewhere_or_no_numbers_are_refused() -> None:
    tensor = numpy_helper.from_array(np.array([1.0, np.nan], np.float32), "w")
    with pytest.raises(BadInput, match="'w' holds what is not a number"):
        check_graph(read_graph(with_weight(tensor)))
    mask = numpy_helper.from_array(np.array([0.0, -np.inf], np.float32), "mask")
    check_graph(read_graph(with_weight(mask)))
    set_external_data(tensor, "w.data")
    tensor.ClearField("raw_data")
    with pytest.raises(BadInput, match="'w' lies in another file"):
        check_graph(read_graph(with_weight(tensor)))


@pytest.mark.parametrize("kind", ["ConstantOfShape", "Expand", "Reshape"])
def test_an_operator_that_is_asked_for_too_much_is_refused(kind: str) -> None:
    size = numpy_helper.from_array(np.array([10_000, 10_000], np.int64), "size")
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    inputs = ["size"] if kind == "ConstantOfShape" else ["x", "size"]
    graph = helper.make_graph([helper.make_node(kind, inputs, ["y"])], "g", [port], [out], [size])
    with pytest.raises(BadInput, match=rf"{kind} \(y\) is asked for 1e\+08 numbers"):
        check_graph(read_graph(helper.make_model(graph).SerializeToString()))
