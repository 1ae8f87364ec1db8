"""TorchScript to ONNX: the graph is walked node by node, its hidden state made explicit.

Exporters of recurrent policies keep the state in buffers that ``forward`` overwrites. Walking the
graph ourselves finds those buffers and hands them in and out, for any network the graph describes,
without relying on what class it was once made from.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import Dim

from export.importers.graph import Graph, check_bounds, make_graph
from export.importers.reading import one_line, read_bytes, shorten
from robot_runtime.errors import BadInput, Refused
from robot_runtime.policy.spec import RecurrentState

_MAX_UNPACKED = 2**30
_MAX_STEPS = 100_000
_OPSET, _IR_VERSION = 18, 8


def open_torchscript(path: Path, observation_dim: int | None, *, allowed: bool) -> Graph:
    """Convert a TorchScript policy.

    Args:
        path: The file.
        observation_dim: Length of its observation, where something states it.
        allowed: Whether the user agrees to run the graph inside.

    Raises:
        Refused: The user does not.
        BadInput: Not TorchScript, or a graph that cannot be a policy.
    """
    data = read_bytes(path)
    _check_archive(data, path)
    if not allowed:
        raise Refused(
            f"'{path}' is TorchScript: reading it runs the program inside; if you trust where it "
            "comes from, say so with --run-torchscript"
        )
    try:
        script = torch.jit.load(io.BytesIO(data), map_location="cpu").eval()
    except Exception as error:
        raise BadInput(f"'{path}' is not a readable TorchScript file: {one_line(error)}") from None
    dim = _input_length(script, path.name) if observation_dim is None else observation_dim
    return convert(script, path.name, dim)


def convert(script: torch.jit.ScriptModule, name: str, observation_dim: int) -> Graph:
    """Convert a loaded TorchScript policy with one observation input.

    Args:
        script: The module, on the CPU, in evaluation mode.
        name: Its name, for messages.
        observation_dim: Length of its observation.

    Raises:
        BadInput: The graph cannot run on an observation of that length, or cannot be written.
    """
    walker = Walker(script)
    states, shape, notes = _probe(walker, name, observation_dim)
    model = _export(walker, name, observation_dim, states)
    check_bounds(model, name)
    graph = make_graph(model, name, {})
    carried = tuple(
        RecurrentState(input=f"{s}_in", output=f"{s}_out", shape=tuple(walker.buffers[s].shape))
        for s in states
    )
    size = int(np.prod(shape))
    return Graph(
        model=graph.model,
        name=name,
        inputs={"obs": observation_dim},
        outputs={"actions": size},
        states=carried,
        normalized=graph.normalized,
        metadata={},
        reference=lambda _: ScriptReference(script, states),
        notes=notes,
    )


class ScriptReference:
    """The TorchScript module itself, with its state in its buffers."""

    def __init__(self, script: torch.jit.ScriptModule, states: tuple[str, ...]) -> None:
        """Take a module and the names of the buffers that are its state."""
        self._script = script
        self._states = [name.replace("/", ".") for name in states]

    def reset(self) -> None:
        """Set the state to zero."""
        # Looked up anew: a graph may put another tensor in a buffer's place.
        buffers = dict(self._script.named_buffers())
        for name in self._states:
            buffers[name].zero_()

    def step(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Run one observation, shape ``(observation_dim,)``; the state moves on."""
        with torch.no_grad():
            result = self._script(torch.from_numpy(obs[None].copy()))
        action = result[0] if isinstance(result, tuple) else result
        return np.array(action.reshape(-1).numpy(), np.float32)


