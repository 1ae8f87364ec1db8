"""What a file is that is no policy file of ours: an ONNX model, TorchScript, a checkpoint.

Nothing in it is run or unpickled: ONNX is walked field by field, archives are listed, and pickles
are read as the rows of instructions they are.
"""

from __future__ import annotations

import io
import math
import pickletools
import re
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from robot_runtime.policy.onnx_bytes import split
from robot_runtime.policy.onnx_graph import OnnxGraph, Port, check_graph, read_graph

_MAX_PICKLE = 64 * 2**20
_MAX_CODE = 4 * 2**20
_MAX_SHOWN = 12

_DIALECTS: dict[str, frozenset[str]] = {
    "beyondmimic": frozenset({"joint_stiffness", "default_joint_pos", "anchor_body_name"}),
    "mjlab": frozenset({"joint_stiffness", "default_joint_pos", "observation_names"}),
    "holosoma": frozenset({"kp", "kd"}),
}
"""Metadata keys that tell who exported a model, the most telling first."""

_NEEDS: dict[str, frozenset[str]] = {
    "joint names in order": frozenset({"joint_names", "dof_names"}),
    "stiffness and damping": frozenset({"joint_stiffness", "kp"}),
    "default pose": frozenset({"default_joint_pos", "default_dof_pos"}),
    "action scale": frozenset({"action_scale"}),
    "observation terms in order": frozenset({"observation_names"}),
    "scales and history of the terms": frozenset({"observation_terms_scale"}),
    "command ranges": frozenset({"command_ranges"}),
    "control period": frozenset({"control_dt", "policy_dt", "step_dt"}),
    "golden trace": frozenset(),
}
"""What a robot needs to know, and the metadata keys of others that say it."""

_OF_RSL_RL = "surefoot import rsl_rl {path} --user contract.yaml --model scene.xml -o policy.onnx"

_CHECKPOINTS: tuple[tuple[str, str, str], ...] = (
    ("surefoot-checkpoint", "a checkpoint of surefoot", "surefoot export {path} -o policy.onnx"),
    ("actor_state_dict", "a checkpoint of rsl_rl 4 or newer", _OF_RSL_RL),
    ("model_state_dict", "a checkpoint of rsl_rl 1 to 3", _OF_RSL_RL),
)

_HARMLESS = re.compile(
    r"^(torch\._utils\._rebuild_\w+|torch\.\w*Storage|torch\.(Size|device|\w*\d+|bool|Tensor)"
    r"|torch\.storage\.\w+|torch\.serialization\._get_layout|collections\.OrderedDict)$"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Foreign:
    """What a file turned out to be.

    Attributes:
        kind: In a few words.
        facts: What can be seen of it, name and value, in order.
        missing: What a robot needs that the file does not state.
        next: The command that makes a policy file of it.
    """

    kind: str
    facts: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]
    next: str


def explain(data: bytes, path: Path) -> Foreign | None:
    """Say what a file is.

    Args:
        data: Its content.
        path: Its name, for the command that comes next.

    Returns:
        None for a policy file of ours, whatever is wrong with it, and for what is not known.

    Raises:
        BadInput: It begins like an ONNX model and is damaged.
    """
    if data.startswith(b"PK"):
        return _archive(data, path)
    if not data.startswith(b"\x08"):
        return None
    metadata = split(data).metadata
    if any(key.startswith("surefoot.") for key in metadata):
        return None
    graph = read_graph(data)
    check_graph(graph)
    return _onnx(graph, metadata, path)


def _onnx(graph: OnnxGraph, metadata: dict[str, bytes], path: Path) -> Foreign:
    dialect = next((name for name, keys in _DIALECTS.items() if keys <= metadata.keys()), "custom")
    stated = set(metadata)
    missing = tuple(need for need, keys in _NEEDS.items() if not keys & stated)
    kinds = Counter(operator.kind for operator in graph.operators)
    opsets = ", ".join(f"{domain} {n}".strip() for domain, n in graph.opsets.items())
    numbers = sum(math.prod(weight.shape) for weight in graph.weights.values())
    facts = (
        ("format", f"opset {opsets}, IR {graph.ir_version}"),
        ("written by", graph.producer or "not stated"),
        ("inputs", _ports(graph.inputs)),
        ("outputs", _ports(graph.outputs)),
        ("operators", _listed([f"{count} {kind}" for kind, count in kinds.items()])),
        ("weights", f"{len(graph.weights)}, {numbers} numbers"),
        ("metadata", _listed(list(metadata)) or "none"),
        ("dialect", "not known" if dialect == "custom" else dialect),
    )
    return Foreign(
        kind="an ONNX model without a contract",
        facts=facts,
        missing=missing,
        next=f"surefoot import {dialect} {path} --model scene.xml -o policy.onnx",
    )


