"""From foreign files to a policy file: read, ask, assemble, check, compare, prove, write."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from export.formats.metadata import controller_metadata
from export.importers import (
    berkeley,
    beyondmimic,
    custom,
    holosoma,
    leapp,
    mjlab,
    rl_sar,
    rsl_rl,
    unitree_deploy,
    unitree_rl_gym,
)
from export.importers.answers import read_answers
from export.importers.assemble import Assembled, assemble
from export.importers.checks import check_contract
from export.importers.foreign import Foreign, expand
from export.importers.gate import ImportGate, run_import_gate
from export.importers.golden import Record, Replayed, read_record, replay_record
from export.importers.graph import Graph, OnnxReference
from export.importers.model import read_model_facts
from export.importers.reading import one_line
from export.importers.sheet import Sheet
from export.saturation import saturated_actions
from robot_runtime.errors import BadInput
from robot_runtime.files import atomic_write, check_output
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.extremes import synthesize
from robot_runtime.policy.file import PolicyFile, load_policy, policy_bytes
from robot_runtime.policy.inference import OnnxNetwork
from robot_runtime.policy.trace import GoldenTrace, TraceInputs

Reader = Callable[[Foreign, Sheet], Graph]
"""Reads the files of one format: states what they say on the sheet, and gives the network."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """A foreign format.

    Attributes:
        read: Its reader.
        files: What it consists of, for people.
    """

    read: Reader
    files: str


FORMATS: dict[str, Format] = {
    "unitree_rl_gym": Format(
        read=unitree_rl_gym.read, files="g1.yaml of deploy_mujoco and/or of deploy_real, motion.pt"
    ),
    "unitree_rl_lab": Format(read=unitree_deploy.read, files="deploy.yaml, policy.onnx"),
    "unitree_rl_mjlab": Format(read=unitree_deploy.read, files="deploy.yaml, policy.onnx"),
    "rl_sar": Format(
        read=rl_sar.read,
        files="config.yaml, its robot's base.yaml if any, policy.pt or policy.onnx",
    ),
    "holosoma": Format(
        read=holosoma.read, files="policy.onnx, its inference config as YAML if any"
    ),
    "mjlab": Format(read=mjlab.read, files="policy.onnx"),
    "beyondmimic": Format(read=beyondmimic.read, files="policy.onnx"),
    "berkeley_humanoid_lite": Format(read=berkeley.read, files="policy.yaml, policy.onnx"),
    "leapp": Format(read=leapp.read, files="pipeline.yaml, its model.onnx"),
    "rsl_rl": Format(
        read=rsl_rl.read, files="model_1500.pt, its agent.yaml if any, a contract with --user"
    ),
    "custom": Format(read=custom.read, files="policy.onnx or policy.pt, a contract with --user"),
}
"""Every format by its name on the command line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What is asked of an import.

    Attributes:
        format: Name of the format.
        files: Its files and folders.
        model: The robot's MuJoCo scene, or the name of an installed robot model.
        output: The policy file to write.
        user: YAML files with what the user says.
        settings: Single values the user says, as ``PATH=VALUE``.
        golden: A recorded run, or None.
        run_torchscript: Whether TorchScript may be run.
        allow_privileged: Whether terms that robots do not measure are accepted.
    """

    format: str
    files: tuple[Path, ...]
    model: str
    output: Path
    user: tuple[Path, ...] = ()
    settings: tuple[str, ...] = ()
    golden: Path | None = None
    run_torchscript: bool = False
    allow_privileged: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """An import that succeeded.

    Attributes:
        policy: The file that was written.
        fields: Source of every field of its contract.
        notes: What the user should know.
        details: What became of each part of the foreign network's file, where that is not plain.
        gate: What the gate measured.
        replayed: What the record proved, or None without one.
    """

    policy: PolicyFile
    fields: dict[str, str]
    notes: tuple[str, ...]
    details: tuple[str, ...]
    gate: ImportGate
    replayed: Replayed | None


def import_policy(request: Request) -> Imported:
    """Import a policy.

    Args:
        request: What is asked.

    Raises:
        BadInput: A file cannot be read, or states what cannot be.
        MissingFieldsError: Fields that no source states.
        Refused: The files are not of this robot, or the record differs.
        GateFailed: The written network does not act like the foreign one.
    """
    if request.format not in FORMATS:
        raise BadInput(f"no format '{request.format}'; there are {', '.join(FORMATS)}")
    check_output(request.output, "a policy file", ".onnx")
    model = read_model_facts(request.model)
    files = expand(list(request.files))
    if any(request.output.exists() and request.output.samefile(path) for path in files):
        raise BadInput(f"'{request.output}' is what is imported; choose another name")
    foreign = Foreign(paths=files, model=model, run_torchscript=request.run_torchscript)
    sheet = Sheet(read_answers(request.user, request.settings))
    graph = FORMATS[request.format].read(foreign, sheet)
    custom.from_model(foreign, sheet)
    for note in graph.notes:
        sheet.note(note)
    record = None if request.golden is None else read_record(request.golden)
    assembled = assemble(sheet, model, graph)
    contract, graph = assembled.contract, assembled.graph
    check_contract(contract, model, sheet, allow_privileged=request.allow_privileged)
    with _graph_errors(graph.name):
        network = OnnxNetwork(graph.model, contract)
        gate = _gate(graph, network, contract, record)
        replayed = None
        if record is not None:
            observer = assembled.observer or _observer(graph)
            replayed = replay_record(record, contract, network, observer)
        synthesized = synthesize(contract, network, reset=network.reset)
    for note in replayed.notes if replayed else ():
        sheet.note(note)
    if replayed is not None:
        for note in saturated_actions(contract, replayed.trace, None):
            sheet.note(note)
    trace = synthesized if replayed is None else joined(replayed.trace, synthesized)
    data = policy_bytes(
        graph.model,
        contract=contract,
        trace=trace,
        provenance={
            **_provenance(request, files, assembled, sheet, replayed, record),
            **({"network": list(graph.details)} if graph.details else {}),
        },
        report={"import": gate.to_plain(), **_proof(replayed)},
        also=controller_metadata(contract),
    )
    with atomic_write(request.output) as temporary:
        temporary.write_bytes(data)
        policy = load_policy(temporary.read_bytes(), path=request.output)
    return Imported(
        policy=policy,
        fields=assembled.fields,
        notes=tuple(sheet.notes),
        details=graph.details,
        gate=gate,
        replayed=replayed,
    )


@contextlib.contextmanager
def _graph_errors(name: str) -> Generator[None]:
    """Turn what onnxruntime raises while a foreign graph runs into one line."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        raise BadInput(f"{name}: the graph does not run: {one_line(error)}") from None


