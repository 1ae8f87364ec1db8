"""The graph of a TorchScript module, run node by node with operators of torch."""

from __future__ import annotations

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# torch.jit and torch.onnx have no types: what comes out of them is checked where it is used.
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from export.importers.reading import one_line, shorten
from robot_runtime.errors import BadInput

_MAX_STEPS = 100_000


class Walker:
    """Runs the inlined graph of a TorchScript module with operators of torch, node by node.

    Attributes:
        graph: The graph.
        buffers: The module's tensors that are no parameters, by path; plain tensors that it keeps
            join them when a run first writes them.
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
        tensors = {k: v.clone() for k, v in {**self.buffers, **states}.items()}
        frame = _Frame(self._root, tensors, self.buffers)
        before = {path: (value, value._version) for path, value in frame.tensors.items()}
        inputs = list(self.graph.inputs())
        values: dict[str, Any] = {inputs[0].debugName(): _Module(self._root, "")}
        values[inputs[1].debugName()] = obs
        frame.run(self.graph.nodes(), values)
        (output,) = (values[out.debugName()] for out in self.graph.outputs())
        self.written = {
            path
            for path, value in frame.tensors.items()
            if path not in before
            or value is not before[path][0]
            or value._version != before[path][1]
        }
        action = output[0] if isinstance(output, tuple) else output
        return action, frame.tensors


class _Module:
    """A module inside the graph: its own object and the path to it."""

    def __init__(self, inner: Any, path: str) -> None:
        self.inner = inner
        self.path = path


class _Frame:
    """One run of the graph: the tensors of the module, and how many nodes it took."""

    def __init__(self, root: Any, tensors: dict[str, Tensor], buffers: dict[str, Tensor]) -> None:
        self.root = root
        self.tensors = tensors
        self.buffers = buffers
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
            result = _PYTHON[kind](*arguments)
            return (result,) if list(node.outputs()) else ()
        if kind in _LISTS and isinstance(arguments[0], list):
            return (_LISTS[kind](*arguments),)
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
        if isinstance(value, Tensor) and path not in self.tensors:
            kept = owner.inner.getattr(name)
            if isinstance(kept, Tensor):
                self.buffers[path] = kept.detach().clone()
        if not isinstance(value, Tensor) or path not in self.buffers:
            raise BadInput(
                f"the TorchScript graph keeps something in '{path}' that is no tensor: "
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
    if name == "_convolution":
        # What tracing writes; the arguments after the ninth only say how cuDNN may compute it.
        return (torch.ops.aten.convolution(*arguments[:9]),)
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


_LISTS: dict[str, Callable[..., Any]] = {
    "aten::add": lambda left, right: left + right,
    "aten::add_": lambda left, right: left.extend(right) or left,
    "aten::mul": lambda items, times: items * times,
    "aten::slice": lambda items, start, stop, step: items[start:stop:step],
    "aten::eq": lambda left, right: left == right,
    "aten::ne": lambda left, right: left != right,
}
"""Operators that are those of Python where they are given a list."""

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
    "prim::is_nested": lambda value: value.is_nested,
    "prim::layout": lambda value: value.layout,
    "prim::type": lambda device: device.type,
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
    "aten::append": lambda items, item: items.append(item) or items,
    "aten::extend": lambda items, more: items.extend(more),
    "aten::copy": lambda items: items.copy() if isinstance(items, list) else items.clone(),
    "aten::format": _format,
    "aten::warn": lambda *_: None,
    "aten::Int": lambda value: int(_number(value)),
    "aten::Float": lambda value: float(_number(value)),
    "aten::Bool": lambda value: bool(_number(value)),
}
