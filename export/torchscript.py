"""The same policy as TorchScript, for control stacks in C++ that link libtorch.

The file carries what the ONNX file carries, as extra files: ``contract.json``, ``trace.npz``,
``provenance.json``, ``report.json`` and ``seal.json``.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from export.graph import Policy, example_inputs
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
    """Trace a policy.

    Args:
        module: The policy.
        contract: The contract that says what goes in.
    """
    traced = torch.jit.trace(module, example_inputs(contract, batch=2), check_trace=False)
    assert isinstance(traced, torch.jit.ScriptModule)
    return traced


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
