"""What a student keeps of its teacher: tracking score and falls, in the randomized task.

    python benchmarks/distillation.py                     # trains the teacher, then both students
    python benchmarks/distillation.py --teacher RUN       # distils a teacher that exists

The teacher sees the group `critic` of the quadruped's task: velocity, friction, feet, mass, motor
strength and delay beside what the robot measures. The students see what the robot measures alone.
All are trained by the verbs, and the students are exported. The one with a memory is to keep 90 %
of the teacher's score; the one without shows what the memory is worth.

The tracking score is the mean over robots of one episode each, in the task's environment with all
its randomization and noise, without exploration: the sum of the four tracking rewards over the
episode, over the most that they could be. Who falls tracks nothing for the rest of its episode.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.walk_quality import export, surefoot
from trainer.checkpoint import build_actor, find_checkpoint, load_checkpoint
from trainer.envs.robot_env import RobotEnv
from trainer.evaluation import evaluate
from trainer.networks.groups import groups_of
from trainer.networks.policy import DeterministicPolicy
from trainer.tasks import quadruped_flat
from trainer.tasks.rewards import TERMS, RewardConfig

SEED = 5_000_011
"""Episodes that no training has seen."""

TRACKING = ("track_lin_vel", "track_mean_lin_vel", "track_ang_vel", "track_mean_ang_vel")

STUDENTS = {"mlp": 400, "gru": 400}
"""Iterations of each student."""


def only_tracking(rewards: RewardConfig) -> tuple[RewardConfig, float]:
    """Return the rewards with the tracking terms alone, and the most they give in a second."""
    weights: dict[str, Any] = {name: 0.0 for name in TERMS if name not in TRACKING}
    weights |= {"termination": 0.0, "only_positive": False}
    return dataclasses.replace(rewards, **weights), sum(getattr(rewards, n) for n in TRACKING)


def score(run: Path, robots: int) -> dict[str, float]:
    """Return the tracking score of a run's last policy, and the share of robots that fall."""
    checkpoint = load_checkpoint(find_checkpoint(run))
    config = quadruped_flat.env_config()
    rewards, most = only_tracking(config.rewards)
    env = RobotEnv(dataclasses.replace(config, rewards=rewards), num_envs=robots, seed=SEED)
    seen = groups_of(checkpoint.config.network, checkpoint.obs_dims).actor
    found = evaluate(DeterministicPolicy(build_actor(checkpoint)), env, seen)
    per_episode = most * config.contract.timing.control_dt * env.max_episode_length
    share = found.returns / per_episode
    return {
        "score": float(share.mean()),
        "standard_error": float(share.std() / robots**0.5),
        "falls": float(found.terminated.double().mean()),
        "lin_vel_error": found.log["error/lin_vel"],
        "ang_vel_error": found.log["error/ang_vel"],
    }


def train(run: Path, *arguments: str) -> float:
    """Train and return the CPU seconds it took."""
    code, _, cpu = surefoot("train", quadruped_flat.NAME, "--out", str(run), *arguments)
    if code:
        sys.exit(f"training of {run.name} ended with exit code {code}")
    return cpu


def main() -> int:
    """Train, distil, judge, print a table; return whether the student with a memory keeps 90 %."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--teacher", type=Path, help="run or checkpoint of a teacher that exists")
    parser.add_argument("--students", choices=STUDENTS, nargs="+", default=list(STUDENTS))
    parser.add_argument("--iterations", type=int, help="of each student, in place of its own")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--robots", type=int, default=500, help="that are judged")
    parser.add_argument("--out", type=Path, help="keep the runs in this folder")
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    seed, rows = ["--seed", str(options.seed)], {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.out or Path(temporary)
        teacher, cpu = options.teacher, 0.0
        if teacher is None:
            teacher = folder / "teacher"
            cpu = train(teacher, "--network.actor-groups", "critic", *seed)
        rows["teacher"] = score(teacher, options.robots) | {"cpu_seconds": cpu}
        show("teacher", rows)
        for kind in options.students:
            count = options.iterations or STUDENTS[kind]
            how = ["--distill.teacher", str(teacher), "--iterations", str(count)]
            how += ["--distill.lr-anneal", "linear"]
            cpu = train(folder / kind, "--network.kind", kind, *how, *seed)
            export(folder / kind)
            rows[kind] = score(folder / kind, options.robots) | {"cpu_seconds": cpu}
            show(kind, rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    enough = 0.9 * rows["teacher"]["score"]
    return 0 if all(row["score"] >= enough for name, row in rows.items() if name != "mlp") else 1


def show(name: str, rows: dict[str, dict[str, float]]) -> None:
    """Print a line."""
    row = rows[name]
    if len(rows) == 1:
        print(f"{'policy':<8} {'score':>15} {'kept':>7} {'falls':>7} {'CPU s':>6}")
    kept = row["score"] / rows["teacher"]["score"]
    print(
        f"{name:<8} {row['score']:>7.3f} +- {row['standard_error']:.3f} {kept:>7.1%} "
        f"{row['falls']:>7.1%} {row['cpu_seconds']:>6.0f}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
