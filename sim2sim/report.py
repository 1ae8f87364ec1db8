"""One HTML page about a policy: verdict, figures, plots, contract, differences. Opens offline."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import cast

import mujoco
import onnxruntime

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.file import PolicyFile
from sim2sim import plots
from sim2sim.doctor import grouped
from sim2sim.evaluate import Check, RunResult, Verdict
from sim2sim.metrics import SegmentSummary, Thresholds
from sim2sim.model import SimModel
from sim2sim.report_style import STYLE

_FEWEST_TICKS = 3
"""Shortest run that is drawn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All that goes into a page.

    Attributes:
        policy: The policy file.
        sim: The model it was simulated with.
        results: What became of every scenario.
        verdict: Their verdict.
        thresholds: What it was judged by.
        notes: What was left out or clipped.
        command: The command line that makes the page again.
    """

    policy: PolicyFile
    sim: SimModel
    results: Sequence[RunResult]
    verdict: Verdict
    thresholds: Thresholds
    notes: Sequence[str]
    command: str


def render(report: Report) -> str:
    """The page, complete with style and plots."""
    contract = report.policy.contract
    title = f"{contract.name} on {contract.robot.name}"
    sections = [
        _head(report, title),
        _cards(report),
        _section("Velocity by segment", _segments(report)),
        _section("Plots", _plots(report)),
        _section("Runs that did not reach their end", _failures(report.results)),
        _section("Model and contract", _findings(report)),
        _section("Contract", _contract(report.policy)),
        _section("All checks", _checks(report.verdict.checks)),
        _footer(report),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}: sim2sim</title><style>{STYLE}</style></head>\n"
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def _head(report: Report, title: str) -> str:
    verdict = report.verdict
    failed = [check for check in verdict.checks if not check.passed]
    kind, word = ("good", "PASS") if verdict.passed else ("bad", "FAIL")
    if failed:
        why = "; ".join(_check_text(check) for check in failed[:4])
        why += f"; and {len(failed) - 4} more" if len(failed) > 4 else ""
    else:
        why = f"All {len(verdict.checks)} checks are within their limits."
    replayed = report.policy.replayed
    proof = "" if replayed is None else f"; {replayed.rows} rows of its golden trace replayed"
    return (
        f"<h1>{_text(title)}</h1>"
        f'<p class="soft">{_text(report.policy.path.name)}, '
        f"{report.policy.trace.origin} trace{proof}; contract "
        f"<code>{report.policy.contract.sha256()[:12]}</code></p>"
        f'<div class="verdict {kind}"><b>{word}</b><span>{_text(why)}</span></div>'
    )


def _cards(report: Report) -> str:
    cards: list[tuple[str, str]] = []
    for kind, label in (
        ("nominal", "nominal runs reached their end"),
        ("disturbed", "disturbed runs reached their end"),
        ("command", "runs reached their end"),
    ):
        group = [r for r in report.results if r.scenario.kind == kind]
        if group:
            good = sum(not r.failure for r in group)
            cards.append((f"{good} of {len(group)}", label))
    segments = report.verdict.segments
    if segments:
        worst = max(segments, key=lambda s: s.lin_vel_error)
        cards.append((f"{worst.lin_vel_error:.3f} m/s", f"largest velocity error ({worst.name})"))
        worst = max(segments, key=lambda s: s.ang_vel_error)
        cards.append((f"{worst.ang_vel_error:.3f} rad/s", f"largest turning error ({worst.name})"))
    calm = [r.metrics for r in report.results if r.scenario.kind != "disturbed"]
    if calm:
        share = 100.0 * sum(m.saturation for m in calm) / len(calm)
        joints = sorted({m.saturated_joint for m in calm} - {""}) if share >= 0.005 else []
        label = "of efforts at their limit" + (f" (most: {joints[0]})" if joints else "")
        cards.append((f"{share:.2f} %", label))
        rate = sum(m.action_rate for m in calm) / len(calm)
        cards.append((f"{rate:.2f} /s", "mean change of an action"))
    body = "".join(
        f'<div class="card"><b>{_text(a)}</b><span>{_text(b)}</span></div>' for a, b in cards
    )
    return f'<div class="cards">{body}</div>'


def _segments(report: Report) -> str:
    head = (
        "segment",
        "asked",
        "mean velocity",
        "error [m/s]",
        "worst run",
        "error [rad/s]",
        "worst run",
        "rms [m/s]",
        "rms [rad/s]",
        "drift [m]",
        "runs",
    )
    rows = [_segment_row(s, report.thresholds) for s in report.verdict.segments]
    limits = f"{report.thresholds.lin_vel_error:g} m/s, {report.thresholds.ang_vel_error:g} rad/s"
    note = (
        '<p class="soft">Forward, sideways and turning velocity: means after the first second of '
        "each segment, in the heading frame of the base, over all runs that came through. "
        "Drift: from the first place to the last. "
        f"Limits: {limits}.</p>"
    )
    return _table(head, rows, numbers=range(3, 11)) + note


def _segment_row(segment: SegmentSummary, thresholds: Thresholds) -> list[str]:
    lin_ok = segment.lin_vel_error <= thresholds.lin_vel_error
    ang_ok = segment.ang_vel_error <= thresholds.ang_vel_error
    return [
        _text(segment.name),
        _vector(segment.command),
        _vector(segment.velocity),
        _marked(f"{segment.lin_vel_error:.3f}", lin_ok),
        f"{segment.worst_lin_vel_error:.3f}",
        _marked(f"{segment.ang_vel_error:.3f}", ang_ok),
        f"{segment.worst_ang_vel_error:.3f}",
        f"{segment.lin_vel_rmse:.3f}",
        f"{segment.ang_vel_rmse:.3f}",
        f"{segment.drift:.3f}",
        str(segment.runs),
    ]


def _plots(report: Report) -> str:
    runs = [
        r
        for r in report.results
        if r.trajectory is not None and len(r.trajectory.action) >= _FEWEST_TICKS
    ]
    if not runs:
        return '<p class="soft">No run that was kept is long enough.</p>'
    first = runs[0]
    assert first.trajectory is not None, "filtered above"
    contract = report.policy.contract
    figures = [
        (
            plots.velocity_figure(runs, contract),
            "Velocity: asked (dashed) and measured. Thick: the first run; grey: not judged.",
        ),
        (
            plots.contact_figure(first.trajectory, first.scenario),
            "Ground contact of the bodies that touch it, first moving segment of the first run.",
        ),
        (plots.posture_figure(runs), "Height of the centre of mass, and tilt of the base."),
        (
            plots.effort_figure(first.trajectory, contract),
            "Efforts of the first run; dashed: the contract's limits.",
        ),
        (plots.action_figure(first.trajectory), "How fast the actions change, first run."),
    ]
    return "".join(
        f"<figure>{svg}<figcaption>{_text(caption)}</figcaption></figure>"
        for svg, caption in figures
        if svg
    )


def _failures(results: Sequence[RunResult]) -> str:
    failed = [r for r in results if r.failure]
    if not failed:
        return f"<p>None of {len(results)}.</p>"
    head = ("run", "after", "why", "friction", "payload", "latency", "pushes")
    rows: list[list[str]] = []
    for result in failed:
        drawn = result.scenario.disturbance
        rows.append(
            [
                _text(result.scenario.name),
                f"{result.metrics.duration:.2f} s",
                _text(result.failure),
                "" if drawn is None else f"{drawn.friction:.2f}",
                "" if drawn is None else f"{drawn.payload:+.2f} kg",
                "" if drawn is None else f"{1e3 * drawn.latency:.0f} ms",
                "" if drawn is None else ", ".join(f"{p.time:.1f} s" for p in drawn.pushes),
            ]
        )
    return _table(head, rows, numbers=(1, 3, 4, 5))


def _findings(report: Report) -> str:
    sim = report.sim
    every = ", ".join(sim.contract.joint_names)
    rows = [
        [
            f'<span class="{"bad" if finding.differs else "soft"}">'
            f"{'differs' if finding.differs else 'note'}</span>",
            _text("all joints" if subjects == every else subjects),
            _text(finding.text),
        ]
        for subjects, finding in sorted(grouped(sim.findings), key=lambda pair: not pair[1].differs)
    ]
    rows += [['<span class="soft">note</span>', "commands", _text(note)] for note in report.notes]
    text = (
        f"<p>Model <code>{_text(sim.file.path.name)}</code>, hash "
        f"<code>{sim.file.sha256[:12]}</code>, physics step {1e3 * sim.physics_dt:g} ms.</p>"
    )
    if not rows:
        return text + "<p>It is the model that the contract names, and nothing differs.</p>"
    return text + _table(("", "subject", "finding"), rows)


def _contract(policy: PolicyFile) -> str:
    rows = [[_text(name), _text(value)] for name, value in contract_summary(policy.contract)]
    rows += [
        [_text(str(name)), f"<code>{_text(_plainly(value))}</code>"]
        for name, value in policy.provenance.items()
    ]
    return _table(("", ""), rows)


def _plainly(value: object) -> str:
    """Versions as words, everything else as it is."""
    if isinstance(value, dict):
        items = cast("dict[str, object]", value).items()
        return ", ".join(f"{name} {inner}" for name, inner in items)
    return str(value)


def contract_summary(contract: PolicyContract) -> list[tuple[str, str]]:
    """What a reader wants to know of a contract first."""
    timing, actuator = contract.timing, contract.actuator
    terms = [
        f"{term.name} ({contract.term_dim(term)}"
        + (f" x {block.length_of(term)})" if block.length_of(term) > 1 else ")")
        for block in contract.observation
        for term in block.terms
    ]
    form = {"explicit_pd": "explicit PD", "native": "MuJoCo's own"}[actuator.form]
    if actuator.form == "native":
        form += f", damping in the {actuator.damping}"
    actions = [f"{term.kind} of {len(term.joints)} joints" for term in contract.action.terms]
    commands = [f"{c.name} {c.lower:g}..{c.upper:g}" for c in contract.commands]
    return [
        ("robot", f"{contract.robot.name}, {len(contract.joints)} joints"),
        (
            "timing",
            f"policy every {1e3 * timing.control_dt:g} ms, PD every {1e3 * timing.pd_dt:g} ms, "
            f"trained with physics of {1e3 * timing.physics_dt:g} ms",
        ),
        ("actuators", f"{form}, delay {1e3 * actuator.delay:g} ms"),
        ("observation", f"{contract.observation_dim}: " + ", ".join(terms)),
        ("action", f"{contract.num_actions}: " + ", ".join(actions)),
        ("commands", ", ".join(commands) or "none"),
    ]


def _checks(checks: Iterable[Check]) -> str:
    rows = [
        [
            _marked("pass" if check.passed else "fail", check.passed),
            _text(check.name),
            f"{check.value:.3f}",
            f"{check.limit:g}",
            _text(check.unit),
        ]
        for check in checks
    ]
    return _table(("", "check", "value", "limit", "unit"), rows, numbers=(2, 3))


def _footer(report: Report) -> str:
    tools = (
        f"surefoot {version('surefoot')}, MuJoCo {mujoco.__version__}, "
        f"onnxruntime {onnxruntime.__version__}"
    )
    return f"<footer><p>{_text(tools)}. Made by <code>{_text(report.command)}</code></p></footer>"


def _check_text(check: Check) -> str:
    return f"{check.name} {check.value:.3f} {check.unit}, limit {check.limit:g}"


def _section(title: str, body: str) -> str:
    return f"<section><h2>{_text(title)}</h2>{body}</section>"


def _table(head: Sequence[str], rows: list[list[str]], numbers: Iterable[int] = ()) -> str:
    """A table of cells that are HTML already."""
    right = set(numbers)

    def cell(tag: str, i: int, content: str) -> str:
        kind = ' class="number"' if i in right else ""
        return f"<{tag}{kind}>{content}</{tag}>"

    top = "".join(cell("th", i, _text(name)) for i, name in enumerate(head))
    body = "".join(
        "<tr>" + "".join(cell("td", i, value) for i, value in enumerate(row)) + "</tr>"
        for row in rows
    )
    thead = f"<thead><tr>{top}</tr></thead>" if any(head) else ""
    return f'<div class="wide"><table>{thead}<tbody>{body}</tbody></table></div>'


def _marked(text: str, good: bool) -> str:
    return f'<span class="{"good" if good else "bad"}">{_text(text)}</span>'


def _vector(values: Sequence[float]) -> str:
    numbers = ", ".join(f"{round(value, 2) + 0.0:.2f}" for value in values)
    return f'<span class="nowrap">{numbers}</span>'


def _text(value: str) -> str:
    return html.escape(value)
