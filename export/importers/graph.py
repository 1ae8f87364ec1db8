"""Foreign ONNX graphs: read as data, weights inlined, bounded, and taken apart by tensor name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from export.bare import strip
from export.importers.bounds import check_bounds, check_text
from export.importers.lengths import check_length, check_one_action, fill_lengths, shape_of
from export.importers.reading import MAX_BINARY, one_line, read_bytes, shorten
from robot_runtime.errors import BadInput
from robot_runtime.policy.spec import RecurrentState

_OUTPUTS = ("actions", "action", "continuous_actions", "mean", "mu", "output")
_STATE_WORDS = (("_in", "_out"), ("_in", ""), ("in_", "out_"), ("", "_out"), ("", "_next"))


class Reference(Protocol):
    """The foreign network as its own runtime runs it; what ours is compared with."""

    def reset(self) -> None:
        """Forget its state."""
        ...

    def step(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Run one observation, shape ``(observation_dim,)``, to the raw action."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Graph:
    """A foreign network, ready to get a contract.

    Attributes:
        model: The ONNX model, weights inside, no metadata.
        name: The file it came from, for messages.
        inputs: Lengths of its observation inputs by name, in order.
        outputs: Lengths of its outputs by name that are no state, in order.
        states: Its recurrent state.
        normalized: Whether the graph begins by shifting or scaling its input.
        metadata: The metadata of the foreign file, by key.
        reference: Makes the network as it came, from the name of the output with the action.
        notes: What the user should know about it.
        observed: Output with the observation that the foreign network takes, where that is not
            the contract's; None where it is.
        settings: Fields below ``network`` that the user may state, beside the contract's own.
        details: What became of each part of the file, line by line, for people.
    """

    model: bytes
    name: str
    inputs: dict[str, int]
    outputs: dict[str, int]
    states: tuple[RecurrentState, ...]
    normalized: bool
    metadata: dict[str, str]
    reference: Callable[[str], Reference]
    notes: tuple[str, ...] = ()
    observed: str | None = None
    settings: tuple[str, ...] = ()
    details: tuple[str, ...] = ()

    @property
    def observation_dim(self) -> int:
        """Length of all observation inputs together."""
        return sum(self.inputs.values())


def read_onnx(path: Path) -> onnx.ModelProto:
    """Read a foreign ONNX model with its weights, whether inside or beside it.

    Raises:
        BadInput: Not an ONNX model, weights missing, or something in it has no bound.
    """
    data = read_bytes(path)
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:
        raise BadInput(f"'{path}' is not an ONNX model: {one_line(error)}") from None
    if not model.HasField("graph") or not model.graph.node:
        raise BadInput(f"'{path}' is not an ONNX model: it has no graph")
    check_text(model, path.name)
    _inline(model, path)
    check_bounds(model, path.name)
    return model


def open_onnx(path: Path) -> Graph:
    """Read a foreign ONNX model and find its inputs, outputs and states.

    Raises:
        BadInput: See `read_onnx`; or a tensor is not float32, or has no length.
    """
    model = read_onnx(path)
    metadata = {prop.key: prop.value for prop in model.metadata_props}
    graph, original = make_graph(model, path.name, metadata), original_of(path)

    def reference(output: str) -> Reference:
        return OnnxReference(original, (output,), graph.states)

    return replace(graph, reference=reference)


def original_of(path: Path) -> bytes | str:
    """Return what onnxruntime takes to run a file as it came, for a file that `read_onnx` takes.

    An import is compared with the user's own file and not with our copy of it, so that what we do
    to the copy, weights brought in from beside it say, is compared too.

    Returns:
        The bytes of the file; its path where weights lie beside it, which onnxruntime then reads.
    """
    data = read_bytes(path)
    weights = onnx.load_model_from_string(data).graph.initializer
    beside = any(one.data_location == onnx.TensorProto.EXTERNAL for one in weights)
    return str(path) if beside else data


def make_graph(model: onnx.ModelProto, name: str, metadata: dict[str, str]) -> Graph:
    """Take a checked ONNX model apart; see `open_onnx`. The reference is what is given here."""
    fill_lengths(model)
    inputs = {tensor.name: shape_of(tensor, "input") for tensor in graph_inputs(model)}
    outputs = {tensor.name: shape_of(tensor, "output") for tensor in model.graph.output}
    states = _states(inputs, outputs)
    carried = {state.input for state in states}, {state.output for state in states}
    if len(inputs) == len(carried[0]) or len(outputs) == len(carried[1]):
        raise BadInput(f"{name}: the graph has no observation to take, or no action to give")
    for tensor in graph_inputs(model):
        check_length(tensor, "input", name)
    results = [tensor for tensor in model.graph.output if tensor.name not in carried[1]]
    for tensor in results:
        if len(results) == 1 or tensor.name in _OUTPUTS:
            check_length(tensor, "output", name)
            check_one_action(tensor, name)
    anonymous(model)
    data = model.SerializeToString(deterministic=True)
    return Graph(
        model=data,
        name=name,
        inputs={key: math.prod(s) for key, s in inputs.items() if key not in carried[0]},
        outputs={key: math.prod(s) for key, s in outputs.items() if key not in carried[1]},
        states=states,
        normalized=_normalized(model, carried[0]),
        metadata=metadata,
        reference=lambda output: OnnxReference(data, (output,), states),
    )


def choose_output(graph: Graph, wanted: str | None) -> str:
    """The output that holds the action.

    Args:
        graph: The network.
        wanted: Its name where somebody says it.

    Raises:
        BadInput: No such output, or several and none has a usual name.
    """
    names = list(graph.outputs)
    if wanted is not None:
        if wanted not in names:
            raise BadInput(f"{graph.name} has no output '{wanted}'; it has {', '.join(names)}")
        return wanted
    if len(names) == 1:
        return names[0]
    usual = [name for name in _OUTPUTS if name in names]
    if not usual:
        raise BadInput(
            f"{graph.name} has the outputs {shorten(names)}: say which one is the action, as "
            "network.output: NAME"
        )
    return usual[0]


class OnnxReference:
    """A foreign model in onnxruntime with its default options, fed by name."""

    def __init__(
        self, model: bytes | str, outputs: Sequence[str], states: tuple[RecurrentState, ...]
    ) -> None:
        """Load it.

        Args:
            model: The model, or its path.
            outputs: The outputs that make up the action, one after the other.
            states: Its recurrent state, zero at the start.

        Raises:
            BadInput: onnxruntime cannot load it.
        """
        options = ort.SessionOptions()
        options.log_severity_level = 4
        try:
            self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise BadInput(f"onnxruntime cannot load the graph: {one_line(error)}") from None
        self._outputs = list(outputs)
        self._states = states
        self._carried = {state.input: np.zeros(state.shape, np.float32) for state in states}
        self._observed = {
            arg.name: [size if isinstance(size, int) else 0 for size in arg.shape]
            for arg in self._session.get_inputs()
            if arg.name not in self._carried
        }

    def reset(self) -> None:
        """Set the state to zero."""
        for value in self._carried.values():
            value.fill(0.0)

    def step(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Run one observation, shape ``(observation_dim,)``; the state moves on."""
        feed, start = dict(self._carried), 0
        for name, shape in self._observed.items():
            # Free axes are batches of one; the last is none of them.
            sizes = [size or 1 for size in shape]
            stop = start + math.prod(sizes)
            feed[name] = np.reshape(obs[start:stop], sizes)
            start = stop
        try:
            wanted = [*self._outputs, *(state.output for state in self._states)]
            found = self._session.run(wanted, feed)
        except Exception as error:
            raise BadInput(f"the graph does not run: {one_line(error)}") from None
        action, following = found[: len(self._outputs)], found[len(self._outputs) :]
        for state, value in zip(self._states, following, strict=True):
            self._carried[state.input][:] = value
        return np.concatenate([np.ravel(np.asarray(part, np.float32)) for part in action])


