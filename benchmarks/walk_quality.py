"""How well a recipe walks: several training seeds, each judged in many simulated runs.

    python benchmarks/walk_quality.py                     # the quadruped, 3 seeds
    python benchmarks/walk_quality.py --task biped-flat   # the biped
    python benchmarks/walk_quality.py --runs RUN...       # judge training runs that exist

Everything goes through the verbs: train, export, sim2sim. What a task is put through and what it
must keep is its list in `COURSES`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DRAWS = "1000"
"""Seed of all that sim2sim draws."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """What the policy of a task is put through, and what it must keep.

    Attributes:
        name: Name for people.
        arguments: What sim2sim is told.
        falls: Largest share of the undisturbed runs that may fall, over all training seeds.
        disturbed_falls: Largest share of the disturbed runs that may, of each training seed.
        error: Largest difference of a segment's mean velocity from its command, of each training
            seed, [m/s] and [rad/s].
    """

    name: str
    arguments: tuple[str, ...]
    falls: float
    disturbed_falls: float
    error: float


def _steady(speed: float) -> Course:
    """Straight on for 20 s from ten drawn starts."""
    arguments = ("--command", f"{speed},0,0", "--duration", "20", "--scenarios", "10")
    return Course(
        name=f"{speed} m/s", arguments=arguments, falls=0.1, disturbed_falls=0.0, error=0.15
    )


COURSES = {
    "quadruped-flat": (
        Course(
            name="schedule",
            arguments=("--scenarios", "20", "--disturbed", "200"),
            falls=1.0 / 60.0,
            disturbed_falls=0.05,
            error=0.12,
        ),
    ),
    "biped-flat": (_steady(0.3), _steady(0.5)),
}
"""What each task is put through."""


def surefoot(*arguments: str) -> tuple[int, str, float]:
    """Run a verb; return its exit code, its output and its CPU seconds, children included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    program = [sys.executable, "-m", "robot_runtime.cli", *arguments]
    done = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.returncode, done.stdout, cpu


def train(task: str, seed: int, folder: Path) -> Path:
    """Train one seed and return the run's folder."""
    run = folder / f"seed{seed}"
    code, _, cpu = surefoot("train", task, "--seed", str(seed), "--out", str(run))
    if code:
        sys.exit(f"training of seed {seed} ended with exit code {code}")
    print(f"seed {seed}: trained in {cpu:.0f} CPU seconds", flush=True)
    return run


def export(run: Path) -> Path:
    """Export a training run into its folder and return the policy file."""
    policy = run / "policy.onnx"
    if surefoot("export", str(run), "-o", str(policy))[0]:
        sys.exit(f"{run}: export failed")
    return policy


def judge(policy: Path, course: Course) -> dict[str, Any]:
    """Let sim2sim judge a policy file."""
    code, text, cpu = surefoot("sim2sim", str(policy), *course.arguments, "--seed", DRAWS, "--json")
    if code not in (0, 1):
        sys.exit(f"{policy}: sim2sim ended with exit code {code}")
    run = policy.parent.name
    return json.loads(text) | {"cpu_seconds": cpu, "run": run, "course": course.name}


def main() -> int:
    """Train where needed, judge, print, and say whether all held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--task", choices=COURSES, default="quadruped-flat")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--runs", type=Path, nargs="+", help="judge these instead of training")
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    task: str = options.task
    with tempfile.TemporaryDirectory() as temporary:
        runs = options.runs or [train(task, seed, Path(temporary)) for seed in options.seeds]
        policies = [export(run) for run in runs]
        results = {
            course: [judge(policy, course) for policy in policies] for course in COURSES[task]
        }
    held = report(results)
    if options.json:
        everything = [result for group in results.values() for result in group]
        options.json.write_text(json.dumps(everything, indent=2), encoding="utf-8")
    return 0 if held else 1


def report(results: dict[Course, list[dict[str, Any]]]) -> bool:
    """Print a table; return whether every bound holds."""
    print(
        f"{'run':<12} {'course':<9} {'lin err':>8} {'ang err':>8} {'falls':>10} "
        f"{'disturbed':>12} {'CPU s':>6}"
    )
    held = True
    for course, group in results.items():
        fell = ran = 0
        for result in group:
            lin, ang = (
                max(segment[name] for segment in result["segments"])
                for name in ("lin_vel_error", "ang_vel_error")
            )
            shaken = [run for run in result["runs"] if run["kind"] == "disturbed"]
            calm = [run for run in result["runs"] if run["kind"] != "disturbed"]
            fallen, thrown = (sum(bool(run["failure"]) for run in part) for part in (calm, shaken))
            fell, ran = fell + fallen, ran + len(calm)
            held &= max(lin, ang) <= course.error
            held &= thrown <= course.disturbed_falls * len(shaken)
            print(
                f"{result['run']:<12} {course.name:<9} {lin:>8.3f} {ang:>8.3f} "
                f"{fallen:>4} of {len(calm):<3} {thrown:>4} of {len(shaken):<5} "
                f"{result['cpu_seconds']:>6.0f}"
            )
        held &= fell <= course.falls * ran
    print("all bounds hold" if held else "a bound is broken")
    return held


if __name__ == "__main__":
    sys.exit(main())
