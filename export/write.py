"""From a checkpoint to files that prove themselves: build, gate, write whole or not at all."""

from __future__ import annotations

import contextlib
import platform
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from export.diagnosis import Evidence
from export.findings import check_measurable, contract_findings
from export.formats.deploy_yaml import deploy_yaml
from export.formats.leapp import leapp_yaml
from export.formats.metadata import controller_metadata
from export.graph import Source, read_source
from export.networks import (
    Candidate,
    OnnxBatchNetwork,
    RuntimeNetwork,
    ScriptNetwork,
    TorchNetwork,
    onnx_content,
    script_content,
)
from export.onnx import DEFAULT_TARGET, TARGETS, export_onnx
from export.parity import GateReport, run_gate
from export.saturation import saturated_actions
from export.torchscript import read_torchscript, torchscript_bytes, trace_module
from robot_runtime.errors import BadInput, GateFailed
from robot_runtime.files import atomic_write, check_output
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.file import PolicyFile, load_policy, policy_bytes
from robot_runtime.policy.inference import OnnxNetwork
from robot_runtime.policy.labels import observation_labels
from robot_runtime.policy.proof import TraceMismatch
from trainer.checkpoint import find_checkpoint

Progress = Callable[[str], None]
"""Called with what is being done, for people who wait."""


Beside = tuple[str, Callable[[bytes], str]]
"""Name of a file beside the policy file, and what makes its text of the policy file's content."""


def _deploy_yaml(contract: PolicyContract, model_name: str) -> Beside:
    text = deploy_yaml(contract)
    return "deploy.yaml", lambda _: text


def _leapp(contract: PolicyContract, model_name: str) -> Beside:
    return "leapp.yaml", lambda model: leapp_yaml(contract, model, model_name)


FORMATS: dict[str, Callable[[PolicyContract, str], Beside]] = {
    "deploy-yaml": _deploy_yaml,
    "leapp": _leapp,
}
"""What else can be written beside the policy file, for runtimes of others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What an export wrote.

    Attributes:
        policy: The policy file, opened again and replayed.
        torchscript: The TorchScript file, None where none was asked for.
        beside: Files for other runtimes, in the policy file's folder.
        checkpoint: The checkpoint it was made of.
        gate: What the gate measured.
    """

    policy: PolicyFile
    torchscript: Path | None
    beside: tuple[Path, ...]
    checkpoint: Path
    gate: GateReport


def export_checkpoint(
    checkpoint: Path,
    output: Path,
    *,
    torchscript: Path | None = None,
    target: str = DEFAULT_TARGET,
    formats: Sequence[str] = (),
    allow_privileged: bool = False,
    progress: Progress = lambda _: None,
) -> Exported:
    """Make a policy file of a checkpoint.

    Args:
        checkpoint: A checkpoint, or a run folder, which stands for its newest one.
        output: The policy file to write, ``.onnx``.
        torchscript: A TorchScript file to write too, ``.pt``.
        target: Name of the oldest runtime that shall load the file, one of `TARGETS`.
        formats: What else to write beside the policy file, see `FORMATS`.
        allow_privileged: Whether terms that the robot cannot measure are accepted.
        progress: Told about each step.

    Raises:
        BadInput: The checkpoint cannot be read, or an output cannot be written.
        Refused: The checkpoint cannot become a policy file.
        GateFailed: What was exported does not act like the checkpoint, or the golden trace is not
            reproduced.
    """
    check_output(output, "a policy file", ".onnx")
    if torchscript is not None:
        check_output(torchscript, "TorchScript", ".pt")
    found = find_checkpoint(checkpoint)
    if torchscript is not None and torchscript.exists() and torchscript.samefile(found):
        raise BadInput(f"'{torchscript}' is the checkpoint itself; choose another name")
    policy, gate = export_source(
        read_source(found),
        output,
        torchscript=torchscript,
        target=target,
        formats=formats,
        allow_privileged=allow_privileged,
        progress=progress,
    )
    beside = [output.with_name(FORMATS[name](policy.contract, output.name)[0]) for name in formats]
    return Exported(
        policy=policy, torchscript=torchscript, beside=tuple(beside), checkpoint=found, gate=gate
    )


