"""What is in an ONNX model, without the onnx package: tensors, operators, weights.

Field numbers are those of onnx.proto. A model is somebody else's data: what is read here has been
bounds-checked, and `check_graph` refuses what onnxruntime should not be asked to run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robot_runtime.errors import BadInput
from robot_runtime.policy.onnx_bytes import fields, varint

MAX_NODES = 20_000
"""Most operators of a policy, functions expanded; the largest policies have some hundreds."""

MAX_ELEMENTS = 2**26
"""Most numbers in one weight, and in what one constant asks an operator to make."""

_MAX_DEPTH = 8
_MAX_INTEGERS = 2**20
_UNBOUNDED = ("Loop", "Scan", "SequenceMap")
_SIZED_BY = {
    "ConstantOfShape": 0,
    "Expand": 1,
    "Reshape": 1,
    "OneHot": 1,
    "Resize": 3,
    "RandomNormal": -1,
    "RandomUniform": -1,
}
"""Operators that make as much as a constant asks for, and which input that is."""

_DTYPES = {
    1: np.dtype("<f4"),
    2: np.dtype("u1"),
    3: np.dtype("i1"),
    4: np.dtype("<u2"),
    5: np.dtype("<i2"),
    6: np.dtype("<i4"),
    7: np.dtype("<i8"),
    9: np.dtype("?"),
    10: np.dtype("<f2"),
    11: np.dtype("<f8"),
    12: np.dtype("<u4"),
    13: np.dtype("<u8"),
}
_NAMES = {8: "string", 16: "bfloat16"}
_TYPED_FIELDS = {4: np.dtype("<f4"), 10: np.dtype("<f8")}
_VARINT_FIELDS = (5, 7, 11)

Bytes = memoryview
Fields = dict[int, list[Bytes | int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """An input or output of the graph.

    Attributes:
        name: Its name.
        dtype: Its type, such as ``float32``.
        shape: Its axes; a free one has a name or is empty.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Weight:
    """A constant tensor.

    Attributes:
        name: Its name.
        dtype: Its type, such as ``float32``.
        shape: Its shape.
        values: Its numbers; None where they lie in another file or are no numbers.
        external: Whether they lie in another file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: NDArray[Any] | None
    external: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator:
    """A node of the graph.

    Attributes:
        kind: Its operator.
        domain: Whose operator; empty for ONNX's own.
        inputs: Names of what goes in.
        outputs: Names of what comes out.
        settings: Its attributes as they stand in the file, without tensors and subgraphs.
        constants: Tensors among its attributes.
    """

    kind: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    settings: bytes
    constants: tuple[Weight, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class OnnxGraph:
    """A model taken apart.

    Attributes:
        ir_version: Version of the file format.
        producer: What wrote it, as it says.
        opsets: Versions of the operators by domain; the empty domain is ONNX's own.
        inputs: What has to be fed: weights that old models list among them are left out.
        outputs: What comes out.
        operators: All nodes, those of subgraphs after the node that holds them.
        weights: Initializers and constants by name.
        calls: How many operators run, functions of the model expanded.
        sparse: Whether there are sparse weights, which are not read.
    """

    ir_version: int
    producer: str
    opsets: dict[str, int]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    operators: tuple[Operator, ...]
    weights: dict[str, Weight]
    calls: int
    sparse: bool


def read_graph(data: bytes) -> OnnxGraph:
    """Take a model apart.

    Args:
        data: The file.

    Raises:
        BadInput: Cut off, no ONNX model, or something in it claims to be larger than it is.
    """
    model = _message(memoryview(data))
    graphs = [part for part in model.get(7, []) if not isinstance(part, int)]
    if len(graphs) != 1:
        raise BadInput(f"not a plain ONNX model: {len(graphs)} graphs")
    graph = _message(graphs[0])
    operators = list(_operators(graph, 0))
    weights = {w.name: w for w in (_weight(part) for part in _parts(graph, 5))}
    for operator in operators:
        if operator.kind == "Constant" and operator.constants and operator.outputs:
            weights.setdefault(operator.outputs[0], operator.constants[0])
    return OnnxGraph(
        ir_version=_number(model, 1),
        producer=_text(model, 2),
        opsets={_text(o, 1): _number(o, 2) for o in map(_message, _parts(model, 8))},
        inputs=tuple(p for p in map(_port, _parts(graph, 11)) if p.name not in weights),
        outputs=tuple(map(_port, _parts(graph, 12))),
        operators=tuple(operators),
        weights=weights,
        calls=_calls(operators, model),
        sparse=bool(graph.get(15)),
    )


def check_graph(graph: OnnxGraph) -> None:
    """Refuse what could run for ever, fill the memory, or reach for other files.

    What it cannot bound: sizes that the graph computes by itself. `robot_runtime.policy.inference`
    caps onnxruntime's memory and the time of the first step against those.

    Raises:
        BadInput: The message names the operator or weight.
    """
    if graph.calls > MAX_NODES:
        raise BadInput(f"the graph has more than {MAX_NODES} operators")
    if graph.sparse:
        raise BadInput("the graph has sparse weights, which no policy needs")
    for operator in graph.operators:
        if operator.kind in _UNBOUNDED:
            raise BadInput(
                f"the graph has a {operator.kind} ({', '.join(operator.outputs)}): a policy step "
                "must be bounded"
            )
        for weight in operator.constants:
            _check_weight(weight)
        _check_size(operator, graph.weights)
    for weight in graph.weights.values():
        _check_weight(weight)


def _check_weight(weight: Weight) -> None:
    if weight.external:
        raise BadInput(
            f"weight {weight.name!r} lies in another file: save the model as one file "
            "(onnx.save with save_as_external_data=False)"
        )
    # Infinity is what attention masks are made of.
    values = weight.values
    if values is not None and values.dtype.kind == "f" and bool(np.isnan(values).any()):
        raise BadInput(f"weight {weight.name!r} holds what is not a number")


def _check_size(operator: Operator, weights: dict[str, Weight]) -> None:
    place = _SIZED_BY.get(operator.kind)
    if place is None or not 0 <= place < len(operator.inputs):
        return
    asked = weights.get(operator.inputs[place])
    if asked is None or asked.values is None or asked.values.dtype.kind not in "iu":
        return
    size = math.prod(max(int(n), 1) for n in asked.values.ravel()[:16])
    if size > MAX_ELEMENTS:
        raise BadInput(
            f"operator {operator.kind} ({', '.join(operator.outputs)}) is asked for {size:.3g} "
            "numbers"
        )


def _operators(graph: Fields, depth: int) -> Iterator[Operator]:
    if depth > _MAX_DEPTH:
        raise BadInput("the graph has subgraphs in subgraphs, too deep")
    for part in _parts(graph, 1):
        node = _message(part)
        settings, constants, inner = bytearray(), list[Weight](), list[Fields]()
        for raw in _parts(node, 5):
            attribute = _message(raw)
            constants += [_weight(t) for t in (*_parts(attribute, 5), *_parts(attribute, 10))]
            graphs = [*_parts(attribute, 6), *_parts(attribute, 11)]
            inner += [_message(subgraph) for subgraph in graphs]
            if not graphs and not _parts(attribute, 5):
                settings += raw
        yield Operator(
            kind=_text(node, 4),
            domain=_text(node, 7),
            inputs=tuple(_string(i) for i in _parts(node, 1)),
            outputs=tuple(_string(o) for o in _parts(node, 2)),
            settings=bytes(settings),
            constants=tuple(constants),
        )
        for subgraph in inner:
            yield from _operators(subgraph, depth + 1)


def _calls(operators: list[Operator], model: Fields) -> int:
    """Operators that run when every function of the model is expanded."""
    bodies: dict[tuple[str, str], list[Operator]] = {}
    for part in _parts(model, 25):
        function = _message(part)
        # The nodes of a FunctionProto are its field 7, those of a GraphProto its field 1.
        body: Fields = {1: function.get(7, [])}
        bodies[_text(function, 10), _text(function, 1)] = list(_operators(body, 0))
    sizes: dict[tuple[str, str], int] = {}

    def size(nodes: list[Operator], depth: int) -> int:
        if depth > min(len(bodies), 8 * _MAX_DEPTH):
            raise BadInput("the model has functions that call each other without end")
        total = 0
        for node in nodes:
            key = (node.domain, node.kind)
            if key in bodies and key not in sizes:
                sizes[key] = size(bodies[key], depth + 1)
            total = min(total + sizes.get(key, 1), 2 * MAX_NODES)
        return total

    return size(operators, 0)


def _port(data: Bytes) -> Port:
    info = _message(data)
    kind = _first(_first(info, 2), 1)
    shape: list[int | str] = []
    for part in _parts(_first(kind, 2), 1):
        axis = _message(part)
        shape.append(_signed(_number(axis, 1)) if 1 in axis else _text(axis, 2))
    return Port(name=_text(info, 1), dtype=_dtype_name(_number(kind, 1)), shape=tuple(shape))


def _weight(data: Bytes) -> Weight:
    tensor = _message(data)
    name, number = _text(tensor, 8), _number(tensor, 2)
    shape = tuple(_signed(n) for n in _integers(tensor, 1))
    external = _number(tensor, 14) == 1 or bool(tensor.get(13))
    if any(n < 0 for n in shape) or math.prod(shape) > MAX_ELEMENTS or len(shape) > 16:
        raise BadInput(f"weight {name!r} claims the shape {list(shape)[:16]}")
    values = None
    if number in _DTYPES and not external:
        values = _values(tensor, _DTYPES[number])
        if values.size != math.prod(shape):
            raise BadInput(
                f"weight {name!r} of shape {list(shape)} has {values.size} numbers, not "
                f"{math.prod(shape)}"
            )
        values = np.reshape(values, shape)
    return Weight(
        name=name, dtype=_dtype_name(number), shape=shape, values=values, external=external
    )


def _values(tensor: Fields, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The numbers of a tensor, whichever of its fields holds them."""
    raw = b"".join(bytes(part) for part in _parts(tensor, 9))
    if raw:
        if len(raw) % dtype.itemsize:
            raise BadInput("a weight's bytes are no whole numbers")
        return np.frombuffer(raw, dtype)
    for number, stored in _TYPED_FIELDS.items():
        parts = [bytes(part) for part in _parts(tensor, number)]
        if parts:
            whole = b"".join(parts)
            if len(whole) % stored.itemsize:
                raise BadInput("a weight's bytes are no whole numbers")
            return np.frombuffer(whole, stored).astype(dtype)
    for number in _VARINT_FIELDS:
        if tensor.get(number):
            integers = np.array([_signed(n) for n in _integers(tensor, number)], np.int64)
            if dtype.kind == "f" and dtype.itemsize == 2:
                return np.frombuffer(integers.astype("<u2").tobytes(), "<f2")
            return integers.astype(dtype)
    return np.empty(0, dtype)


