"""A small ONNX writer of our own, for runtimes older than what torch's exporter writes for.

Nodes are chosen so that one text holds from opset 11 to the newest: what changed its form between
them (Unsqueeze, Split, Squeeze, Slice) is avoided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from robot_runtime.errors import BadInput
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.spec import RecurrentState
from trainer.networks.graph_spec import (
    DenseLayer,
    GraphSpec,
    Normalization,
    RecurrentLayer,
    Squash,
)

MIN_OPSET, MAX_OPSET = 11, 21
"""Opsets in which every node of this module means what is meant here."""

_GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}
"""torch's gates in the order of ONNX: i, f, g, o -> i, o, f, c and r, z, n -> z, r, h."""

_OPS: dict[str, tuple[str, dict[str, float]]] = {
    "elu": ("Elu", {"alpha": 1.0}),
    "leakyrelu": ("LeakyRelu", {"alpha": 0.01}),
    "relu": ("Relu", {}),
    "selu": ("Selu", {}),
    "sigmoid": ("Sigmoid", {}),
    "tanh": ("Tanh", {}),
}


def write_graph(spec: GraphSpec, contract: PolicyContract, *, opset: int, ir_version: int) -> bytes:
    """Write a network as ONNX.

    Args:
        spec: The network.
        contract: Names the inputs, the states and the output.
        opset: Version of the operators, `MIN_OPSET` to `MAX_OPSET`.
        ir_version: Version of the file format.

    Returns:
        An ONNX model without metadata, weights inside, with a free batch axis.

    Raises:
        BadInput: The contract's lengths or states are not those of the network.
    """
    _check(spec, contract)
    return write_chain(
        spec,
        inputs=contract.inputs(),
        output=contract.network.output,
        states=contract.network.states,
        opset=opset,
        ir_version=ir_version,
    )


def write_chain(
    spec: GraphSpec,
    *,
    inputs: Mapping[str, int],
    output: str,
    states: tuple[RecurrentState, ...],
    opset: int,
    ir_version: int,
) -> bytes:
    """Write a network as ONNX under names that need no contract; see `write_graph`.

    Args:
        spec: The network.
        inputs: Lengths by name of what stands one after the other in its observation.
        output: Name of the action.
        states: Its states, as `GraphSpec.state_shapes` has them.
        opset: Version of the operators.
        ir_version: Version of the file format.
    """
    writer = _Writer()
    names = list(inputs)
    value = writer.node("Concat", *names, axis=-1) if len(names) > 1 else names[0]
    if spec.normalization is not None:
        value = _normalize(writer, value, spec.normalization)
    if spec.recurrent:
        value = _recur(writer, value, spec.recurrent, states)
    if spec.squash is None:
        value = _dense(writer, value, spec.layers)
    else:
        value = _squash(writer, value, spec.layers, spec.squash)
    writer.rename(value, output)
    shapes = {state.input: [state.shape[0], "batch", state.shape[2]] for state in states}
    shapes |= {state.output: [state.shape[0], "batch", state.shape[2]] for state in states}
    graph = helper.make_graph(
        writer.nodes,
        "policy",
        [
            *(_tensor(name, ["batch", dim]) for name, dim in inputs.items()),
            *(_tensor(state.input, shapes[state.input]) for state in states),
        ],
        [
            _tensor(output, ["batch", num_actions(spec)]),
            *(_tensor(state.output, shapes[state.output]) for state in states),
        ],
        writer.constants,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version
    )
    model.producer_name = "surefoot"
    return model.SerializeToString(deterministic=True)


class _Writer:
    """Nodes and constants under construction; every value gets a fresh name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, values: NDArray[np.generic]) -> str:
        name = f"{name}_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.several(kind, inputs, 1, **attributes)[0]

    def several(
        self, kind: str, inputs: tuple[str, ...], outputs: int, **attributes: Any
    ) -> list[str]:
        """A node with several outputs."""
        stem = f"{kind.lower()}_{len(self.nodes)}"
        names = [stem if i == 0 else f"{stem}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=stem, **attributes))
        return names

    def rename(self, value: str, name: str) -> None:
        """Give a value the name that the graph's outputs have for it."""
        for node in self.nodes:
            for field in (node.input, node.output):
                field[:] = [name if item == value else item for item in field]


def _normalize(writer: _Writer, value: str, normalization: Normalization) -> str:
    value = writer.node("Sub", value, writer.constant("center", normalization.center))
    value = writer.node("Div", value, writer.constant("scale", normalization.scale))
    if normalization.clip <= 0.0:
        return value
    low, high = (np.array(sign * normalization.clip, np.float32) for sign in (-1.0, 1.0))
    return writer.node("Clip", value, writer.constant("low", low), writer.constant("high", high))


