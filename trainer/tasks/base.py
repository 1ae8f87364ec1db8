"""What a task is to the trainer, and how tasks are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol

import numpy as np
from torch import Tensor

from robot_runtime.entries import load_entry
from robot_runtime.errors import BadInput
from trainer.config import TrainConfig
from trainer.curriculum import Curriculum
from trainer.env import VecEnv
from trainer.symmetry import MirrorTable

TASKS = "surefoot.tasks"
"""The entry-point group of the tasks; each entry is a `MakeTask`."""

ActMean = Callable[[Tensor], Tensor]
"""Raw observations of the group `policy`, float32 ``(B, dim)``, to raw actions ``(B, A)``.

One that remembers has a method ``reset(rows)``: rows, bool ``(B,)``, begin anew; None: all do.
"""


class Deployment(Protocol):
    """What makes a checkpoint of a task deployable on a robot."""

    def contract_json(self) -> str:
        """Return the policy contract as JSON."""
        ...

    def record_trace(self, act: ActMean) -> dict[str, np.ndarray]:
        """Run the policy without noise and return the golden trace.

        Called at every checkpoint, on the CPU. It must leave the training environment and every
        global random generator as they were, and give the same arrays for the same policy.

        Args:
            act: The deterministic policy.

        Returns:
            Arrays by name: numbers, bools, or strings.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskRun:
    """A task with its environment built.

    Attributes:
        env: The environment.
        train: The recipe: settings for this task, before the command line changes any. Its
            `num_envs`, `seed` and `device` are the recipe's own, whatever `env` was built with.
        symmetry: Reflections of observations and actions; None where the robot has none.
        deployment: Contract and golden trace; None for a task that no robot will run.
        curriculum: What gets harder while it is learned; None where nothing does.
    """

    env: VecEnv
    train: TrainConfig
    symmetry: MirrorTable | None = None
    deployment: Deployment | None = None
    curriculum: Curriculum | None = None

    def evaluation_env(self) -> VecEnv:
        """Return the environment at its full difficulty, for good."""
        if self.curriculum is not None:
            self.curriculum.finish()
        return self.env


class MakeTask(Protocol):
    """What an entry point of the group `surefoot.tasks` loads to."""

    def __call__(self, *, num_envs: int, seed: int, device: str, num_threads: int) -> TaskRun:
        """Build the environment and everything that goes with it.

        Args:
            num_envs: Environments stepped together.
            seed: The one seed of the run.
            device: `cpu` or `cuda`: where the learner lives; the environment may stay on the CPU.
            num_threads: Threads to simulate with; 0: as many as there are cores.
        """
        ...


def find_task(name: str) -> MakeTask:
    """Return the task registered under `name`; ``gym:ID`` is what gymnasium has registered.

    Raises:
        BadInput: There is none; the message lists those that exist.
    """
    if name.startswith("gym:"):
        # Imported here: it imports this module, and gymnasium.
        from trainer.envs.gymnasium_task import gymnasium_task

        return gymnasium_task(name)
    tasks = {entry.name: entry for entry in entry_points(group=TASKS)}
    if name not in tasks:
        raise BadInput(
            f"unknown task '{name}'; there are: {', '.join(sorted(tasks)) or 'none'}, "
            "and gym:ID for environments of gymnasium"
        )
    return load_entry(tasks[name])


def recipe_of(make: MakeTask) -> TrainConfig:
    """Return the settings a task recommends, by building it with a single environment.

    Raises:
        BadInput: What was built is no task.
    """
    run: object = make(num_envs=1, seed=0, device="cpu", num_threads=1)
    if not isinstance(run, TaskRun):
        raise BadInput(f"a task must return a TaskRun, got {type(run).__name__}")
    return run.train
