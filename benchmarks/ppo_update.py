"""The PPO update against rsl-rl-lib 5.5.1: equal weights, equal data, one thread.

    python benchmarks/ppo_update.py             speed, CPU seconds side by side in one run
    python benchmarks/ppo_update.py --parity    how far the weights are apart after an update
    python benchmarks/ppo_update.py --quick     a tenth of the size, to see that it works

CPU seconds of the process, the least of all repetitions: on a shared machine that is what is
reproducible. `update` is returns, advantages and all optimizer steps; ours also computes the values
of the rollout there, which rsl_rl does while it collects. `iteration` is everything a learner does:
act, store, update; the environment costs nothing.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The benchmark is run as a file, and its other half lies beside it.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.rsl_rl_opponent import Case, Pair, weights_apart

CASES = {
    "plain": Case(),
    "symmetry": Case(symmetry=True),
    "recipe": Case(num_envs=256, hidden=(128, 64), epochs=2, symmetry=True),
}
GATES = {"plain": 1.05, "symmetry": 1.4}
"""Least ratio of the update's CPU seconds, theirs to ours."""

PARITY = 1e-4
"""Largest difference of any weight after a full update."""


def main() -> int:
    """Run the benchmark; exit code 1 if a gate fails."""
    parser = argparse.ArgumentParser(description="The PPO update against rsl_rl's.")
    parser.add_argument("--parity", action="store_true", help="compare weights, not times")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size")
    parser.add_argument("--reps", type=int, default=5, help="repetitions (default: 5)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cases = CASES
    if arguments.quick:
        cases = {
            name: dataclasses.replace(case, num_envs=case.num_envs // 8, epochs=1)
            for name, case in cases.items()
        }
    measure = _parity if arguments.parity else _speed
    rows = [measure(name, case, arguments.reps) for name, case in cases.items()]
    if arguments.json:
        print(json.dumps(rows))
    else:
        _print_table(rows)
    return 0 if all(row["passed"] for row in rows) else 1


def _parity(name: str, case: Case, reps: int) -> dict[str, Any]:
    """Update both once from equal weights and compare every weight and the learning rate.

    The verdict is of float64: Adam divides by the size of a gradient, and with it makes rounding of
    float32 as large as a step where a gradient is next to nothing. What remains there comes from
    rsl_rl's discount, which passes through float32.
    """
    del reps
    case = dataclasses.replace(case, normalize_obs=True)
    row: dict[str, Any] = {"case": name}
    for dtype in (torch.float32, torch.float64):
        apart = weights_apart(case, dtype)
        worst = max(apart, key=lambda key: apart[key])
        row[f"largest difference {str(dtype)[6:]}"] = apart[worst]
        row[f"of ({str(dtype)[6:]})"] = worst
    return row | {"passed": apart[worst] <= PARITY}


def _speed(name: str, case: Case, reps: int) -> dict[str, Any]:
    """Time collecting and updating, ours and theirs in turn."""
    pair = Pair(case)
    parts: dict[str, Callable[[], None]] = {
        "update ours": pair.update_ours,
        "update theirs": pair.update_theirs,
        "collect ours": pair.collect_ours,
        "collect theirs": pair.collect_theirs,
    }
    cpu = dict.fromkeys(parts, float("inf"))
    wall = dict.fromkeys(parts, float("inf"))
    for _ in range(reps):
        for key, part in parts.items():
            pair.restart()
            cpu_begin, wall_begin = time.process_time(), time.perf_counter()
            part()
            cpu[key] = min(cpu[key], time.process_time() - cpu_begin)
            wall[key] = min(wall[key], time.perf_counter() - wall_begin)
    whole = {side: cpu[f"update {side}"] + cpu[f"collect {side}"] for side in ("ours", "theirs")}
    ratio = cpu["update theirs"] / cpu["update ours"]
    samples = case.num_envs * case.num_steps
    return {
        "case": name,
        "update ours [cpu s]": cpu["update ours"],
        "update theirs [cpu s]": cpu["update theirs"],
        "update ratio": ratio,
        "update wall ratio": wall["update theirs"] / wall["update ours"],
        "iteration ours [cpu s]": whole["ours"],
        "iteration theirs [cpu s]": whole["theirs"],
        "iteration ratio": whole["theirs"] / whole["ours"],
        "ours [cpu us/sample]": 1e6 * whole["ours"] / samples,
        "passed": ratio >= GATES.get(name, 0.0),
    }


def _print_table(rows: list[dict[str, Any]]) -> None:
    """Print the figures, one case per column."""
    width = max(len(key) for key in rows[0])
    for key in rows[0]:
        cells = [
            f"{row[key]:.4g}" if isinstance(row[key], float) else str(row[key]) for row in rows
        ]
        print(key.ljust(width), *(cell.rjust(24) for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