def _recur(
    writer: _Writer,
    value: str,
    layers: tuple[RecurrentLayer, ...],
    states: tuple[RecurrentState, ...],
) -> str:
    """One step of a stack of recurrent layers: a sequence of length one for ONNX."""
    value = writer.node("Reshape", value, _shape(writer, 1, -1, layers[0].weight_ih.shape[1]))
    following: list[list[str]] = [[] for _ in states]
    for i, layer in enumerate(layers):
        given = [_layer_of(writer, state, i) for state in states]
        order, hidden = _GATES[layer.kind], layer.hidden

        def gates(
            values: NDArray[np.float32], order: tuple[int, ...] = order
        ) -> NDArray[np.float32]:
            return np.concatenate([np.split(values, len(order))[gate] for gate in order])

        bias = np.concatenate([gates(layer.bias_ih), gates(layer.bias_hh)])
        # GRU: torch applies the reset gate after the product with the hidden state.
        extra = {"linear_before_reset": 1} if layer.kind == "gru" else {}
        outputs = writer.several(
            layer.kind.upper(),
            (
                value,
                writer.constant("input_weight", gates(layer.weight_ih)[None]),
                writer.constant("state_weight", gates(layer.weight_hh)[None]),
                writer.constant("bias", bias[None]),
                "",
                *given,
            ),
            1 + len(states),
            hidden_size=hidden,
            **extra,
        )
        value = outputs[1]
        for parts, part in zip(following, outputs[1:], strict=True):
            parts.append(part)
    for state, parts in zip(states, following, strict=True):
        # A value has one name, and the last layer's state goes on to the dense layers too.
        kind = "Concat" if len(parts) > 1 else "Identity"
        attributes = {"axis": 0} if len(parts) > 1 else {}
        writer.rename(writer.node(kind, *parts, **attributes), state.output)
    return writer.node("Reshape", value, _shape(writer, -1, layers[-1].hidden))


def _layer_of(writer: _Writer, state: RecurrentState, layer: int) -> str:
    """The state of one layer, shape ``(1, batch, hidden)``."""
    if state.shape[0] == 1:
        return state.input
    index = writer.constant("layer", np.array([layer], np.int64))
    return writer.node("Gather", state.input, index, axis=0)


def _dense(writer: _Writer, value: str, layers: tuple[DenseLayer, ...]) -> str:
    for layer in layers:
        weight, bias = writer.constant("weight", layer.weight), writer.constant("bias", layer.bias)
        value = writer.node("Gemm", value, weight, bias, transB=1)
        value = _activate(writer, value, layer.activation)
    return value


def _activate(writer: _Writer, value: str, activation: str) -> str:
    if not activation:
        return value
    if activation == "silu":
        return writer.node("Mul", value, writer.node("Sigmoid", value))
    if activation == "mish":
        return writer.node("Mul", value, writer.node("Tanh", writer.node("Softplus", value)))
    if activation == "gelu":
        root = writer.constant("root", np.array(1.0 / math.sqrt(2.0), np.float32))
        one = writer.constant("one", np.array(1.0, np.float32))
        half = writer.constant("half", np.array(0.5, np.float32))
        erf = writer.node("Erf", writer.node("Mul", value, root))
        return writer.node("Mul", writer.node("Mul", value, half), writer.node("Add", erf, one))
    kind, attributes = _OPS[activation]
    return writer.node(kind, value, **attributes)


def _squash(writer: _Writer, value: str, layers: tuple[DenseLayer, ...], squash: Squash) -> str:
    *inner, last = layers
    value = _dense(writer, value, tuple(inner))
    if squash.kind == "tanh":
        squashed = writer.node("Tanh", _dense(writer, value, (last,)))
    else:
        half = len(squash.scale)
        a, b = (
            _one_plus_softplus(writer, value, last, rows)
            for rows in (slice(None, half), slice(half, None))
        )
        squashed = writer.node("Div", a, writer.node("Add", a, b))
    scaled = writer.node("Mul", squashed, writer.constant("action_scale", squash.scale))
    return writer.node("Add", scaled, writer.constant("action_offset", squash.offset))


def _one_plus_softplus(writer: _Writer, value: str, layer: DenseLayer, rows: slice) -> str:
    part = DenseLayer(weight=layer.weight[rows], bias=layer.bias[rows], activation="")
    soft = writer.node("Softplus", _dense(writer, value, (part,)))
    return writer.node("Add", soft, writer.constant("one", np.array(1.0, np.float32)))


def _shape(writer: _Writer, *sizes: int) -> str:
    return writer.constant("shape", np.array(sizes, np.int64))


def _tensor(name: str, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def observation_dim(spec: GraphSpec) -> int:
    """Length of the observation that a network takes."""
    first = spec.recurrent[0].weight_ih if spec.recurrent else spec.layers[0].weight
    return first.shape[1]


def num_actions(spec: GraphSpec) -> int:
    """Length of the action that a network gives."""
    return len(spec.layers[-1].bias) // (2 if spec.squash and spec.squash.kind == "beta" else 1)


def _check(spec: GraphSpec, contract: PolicyContract) -> None:
    """The network's lengths and states must be the contract's."""
    if observation_dim(spec) != contract.observation_dim:
        raise BadInput(
            f"the network takes {observation_dim(spec)} numbers, the contract's observation has "
            f"{contract.observation_dim}"
        )
    width = num_actions(spec)
    if width != contract.num_actions or (spec.squash and len(spec.squash.scale) != width):
        raise BadInput(
            f"the network gives {width} numbers, the contract has {contract.num_actions} actions"
        )
    stated = tuple(state.shape for state in contract.network.states)
    if stated != spec.state_shapes:
        raise BadInput(
            f"the network has states of the shapes {list(spec.state_shapes)}, the contract's "
            f"network.states say {list(stated)}"
        )
