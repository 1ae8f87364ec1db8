"""`surefoot train`: train a policy with PPO."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import re
import sys
import time
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from robot_runtime.errors import BadInput, ExitCode
from trainer.checkpoint import (
    Checkpoint,
    checkpoint_folder,
    checkpoint_path,
    find_checkpoint,
    load_checkpoint,
)
from trainer.config import EncoderConfig, NetworkConfig, TrainConfig
from trainer.distributed import Peers
from trainer.evaluation import SEED_OFFSET
from trainer.loggers import require_packages
from trainer.progress import console_report, settings_in_effect
from trainer.tasks.base import TASKS, MakeTask, find_task, recipe_of
from trainer.torchrun import joined
from trainer.train import TrainResult, train

PROG = "surefoot train"

DESCRIPTION = """Train a policy with PPO and keep checkpoints and metrics in a run folder.

The defaults below are the task's recipe, without a task the general ones.
Ctrl-C writes a checkpoint and ends.

tasks: {tasks}; gym:ID is any environment of gymnasium.
`surefoot train TASK --help` shows the recipe of a task.

examples:
  surefoot train {task} --iterations 300 --seed 1 --out runs/first
  surefoot train {task} --iterations 600 --resume runs/first
  surefoot train gym:CartPole-v1 --iterations 50
  tensorboard --logdir runs/first

a student that learns from a teacher, which saw more than a robot measures:
  surefoot train quadruped-flat --network.actor-groups critic --out runs/teacher
  surefoot train quadruped-flat --distill.teacher runs/teacher --out runs/student

several processes, each with num_envs environments (and on cuda with a GPU of its own):
  torchrun --standalone --nproc-per-node 4 -m trainer {task} --out runs/second
