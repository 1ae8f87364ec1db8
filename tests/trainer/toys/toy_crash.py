"""A toy task that fails in the second process while the first one waits for its simulator.

With `TOY_CRASH=gone` the second process is gone without a word, and the first one does not wait.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import surefoot_toys
from torch import Tensor

from trainer.env import StepResult
from trainer.tasks.base import TaskRun

GONE = os.environ.get("TOY_CRASH") == "gone"


class Failing(surefoot_toys.PointEnv):
    """Fails after a while, and leaves the time in the file `failed`."""

    steps = 0

    def step(self, actions: Tensor) -> StepResult:
        """Step, fail or sleep."""
        self.steps += 1
        if self.steps == 40 and os.environ.get("RANK") == "1":
            Path("failed").write_text(str(time.time()))
            if GONE:
                os._exit(9)
            raise RuntimeError("the cable is cut")
        if self.steps == 40 and not GONE:
            time.sleep(300.0)
        return super().step(actions)


def make(*, num_envs: int, seed: int, device: str, num_threads: int) -> TaskRun:
    """Build the task."""
    task = surefoot_toys.make(num_envs=num_envs, seed=seed, device=device, num_threads=num_threads)
    return replace(task, env=Failing(num_envs, seed))