def graph_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The inputs that somebody has to feed: old models list their weights among them."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [tensor for tensor in model.graph.input if tensor.name not in weights]


def anonymous(model: onnx.ModelProto) -> None:
    """Remove what a foreign model says beside its graph, who wrote it included."""
    strip(model)
    for field in ("producer_name", "producer_version", "domain"):
        model.ClearField(field)


def _inline(model: onnx.ModelProto, path: Path) -> None:
    """Bring weights from files beside the model into it, and only from beside it."""
    folder = path.parent.resolve()
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entry = {item.key: item.value for item in tensor.external_data}
        where = (folder / entry.get("location", "")).resolve()
        if folder not in where.parents:
            raise BadInput(f"'{path}': weight '{tensor.name}' lies outside of its folder")
        if not where.is_file():
            raise BadInput(
                f"'{path}' keeps its weights in '{where.name}', which is not beside it: copy both"
            )
        content = read_bytes(where, MAX_BINARY)
        try:
            start = int(entry.get("offset", "0"))
            length = int(entry.get("length", str(len(content) - start)))
        except ValueError:
            raise BadInput(f"'{path}': weight '{tensor.name}' has no readable place") from None
        if start < 0 or length < 0 or start + length > len(content):
            raise BadInput(f"'{where.name}' is cut off: weight '{tensor.name}' ends beyond it")
        tensor.ClearField("external_data")
        tensor.data_location = onnx.TensorProto.DEFAULT
        tensor.raw_data = content[start : start + length]


def _states(
    inputs: dict[str, tuple[int, ...]], outputs: dict[str, tuple[int, ...]]
) -> tuple[RecurrentState, ...]:
    """Pairs of inputs and outputs of one shape whose names say that they belong together."""
    found: list[RecurrentState] = []
    for name, shape in inputs.items():
        for ending, other in _STATE_WORDS:
            if ending and ending not in name:
                continue
            partner = name.replace(ending, other) if ending else name + other
            if partner != name and outputs.get(partner) == shape:
                found.append(RecurrentState(input=name, output=partner, shape=shape))
                break
    return tuple(found) if len(found) < len(inputs) else ()


def _normalized(model: onnx.ModelProto, states: set[str]) -> bool:
    """Whether the first thing that happens to an observation is a shift, scale or batch norm."""
    fed = {tensor.name for tensor in graph_inputs(model)} - states
    weights = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        if not fed & set(node.input):
            continue
        if node.op_type in ("Identity", "Cast", "Flatten", "Reshape", "Concat", "Unsqueeze"):
            fed |= set(node.output)
        elif node.op_type == "Constant":
            weights |= set(node.output)
        elif node.op_type in ("Sub", "Div", "Mul", "Add", "BatchNormalization"):
            return True
    return False
