"""`surefoot eval`: whole episodes of a checkpoint's policy in the task's environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from robot_runtime.cli import Parser
from robot_runtime.errors import BadInput, ExitCode
from trainer.checkpoint import Checkpoint, build_actor, find_checkpoint, load_checkpoint
from trainer.config import MOST_ENVS
from trainer.env import VecEnv
from trainer.evaluation import Evaluation, evaluate
from trainer.networks.groups import groups_of
from trainer.networks.policy import DeterministicPolicy
from trainer.tasks.base import find_task

SEED = 2_000_003
"""Seed unless one is asked for: episodes that neither training nor its evaluations have seen."""

EPILOG = """The policy acts deterministically. Every episode has an environment of its own.

examples:
  surefoot eval runs/first
  surefoot eval runs/first/checkpoints/best.pt --episodes 100 --json
"""


def main(argv: list[str]) -> int:
    """Run the verb.

    Args:
        argv: The arguments after `eval`.

    Returns:
        The exit code.

    Raises:
        BadInput: The checkpoint cannot be used, or does not fit the task.
    """
    parser = Parser(
        "surefoot eval",
        description="Run episodes of a checkpoint's policy and tell how they went.",
        epilog=EPILOG,
    )
    parser.add_argument("checkpoint", type=Path, help="checkpoint, or run folder with one")
    parser.add_argument("--task", help="another task than the one it was trained on")
    parser.add_argument("--episodes", type=int, default=50, help="how many (default: 50)")
    parser.add_argument("--seed", type=int, default=SEED, help=f"their seed (default: {SEED})")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args(argv)
    for name, least, most in (("episodes", 1, MOST_ENVS), ("seed", 0, 2**62)):
        if not least <= getattr(options, name) <= most:
            value = getattr(options, name)
            raise BadInput(f"--{name} {value}: must be at least {least} and at most {most}")
    path = find_checkpoint(options.checkpoint)
    checkpoint = load_checkpoint(path)
    name = options.task or checkpoint.task
    task = find_task(name)(
        num_envs=options.episodes, seed=options.seed, device="cpu", num_threads=0
    )
    seen = groups_of(checkpoint.config.network, checkpoint.obs_dims).actor
    _demand_fit(checkpoint, task.env, seen, path, name)
    found = evaluate(DeterministicPolicy(build_actor(checkpoint)), task.evaluation_env(), seen)
    told = {
        "checkpoint": str(path),
        "task": name,
        "iteration": checkpoint.iteration,
        "seed": options.seed,
        "episodes": options.episodes,
        **_plain(found),
    }
    if options.json:
        json.dump(told, sys.stdout)
        sys.stdout.write("\n")
    else:
        _tell(told)
    return ExitCode.GOOD


def _demand_fit(
    checkpoint: Checkpoint, env: VecEnv, seen: tuple[str, ...], path: Path, task: str
) -> None:
    """Refuse a policy that sees or does another number of things than the task has.

    Raises:
        BadInput: Names both numbers.
    """
    lengths = [sum(dims.get(name, 0) for name in seen)
               for dims in (checkpoint.obs_dims, env.obs_dims)]  # fmt: skip
    for what, of_policy, of_task in (
        ("observations", *lengths),
        ("actions", checkpoint.num_actions, env.num_actions),
    ):
        if of_policy != of_task:
            raise BadInput(
                f"'{path}' has a policy of {of_policy} {what}, and task '{task}' has {of_task}"
            )


def _plain(found: Evaluation) -> dict[str, Any]:
    return {
        "return": found.mean_return,
        "return_std": float(found.returns.std(correction=0)),
        "length": float(found.lengths.double().mean()),
        "terminated": int(found.terminated.sum()),
        "returns": found.returns.tolist(),
        "lengths": found.lengths.tolist(),
        "log": found.log,
    }


def _tell(told: dict[str, Any]) -> None:
    """Print what came out, a line for each number."""
    print(
        f"{told['task']}, iteration {told['iteration']}: {told['episodes']} episodes, "
        f"seed {told['seed']}"
    )
    lowest, highest = min(told["returns"]), max(told["returns"])
    rows = [
        ("return", f"{told['return']:.4g} +- {told['return_std']:.4g} "
                   f"(lowest {lowest:.4g}, highest {highest:.4g})"),
        ("length", f"{told['length']:.1f} steps"),
        ("terminated", f"{told['terminated']} of {told['episodes']}"),
        *((name, f"{value:.4g}") for name, value in told["log"].items()),
    ]  # fmt: skip
    for name, text in rows:
        print(f"  {name:<28} {text}")
