"""The same policy as TorchScript, for control stacks in C++ that link libtorch.

The file carries what the ONNX file carries, as extra files: ``contract.json``, ``trace.npz``,
``provenance.json``, ``report.json`` and ``seal.json``. A network with a state keeps it inside, for
one robot, and has a method ``reset``.
"""

from __future__ import annotations

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# torch.jit and torch.onnx have no types: what comes out of them is checked where it is used.
import hashlib
import io
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from export.graph import Policy, example_inputs
from export.onnx import quiet
from robot_runtime.errors import BadInput
from robot_runtime.policy.codec import canonical
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.file import check_seal, seal
from robot_runtime.policy.trace import GoldenTrace

_EXTRA = "extra/"
_PARTS = {
    "contract": "contract.json",
    "trace": "trace.npz",
    "provenance": "provenance.json",
    "report": "report.json",
}
_SEAL = "seal.json"


def trace_module(module: Policy, contract: PolicyContract) -> torch.jit.ScriptModule:
    """Make a TorchScript module of a policy.

    Args:
        module: The policy.
        contract: The contract that says what goes in.

    Returns:
        A module that takes the contract's inputs. With a state it takes one whole observation
        ``(1, observation_dim)``, moves its state on, and forgets it by ``reset()``.
    """
    if not contract.network.states:
        traced = torch.jit.trace(module, example_inputs(contract, batch=2), check_trace=False)
        assert isinstance(traced, torch.jit.ScriptModule)
        return traced
    flat = _FlatState(module, contract).eval()
    size = sum(flat.sizes)
    example = (torch.zeros(1, contract.observation_dim), torch.zeros(size))
    # torch's own checks of the input's length become constants; the tracer says so each time.
    with quiet():
        step = torch.jit.trace(flat, example, check_trace=False)
    assert isinstance(step, torch.jit.ScriptModule)
    script = torch.jit.script(_Stateful(step, size).eval())
    assert isinstance(script, torch.jit.ScriptModule)
    return script


class _FlatState(nn.Module):
    """A policy over one robot whose states are one vector."""

    def __init__(self, module: Policy, contract: PolicyContract) -> None:
        super().__init__()
        self.module = module
        self.widths = list(contract.inputs().values())
        self.shapes = [state.shape for state in contract.network.states]
        self.sizes = [math.prod(shape) for shape in self.shapes]

    def forward(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step: action ``(1, num_actions)`` and the next state."""
        parts = torch.split(state, self.sizes)
        states = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        action, *following = self.module(*torch.split(obs, self.widths, dim=1), *states)
        return action, torch.cat([value.reshape(-1) for value in following])


class _Stateful(nn.Module):
    """A step and the state it moves on."""

    def __init__(self, step: torch.jit.ScriptModule, size: int) -> None:
        super().__init__()
        self.step = step
        self.state: Tensor
        self.register_buffer("state", torch.zeros(size))

    def forward(self, obs: Tensor) -> Tensor:
        """Raw action ``(1, num_actions)`` of an observation ``(1, observation_dim)``."""
        action, state = self.step(obs, self.state)
        self.state.copy_(state)
        return action

    @torch.jit.export
    def reset(self) -> None:
        """Forget everything, as where an episode begins."""
        self.state.zero_()


def torchscript_bytes(
    traced: torch.jit.ScriptModule,
    *,
    contract: PolicyContract,
    trace: GoldenTrace,
    provenance: Mapping[str, Any],
    report: Mapping[str, Any],
) -> bytes:
    """The content of a TorchScript policy file.

    Args:
        traced: What `trace_module` gave.
        contract: The contract.
        trace: The golden trace.
        provenance: Where the policy comes from, plain JSON values.
        report: What the gate measured, plain JSON values.
    """
    buffer = io.BytesIO()
    torch.jit.save(traced, buffer)
    with zipfile.ZipFile(buffer) as archive:
        # The debugging records hold source lines and paths of this machine; nothing needs them.
        records = [
            (name, archive.read(name))
            for name in archive.namelist()
            if not name.endswith(".debug_pkl")
        ]
    root = records[0][0].split("/")[0]
    parts = {
        "contract": contract.to_json().encode(),
        "trace": trace.to_bytes(),
        "provenance": canonical(dict(provenance)).encode(),
        "report": canonical(dict(report)).encode(),
    }
    sealed = seal({**parts, "graph": _digest(records)}).encode()
    extra = [(f"{root}/{_EXTRA}{_PARTS[name]}", content) for name, content in parts.items()]
    return _zip([*records, *extra, (f"{root}/{_EXTRA}{_SEAL}", sealed)])


def read_torchscript(path: Path) -> tuple[torch.jit.ScriptModule, PolicyContract, GoldenTrace]:
    """Open a TorchScript policy file and check its seal.

    Returns:
        The module, its contract and its golden trace.

    Raises:
        BadInput: Missing, damaged, edited, or a TorchScript module without a contract.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            records = [(name, archive.read(name)) for name in archive.namelist()]
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise BadInput(f"'{path}' is not a readable TorchScript file: {error}") from None
    extra = {
        name.split("/", 1)[1].removeprefix(_EXTRA): content
        for name, content in records
        if name.split("/", 1)[-1].startswith(_EXTRA)
    }
    for name in (*_PARTS.values(), _SEAL):
        if name not in extra:
            raise BadInput(f"'{path}' is not a policy: its extra file {name} is missing")
    parts = {name: extra[file] for name, file in _PARTS.items()}
    graph = _digest([r for r in records if not r[0].split("/", 1)[-1].startswith(_EXTRA)])
    try:
        check_seal(extra[_SEAL], {**parts, "graph": graph})
        contract = PolicyContract.from_json(parts["contract"].decode())
        trace = GoldenTrace.from_bytes(parts["trace"])
        module = torch.jit.load(io.BytesIO(path.read_bytes()), map_location="cpu")
    except (BadInput, RuntimeError, UnicodeDecodeError) as error:
        raise BadInput(f"'{path}': {' '.join(str(error).split())}") from None
    return module, contract, trace


def _digest(records: list[tuple[str, bytes]]) -> bytes:
    """Names and contents of the module's records in one row of bytes, whatever their order."""
    rows = [
        f"{name.split('/', 1)[-1]} {hashlib.sha256(content).hexdigest()}\n"
        for name, content in records
    ]
    return "".join(sorted(rows)).encode()


def _zip(records: list[tuple[str, bytes]]) -> bytes:
    """An uncompressed archive as libtorch reads it; equal records give equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in records:
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()