def _archive(data: bytes, path: Path) -> Foreign | None:
    """What is in a zip archive, or None where it is damaged or of another kind."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            sizes = {member.filename: member.file_size for member in archive.infolist()}
            # libtorch writes one folder; its records are known by what follows it.
            inner = {name.split("/", 1)[-1]: name for name in sizes}

            def read(name: str, limit: int) -> bytes:
                return archive.read(name) if sizes[name] <= limit else b""

            if "constants.pkl" in inner:
                code = [n for n in sizes if "/code/" in n and n.endswith(".py")]
                texts = [read(n, _MAX_CODE).decode("utf-8", "replace") for n in code[:200]]
                return _torchscript(list(inner), "\n".join(texts), path)
            if "data.pkl" in inner:
                return _checkpoint(read(inner["data.pkl"], _MAX_PICKLE), list(inner), path)
    except Exception:
        # zipfile raises half a dozen kinds for damage; the caller says that the file is damaged.
        return None
    return None


def _torchscript(names: list[str], code: str, path: Path) -> Foreign:
    methods = re.findall(r"def (forward|reset\w*)\(self: [\w.]+(?:,\s*([^)]*))?\)", code)
    calls = (f"{name}({' '.join(arguments.split())})" for name, arguments in methods)
    shown = list(dict.fromkeys(calls))
    extra = [name for name in names if name.startswith("extra/")]
    tensors = sum(name.startswith(("constants/", "data/")) for name in names)
    facts = (
        ("classes", _listed(re.findall(r"^class (\w+)", code, re.MULTILINE))),
        ("methods", _listed(shown) or "none that can be read"),
        ("tensors", str(tensors)),
        ("extra files", _listed(extra) or "none"),
    )
    ours = "extra/contract.json" in names
    return Foreign(
        kind="a TorchScript module" + (" exported by surefoot" if ours else " without a contract"),
        facts=facts,
        missing=() if ours else tuple(_NEEDS),
        next="run the ONNX file that was exported with it: a robot needs no torch"
        if ours
        else f"surefoot import custom {path} --run-torchscript --model scene.xml -o policy.onnx",
    )


def _checkpoint(data: bytes, names: list[str], path: Path) -> Foreign:
    texts, calls = _pickled(data)
    odd = sorted({call for call in calls if not _HARMLESS.match(call)})
    kind, following = "a PyTorch file", "export it with the trainer that wrote it"
    for mark, what, command in _CHECKPOINTS:
        if mark in texts:
            kind, following = what, command.format(path=path)
            break
    if odd:
        kind += " that would run code when it is unpickled"
    facts = (
        ("texts in it", _listed(texts)),
        ("tensors", str(sum(name.startswith("data/") for name in names))),
        ("calls beyond tensors", _listed(odd) or "none"),
    )
    return Foreign(kind=kind, facts=facts, missing=(), next=following)


def _pickled(data: bytes) -> tuple[list[str], list[str]]:
    """Texts in a pickle, in order and once each, and the functions it would call; runs nothing."""
    texts: dict[str, None] = {}
    calls: list[str] = []
    recent: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "GLOBAL" and isinstance(argument, str):
                calls.append(argument.replace(" ", "."))
            elif opcode.name == "STACK_GLOBAL":
                calls.append(".".join(recent[-2:]))
            elif isinstance(argument, str):
                recent = [*recent[-1:], argument]
                if len(argument) <= 60 and argument.isprintable():
                    texts[argument] = None
    except Exception:
        calls.append("(damaged)")
    return list(texts), calls


def _ports(ports: Sequence[Port]) -> str:
    return _listed(
        [f"{p.name} {p.dtype} [{', '.join(str(n) or '?' for n in p.shape)}]" for p in ports]
    )


def _listed(items: Sequence[str]) -> str:
    more = f" and {len(items) - _MAX_SHOWN} more" if len(items) > _MAX_SHOWN else ""
    return ", ".join(items[:_MAX_SHOWN]) + more
