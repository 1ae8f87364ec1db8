"""What acts, each behind the same three calls, so that the gate can compare them step by step."""

from __future__ import annotations

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# torch.jit and torch.onnx have no types: what comes out of them is checked where it is used.
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from torch import nn

from export.graph import batch_axis, batched
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.inference import OnnxNetwork


class StepNetwork(Protocol):
    """A policy's network over a batch of robots that know nothing of each other."""

    def begin(self, rows: int) -> None:
        """Make place for a batch, every state zero."""
        ...

    def reset(self, rows: NDArray[np.bool_]) -> None:
        """Set the states of the marked rows to zero."""
        ...

    def step(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """One step: observations ``(rows, observation_dim)`` to actions ``(rows, num_actions)``."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """What can be seen of an exported network without running it.

    Attributes:
        values: Every distinct float32 number in it, sorted.
        half: Whether it computes or keeps something in float16.
    """

    values: NDArray[np.float32]
    half: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """Something that was exported and has to act like the checkpoint.

    Attributes:
        name: What it is, for messages.
        network: It, running.
        batched: Whether it takes more than one robot at once.
        content: Looks into it.
    """

    name: str
    network: StepNetwork
    batched: bool
    content: Callable[[], Content]


class TorchNetwork:
    """A module as the gate runs it; see `export.graph.Policy` for what it takes and gives."""

    def __init__(self, module: nn.Module, contract: PolicyContract) -> None:
        """Wrap a module on the CPU."""
        self._module = module
        self._widths = list(contract.inputs().values())
        self._shapes = [state.shape for state in contract.network.states]
        self._states: list[torch.Tensor] = []

    def begin(self, rows: int) -> None:
        """See `StepNetwork`."""
        self._states = [torch.zeros(batched(shape, rows)) for shape in self._shapes]

    def reset(self, rows: NDArray[np.bool_]) -> None:
        """See `StepNetwork`."""
        index = torch.from_numpy(np.flatnonzero(rows))
        self._states = [s.index_fill(batch_axis(tuple(s.shape)), index, 0.0) for s in self._states]

    def step(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """See `StepNetwork`."""
        inputs = torch.split(torch.from_numpy(np.ascontiguousarray(obs)), self._widths, dim=1)
        with torch.no_grad():
            result = self._module(*inputs, *self._states)
        if not self._shapes:
            return result.numpy()
        action, *self._states = result
        return action.numpy()


class OnnxBatchNetwork:
    """A model in onnxruntime with a free batch axis."""

    def __init__(self, model: bytes, contract: PolicyContract) -> None:
        """Load it on one thread."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._inputs = contract.inputs()
        self._states = contract.network.states
        self._outputs = [contract.network.output, *(state.output for state in self._states)]
        self._carried: dict[str, NDArray[np.float32]] = {}

    def begin(self, rows: int) -> None:
        """See `StepNetwork`."""
        self._carried = {
            s.input: np.zeros(batched(s.shape, rows), np.float32) for s in self._states
        }

    def reset(self, rows: NDArray[np.bool_]) -> None:
        """See `StepNetwork`."""
        for values in self._carried.values():
            np.moveaxis(values, batch_axis(values.shape), 0)[rows] = 0.0

    def step(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """See `StepNetwork`."""
        feed, start = dict(self._carried), 0
        for name, dim in self._inputs.items():
            feed[name] = np.ascontiguousarray(obs[:, start : start + dim])
            start += dim
        action, *following = self._session.run(self._outputs, feed)
        self._carried = {
            state.input: np.array(values)
            for state, values in zip(self._states, following, strict=True)
        }
        return np.asarray(action, np.float32)


class ScriptNetwork:
    """A TorchScript module that keeps its own state, or has none."""

    def __init__(self, script: torch.jit.ScriptModule, contract: PolicyContract) -> None:
        """Wrap what `export.torchscript.trace_module` gave."""
        self._script = script
        self._widths = list(contract.inputs().values())
        self._stateful = bool(contract.network.states)

    def begin(self, rows: int) -> None:
        """See `StepNetwork`."""
        self.reset(np.ones(rows, np.bool_))

    def reset(self, rows: NDArray[np.bool_]) -> None:
        """See `StepNetwork`."""
        if self._stateful and rows.any():
            self._script.reset()

    def step(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """See `StepNetwork`."""
        whole = torch.from_numpy(np.ascontiguousarray(obs))
        inputs = (whole,) if self._stateful else torch.split(whole, self._widths, dim=1)
        with torch.no_grad():
            return self._script(*inputs).numpy()


class RuntimeNetwork:
    """The network as a robot runs it: one observation at a time."""

    def __init__(self, network: OnnxNetwork) -> None:
        """Wrap it."""
        self._network = network

    def begin(self, rows: int) -> None:
        """See `StepNetwork`."""
        self._network.reset()

    def reset(self, rows: NDArray[np.bool_]) -> None:
        """See `StepNetwork`."""
        if rows.any():
            self._network.reset()

    def step(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """See `StepNetwork`."""
        return self._network(obs[0])[None]


def onnx_content(model: bytes) -> Content:
    """The numbers in an ONNX model, and whether float16 occurs in it."""
    proto = onnx.load_from_string(model)
    tensors = list(proto.graph.initializer)
    half = False
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                tensors.append(attribute.t)
            half |= node.op_type == "Cast" and attribute.i == TensorProto.FLOAT16
    half |= any(tensor.data_type == TensorProto.FLOAT16 for tensor in tensors)
    arrays = [numpy_helper.to_array(tensor) for tensor in tensors]
    return Content(values=_distinct([a for a in arrays if a.dtype == np.float32]), half=half)


def script_content(script: torch.jit.ScriptModule) -> Content:
    """The numbers in a TorchScript module, and whether float16 occurs in it."""
    values = [*script.parameters(), *script.buffers()]
    # 5 is torch.half; tracing writes a cast as `aten::to(x, 5, ...)`.
    text = str(script.inlined_graph)
    half = "Half(" in text or any(value.dtype == torch.float16 for value in values)
    floats = [v.detach().numpy() for v in values if v.dtype == torch.float32]
    return Content(values=_distinct(floats), half=half)


def _distinct(arrays: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    flat = [array.ravel() for array in arrays]
    return np.unique(np.concatenate(flat) if flat else np.empty(0, np.float32))