def _gate(
    graph: Graph, network: OnnxNetwork, contract: PolicyContract, record: Record | None
) -> ImportGate:
    dim = contract.observation_dim
    recorded = np.zeros((0, dim), np.float32)
    if record is not None and record.arrays["obs"].shape[1] == dim:
        recorded = record.arrays["obs"][: record.rows].astype(np.float32)
    reference = graph.reference(contract.network.output)
    return run_import_gate(reference, network, dim, recorded, memory=bool(graph.states))


def _observer(graph: Graph) -> OnnxReference | None:
    """The graph up to the observation of the foreign network, where that is not the contract's."""
    if graph.observed is None:
        return None
    return OnnxReference(graph.model, (graph.observed,), graph.states)


def joined(recorded: GoldenTrace, synthesized: GoldenTrace) -> GoldenTrace:
    """The record with rows beyond every clip and limit after it: it stays within them itself."""
    inputs = {
        f.name: np.concatenate(
            [getattr(recorded.inputs, f.name), getattr(synthesized.inputs, f.name)]
        )
        for f in dataclasses.fields(TraceInputs)
    }
    outputs = {
        f.name: np.concatenate([getattr(recorded, f.name), getattr(synthesized, f.name)])
        for f in dataclasses.fields(GoldenTrace)
        if isinstance(getattr(recorded, f.name), np.ndarray)
    }
    return dataclasses.replace(recorded, inputs=TraceInputs(**inputs), **outputs)


def _proof(replayed: Replayed | None) -> dict[str, Any]:
    if replayed is None:
        return {"proof": "the trace is synthesized: it proves consistency, not origin"}
    return {"replay": dataclasses.asdict(replayed.report)}


def _provenance(
    request: Request,
    files: tuple[Path, ...],
    assembled: Assembled,
    sheet: Sheet,
    replayed: Replayed | None,
    record: Record | None,
) -> Mapping[str, Any]:
    """Where the policy comes from; names of files, not their places on this machine."""
    trace: dict[str, Any] = {"origin": "synthesized"}
    if replayed is not None and record is not None:
        trace = {
            "origin": "recorded",
            "file": record.name,
            "sha256": record.sha256,
            "recorded_rows": replayed.trace.rows,
        }
    return {
        "source": f"imported from {request.format}",
        "files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
        "user": [path.name for path in request.user],
        "settings": list(request.settings),
        "model": Path(request.model).name,
        "trace": trace,
        "fields": assembled.fields,
        "notes": list(sheet.notes),
        "surefoot": _version(),
    }


def _version() -> str:
    try:
        return version("surefoot")
    except PackageNotFoundError:
        return "unknown"
