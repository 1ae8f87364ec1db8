"""`surefoot import`: a policy from elsewhere becomes a policy file that proves itself."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from export.importers.pipeline import FORMATS, Imported, Request, import_policy
from export.importers.sheet import MissingFieldsError
from robot_runtime.cli import Parser
from robot_runtime.errors import ExitCode

_EPILOG = """\
formats and their files:
{formats}

What no file states is asked for by name, all of it at once; the answers go into a YAML file
(--user) or stand on the command line (--set). Joints, limits and poses are checked against the
model. The network is compared with the foreign one, and with a recorded run where there is one.

examples:
  surefoot import unitree_rl_lab policy/velocity/v0 --model g1/scene.xml -o g1.onnx
  surefoot import rl_sar base.yaml himloco/ --model go2/scene.xml --user answers.yaml \\
      --run-torchscript --golden trace.npz -o go2.onnx
  surefoot import custom policy.onnx --user contract.yaml --model robot.xml -o policy.onnx
"""


def main(argv: list[str]) -> int:
    """Run the verb.

    Args:
        argv: The arguments after its name.

    Returns:
        0; everything that goes wrong is raised.
    """
    arguments = _parser().parse_args(argv)
    request = Request(
        format=arguments.format.replace("-", "_"),
        files=tuple(arguments.files),
        model=arguments.model,
        output=arguments.output,
        user=tuple(arguments.user),
        settings=tuple(arguments.set),
        golden=arguments.golden,
        run_torchscript=arguments.run_torchscript,
        allow_privileged=arguments.allow_privileged,
    )
    try:
        imported = import_policy(request)
    except MissingFieldsError as missing:
        if not arguments.json:
            print("# stated by no source; keep, correct and pass with --user:")
            for question in missing.questions:
                print(question.line())
            for note in missing.notes:
                print(f"# note: {note}")
            sys.stdout.flush()
        raise
    if arguments.json:
        print(json.dumps(plain(imported), indent=2))
    else:
        print(describe(imported))
    return ExitCode.GOOD


def _parser() -> Parser:
    listed = "\n".join(f"  {name:<24} {entry.files}" for name, entry in FORMATS.items())
    parser = Parser(
        "surefoot import",
        description="Turn a policy of another stack into a policy file.",
        epilog=_EPILOG.format(formats=listed),
    )
    parser.add_argument("format", metavar="FORMAT", help="what the files are, see below")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="files or folders")
    parser.add_argument(
        "--model",
        required=True,
        metavar="SCENE.XML",
        help="MuJoCo scene of the robot, or the name of an installed robot model",
    )
    parser.add_argument("-o", "--output", required=True, type=Path, help="the policy file (.onnx)")
    parser.add_argument(
        "--user",
        action="append",
        default=[],
        type=Path,
        metavar="YAML",
        help="what no file states, as YAML; may be given several times",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="one field, such as timing.pd_dt=0.002; may be given several times",
    )
    parser.add_argument(
        "--golden", type=Path, metavar="NPZ", help="a recorded run that the policy must reproduce"
    )
    parser.add_argument(
        "--run-torchscript", action="store_true", help="run the program in a TorchScript file"
    )
    parser.add_argument(
        "--allow-privileged",
        action="store_true",
        help="accept observation terms that robots do not measure",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def plain(imported: Imported) -> dict[str, Any]:
    """The result as plain JSON values."""
    return {
        "policy": str(imported.policy.path),
        "sha256": imported.policy.sha256,
        "contract_sha256": imported.policy.contract.sha256(),
        "trace": imported.policy.trace.origin,
        "gate": imported.gate.to_plain(),
        "replay": imported.policy.report.get("replay"),
        "notes": list(imported.notes),
        "network": list(imported.details),
        "fields": imported.fields,
    }


def describe(imported: Imported) -> str:
    """The result for people: what was written, what to know, and where each field comes from."""
    contract = imported.policy.contract
    lines = [
        f"{imported.policy.path}: {contract.name}, {len(contract.joints)} joints, "
        f"{contract.observation_dim} observations, {contract.num_actions} actions, "
        f"{1.0 / contract.timing.control_dt:g} Hz",
        f"gate: {imported.gate.steps} observations, largest difference "
        f"{imported.gate.error:.3g} (accepted {imported.gate.tolerance:.3g})",
    ]
    if imported.replayed is None:
        lines.append("trace: synthesized; it proves consistency from now on, not origin")
    else:
        report = imported.replayed.report
        lines.append(
            f"trace: recorded, {report.rows} rows; observations within "
            f"{report.observation:.3g}, actions {report.action:.3g}, targets {report.target:.3g}"
        )
    lines += [f"note: {note}" for note in imported.notes]
    if imported.details:
        lines += ["what was in the file:", *(f"  {line}" for line in imported.details)]
    lines.append("fields and their sources:")
    fields = condensed(imported.fields)
    width = max(len(path) for path in fields)
    lines += [f"  {path:<{width}}  {source}" for path, source in fields.items()]
    return "\n".join(lines)


def condensed(fields: dict[str, str]) -> dict[str, str]:
    """The same fields with "*" for a place in a list where all places have one source."""
    stars = {path: re.sub(r"\.\d+(?=\.|$)", ".*", path) for path in fields}
    sources: dict[str, set[str]] = {}
    for path, source in fields.items():
        sources.setdefault(stars[path], set()).add(source)
    return {
        (stars[path] if len(sources[stars[path]]) == 1 else path): source
        for path, source in fields.items()
    }