class Walker:
    """Runs the inlined graph of a TorchScript module with operators of torch, node by node.

    Attributes:
        graph: The graph.
        buffers: The module's tensors that are no parameters, by path.
        written: Paths of the tensors that the last run overwrote.
    """

    def __init__(self, script: torch.jit.ScriptModule) -> None:
        """Take a module."""
        self._root: Any = script._c
        self.graph: Any = script.inlined_graph
        self.buffers: dict[str, Tensor] = {
            path.replace(".", "/"): value for path, value in script.named_buffers()
        }
        self.written: set[str] = set()

    def run(self, obs: Tensor, states: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Run one step.

        Args:
            obs: Observations, shape ``(B, observation_dim)``.
            states: Values of buffers by path; the others have the module's own.

        Returns:
            The action, and the buffers as the graph leaves them.
        """
        frame = _Frame(self._root, {k: v.clone() for k, v in {**self.buffers, **states}.items()})
        before = {path: (value, value._version) for path, value in frame.tensors.items()}
        inputs = list(self.graph.inputs())
        values: dict[str, Any] = {inputs[0].debugName(): _Module(self._root, "")}
        values[inputs[1].debugName()] = obs
        frame.run(self.graph.nodes(), values)
        (output,) = (values[out.debugName()] for out in self.graph.outputs())
        self.written = {
            path
            for path, value in frame.tensors.items()
            if value is not before[path][0] or value._version != before[path][1]
        }
        action = output[0] if isinstance(output, tuple) else output
        return action, frame.tensors


class _Explicit(nn.Module):
    """A walker whose state goes in and out."""

    def __init__(self, walker: Walker, states: tuple[str, ...]) -> None:
        super().__init__()
        self._walker = walker
        self._states = states

    def forward(self, obs: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(self._states, states, strict=True))
        action, after = self._walker.run(obs, given)
        return (action, *(after[name] for name in self._states))


class _Module:
    """A module inside the graph: its own object and the path to it."""

    def __init__(self, inner: Any, path: str) -> None:
        self.inner = inner
        self.path = path


class _Frame:
    """One run of the graph: the tensors of the module, and how many nodes it took."""

    def __init__(self, root: Any, tensors: dict[str, Tensor]) -> None:
        self.root = root
        self.tensors = tensors
        self.steps = 0

    def run(self, nodes: Iterator[Any], values: dict[str, Any]) -> None:
        for node in nodes:
            self.steps += 1
            if self.steps > _MAX_STEPS:
                raise BadInput("the TorchScript graph takes more steps than any policy needs")
            results = self._run(node, values)
            for output, result in zip(node.outputs(), results, strict=True):
                values[output.debugName()] = result

    def _run(self, node: Any, values: dict[str, Any]) -> tuple[Any, ...]:
        kind = node.kind()
        if kind == "prim::Constant":
            return (_constant(node),)
        if kind == "prim::If":
            condition = values[next(node.inputs()).debugName()]
            block = list(node.blocks())[0 if bool(condition) else 1]
            self.run(block.nodes(), values)
            return tuple(values[out.debugName()] for out in block.outputs())
        if kind == "prim::Loop":
            return self._loop(node, values)
        arguments = [values[value.debugName()] for value in node.inputs()]
        if kind == "prim::GetAttr":
            return (self._attribute(arguments[0], node.s("name")),)
        if kind == "prim::SetAttr":
            self._set(arguments[0], node.s("name"), arguments[1])
            return ()
        if kind in ("prim::TupleUnpack", "prim::ListUnpack"):
            return tuple(arguments[0])
        if kind in _PYTHON:
            return (_PYTHON[kind](*arguments),)
        return _operator(node, kind, arguments)

    def _loop(self, node: Any, values: dict[str, Any]) -> tuple[Any, ...]:
        """A loop: trip count, condition, carried values; its block gives the condition anew."""
        most, condition, *carried = [values[value.debugName()] for value in node.inputs()]
        (block,) = node.blocks()
        counter, *places = block.inputs()
        turn = 0
        while turn < int(most) and bool(condition):
            values[counter.debugName()] = turn
            for place, value in zip(places, carried, strict=True):
                values[place.debugName()] = value
            self.run(block.nodes(), values)
            condition, *carried = [values[out.debugName()] for out in block.outputs()]
            turn += 1
        return tuple(carried)

    def _attribute(self, owner: _Module, name: str) -> Any:
        path = f"{owner.path}/{name}" if owner.path else name
        if path in self.tensors:
            return self.tensors[path]
        value = owner.inner.getattr(name)
        return _Module(value, path) if isinstance(value, torch._C.ScriptObject) else value

    def _set(self, owner: _Module, name: str, value: Any) -> None:
        path = f"{owner.path}/{name}" if owner.path else name
        if not isinstance(value, Tensor) or path not in self.tensors:
            raise BadInput(
                f"the TorchScript graph keeps something in '{path}' that is no buffer of numbers: "
                "its state cannot be made explicit"
            )
        self.tensors[path] = value


def _constant(node: Any) -> Any:
    """The value of a constant; functions, which inlining has left unused, become None."""
    try:
        return node.output().toIValue()
    except RuntimeError:
        return None


def _operator(node: Any, kind: str, arguments: list[Any]) -> tuple[Any, ...]:
    """Run an operator of torch, with the overload that the graph names."""
    space, _, name = kind.partition("::")
    if space != "aten":
        raise BadInput(f"the TorchScript graph calls {kind}, which is no operator on tensors")
    try:
        schema: Any = torch._C.parse_schema(node.schema())
        operator = getattr(getattr(torch.ops.aten, name), schema.overload_name or "default")
        pairs = list(zip(schema.arguments, arguments, strict=True))
        result = operator(
            *(value for argument, value in pairs if not argument.kwarg_only),
            **{argument.name: value for argument, value in pairs if argument.kwarg_only},
        )
    except (AttributeError, NotImplementedError):
        raise BadInput(f"the TorchScript graph calls {kind}, which cannot be converted") from None
    return tuple(result) if len(list(node.outputs())) != 1 else (result,)


def _raise(message: Any, *_: Any) -> Any:
    raise BadInput(f"the TorchScript graph refuses its input: {one_line(message)}")


def _format(pattern: str, *values: Any) -> str:
    return f"{pattern} {shorten(list(values))}"


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


_PYTHON: dict[str, Callable[..., Any]] = {
    "prim::ListConstruct": lambda *items: list(items),
    "prim::TupleConstruct": lambda *items: tuple(items),
    "prim::TupleIndex": lambda items, index: items[index],
    "prim::Uninitialized": lambda: None,
    "prim::unchecked_cast": lambda value: value,
    "prim::RaiseException": _raise,
    "prim::device": lambda value: value.device,
    "prim::dtype": lambda value: value.dtype,
    "prim::is_cuda": lambda value: value.is_cuda,
    "prim::NumToTensor": torch.tensor,
    "prim::min": min,
    "prim::max": max,
    "aten::__is__": lambda left, right: left is right,
    "aten::__isnot__": lambda left, right: left is not right,
    "aten::__not__": lambda value: not value,
    "aten::__getitem__": lambda items, index: items[index],
    "aten::__contains__": lambda items, item: item in items,
    "aten::size": lambda value, *dim: value.shape[dim[0]] if dim else list(value.shape),
    "aten::dim": lambda value: value.dim(),
    "aten::len": len,
    "aten::list": list,
    "aten::format": _format,
    "aten::warn": lambda *_: None,
    "aten::Int": lambda value: int(_number(value)),
    "aten::Float": lambda value: float(_number(value)),
    "aten::Bool": lambda value: bool(_number(value)),
}


def _probe(
    walker: Walker, name: str, observation_dim: int
) -> tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...]]:
    """Run once on zeros: which buffers are state, and how long is the action."""
    inputs = list(walker.graph.inputs())
    if len(inputs) != 2:
        known = [value.debugName().split(".")[0] for value in inputs[1:]]
        raise BadInput(f"{name}: takes {shorten(known)}; only one observation can be converted")
    with torch.no_grad():
        try:
            action, _ = walker.run(torch.zeros(1, observation_dim), {})
        except BadInput as error:
            raise BadInput(f"{name}: {error}") from None
        except Exception as error:
            raise BadInput(
                f"{name} does not run on an observation of {observation_dim}: {one_line(error)}"
            ) from None
    if not isinstance(action, Tensor) or action.dtype != torch.float32:
        raise BadInput(f"{name}: gives no float32 tensor")
    states = tuple(path for path in walker.buffers if path in walker.written)
    used = [path for path in states if bool((walker.buffers[path] != 0).any())]
    notes = [f"{name}: the file holds a used state in {p}; runs begin at zero" for p in used]
    if states:
        notes.append(f"{name}: hidden state {shorten(list(states))} becomes inputs and outputs")
    return states, tuple(action.shape), tuple(notes)


def _export(
    walker: Walker, name: str, observation_dim: int, states: tuple[str, ...]
) -> onnx.ModelProto:
    """Write the graph as ONNX, with a free batch axis where there is no state."""
    module = _Explicit(walker, states).eval()
    given = tuple(walker.buffers[path].clone() for path in states)
    if not states:
        try:
            free: Any = ({0: Dim("batch", min=1)}, ())
            return _to_onnx(module, (torch.zeros(2, observation_dim),), states, free)
        except Exception:
            # A graph that looks at its batch has a fixed one; the next try says what is wrong.
            pass
    try:
        return _to_onnx(module, (torch.zeros(1, observation_dim), *given), states, None)
    except Exception as error:
        raise BadInput(f"{name} cannot be written as ONNX: {one_line(error)}") from None


def _to_onnx(
    module: nn.Module, inputs: tuple[Tensor, ...], states: tuple[str, ...], shapes: Any
) -> onnx.ModelProto:
    from export.onnx import quiet

    with quiet():
        program = torch.onnx.export(
            module,
            inputs,
            input_names=["obs", *(f"{path}_in" for path in states)],
            output_names=["actions", *(f"{path}_out" for path in states)],
            dynamic_shapes=shapes,
            opset_version=_OPSET,
            external_data=False,
            dynamo=True,
            verbose=False,
        )
    if program is None:
        raise BadInput("torch.onnx.export gave no program")
    model: onnx.ModelProto = program.model_proto
    model.ir_version = _IR_VERSION
    return model


def _input_length(script: torch.jit.ScriptModule, name: str) -> int:
    """The observation's length: the one width of the module's matrices that it runs with."""
    walker = Walker(script)
    widths = {int(v.shape[1]) for _, v in script.named_parameters() if v.dim() == 2}
    fitting = []
    for width in sorted(widths):
        try:
            with torch.no_grad():
                walker.run(torch.zeros(1, width), {})
        except Exception:
            # Any error says the same: not this width.
            continue
        fitting.append(width)
    if len(fitting) != 1:
        found = shorten(fitting) if fitting else "none of its matrices' widths"
        raise BadInput(f"{name}: the length of its observation is not stated; it runs with {found}")
    return fitting[0]


def _check_archive(data: bytes, path: Path) -> None:
    """Say what the file is before anything in it is loaded."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
            unpacked = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
        kind = "a pickle, which is never loaded" if data[:1] == b"\x80" else "not a zip archive"
        raise BadInput(f"'{path}' is not TorchScript: it is {kind}") from None
    if unpacked > _MAX_UNPACKED:
        raise BadInput(f"'{path}' is larger than {_MAX_UNPACKED >> 30} GiB unpacked")
    if not any(name.endswith("/constants.pkl") for name in names):
        what = "a PyTorch checkpoint" if any(n.endswith("/data.pkl") for n in names) else "a zip"
        raise BadInput(f"'{path}' is not TorchScript but {what}; it holds no graph to run")
