"""`surefoot inspect`: what a policy file says about itself, as tables."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from robot_runtime.cli import Parser
from robot_runtime.errors import BadInput, ExitCode
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.file import MAX_FILE, PolicyFile, open_policy
from robot_runtime.policy.foreign import explain
from robot_runtime.policy.proof import ReplayReport, TraceMismatch, replay
from robot_runtime.policy.spec import ObservationBlock, ObservationTerm

_EPILOG = """\
exit code: 0 the file proves itself, 1 its golden trace is not reproduced, 2 it cannot be read or
is no policy file.

examples:
  surefoot inspect policy.onnx
  surefoot inspect policy.onnx --json | python -m json.tool
"""


def main(argv: list[str]) -> int:
    """Run the verb.

    Args:
        argv: The arguments after its name.

    Returns:
        0, or 1 where the golden trace is not reproduced.
    """
    parser = Parser(
        "surefoot inspect",
        description="Print the contract of a policy file, check its seal and replay its golden "
        "trace. Of any other ONNX, TorchScript or checkpoint file, say what it is and lacks.",
        epilog=_EPILOG,
    )
    parser.add_argument("file", type=Path, help="a policy file")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    arguments = parser.parse_args(argv)
    try:
        policy = open_policy(arguments.file, replay=False)
    except BadInput:
        # Refused it is all the same; but people want to know what they have.
        _explain(arguments.file, as_json=arguments.json)
        raise
    network = policy.network()
    try:
        proof = replay(policy.contract, policy.trace, network, reset=network.reset)
    except TraceMismatch as error:
        proof = error
    if arguments.json:
        _print(json.dumps(_plain(policy, proof), indent=2))
    else:
        _print(describe(policy, proof))
    return ExitCode.FAILED if isinstance(proof, TraceMismatch) else ExitCode.GOOD


def _explain(path: Path, *, as_json: bool) -> None:
    """Say what a file is that is no policy file, where that is known."""
    with contextlib.suppress(BadInput, OSError):
        if not path.is_file() or path.stat().st_size > MAX_FILE:
            return
        found = explain(path.read_bytes(), path)
        if found is None:
            return
        if as_json:
            _print(json.dumps({"path": str(path), **dataclasses.asdict(found)}, indent=2))
        else:
            lacks = [("missing", need) for need in found.missing]
            _print(_facts([("file", path), ("kind", found.kind), *found.facts, *lacks,
                           ("next", found.next)]))  # fmt: skip


def _print(text: str) -> None:
    # A name may hold what the terminal's encoding does not.
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def describe(policy: PolicyFile, proof: ReplayReport | TraceMismatch) -> str:
    """Everything about a policy file that a person may want to know, as text.

    Args:
        policy: The file.
        proof: What the replay of its golden trace gave.
    """
    contract = policy.contract
    sections = [
        ("policy", _facts(_identity(policy, proof))),
        ("joints", _joints(contract)),
        *(
            (f"observation {name!r}, {dim} numbers", _observation(contract, name))
            for name, dim in contract.inputs().items()
        ),
        (f"action {contract.network.output!r}, {contract.num_actions} numbers", _action(contract)),
        ("commands", _commands(contract)),
        ("timing and law", _facts(_law(contract))),
        ("provenance", _facts(_flat(policy.provenance))),
        ("export gate", _facts(_flat(policy.report))),
    ]
    return "\n\n".join(f"{title}\n{body}" for title, body in sections if body)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows as aligned columns; numbers stand right, words left, columns without any go."""
    cells = [[_show(value) for value in row] for row in rows]
    lines = [list(head), *cells]
    kept = [i for i in range(len(head)) if any(row[i] for row in cells)]
    width = {i: max(len(line[i]) for line in lines) for i in kept}
    right = {i: all(_is_number(row[i]) for row in cells) for i in kept}
    return "\n".join(
        "  "
        + "  ".join(
            line[i].rjust(width[i]) if right[i] else line[i].ljust(width[i]) for i in kept
        ).rstrip()
        for line in lines
    )