def export_source(
    source: Source,
    output: Path,
    *,
    torchscript: Path | None = None,
    target: str = DEFAULT_TARGET,
    formats: Sequence[str] = (),
    allow_privileged: bool = False,
    progress: Progress = lambda _: None,
) -> tuple[PolicyFile, GateReport]:
    """Make a policy file of a policy that was read; see `export_checkpoint`."""
    for what, names, known in (("target", [target], TARGETS), ("format", formats, FORMATS)):
        for name in names:
            if name not in known:
                raise BadInput(f"unknown {what} '{name}'; there are {', '.join(known)}")
    # Before the work: a format may have no place for something the policy needs.
    beside = {name: FORMATS[name](source.contract, output.name) for name in formats}
    privileged = check_measurable(source.contract, allowed=allow_privileged)
    with contextlib.ExitStack() as stack:
        # Both temporary files first: a folder that cannot be written is told before the work.
        temporary = stack.enter_context(atomic_write(output))
        script = None if torchscript is None else stack.enter_context(atomic_write(torchscript))
        others = {
            write: stack.enter_context(atomic_write(output.with_name(name)))
            for name, write in beside.values()
        }
        progress(f"exporting to ONNX for {target}")
        model = export_onnx(source.module, source.contract, source.spec, TARGETS[target])
        progress("tracing to TorchScript")
        traced = trace_module(source.module, source.contract)
        progress("comparing with the checkpoint")
        gate = _gate(source, model, traced, target, privileged)
        parts: dict[str, Any] = {
            "contract": source.contract,
            "trace": source.trace,
            "provenance": {
                **source.origin,
                "exported_with": _versions(),
                "git_commit": _git_commit(),
            },
            "report": gate.to_plain(),
        }
        progress("writing and opening again")
        also = controller_metadata(source.contract)
        temporary.write_bytes(policy_bytes(model, **parts, also=also))
        try:
            policy = load_policy(temporary.read_bytes(), path=output)
        except TraceMismatch as error:
            raise GateFailed(f"{error}; nothing was written") from None
        if script is not None:
            script.write_bytes(torchscript_bytes(traced, **parts))
            read_torchscript(script)
        for write, path in others.items():
            path.write_text(write(policy.model))
    return policy, gate


def _gate(
    source: Source,
    model: bytes,
    traced: torch.jit.ScriptModule,
    target: str,
    privileged: list[str],
) -> GateReport:
    contract, trace, normalization = source.contract, source.trace, source.normalization
    if normalization is None:
        center = trace.observation.mean(axis=0)
        spread = trace.observation.std(axis=0) + np.float32(0.01)
    else:
        center, spread = normalization.center, normalization.scale
    stateful = bool(contract.network.states)
    content, runtime = partial(onnx_content, model), OnnxNetwork(model, contract)
    report = run_gate(
        evidence_of(source),
        (
            Candidate(
                name="onnxruntime",
                network=OnnxBatchNetwork(model, contract),
                batched=True,
                content=content,
            ),
            Candidate(
                name="TorchScript",
                network=ScriptNetwork(traced, contract),
                batched=not stateful,
                content=partial(script_content, traced),
            ),
            Candidate(
                name="runtime", network=RuntimeNetwork(runtime), batched=False, content=content
            ),
        ),
        contract=contract,
        trace=trace,
        runtime=OnnxNetwork(model, contract),
        center=center,
        spread=spread,
        target=target,
    )
    squash = None if source.spec is None else source.spec.squash
    return replace(
        report,
        constant_features=source.constant_features,
        normalized_bound=(normalization.clip or None) if normalization else None,
        warnings=(
            *privileged,
            *contract_findings(contract),
            *saturated_actions(contract, trace, squash),
        ),
    )


def evidence_of(source: Source) -> Evidence:
    """What the gate holds exports against, and what it names faults by."""
    weights = {
        name.removeprefix("actor."): value.numpy()
        for name, value in source.module.named_parameters()
        if not name.startswith("actor.distribution.") and value.dtype == torch.float32
    }
    return Evidence(
        reference=TorchNetwork(source.module, source.contract),
        normalization=source.normalization,
        weights=weights,
        features=observation_labels(source.contract),
        actions=[f"action of {name}" for name in source.contract.action_joints],
        squashed=source.spec is not None and source.spec.squash is not None,
    )


def _versions() -> dict[str, str]:
    """Versions of what an export depends on; a package that is not installed is left out."""
    found = {"python": platform.python_version()}
    for name in ("surefoot", "torch", "onnx", "onnxscript", "onnxruntime", "mujoco", "numpy"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _git_commit() -> str | None:
    """The commit of this source tree, with ``-dirty`` where it was changed; None outside of git."""
    here = Path(__file__).parent
    try:
        # Installed inside somebody's own repository, our files are not part of it.
        for arguments in (
            ["ls-files", "--error-unmatch", Path(__file__).name],
            ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        ):
            done = subprocess.run(
                ["git", *arguments],
                cwd=here,
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
