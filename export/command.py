"""`surefoot export`: a checkpoint becomes a policy file that proves itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from export.onnx import DEFAULT_TARGET, TARGETS
from export.parity import GateReport
from export.write import FORMATS, Exported, export_checkpoint
from robot_runtime.cli import Parser
from robot_runtime.errors import ExitCode

_EPILOG = """\
what is checked before anything is written:
  checkpoint, ONNX in onnxruntime, TorchScript and the runtime's own path give the same actions on
  1000 random observations (100 of them far out) and on all recorded ones, batch 1 and 64, with a
  long run and resets in the middle where the network has a state; then the file is opened again
  and its golden trace replayed.

targets (--target): the oldest onnxruntime that loads the file
{targets}

examples:
  surefoot export runs/quadruped-flat/checkpoints/iteration_0000300.pt -o policy.onnx
  surefoot export runs/quadruped-flat -o policy.onnx --torchscript policy.pt
  surefoot export runs/quadruped-flat -o policy.onnx --target ort-1.10
  surefoot export runs/quadruped-flat -o policy.onnx --format leapp
"""


def main(argv: list[str]) -> int:
    """Run the verb.

    Args:
        argv: The arguments after its name.

    Returns:
        0; everything that goes wrong is raised.
    """
    parser = Parser(
        "surefoot export",
        description="Turn a checkpoint into a policy file: one ONNX with its contract, golden "
        "trace and seal inside.",
        epilog=_EPILOG.format(
            targets="\n".join(
                f"  {name}  opset {target.opset}, IR {target.ir_version}"
                for name, target in TARGETS.items()
            )
        ),
    )
    parser.add_argument(
        "checkpoint", type=Path, help="a checkpoint, or a run folder (its newest checkpoint)"
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="the policy file to write (.onnx)"
    )
    parser.add_argument(
        "--torchscript", type=Path, metavar="FILE", help="write the policy as TorchScript too (.pt)"
    )
    parser.add_argument(
        "--target",
        choices=list(TARGETS),
        default=DEFAULT_TARGET,
        help="the oldest onnxruntime that shall load the file (default: %(default)s)",
    )
    parser.add_argument(
        "--format",
        action="append",
        default=[],
        choices=list(FORMATS),
        help="write this beside the policy file too, for another runtime: deploy.yaml as Unitree's "
        "controllers read it, or leapp.yaml; may be given several times",
    )
    parser.add_argument(
        "--allow-privileged",
        action="store_true",
        help="accept observation terms that the robot cannot measure",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    arguments = parser.parse_args(argv)

    def progress(what: str) -> None:
        if not arguments.json and sys.stderr.isatty():
            print(f"{what} ...", file=sys.stderr)

    exported = export_checkpoint(
        arguments.checkpoint,
        arguments.output,
        torchscript=arguments.torchscript,
        target=arguments.target,
        formats=arguments.format,
        allow_privileged=arguments.allow_privileged,
        progress=progress,
    )
    if arguments.json:
        print(json.dumps(_plain(exported), indent=2))
    else:
        print(describe(exported))
    return ExitCode.GOOD


def _plain(exported: Exported) -> dict[str, Any]:
    return {
        "policy": str(exported.policy.path),
        "sha256": exported.policy.sha256,
        "contract_sha256": exported.policy.contract.sha256(),
        "torchscript": None if exported.torchscript is None else str(exported.torchscript),
        "beside": [str(path) for path in exported.beside],
        "checkpoint": str(exported.checkpoint),
        "provenance": exported.policy.provenance,
        "gate": exported.gate.to_plain(),
    }


def describe(exported: Exported) -> str:
    """What an export wrote and measured, as text."""
    gate, policy = exported.gate, exported.policy
    width = max(len(name) for name in gate.errors)
    rollout = f", a run of {gate.rollout} steps" if gate.rollout else ""
    lines = [
        f"{policy.path}: policy '{policy.contract.name}', iteration "
        f"{policy.provenance['iteration']} of {exported.checkpoint}, for {gate.target}",
        f"gate passed: {gate.random} random and {gate.recorded} recorded observations{rollout}, "
        f"accepted difference {gate.tolerance:.2g}",
        *(f"  {name:<{width}}  {error:.1e}" for name, error in gate.errors.items()),
        f"golden trace ({policy.trace.origin}, {policy.trace.rows} rows) replayed",
        *(f"warning: {text}" for text in _warnings(gate)),
    ]
    if exported.torchscript is not None:
        lines.append(f"{exported.torchscript}: the same policy as TorchScript")
    lines += [f"{path}: written beside it, for another runtime" for path in exported.beside]
    lines.append(f"sha256 {policy.sha256}")
    return "\n".join(lines)


def _warnings(gate: GateReport) -> list[str]:
    found = list(gate.warnings)
    if gate.constant_features:
        bound = (
            "nothing bounds what they do to the policy"
            if gate.normalized_bound is None
            else f"bounded at {gate.normalized_bound:g} deviations"
        )
        found.insert(0, f"never changed in training ({bound}): {', '.join(gate.constant_features)}")
    return found
