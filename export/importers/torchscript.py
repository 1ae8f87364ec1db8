"""TorchScript to ONNX: the graph is walked node by node, its hidden state made explicit.

Exporters of recurrent policies keep the state in buffers that ``forward`` overwrites. Walking the
graph ourselves finds those buffers and hands them in and out, for any network the graph describes,
without relying on what class it was once made from.
"""

from __future__ import annotations

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# torch.jit and torch.onnx have no types: what comes out of them is checked where it is used.
import io
import operator
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import Dim

from export.importers.bounds import check_bounds
from export.importers.graph import Graph, make_graph
from export.importers.reading import one_line, read_bytes, shorten
from export.importers.walker import Walker
from robot_runtime.errors import BadInput, Refused
from robot_runtime.policy.spec import RecurrentState

_MAX_UNPACKED = 2**30
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
        for name in self._states:
            operator.attrgetter(name)(self._script).zero_()

    def step(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Run one observation, shape ``(observation_dim,)``; the state moves on."""
        with torch.no_grad():
            result = self._script(torch.from_numpy(obs[None].copy()))
        action = result[0] if isinstance(result, tuple) else result
        return np.array(action.reshape(-1).numpy(), np.float32)


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
            given: Any = walker.run(torch.zeros(1, observation_dim), {})
            action = given[0]
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
