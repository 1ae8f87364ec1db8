"""The policy file: one ONNX that carries its contract, its golden trace and its seal.

Metadata of the ONNX model, in this order:

    surefoot.contract     the contract, canonical JSON
    surefoot.trace        the golden trace, base64 of a compressed ``.npz``
    surefoot.provenance   where the policy comes from, canonical JSON
    surefoot.report       what the export gate measured, canonical JSON
    surefoot.seal         SHA-256 of each of the four, and of the model without any metadata

Before them other keys may stand, for controllers of other stacks that read them. The seal has a
hash of each that was there when it was made; what was added later is ignored.

Opening checks the seal, then the contract, then the graph against the contract, then replays the
trace. The seal notices an edit; the replay notices an edit that was sealed again, because the trace
is the record of a run that the edited contract no longer reproduces.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from robot_runtime.errors import BadInput, SurefootError
from robot_runtime.files import atomic_write
from robot_runtime.policy.codec import canonical, parse_json
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.inference import OnnxNetwork
from robot_runtime.policy.onnx_bytes import OnnxParts, join, split
from robot_runtime.policy.proof import ReplayReport, replay
from robot_runtime.policy.trace import GoldenTrace

SEAL_VERSION = 1
"""Version of the seal. A file with a newer one is refused."""

MAX_REPLAY = 10.0
"""Longest time that the network may take over a golden trace, [s]."""

_PREFIX = "surefoot."
_PARTS = ("contract", "trace", "provenance", "report", "seal")
MAX_FILE = 2**30
"""Largest policy file, [bytes]."""

_MAX_TEXT = 16 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyFile:
    """A policy file that was opened and checked.

    Attributes:
        path: Where it was read from.
        contract: Its contract.
        trace: Its golden trace.
        provenance: Where the policy comes from, plain JSON values.
        report: What the export gate measured, plain JSON values.
        sha256: Hash of the whole file, hexadecimal.
        model: The whole file, as onnxruntime loads it.
        replayed: How well the trace was reproduced here; None where the replay was left out.
    """

    path: Path
    contract: PolicyContract
    trace: GoldenTrace
    provenance: dict[str, Any]
    report: dict[str, Any]
    sha256: str
    model: bytes
    replayed: ReplayReport | None

    def network(self) -> OnnxNetwork:
        """A network of its own, with its own buffers and recurrent state."""
        return OnnxNetwork(self.model, self.contract)


def open_policy(path: str | os.PathLike[str], *, replay: bool = True) -> PolicyFile:
    """Open a policy file and check that it is what it was when it was exported.

    Args:
        path: The file.
        replay: Whether to replay the golden trace (a fraction of a second).

    Raises:
        BadInput: Missing, cut off, not a policy file, edited, of a newer version, or its graph is
            not the contract's.
        TraceMismatch: The replay differs; the message names boundary, term or joint, and row.
    """
    return load_policy(_read(Path(path)), path=path, replay=replay)


def load_policy(data: bytes, *, path: str | os.PathLike[str], replay: bool = True) -> PolicyFile:
    """Do what `open_policy` does for a file that was read already.

    Args:
        data: The file.
        path: Its name, for messages.
        replay: Whether to replay the golden trace.
    """
    shown = Path(path)
    try:
        return _load(data, shown, replay)
    except SurefootError as error:
        raise type(error)(f"'{shown}': {error}") from None


def write_policy(
    path: str | os.PathLike[str],
    model: bytes,
    *,
    contract: PolicyContract,
    trace: GoldenTrace,
    provenance: Mapping[str, Any],
    report: Mapping[str, Any],
) -> PolicyFile:
    """Write a policy file, and open it again before it gets its name.

    Args:
        path: Where the file shall be.
        model: An ONNX model with its weights inside; metadata it has is left out.
        contract: The contract.
        trace: The golden trace.
        provenance: Where the policy comes from, plain JSON values.
        report: What the export gate measured, plain JSON values; empty where there was none.

    Returns:
        The file, opened and replayed.

    Raises:
        BadInput: It cannot be written, or the graph is not the contract's.
        TraceMismatch: Network, contract and trace do not belong together.
    """
    data = policy_bytes(model, contract=contract, trace=trace, provenance=provenance, report=report)
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)
        return load_policy(temporary.read_bytes(), path=path)


def policy_bytes(
    model: bytes,
    *,
    contract: PolicyContract,
    trace: GoldenTrace,
    provenance: Mapping[str, Any],
    report: Mapping[str, Any],
    also: Mapping[str, str] | None = None,
) -> bytes:
    """The content of the file that `write_policy` writes; equal arguments give equal bytes.

    Args:
        model: See `write_policy`.
        contract: See there.
        trace: See there.
        provenance: See there.
        report: See there.
        also: Further metadata, for controllers of other stacks.
    """
    bare = split(model).model
    archive = trace.to_bytes()
    others = {key: text.encode() for key, text in (also or {}).items()}
    texts = {
        "contract": contract.to_json().encode(),
        "provenance": canonical(dict(provenance)).encode(),
        "report": canonical(dict(report)).encode(),
    }
    entries = {
        "contract": texts["contract"],
        "trace": base64.b64encode(archive),
        "provenance": texts["provenance"],
        "report": texts["report"],
        "seal": seal({**texts, "trace": archive, "graph": bare, **_beside(others)}).encode(),
    }
    return join(bare, others | {_PREFIX + name: entries[name] for name in _PARTS})


def seal(parts: Mapping[str, bytes]) -> str:
    """The seal over the parts of a policy: canonical JSON of their SHA-256.

    Args:
        parts: Bytes by name: contract, trace (the archive), provenance, report, graph.
    """
    hashes = {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()}
    return canonical({"version": SEAL_VERSION, "sha256": hashes})


def check_seal(text: bytes, parts: Mapping[str, bytes]) -> None:
    """Refuse parts that are not the ones that were sealed.

    Args:
        text: The seal.
        parts: What `seal` was given.

    Raises:
        BadInput: The message names the part that differs.
    """
    if text == seal(parts).encode():
        return
    found = parse_json(_decoded("seal", text), "seal")
    sealed = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    version = sealed.get("version")
    if isinstance(version, int) and version > SEAL_VERSION:
        raise BadInput(
            f"sealed by a newer version ({version}, this one reads {SEAL_VERSION}): "
            "upgrade surefoot"
        )
    hashes: Any = sealed.get("sha256")
    for name, part in parts.items():
        own = hashlib.sha256(part).hexdigest()
        if not isinstance(hashes, dict) or cast("dict[str, Any]", hashes).get(name) != own:
            raise BadInput(
                f"the seal is broken: its {name} is not the one that was sealed; the file was "
                "edited or damaged, export it again"
            )
    raise BadInput("the seal is broken: it was edited or damaged, export the file again")


def _load(data: bytes, path: Path, with_replay: bool) -> PolicyFile:
    parts = _split(data, path)
    entries = _entries(parts)
    archive = _archive(entries["trace"])
    sealed = {name: entries[name] for name in ("contract", "provenance", "report")}
    known = _sealed_names(entries["seal"])
    others = {name: part for name, part in _beside(parts.metadata).items() if name in known}
    whole = {**sealed, "trace": archive, "graph": parts.model, **others}
    check_seal(entries["seal"], whole)
    contract = PolicyContract.from_json(_decoded("contract", entries["contract"]))
    trace = GoldenTrace.from_bytes(archive)
    network = OnnxNetwork(data, contract)
    takes = trace.rows * network.step_seconds
    if takes > MAX_REPLAY:
        raise BadInput(
            f"a step of the graph takes {network.step_seconds:.2g} s here, its golden trace of "
            f"{trace.rows} rows {takes:.3g} s: no robot waits longer than {MAX_REPLAY:g} s"
        )
    replayed = replay(contract, trace, network, reset=network.reset) if with_replay else None
    return PolicyFile(
        path=path,
        contract=contract,
        trace=trace,
        provenance=_object("provenance", entries["provenance"]),
        report=_object("report", entries["report"]),
        sha256=hashlib.sha256(data).hexdigest(),
        model=data,
        replayed=replayed,
    )


def _beside(metadata: Mapping[str, bytes]) -> dict[str, bytes]:
    """Metadata of other stacks, by the names of its parts in the seal."""
    return {f"metadata {k}": v for k, v in metadata.items() if not k.startswith(_PREFIX)}


def _sealed_names(text: bytes) -> set[str]:
    """The names of the parts that a seal speaks of; none where it cannot be read."""
    try:
        return set(json.loads(text)["sha256"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return set()


def _read(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise BadInput(f"'{path}' is a folder, not a policy file")
        if not path.exists():
            raise BadInput(f"'{path}' does not exist")
        if not path.is_file():
            raise BadInput(f"'{path}' is not a plain file")
        if path.stat().st_size > MAX_FILE:
            raise BadInput(f"'{path}' is larger than {MAX_FILE >> 30} GiB, not a policy file")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(f"cannot read '{path}': {reason}") from None


def _split(data: bytes, path: Path) -> OnnxParts:
    """Take the file apart, or say what else it is."""
    if not data:
        raise BadInput("the file is empty")
    if data.startswith(b"PK"):
        raise BadInput(_zip_kind(data, path))
    # Every ONNX writer begins with the version, field 1.
    if not data.startswith(b"\x08"):
        raise BadInput("not an ONNX file")
    parts = split(data)
    if not any(key.startswith(_PREFIX) for key in parts.metadata):
        raise BadInput(
            "an ONNX model without a contract, so nobody knows what its numbers mean; export your "
            "checkpoint with 'surefoot export', or make a policy file of a model from elsewhere "
            "with 'surefoot import'"
        )
    return parts


def _zip_kind(data: bytes, path: Path) -> str:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
    except Exception:
        return "a damaged zip archive, not an ONNX file"
    if any(name.endswith("/constants.pkl") for name in names):
        return "a TorchScript module; robots run the ONNX file that is exported with it"
    if any(name.endswith("/data.pkl") for name in names):
        return (
            f"a PyTorch checkpoint; make a policy file of it: surefoot export {path} -o "
            "policy.onnx, or, of one of rsl_rl, with 'surefoot import'"
        )
    return "a zip archive, not an ONNX file"


def _entries(parts: OnnxParts) -> dict[str, bytes]:
    entries: dict[str, bytes] = {}
    for name in _PARTS:
        key = _PREFIX + name
        if key not in parts.metadata:
            raise BadInput(f"incomplete: {key} is missing; the file was cut off or edited")
        entries[name] = parts.metadata[key]
        if name != "trace" and len(entries[name]) > _MAX_TEXT:
            raise BadInput(f"{key} is larger than {_MAX_TEXT >> 20} MiB")
    return entries


def _archive(text: bytes) -> bytes:
    try:
        archive = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        archive = b""
    # Base64 has spare bits at its end; with them set there would be two texts for one archive.
    if not archive or base64.b64encode(archive) != text:
        raise BadInput("surefoot.trace is not base64; the file was edited or damaged")
    return archive


def _object(name: str, text: bytes) -> dict[str, Any]:
    value = parse_json(_decoded(name, text), name)
    if not isinstance(value, dict):
        raise BadInput(f"surefoot.{name} is not a JSON object")
    return cast("dict[str, Any]", value)


def _decoded(name: str, text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise BadInput(f"surefoot.{name} is not UTF-8; the file was edited or damaged") from None