def _facts(pairs: Iterable[tuple[str, object]]) -> str:
    shown = [(name, "none" if value in (None, (), []) else _show(value)) for name, value in pairs]
    width = max((len(name) for name, _ in shown), default=0)
    return "\n".join(f"  {name:<{width}}  {value}".rstrip() for name, value in shown)


def _identity(policy: PolicyFile, proof: ReplayReport | TraceMismatch) -> list[tuple[str, object]]:
    robot, trace = policy.contract.robot, policy.trace
    if isinstance(proof, TraceMismatch):
        replayed = f"NOT reproduced: {proof}"
    else:
        replayed = (
            f"reproduced; largest differences: observation {proof.observation:.1e}, "
            f"action {proof.action:.1e}, target {proof.target:.1e}, effort {proof.effort:.1e}"
        )
    return [
        ("file", policy.path),
        ("name", policy.contract.name),
        ("robot", f"{robot.name}, base body {robot.base_body}"),
        ("robot model", robot.model_sha256 or "not stated"),
        ("sha256", policy.sha256),
        ("contract", policy.contract.sha256()),
        ("seal", "intact"),
        ("golden trace", f"{trace.origin}, {trace.rows} policy steps"),
        ("replay", replayed),
    ]


def _joints(contract: PolicyContract) -> str:
    head = (
        *("joint", "motor", "default [rad]", "lower [rad]", "upper [rad]", "speed [rad/s]"),
        *("effort [Nm]", "stall [Nm]", "no-load [rad/s]", "kp [Nm/rad]", "kd [Nms/rad]", "axis"),
    )
    return table(
        head,
        (
            (
                *(j.name, j.motor, j.default_pos, j.lower, j.upper, j.velocity_limit),
                *(j.effort_limit, j.stall_effort, j.no_load_speed, j.kp, j.kd, j.axis),
            )
            for j in contract.joints
        ),
    )


def _observation(contract: PolicyContract, input_name: str) -> str:
    blocks = [block for block in contract.observation if block.input == input_name]
    tables = [
        table(
            ("term", "source", "dim", "frames", "scale", "clip", "noise +-", "details"),
            (
                (
                    *(term.name, term.source, contract.term_dim(term), block.length_of(term)),
                    *(_same(term.scale), _clip(term), _same(term.noise), _details(term)),
                )
                for term in block.terms
            ),
        )
        + _history(block)
        for block in blocks
    ]
    return "\n".join(tables)


def _history(block: ObservationBlock) -> str:
    lines: list[str] = []
    history = block.history
    if any(block.length_of(term) > 1 for term in block.terms) or not history.includes_current:
        lines.append(
            f"history: {history.layout}, {history.order}, every {history.stride} policy steps, "
            f"{'with' if history.includes_current else 'without'} the current frame, "
            f"begins with {history.fill}"
        )
    if block.clip is not None:
        lines.append(f"every feature is clipped at +-{_show(block.clip)}")
    return "".join(f"\n  {line}" for line in lines)


def _clip(term: ObservationTerm) -> str:
    if term.clip is None:
        return ""
    return f"{_show(term.clip)} {'before' if term.clip_first else 'after'} the scale"


def _details(term: ObservationTerm) -> str:
    parts: list[str] = []
    if term.source in ("base_ang_vel", "base_lin_vel"):
        parts.append(f"{term.frame} frame")
    if term.sensor == "imu":
        parts.append("at the IMU")
    if term.source == "last_action":
        parts.append(term.stage)
    if term.value is not None:
        parts.append(_show(term.value))
    parts += term.joints or ()
    parts += term.channels or ()
    return ", ".join(parts)


