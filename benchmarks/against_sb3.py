"""PPO against stable-baselines3 2.9.2 on MuJoCo tasks of gymnasium: return, wall and CPU time.

    python benchmarks/against_sb3.py                    six tasks, three seeds: some 15 minutes
    python benchmarks/against_sb3.py --steps 10000      to see that it works
    python benchmarks/against_sb3.py --task Hopper-v5   one task; may be given again
    python benchmarks/against_sb3.py --same-draws       both draw the same noise

Same network, same hyperparameters, same environments, one process, one thread. The two take turns:
one iteration of ours, one of theirs, the other way round the next time, so that whatever else the
machine does meets both. Time is that of collecting and learning, from the second iteration on;
loggers and checkpoints are in neither. The return is that of the episodes that end in the last
fifth of the run. What came out of a seed is kept where `--results` says, and not run again.

Two programs that do the same still end apart, as two seeds of one do. With `--same-draws` theirs
begins with our first weights and draws our noise and our minibatches: then both should end alike,
up to what rounding has grown to by then.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

# The benchmark is run as a file, and its other half lies beside it.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gymnasium
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics

from benchmarks.sb3_opponent import NAME, Opponent, SameDraws
from robot_runtime.files import atomic_write
from trainer.config import TrainConfig
from trainer.envs.gymnasium_adapter import GymnasiumEnv
from trainer.envs.gymnasium_task import RECIPE
from trainer.ppo import PPO
from trainer.tasks.base import TaskRun
from trainer.train import Run

TASKS = (
    "InvertedPendulum-v5", "InvertedDoublePendulum-v5", "Swimmer-v5", "Reacher-v5", "Hopper-v5",
    "HalfCheetah-v5",
)  # fmt: skip
STEPS = 60_000
TIME_GATE = 0.8
"""Largest share of their wall time, over the seeds of a task."""

CONFIG = replace(
    RECIPE,
    network=replace(RECIPE.network, normalize_obs=False),
    ppo=replace(RECIPE.ppo, learning_rate=1e-3, lr_anneal="none", adam_eps=1e-5),
)
"""Our recipe for gymnasium as far as both have it. They normalize observations step by step, we do
rollout by rollout: here neither does. Their learning rate falls by the steps of a whole run, and
here it goes iteration by iteration: it stays. Adam's epsilon is theirs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What came out of one seed.

    Attributes:
        seed: The seed.
        ours: Mean return of our last episodes.
        theirs: Mean return of theirs.
        wall_ours: Wall time of our iterations, [s].
        wall_theirs: Wall time of their iterations, [s].
        cpu_ours: CPU time of our iterations, [s].
        cpu_theirs: CPU time of their iterations, [s].
    """

    seed: int
    ours: float
    theirs: float
    wall_ours: float
    wall_theirs: float
    cpu_ours: float
    cpu_theirs: float


def main() -> int:
    """Run the benchmark; exit code 1 if a gate fails, which same draws are not held against."""
    parser = argparse.ArgumentParser(description=f"PPO against {NAME}.")
    parser.add_argument("--task", action="append", help=f"default: {', '.join(TASKS)}")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"default: {STEPS}")
    parser.add_argument("--seeds", type=int, default=3, help="how many (default: 3)")
    parser.add_argument("--same-draws", action="store_true", help="of first weights and noise")
    parser.add_argument("--results", type=Path, default=Path("runs/against_sb3"), help="folder")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rollout = CONFIG.num_envs * CONFIG.ppo.num_steps
    config = replace(CONFIG, iterations=max(2, options.steps // rollout))
    steps = config.iterations * rollout
    print(f"{config.num_envs} environments, {steps} steps, {options.seeds} seeds, {NAME}")
    options.results.mkdir(parents=True, exist_ok=True)
    passed = True
    for task in options.task or TASKS:
        results = [_kept(options.results, task, replace(config, seed=i), alike=options.same_draws)
                   for i in range(options.seeds)]  # fmt: skip
        table = summary(results)
        _tell(task, table, verdict=not options.same_draws)
        passed &= table["passed"]
    return 0 if passed or options.same_draws else 1


def _kept(folder: Path, task: str, config: TrainConfig, *, alike: bool = False) -> Result:
    """Return the result of a duel, from its file where there is one."""
    kind = "-same-draws" if alike else ""
    file = folder / f"{task}-{config.iterations}-seed{config.seed}{kind}.json"
    if not file.is_file():
        result = duel(task, config, alike=alike)
        with atomic_write(file) as temporary:
            temporary.write_text(json.dumps(asdict(result), indent=2) + "\n", encoding="utf-8")
    return Result(**json.loads(file.read_text(encoding="utf-8")))


def duel(task: str, config: TrainConfig, *, alike: bool = False) -> Result:
    """Train both, in turn; optionally with the same draws."""
    counted: list[list[RecordEpisodeStatistics[Any, Any]]] = [[], []]

    def make(side: int) -> RecordEpisodeStatistics[Any, Any]:
        env = RecordEpisodeStatistics(gymnasium.make(task), buffer_length=config.iterations * 1000)
        counted[side].append(env)
        return env

    builders = [functools.partial(make, 0)] * config.num_envs
    envs = SyncVectorEnv(builders, autoreset_mode=AutoresetMode.SAME_STEP)
    ours = Run(task, TaskRun(env=GymnasiumEnv(envs, seed=config.seed), train=RECIPE), config)
    theirs = Opponent(functools.partial(make, 1), config)
    sides: list[Callable[[], Any]] = [ours.step, theirs.iterate]
    if alike:
        assert isinstance(ours.agent, PPO)
        sides[1] = SameDraws(theirs.model, ours.agent, config)()(theirs.iterate)
    wall, cpu, early = [0.0, 0.0], [0.0, 0.0], [[0], [0]]
    for iteration in range(config.iterations):
        if iteration == config.iterations * 4 // 5:
            early = [[len(env.return_queue) for env in side] for side in counted]
        for side in (0, 1) if iteration % 2 else (1, 0):
            before = time.perf_counter(), time.process_time()
            sides[side]()
            if iteration:
                wall[side] += time.perf_counter() - before[0]
                cpu[side] += time.process_time() - before[1]
    late = [
        [value for env, start in zip(side, starts, strict=True)
         for value in list(env.return_queue)[start:]]
        for side, starts in zip(counted, early, strict=True)
    ]  # fmt: skip
    return Result(
        seed=config.seed,
        ours=sum(late[0]) / len(late[0]),
        theirs=sum(late[1]) / len(late[1]),
        wall_ours=wall[0],
        wall_theirs=wall[1],
        cpu_ours=cpu[0],
        cpu_theirs=cpu[1],
    )


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """Return the figures of a task, and whether they pass."""

    def total(name: str) -> float:
        return sum(getattr(result, name) for result in results)

    ours, theirs = ([getattr(r, side) for r in results] for side in ("ours", "theirs"))
    wall = total("wall_ours") / total("wall_theirs")
    not_worse = max(ours) >= min(theirs)
    return {
        "return ours": _range(ours),
        "return theirs": _range(theirs),
        "not worse": not_worse,
        "wall ours [s]": total("wall_ours") / len(results),
        "wall theirs [s]": total("wall_theirs") / len(results),
        "wall ratio": wall,
        "cpu ratio": total("cpu_ours") / total("cpu_theirs"),
        "passed": not_worse and wall <= TIME_GATE,
    }


def _range(values: Sequence[float]) -> dict[str, float]:
    return {"mean": sum(values) / len(values), "low": min(values), "high": max(values)}


def _tell(task: str, table: dict[str, Any], *, verdict: bool) -> None:
    """Print the figures of a task and, where asked for, whether they pass."""
    passed = f"; {'passed' if table['passed'] else 'FAILED'}" if verdict else ""
    sides = []
    for side in ("ours", "theirs"):
        found = table[f"return {side}"]
        sides.append(f"{side} {found['mean']:.1f} ({found['low']:.1f} to {found['high']:.1f})")
    print(
        f"{task}: return {', '.join(sides)}; a seed takes {table['wall ours [s]']:.0f} s and "
        f"{table['wall theirs [s]']:.0f} s: wall {table['wall ratio']:.2f}, "
        f"CPU {table['cpu ratio']:.2f}{passed}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
