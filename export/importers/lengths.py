"""How long the tensors of a foreign graph are: free axes are batches of one, and no other."""

from __future__ import annotations

import math

import onnx

from robot_runtime.errors import BadInput


def shape_of(tensor: onnx.ValueInfoProto, what: str) -> tuple[int, ...]:
    """The shape of a tensor with a batch of one; free axes count one.

    Raises:
        BadInput: It is not float32.
    """
    kind = tensor.type.tensor_type
    if kind.elem_type != onnx.TensorProto.FLOAT:
        named = onnx.TensorProto.DataType.Name(kind.elem_type) if kind.elem_type else "unknown"
        raise BadInput(f"{what} '{tensor.name}' is {named}, a policy takes and gives float32")
    return tuple(d.dim_value if d.dim_value > 0 else 1 for d in kind.shape.dim)


def fill_lengths(model: onnx.ModelProto) -> None:
    """Give outputs whose length the file leaves open the one that follows from the graph."""
    loose = [tensor for tensor in model.graph.output if not _has_length(tensor)]
    if not loose:
        return
    for tensor in loose:
        tensor.type.tensor_type.ClearField("shape")
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except Exception:
        # What does not follow is refused where it is needed.
        return
    found = {tensor.name: tensor.type.tensor_type for tensor in inferred.graph.output}
    for tensor in loose:
        if found[tensor.name].HasField("shape"):
            tensor.type.tensor_type.shape.CopyFrom(found[tensor.name].shape)


def check_length(tensor: onnx.ValueInfoProto, what: str, name: str) -> None:
    """Refuse a tensor whose last axis is free: only the first may be, for a batch.

    Raises:
        BadInput: The message names the file and the tensor, and says what to do.
    """
    if _has_length(tensor):
        return
    raise BadInput(
        f"{name}: {what} '{tensor.name}' does not say how long it is: its last axis is free; "
        "export the network with a free axis for the batch alone (dynamic_axes={'obs': {0: "
        "'batch'}}), or write the length into the file with onnx.tools.update_model_dims"
    )


def check_one_action(tensor: onnx.ValueInfoProto, name: str) -> None:
    """Refuse an action output that holds several actions.

    Raises:
        BadInput: The message has its shape.
    """
    shape = shape_of(tensor, "output")
    if math.prod(shape[:-1]) > 1:
        raise BadInput(
            f"{name}: output '{tensor.name}' has the shape {list(shape)}, several actions at once "
            "(a batch, or the steps of a plan): export the network for one"
        )


def _has_length(tensor: onnx.ValueInfoProto) -> bool:
    """Whether the last axis of a tensor, if it has one, is not free."""
    kind = tensor.type.tensor_type
    return kind.HasField("shape") and (not kind.shape.dim or kind.shape.dim[-1].dim_value > 0)
