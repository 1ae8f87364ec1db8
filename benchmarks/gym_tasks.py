"""CartPole and LunarLander in wind by the verbs a user calls: are they solved, and how fast?

    python benchmarks/gym_tasks.py                             both tasks, three seeds
    python benchmarks/gym_tasks.py --task CartPole-v1          one of them
    python benchmarks/gym_tasks.py --opponent 3 -o curves.png  beside stable-baselines3's curves

Each seed is trained within its budget of steps, evaluations on the side keep the best checkpoint,
and that one is judged without exploration on 100 episodes that nothing has seen. Run folders are
kept where `--runs` says; seeds that are there already are not trained again. LunarLander needs
gymnasium's extra `box2d`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import contextlib
import io
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# The benchmark is run as a file, and its other half lies beside it.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from robot_runtime.cli import main as surefoot
from robot_runtime.files import atomic_write
from trainer.checkpoint import load_checkpoint
from trainer.curves import RunLog, read_run
from trainer.envs.gymnasium_task import gymnasium_maker
from trainer.evaluation import SEED_OFFSET, best_path, evaluate
from trainer.metrics import METRICS_FILE
from trainer.plots import draw, save
from trainer.tasks.base import find_task

EPISODES = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A task and when it counts as solved.

    Attributes:
        task: Its name.
        options: Options of `surefoot train`.
        steps: Most environment steps of a seed.
        least: Least mean return of the best checkpoint.
    """

    task: str
    options: tuple[str, ...]
    steps: int
    least: float


CASES = {
    "CartPole-v1": Case(
        task="gym:CartPole-v1",
        options=(
            *("--iterations", "73", "--evaluation.every", "4", "--evaluation.average", "3"),
            *("--evaluation.target", "499"),
        ),
        steps=150_000,
        least=475.0,
    ),
    "LunarLander-v3": Case(
        task="gym:LunarLander-v3?enable_wind=True&wind_power=10.0&turbulence_power=1.0",
        options=(
            *("--iterations", "488", "--ppo.epochs", "6", "--ppo.minibatches", "8"),
            *("--ppo.learning-rate", "1e-3", "--ppo.gamma", "0.995", "--ppo.gae-lambda", "0.97"),
            *("--ppo.entropy-coef", "0.01", "--ppo.reward-scale", "0.05"),
            *("--evaluation.every", "20", "--evaluation.average", "3"),
            *("--evaluation.target", "235"),
        ),
        steps=1_000_000,
        least=200.0,
    ),
}


def main() -> int:
    """Run the benchmark; exit code 1 if a seed is not solved."""
    parser = argparse.ArgumentParser(description="CartPole and LunarLander in wind.")
    parser.add_argument("--task", choices=list(CASES), help="one of them (default: all)")
    parser.add_argument("--seeds", type=int, default=3, help="how many (default: 3)")
    parser.add_argument(
        "--opponent", type=int, default=0, metavar="N", help="seeds of stable-baselines3"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/gym_tasks"), help="run folders")
    parser.add_argument("-o", "--out", type=Path, help="figure to write, .png or .html")
    options = parser.parse_args()
    passed = True
    for name in [options.task] if options.task else CASES:
        case, folder = CASES[name], options.runs / name
        ours = [folder / f"seed{seed}" for seed in range(options.seeds)]
        theirs = [folder / f"stable-baselines3-seed{seed}" for seed in range(options.opponent)]
        passed &= all([solved(name, case, seed, run) for seed, run in enumerate(ours)])
        for seed, run in enumerate(theirs):
            _oppose(case, seed, run, ours[0])
        if options.out:
            _draw(options.out.with_stem(f"{options.out.stem}_{name}"), ours, theirs)
    return 0 if passed else 1


def solved(name: str, case: Case, seed: int, run: Path) -> bool:
    """Train a seed, judge its best checkpoint and tell."""
    if not best_path(run).is_file():
        command = ["train", case.task, *case.options, "--seed", str(seed), "--out", str(run)]
        _call([*command, "--json"])
    judged = _call(["eval", str(best_path(run)), "--episodes", str(EPISODES), "--json"])
    steps = read_run(run).rows[-1]["progress/env_steps"]
    good = judged["return"] >= case.least and steps <= case.steps
    print(
        f"{name}, seed {seed}: return {judged['return']:.1f} +- {judged['return_std']:.1f} over "
        f"{EPISODES} episodes, at least {case.least:.0f} asked for; best iteration "
        f"{judged['iteration']}, {steps:.0f} steps: {'solved' if good else 'NOT SOLVED'}",
        flush=True,
    )
    return good


def _call(command: list[str]) -> dict[str, Any]:
    """Run a verb and return the JSON it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = surefoot(command)
    if code != 0:
        raise SystemExit(code)
    return json.loads(printed.getvalue())


def _oppose(case: Case, seed: int, run: Path, ours: Path) -> None:
    """Train stable-baselines3 with the settings of a run of ours; write a run folder for it."""
    from benchmarks.sb3_opponent import NAME, Opponent

    if (run / METRICS_FILE).is_file():
        return
    config = replace(load_checkpoint(best_path(ours)).config, seed=seed)
    every, episodes = config.evaluation.every, config.evaluation.episodes
    make = find_task(case.task)
    env = make(num_envs=episodes, seed=seed + SEED_OFFSET, device="cpu", num_threads=1).env
    start = env.state_dict()
    opponent = Opponent(gymnasium_maker(case.task), config)
    rows: list[dict[str, Any]] = []

    def judge(iteration: int, steps: int) -> None:
        if iteration % every == 0:
            env.load_state_dict(start)
            found = evaluate(opponent.policy(), env).mean_return
            rows.append({"iteration": iteration, "progress/env_steps": steps, "eval/return": found})

    opponent.learn(config.iterations, judge)
    run.mkdir(parents=True, exist_ok=True)
    texts = {"config.json": json.dumps({"task": NAME, "seed": seed})}
    texts[METRICS_FILE] = "".join(f"{json.dumps(row)}\n" for row in rows)
    for file, text in texts.items():
        with atomic_write(run / file) as temporary:
            temporary.write_text(text, encoding="utf-8")


def _draw(path: Path, ours: list[Path], theirs: list[Path]) -> None:
    groups: dict[str, list[RunLog]] = {"surefoot": [read_run(run) for run in ours]}
    if theirs:
        runs = [read_run(run) for run in theirs]
        groups[str(runs[0].settings["task"])] = runs
    save(draw(groups, ["eval/return"], axis="env_steps"), path, title=path.stem)
    print(path)


if __name__ == "__main__":
    sys.exit(main())