"""


_MOST_ENCODERS = 8
_EXAMPLE = "quadruped-flat"  # The task of the examples where none is named.


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What `surefoot train` takes."""

    task: Annotated[tyro.conf.Positional[str], tyro.conf.arg(help_behavior_hint="(required)")]
    """Name of the task; it comes first."""

    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    """Settings of the run."""

    out: Path | None = None
    """Run folder, new or empty; default: runs/TASK-DATE, or on resume the folder it came from."""

    resume: Path | None = None
    """Checkpoint, or run folder with one, to continue from, with its settings as the defaults."""

    initial: Path | None = None
    """Checkpoint, or run folder with one, whose actor a new run begins with, of any task in which
    observations and actions mean the same."""

    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print how the run ended as JSON."""


def main(argv: list[str]) -> int:
    """Run the verb.

    Args:
        argv: The arguments after `train`.

    Returns:
        The exit code.

    Raises:
        BadInput: An argument cannot be used.
    """
    name = _task_name(argv)
    make = find_task(name)
    resumed = _resumed_from(argv)
    checkpoint = load_checkpoint(resumed) if resumed else None
    if checkpoint is not None and checkpoint.task != name:
        raise BadInput(f"'{resumed}' is of task '{checkpoint.task}', not of '{name}'")
    recipe = checkpoint.config if checkpoint else recipe_of(make)
    options = _parse(argv, Options(task=name, config=_with_encoders(recipe, argv)))
    config = options.config
    if config.device == "cuda" and not torch.cuda.is_available():
        raise BadInput("device 'cuda' is not available: torch sees no GPU; there is: cpu")
    require_packages(config.loggers)
    with joined(config.device) as peers:
        result = _train(make, options, checkpoint, resumed, peers)
    return ExitCode.INTERRUPTED if result.interrupted else ExitCode.GOOD


def _train(
    make: MakeTask,
    options: Options,
    checkpoint: Checkpoint | None,
    resumed: Path | None,
    peers: Peers,
) -> TrainResult:
    """Train as one of some processes; the first one has the folder and the console."""
    config = options.config
    initial = load_checkpoint(find_checkpoint(options.initial)) if options.initial else None
    done = checkpoint.iteration if checkpoint else 0
    folder = Path(peers.from_first(str(_run_folder(options, resumed, done)) if peers.first else ""))
    how: dict[str, Any] = {
        "device": config.device, "num_threads": _sim_threads(config.sim_threads, peers)
    }  # fmt: skip
    task = make(num_envs=config.num_envs, seed=peers.seed(config.seed), **how)
    eval_env, report = None, None
    if peers.first:
        report = console_report(config.iterations, done, settings_in_effect(config))
        if config.evaluation.every:
            episodes, seed = config.evaluation.episodes, config.seed + SEED_OFFSET
            eval_env = make(num_envs=episodes, seed=seed, **how).evaluation_env()
    result = train(
        options.task, task, config, folder,
        resume=checkpoint, initial=initial, report=report, eval_env=eval_env, peers=peers,
    )  # fmt: skip
    if peers.first:
        _tell(folder, result, as_json=options.json)
    return result


def _sim_threads(asked: int, peers: Peers) -> int:
    """Return the threads to simulate with; processes of one node share its cores."""
    if asked or peers.size == 1:
        return asked
    return max(1, (os.cpu_count() or 1) // peers.local_size)


def _task_name(argv: list[str]) -> str:
    """Return the task, which comes first because the defaults of all else depend on it."""
    tasks = _known_tasks()
    if argv and not argv[0].startswith("-"):
        return argv[0]
    if "-h" in argv or "--help" in argv:
        # Raises SystemExit: the help of the settings, with their general defaults; there is an
        # encoder, so that its settings are seen.
        config = TrainConfig(network=NetworkConfig(encoders=(EncoderConfig(),)))
        _parse(["--help"], Options(task=_EXAMPLE, config=config))
    known = f"{', '.join(tasks)}, and gym:ID for environments of gymnasium"
    raise BadInput(f"name the task first: {PROG} TASK ...; there are: {known}")


def _known_tasks() -> list[str]:
    return sorted(entry.name for entry in entry_points(group=TASKS))


def _resumed_from(argv: list[str]) -> Path | None:
    """Return the checkpoint of `--resume`, whose settings are needed before the rest is parsed."""
    for i, argument in enumerate(argv):
        flag, _, value = argument.partition("=")
        if flag == "--resume" and (value or i + 1 < len(argv)):
            return find_checkpoint(Path(value or argv[i + 1]))
    return None


def _with_encoders(config: TrainConfig, argv: list[str]) -> TrainConfig:
    """Return the settings with as many encoders as the arguments speak of, so that they parse."""
    network = config.network
    numbers = [re.match(r"--network\.encoders\.(\d+)\.", argument) for argument in argv]
    count = max([int(found[1]) + 1 for found in numbers if found], default=0)
    if count > _MOST_ENCODERS:
        raise BadInput(f"--network.encoders.{count - 1}: there are at most {_MOST_ENCODERS}")
    # Different groups, because no group has two; the arguments say which. The first one has the
    # group that is the default.
    default, taken = EncoderConfig(), {one.group for one in network.encoders}
    added = [
        default if i == 0 and default.group not in taken else EncoderConfig(group=f"group {i}")
        for i in range(len(network.encoders), count)
    ]
    encoders = (*network.encoders, *added)
    return dataclasses.replace(config, network=dataclasses.replace(network, encoders=encoders))


def _parse(argv: list[str], default: Options) -> Options:
    """Parse the arguments on top of `default`; an error becomes one line."""
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            return tyro.cli(
                Options,
                prog=PROG,
                description=DESCRIPTION.format(task=default.task, tasks=", ".join(_known_tasks())),
                args=argv,
                default=default,
                config=(tyro.conf.PositionalMetavarFromFieldName,),
            )
    except SystemExit as leave:
        if leave.code in (None, 0):
            raise
        raise BadInput(f"{_first_paragraph(box.getvalue())} (see '{PROG} --help')") from leave


def _first_paragraph(box: str) -> str:
    """Return what is wrong from the framed message of tyro, as one line."""
    # Where the terminal's encoding has no frames, its rules are made of hyphens.
    lines = [re.sub(r"^-+$", "", line.strip("│╭╮╰╯─ ")) for line in box.splitlines()[1:]]
    while lines and not lines[0]:
        del lines[0]
    said = " ".join(" ".join(lines[: lines.index("")] if "" in lines else lines).split())
    return said or "the arguments cannot be used"


def _run_folder(options: Options, resumed: Path | None, done: int) -> Path:
    """Return the run folder, which a run can have; it is made by the run and not here.

    A run that is refused before it begins leaves none behind.

    Args:
        options: What was asked for.
        resumed: The checkpoint to go on from.
        done: Its iterations.

    Raises:
        BadInput: It is a file, has something of another run in it, has gone on beyond the
            checkpoint, or cannot be made.
    """
    home = None
    if resumed is not None and resumed.parent == checkpoint_folder(resumed.parent.parent):
        home = resumed.parent.parent
    folder = options.out or home
    if folder is None:
        # A task of gymnasium has characters in its name that shells and scp take for their own.
        name = re.sub(r"[^\w.-]+", "-", options.task)
        folder = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        occupied = any(folder.iterdir())
    except FileNotFoundError:
        occupied = False
        parent = next(path for path in folder.absolute().parents if path.exists())
        if not os.access(parent, os.W_OK | os.X_OK):
            raise BadInput(f"cannot make run folder '{folder}': no writing in '{parent}'") from None
    except OSError as error:
        raise BadInput(f"cannot make run folder '{folder}': {error.strerror}") from error
    if occupied and (home is None or folder.resolve() != home.resolve()):
        raise BadInput(f"run folder '{folder}' is not empty: name another, or --resume it")
    if occupied and (newest := _gone_on(folder, done)):
        # Two branches in one folder: the older one's end would pass for the newer one's.
        raise BadInput(
            f"run folder '{folder}' has gone on beyond iteration {done}, to {newest}: go on from "
            f"there with --resume {folder}, or name a folder for the new branch with --out"
        )
    return folder


def _gone_on(folder: Path, done: int) -> str:
    """Return the name of the newest checkpoint after `done` iterations; empty if there is none."""
    oldest = checkpoint_path(folder, done)
    names = [path.name for path in oldest.parent.glob(f"iteration_*{oldest.suffix}")]
    return max((name for name in names if name > oldest.name), default="")


def _tell(folder: Path, result: TrainResult, *, as_json: bool) -> None:
    """Print how the run ended."""
    if as_json:
        best = None if result.best is None else str(result.best)
        plain = {**dataclasses.asdict(result), "checkpoint": str(result.checkpoint), "best": best}
        json.dump({"run": str(folder), **plain}, sys.stdout)
        sys.stdout.write("\n")
        return
    how = "interrupted" if result.interrupted else "stopped" if result.stopped else "done"
    print(f"{how}: {result.iterations} iterations, {result.env_steps} steps")
    if result.stopped:
        print(f"because: {result.stopped}")
    print(f"checkpoint: {result.checkpoint}")
    if result.best:
        print(f"best checkpoint: {result.best}")