def _dtype_name(number: int) -> str:
    return str(_DTYPES[number]) if number in _DTYPES else _NAMES.get(number, f"type {number}")


def _message(data: Bytes) -> Fields:
    """The fields of a message by number: numbers as they are, everything else as bytes."""
    found: Fields = {}
    for number, wire, _, content, stop in fields(data):
        value = varint(data, content)[0] if wire == 0 else data[content:stop]
        found.setdefault(number, []).append(value)
    return found


def _parts(message: Fields, number: int) -> list[Bytes]:
    return [part for part in message.get(number, []) if not isinstance(part, int)]


def _first(message: Fields, number: int) -> Fields:
    parts = _parts(message, number)
    return _message(parts[0]) if parts else {}


def _number(message: Fields, number: int) -> int:
    found = [part for part in message.get(number, []) if isinstance(part, int)]
    return found[-1] if found else 0


def _integers(message: Fields, number: int) -> list[int]:
    """A repeated integer, packed into one field or not."""
    found: list[int] = []
    for part in message.get(number, []):
        if isinstance(part, int):
            found.append(part)
            continue
        position = 0
        while position < len(part):
            value, position = varint(part, position)
            found.append(value)
            if len(found) > _MAX_INTEGERS:
                raise BadInput(f"a weight has more than {_MAX_INTEGERS} numbers one by one")
    return found


def _signed(value: int) -> int:
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def _text(message: Fields, number: int) -> str:
    parts = _parts(message, number)
    return _string(parts[-1]) if parts else ""


def _string(data: Bytes) -> str:
    return bytes(data).decode("utf-8", "replace")
