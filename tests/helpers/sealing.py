"""Edits of policy files, with the seal left alone or made anew."""

from __future__ import annotations

import base64
import json
from typing import Any

from robot_runtime.policy.file import seal
from robot_runtime.policy.onnx_bytes import join, split

PARTS = ("contract", "trace", "provenance", "report", "seal")


def contract_of(data: bytes) -> dict[str, Any]:
    """The contract in a policy file, as plain JSON values."""
    return json.loads(split(data).metadata["surefoot.contract"])


def replaced(data: bytes, part: str, value: bytes) -> bytes:
    """The file with one part replaced and the old seal kept."""
    parts = split(data)
    return join(parts.model, parts.metadata | {f"surefoot.{part}": value})


def resealed(
    data: bytes, *, contract: Any = None, trace: bytes | None = None, model: bytes | None = None
) -> bytes:
    """The file with parts replaced and the seal made anew, as a careful forger would.

    Args:
        data: The file.
        contract: Plain JSON values to put in its place.
        trace: Archive to put in its place.
        model: Model without metadata to put in its place.
    """
    old = split(data)
    entries = {name: old.metadata[f"surefoot.{name}"] for name in PARTS}
    if contract is not None:
        entries["contract"] = json.dumps(contract).encode()
    if trace is not None:
        entries["trace"] = base64.b64encode(trace)
    bare = old.model if model is None else model
    sealed = {name: entries[name] for name in ("contract", "provenance", "report")}
    archive = base64.b64decode(entries["trace"])
    others = {k: v for k, v in old.metadata.items() if not k.startswith("surefoot.")}
    beside = {f"metadata {key}": value for key, value in others.items()}
    entries["seal"] = seal({**sealed, "trace": archive, "graph": bare, **beside}).encode()
    return join(bare, others | {f"surefoot.{name}": entries[name] for name in PARTS})
