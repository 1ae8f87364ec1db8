"""How well the recipe walks: several training seeds, each judged in many simulated runs.

    python benchmarks/walk_quality.py                 # 3 seeds, 20 + 200 runs each
    python benchmarks/walk_quality.py --runs RUN...   # judge training runs that exist

Everything goes through the verbs: train, export, sim2sim. It passes when over all seeds at most 1
nominal run in 60 falls, at most 5 % of the disturbed runs of each seed do, and each seed's mean
velocity of every segment is within 0.12 m/s and 0.12 rad/s of its command.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TASK = "quadruped-flat"


def surefoot(*arguments: str) -> tuple[int, str, float]:
    """Run a verb; return its exit code, its output and its CPU seconds, children included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    program = [sys.executable, "-m", "robot_runtime.cli", *arguments]
    done = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.returncode, done.stdout, cpu


def train(seed: int, folder: Path) -> Path:
    """Train one seed and return the run's folder."""
    run = folder / f"seed{seed}"
    code, _, cpu = surefoot("train", TASK, "--seed", str(seed), "--out", str(run))
    if code:
        sys.exit(f"training of seed {seed} ended with exit code {code}")
    print(f"seed {seed}: trained in {cpu:.0f} CPU seconds", flush=True)
    return run


def judge(run: Path, nominal: int, disturbed: int) -> dict[str, Any]:
    """Export a run and let sim2sim judge the file."""
    policy = run / "policy.onnx"
    if surefoot("export", str(run), "-o", str(policy))[0]:
        sys.exit(f"{run}: export failed")
    counts = ("--scenarios", str(nominal), "--disturbed", str(disturbed))
    code, text, cpu = surefoot("sim2sim", str(policy), *counts, "--seed", "1000", "--json")
    if code not in (0, 1):
        sys.exit(f"{run}: sim2sim ended with exit code {code}")
    return json.loads(text) | {"cpu_seconds": cpu, "run": run.name}


def main() -> int:
    """Train where needed, judge, print, and say whether all held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--runs", type=Path, nargs="+", help="judge these instead of training")
    parser.add_argument("--nominal", type=int, default=20)
    parser.add_argument("--disturbed", type=int, default=200)
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        runs = options.runs or [train(seed, Path(temporary)) for seed in options.seeds]
        results = [judge(run, options.nominal, options.disturbed) for run in runs]
    held = report(results, options.nominal, options.disturbed)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2), encoding="utf-8")
    return 0 if held else 1


def report(results: list[dict[str, Any]], nominal: int, disturbed: int) -> bool:
    """Print a table; return whether every bound holds."""
    print(f"{'run':<12} {'lin err':>8} {'ang err':>8} {'falls':>10} {'disturbed':>12} {'CPU s':>6}")
    held, falls = True, 0
    for result in results:
        segments = result["segments"]
        lin = max(segment["lin_vel_error"] for segment in segments)
        ang = max(segment["ang_vel_error"] for segment in segments)
        failed = [run["kind"] for run in result["runs"] if run["failure"]]
        fell, shaken = failed.count("nominal"), failed.count("disturbed")
        falls += fell
        held &= lin <= 0.12 and ang <= 0.12 and shaken <= 0.05 * disturbed
        print(
            f"{result['run']:<12} {lin:>8.3f} {ang:>8.3f} {fell:>4} of {nominal:<3} "
            f"{shaken:>4} of {disturbed:<5} {result['cpu_seconds']:>6.0f}"
        )
    held &= falls <= nominal * len(results) / 60
    print("all bounds hold" if held else "a bound is broken")
    return held


if __name__ == "__main__":
    sys.exit(main())
