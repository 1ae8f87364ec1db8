"""A report as lines for a terminal, and as plain values for JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from sim2sim.doctor import grouped
from sim2sim.evaluate import RunResult, Verdict
from sim2sim.report import Report

_SHOWN_SUBJECTS = 3


def text_lines(report: Report) -> list[str]:
    """What a terminal shows; the last line is the verdict."""
    policy, sim, verdict = report.policy, report.sim, report.verdict
    contract = policy.contract
    rows = policy.replayed.rows if policy.replayed is not None else 0
    return [
        f"policy  {policy.path.name}: {contract.name}, contract {contract.sha256()[:12]}",
        f"trace   {rows} rows ({policy.trace.origin}) replayed",
        f"model   {sim.file.path}, physics step {1e3 * sim.physics_dt:g} ms",
        *(
            f"differs {_shortened(subjects)}: {finding.text}"
            for subjects, finding in grouped(sim.findings)
            if finding.differs
        ),
        *(f"note    {note}" for note in report.notes),
        "",
        *_segment_lines(verdict),
        *_run_lines(report.results),
        "",
        *(
            f"FAILED  {check.name}: {check.value:.3f} {check.unit}, limit {check.limit:g}"
            for check in verdict.checks
            if not check.passed
        ),
        "PASS" if verdict.passed else "FAIL",
    ]


def as_json(report: Report) -> dict[str, Any]:
    """Everything but the trajectories, as plain JSON values."""
    policy, sim, verdict = report.policy, report.sim, report.verdict
    return {
        "passed": verdict.passed,
        "checks": [{**dataclasses.asdict(c), "passed": c.passed} for c in verdict.checks],
        "segments": [dataclasses.asdict(segment) for segment in verdict.segments],
        "runs": [_run_json(result) for result in report.results],
        "thresholds": dataclasses.asdict(report.thresholds),
        "policy": {
            "path": str(policy.path),
            "sha256": policy.sha256,
            "name": policy.contract.name,
            "contract_sha256": policy.contract.sha256(),
            "provenance": policy.provenance,
        },
        "model": {
            "path": str(sim.file.path),
            "sha256": sim.file.sha256,
            "physics_dt": sim.physics_dt,
            "findings": [dataclasses.asdict(finding) for finding in sim.findings],
        },
        "notes": list(report.notes),
    }


def _segment_lines(verdict: Verdict) -> list[str]:
    if not verdict.segments:
        return []
    head = f"{'segment':<10} {'asked':>19} {'mean':>19} {'error m/s':>10} {'rad/s':>7} {'runs':>5}"
    return [
        head,
        *(
            f"{s.name:<10} {_vector(s.command):>19} {_vector(s.velocity):>19} "
            f"{s.lin_vel_error:>10.3f} {s.ang_vel_error:>7.3f} {s.runs:>5}"
            for s in verdict.segments
        ),
    ]


def _run_lines(results: Sequence[RunResult]) -> list[str]:
    lines: list[str] = []
    for kind in ("nominal", "disturbed", "command"):
        group = [r for r in results if r.scenario.kind == kind]
        if not group:
            continue
        good = sum(not r.failure for r in group)
        share = sum(r.metrics.saturation for r in group) / len(group)
        rate = sum(r.metrics.action_rate for r in group) / len(group)
        lines.append(
            f"{kind:<10} {good} of {len(group)} reached their end; efforts at their limit "
            f"{100.0 * share:.2f} %; actions change by {rate:.2f} /s"
        )
    lines += [
        f"  {r.scenario.name}: after {r.metrics.duration:.2f} s, {r.failure}"
        for r in results
        if r.failure
    ]
    return lines


def _shortened(subjects: str) -> str:
    names = subjects.split(", ")
    if len(names) <= _SHOWN_SUBJECTS:
        return subjects
    return f"{', '.join(names[:_SHOWN_SUBJECTS])} and {len(names) - _SHOWN_SUBJECTS} more"


def _vector(values: Sequence[float]) -> str:
    return ", ".join(f"{round(value, 2) + 0.0:.2f}" for value in values)


def _run_json(result: RunResult) -> dict[str, Any]:
    scenario, drawn = result.scenario, result.scenario.disturbance
    return {
        "kind": scenario.kind,
        "seed": scenario.seed,
        "index": scenario.index,
        "failure": result.failure,
        "faults": result.faults,
        "metrics": dataclasses.asdict(result.metrics),
        "disturbance": None if drawn is None else dataclasses.asdict(drawn),
    }
