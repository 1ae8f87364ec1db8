"""What a step of the robot environment costs, beside gymnasium's and beside raw physics.

    python benchmarks/env_step.py           all of it, about a minute and a half of CPU
    python benchmarks/env_step.py --quick   a fifth of the turns, to see that it works
    python benchmarks/env_step.py --json    the figures for a program

All contestants run the same robot, task, randomization and actions (a scripted trot that falls now
and then, as a policy in training does), in turns, in one process and on one thread each, so that
another program on the machine slows all of them, though not alike: what is not physics, most at few
robots, suffers more from caches that others fill, so the gates are for a quiet machine. Figures are
CPU microseconds per control step of one robot, the least of the rounds. `raw` is
`mujoco.batch.Batch` stepping as many of the same model with the same targets and nothing else. The
opponent is `tests/helpers/plain_quadruped.py` in `gymnasium.vector`; the tests hold that it gives
the same observations and rewards.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

# The benchmark is run as a file, and the opponent lies beside it.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gymnasium
import mujoco.batch
import numpy as np
import torch
from numpy.typing import NDArray

from tests.helpers.plain_quadruped import PlainQuadruped
from trainer.envs.model import build_model
from trainer.envs.robot_env import RobotEnv
from trainer.tasks.quadruped_flat import env_config

NUM_ENVS = 1024
"""Robots stepped together beside the opponents; what a step costs besides physics is shared."""
FEWER = (256, 512)
"""Sizes at which the gate of raw physics holds as well; 256 is the recipes' default."""
NUM_PLAIN = 16
GATE_SYNC = 3.5
"""How many times dearer a step of `SyncVectorEnv` must be."""
GATE_RAW = 1.0 / 0.75
"""How many times dearer than raw physics our step may be."""

Actions = NDArray[np.float32]
Contestant = tuple[int, Callable[[Actions], object]]
"""Robots stepped together, and the function that steps them."""


def main() -> int:
    """Run the benchmark; exit code 1 if a gate fails."""
    parser = argparse.ArgumentParser(description="The cost of an environment step.")
    parser.add_argument("--quick", action="store_true", help="a fifth of the turns")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # Short turns and many: on a shared machine some of them are undisturbed.
    cpu = _cpu_times(steps=10, rounds=5 if arguments.quick else 25)
    wall = _wall_times(steps=50)
    figures = {
        **{f"cpu_us_{name}": value for name, value in cpu.items()},
        "cpu_sync_over_ours": cpu["sync"] / cpu["ours"],
        "cpu_ours_over_raw": cpu["ours"] / cpu["raw"],
        **{f"cpu_ours_over_raw_{n}": cpu[f"ours_{n}"] / cpu[f"raw_{n}"] for n in FEWER},
        **{f"wall_us_{name}": value for name, value in wall.items()},
        "wall_sync_over_ours": wall["sync"] / wall["ours"],
        "wall_async_over_ours": wall["async"] / wall["ours"],
    }
    over_raw = [value for name, value in figures.items() if name.startswith("cpu_ours_over_raw")]
    good = figures["cpu_sync_over_ours"] >= GATE_SYNC and max(over_raw) <= GATE_RAW
    if arguments.json:
        print(json.dumps({**figures, "good": good}, indent=2))
    else:
        for name, value in figures.items():
            print(f"{name:24s} {value:8.2f}")
        print(f"gates: sync/ours >= {GATE_SYNC}, every ours/raw <= {GATE_RAW:.2f}: ", end="")
        print("passed" if good else "FAILED")
    return 0 if good else 1


def trot(step: int, phases: NDArray[np.float64]) -> Actions:
    """A scripted trot on the spot, each robot at a phase of its own; shape (n, 12)."""
    swing = np.maximum(0.0, np.sin(2.0 * math.pi * (2.2 * 0.02 * step + phases)))
    other = np.maximum(0.0, np.sin(2.0 * math.pi * (2.2 * 0.02 * step + phases + 0.5)))
    action = np.zeros((len(phases), 12), dtype=np.float32)
    for leg, lift in enumerate((swing, other, other, swing)):
        action[:, 3 * leg + 1] = 0.4 * lift
        action[:, 3 * leg + 2] = -0.8 * lift
    return action


def _ours(num_envs: int, threads: int) -> Contestant:
    env = RobotEnv(env_config(), num_envs=num_envs, num_threads=threads)
    env.reset(random_episode_length=True)
    return num_envs, lambda actions: env.step(torch.from_numpy(actions))


def _raw(num_envs: int, threads: int) -> Contestant:
    config = env_config()
    model = build_model(config.robot.xml_path, config.contract, config.solver)
    batch = mujoco.batch.Batch(model, num_envs, threads)
    batch.bind("qpos")[:] = model.key_qpos[0]
    ctrl = batch.bind("ctrl")
    default = config.contract.joint_array("default_pos")

    def step(actions: Actions) -> None:
        ctrl[:] = default + 0.3 * actions
        batch.step(nstep=2)

    return num_envs, step


def _plain(num_envs: int, *, processes: bool) -> Contestant:
    make = [partial(PlainQuadruped, env_config()) for _ in range(num_envs)]
    vector = gymnasium.vector.AsyncVectorEnv if processes else gymnasium.vector.SyncVectorEnv
    env = vector(make)
    env.reset(seed=0)
    return num_envs, env.step


def _cpu_times(steps: int, rounds: int) -> dict[str, float]:
    """CPU microseconds per control step of one robot, the least of the rounds."""
    pairs = (("ours", _ours), ("raw", _raw))
    contestants = {
        "ours": _ours(NUM_ENVS, 1),
        "raw": _raw(NUM_ENVS, 1),
        **{f"{who}_{n}": make(n, 1) for n in FEWER for who, make in pairs},
        "sync": _plain(NUM_PLAIN, processes=False),
    }
    best = dict.fromkeys(contestants, math.inf)
    for round_ in range(-1, rounds):
        for name, (num_envs, step) in contestants.items():
            used = _measure(step, num_envs, steps, time.process_time)
            if round_ >= 0:
                best[name] = min(best[name], used)
    return best


def _wall_times(steps: int) -> dict[str, float]:
    """Wall microseconds per control step of one robot on all cores; means little on a busy one."""
    cores = len(os.sched_getaffinity(0))
    contestants = {
        "ours": _ours(NUM_ENVS, cores),
        "sync": _plain(NUM_PLAIN, processes=False),
        "async": _plain(NUM_PLAIN, processes=True),
    }
    best = dict.fromkeys(contestants, math.inf)
    for _ in range(3):
        for name, (num_envs, step) in contestants.items():
            used = _measure(step, num_envs, steps, time.perf_counter)
            best[name] = min(best[name], used)
    return best


def _measure(
    step: Callable[[Actions], object], num_envs: int, count: int, clock: Callable[[], float]
) -> float:
    phases = np.random.default_rng(0).uniform(size=num_envs)
    actions = [trot(k, phases) for k in range(count)]
    begin = clock()
    for action in actions:
        step(action)
    return 1e6 * (clock() - begin) / (count * num_envs)


if __name__ == "__main__":
    sys.exit(main())