def _action(contract: PolicyContract) -> str:
    rows: list[tuple[object, ...]] = []
    for term in contract.action.terms:
        for i, joint in enumerate(term.joints):
            raw = _range(term.raw_lower, term.raw_upper, i)
            target = _range(term.target_lower, term.target_upper, i)
            base = "measured position" if term.relative_to == "measured" else ""
            scale, offset = term.scale[i], term.offset[i]
            rows.append((joint, term.name, term.kind, scale, offset, base, raw, target))
    head = ("joint", "term", "target", "scale", "offset", "added to", "raw clip", "target clip")
    lines = [table(head, rows)]
    if contract.action.filter < 1.0:
        lines.append(f"  low-pass: new = {_show(contract.action.filter)} * action + rest * old")
    lines += [f"  {hold.joint} holds {_show(hold.position)} rad" for hold in contract.action.hold]
    return "\n".join(lines)


def _range(lower: tuple[float, ...] | None, upper: tuple[float, ...] | None, i: int) -> str:
    return "" if lower is None or upper is None else _show((lower[i], upper[i]))


def _commands(contract: PolicyContract) -> str:
    return table(
        ("command", "lower", "upper", "per second"),
        ((c.name, c.lower, c.upper, c.max_rate) for c in contract.commands),
    )


def _law(contract: PolicyContract) -> list[tuple[str, object]]:
    timing, actuator, imu = contract.timing, contract.actuator, contract.imu
    facts: list[tuple[str, object]] = [
        ("policy", f"every {_show(timing.control_dt)} s ({_show(1.0 / timing.control_dt)} Hz)"),
        ("PD law", f"every {_show(timing.pd_dt)} s"),
        ("training physics", f"every {_show(timing.physics_dt)} s"),
        ("actuator", f"{actuator.form}, damping in the {actuator.damping}"),
        ("delay", f"{_show(actuator.delay)} s"),
        ("target filter", "none" if actuator.target_filter == 1.0 else actuator.target_filter),
        ("normalizer", contract.network.normalizer.replace("_", " ")),
        ("IMU", f"site {imu.site or 'not stated'} at {_show(imu.position)} m"),
        (
            "IMU mounting",
            f"{_show(imu.quat)} w, x, y, z; base_quat terms as {imu.quaternion_order}",
        ),
    ]
    if contract.phase is not None:
        clock = dataclasses.asdict(contract.phase)
        if clock["stand_channels"] is None:
            clock["stand_channels"] = "all"
        facts += [(f"gait clock {k.replace('_', ' ')}", v) for k, v in clock.items()]
    for state in contract.network.states:
        facts.append(("recurrent state", f"{state.input} -> {state.output} {list(state.shape)}"))
    return facts


def _flat(values: dict[str, Any]) -> list[tuple[str, object]]:
    """Nested JSON values with the names of their parents in front."""
    pairs: list[tuple[str, object]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            inner = _flat(cast("dict[str, Any]", value))
            pairs += [(f"{name}: {key}", item) for key, item in inner]
        else:
            pairs.append((name, value))
    return pairs


def _same(values: tuple[float, ...]) -> object:
    """One number where all are equal."""
    return values[0] if len(set(values)) == 1 else values


def _show(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple | list):
        items = cast("Sequence[object]", value)
        return "(" + ", ".join(_show(item) for item in items) + ")"
    return str(value)


def _is_number(text: str) -> bool:
    try:
        float(text or "0")
    except ValueError:
        return False
    return True


def _plain(policy: PolicyFile, proof: ReplayReport | TraceMismatch) -> dict[str, Any]:
    failed = isinstance(proof, TraceMismatch)
    return {
        "path": str(policy.path),
        "sha256": policy.sha256,
        "seal": "intact",
        "contract_sha256": policy.contract.sha256(),
        "contract": policy.contract.to_dict(),
        "provenance": policy.provenance,
        "gate": policy.report,
        "trace": {"origin": policy.trace.origin, "rows": policy.trace.rows},
        "replay": {"error": str(proof)} if failed else dataclasses.asdict(proof),
    }
