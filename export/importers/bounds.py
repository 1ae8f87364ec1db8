"""What a foreign graph may not be: endless, boundless, random, or a call for other code."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import numpy_helper

from export.importers.reading import one_line
from robot_runtime.errors import BadInput

_MAX_ELEMENTS = 2**26


_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "pkg.onnxscript.torch_lib")


_UNBOUNDED = ("Loop", "Scan")


_RANDOM = (
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Multinomial",
    "Bernoulli",
)


def check_bounds(model: onnx.ModelProto, name: str) -> None:
    """Refuse what could run for ever, draws lots, asks for other code, or fills the memory.

    Raises:
        BadInput: The message names the node or tensor.
    """
    for opset in model.opset_import:
        if opset.domain not in _DOMAINS:
            raise BadInput(f"{name}: needs operators of '{opset.domain}', which are other code")
    for node in _all_nodes(model):
        if node.op_type in _UNBOUNDED:
            raise BadInput(
                f"{name}: node '{node.name}' is a {node.op_type}: a policy step must be bounded"
            )
        if node.op_type in _RANDOM:
            raise BadInput(
                f"{name}: node '{node.name}' is a {node.op_type}: one observation would give "
                "another action each time; export the network without its noise (the mean)"
            )
    for tensor in model.graph.initializer:
        _check_tensor(tensor, name)
    for node in _all_nodes(model):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                _check_tensor(attribute.t, name)
    _check_shapes(model, name)


def check_text(model: onnx.ModelProto, name: str) -> None:
    """Refuse names that are not UTF-8: protobuf hands them out as bytes."""
    graph = model.graph
    words: list[object] = [item.name for item in (*graph.input, *graph.output, *graph.initializer)]
    for node in graph.node:
        words += [node.op_type, node.domain, node.name, *node.input, *node.output]
    words += [opset.domain for opset in model.opset_import]
    for entry in model.metadata_props:
        words += [entry.key, entry.value]
    if any(not isinstance(word, str) for word in words):
        raise BadInput(f"{name}: a name in it is not UTF-8 text")


def _check_tensor(tensor: onnx.TensorProto, name: str) -> None:
    if any(size < 0 for size in tensor.dims) or math.prod(tensor.dims) > _MAX_ELEMENTS:
        raise BadInput(f"{name}: weight '{tensor.name}' claims the shape {list(tensor.dims)}")
    try:
        values = numpy_helper.to_array(tensor)
    except Exception as error:
        raise BadInput(f"{name}: weight '{tensor.name}': {one_line(error)}") from None
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise BadInput(f"{name}: weight '{tensor.name}' is not finite")


def _check_shapes(model: onnx.ModelProto, name: str) -> None:
    """Refuse intermediate tensors that a few constants blow up."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:
        raise BadInput(f"{name}: its shapes do not fit each other: {one_line(error)}") from None
    for value in (*inferred.graph.value_info, *inferred.graph.output, *inferred.graph.input):
        sizes = [d.dim_value for d in value.type.tensor_type.shape.dim if d.HasField("dim_value")]
        if any(size < 0 for size in sizes) or math.prod(max(s, 1) for s in sizes) > _MAX_ELEMENTS:
            raise BadInput(f"{name}: tensor '{value.name}' has the shape {sizes}")


def _all_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    nodes: list[onnx.NodeProto] = []
    graphs = [model.graph.node, *(function.node for function in model.functions)]
    while graphs:
        for node in graphs.pop():
            nodes.append(node)
            for attribute in node.attribute:
                graphs += [attribute.g.node, *(graph.node for graph in attribute.graphs)]
    return nodes
