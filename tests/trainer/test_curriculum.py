"""Curricula: rules by hand, and levels that go on exactly where a run was interrupted."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from robot_runtime.errors import BadInput
from tests.trainer.toys.surefoot_toys import MIRROR, RECIPE, PointEnv
from trainer.checkpoint import Checkpoint, checkpoint_path, load_checkpoint
from trainer.curriculum import Curriculum, Lesson, over_env_steps, share_between, when_below
from trainer.metrics import read_metrics
from trainer.tasks.base import TaskRun
from trainer.train import Run, train

CONFIG = replace(RECIPE, num_envs=8, iterations=8, checkpoint_every=4, loggers=())


class FarPoints(PointEnv):
    """The toy, starting as far out as it is told."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.far = -1.0
        self.starts: list[float] = []

    def set_far(self, far: float) -> None:
        self.far = far

    def _restart(self, rows: Tensor) -> None:
        super()._restart(rows)
        self._position = torch.where(rows[:, None], self.far * self._position, self._position)
        self.starts.append(self.far)


def make_task() -> TaskRun:
    env = FarPoints(CONFIG.num_envs)
    far = Lesson(
        name="far",
        rule=when_below("rollout/reward", 1.0, step=0.25),  # a reward is never above 0
        apply=lambda level: env.set_far(share_between(0.5, 1.0, level)),
    )
    return TaskRun(env=env, train=RECIPE, symmetry=MIRROR, curriculum=Curriculum([far]))


def test_a_level_rises_while_the_metric_is_small_and_falls_while_it_is_large() -> None:
    rule = when_below("error", 0.2, bad=0.5, step=0.1)
    for error, level in ((0.1, 0.6), (0.3, 0.5), (0.6, 0.4), (None, 0.5)):
        metrics = {} if error is None else {"error": error}
        assert rule(0.5, metrics) == pytest.approx(level)
    assert when_below("error", 0.2)(0.5, {"error": 9.0}) == 0.5


def test_a_level_follows_the_steps_and_stays_within_its_bounds() -> None:
    seen: list[float] = []
    lesson = Lesson(name="a", rule=over_env_steps(100.0, 300.0), apply=seen.append)
    curriculum = Curriculum([lesson])
    for steps in (0.0, 150.0, 200.0, 900.0):
        curriculum.update({"progress/env_steps": steps})
    assert seen == [0.0, 0.0, 0.25, 0.5, 1.0]
    assert share_between(2.0, 4.0, 0.25) == 2.5


def test_the_first_reset_moves_nothing_and_happens_at_the_start_levels() -> None:
    task = make_task()
    run = Run("far", task, CONFIG)
    assert isinstance(task.env, FarPoints)
    assert set(task.env.starts) == {0.5}
    assert task.curriculum is not None
    assert task.curriculum.state_dict() == {"far": 0.0}
    assert run.step()["curriculum/far"] == 0.25
    assert task.env.far == 0.625


def test_a_resumed_run_goes_on_with_its_levels_bit_for_bit(tmp_path: Path) -> None:
    train("far", make_task(), replace(CONFIG, iterations=4), tmp_path / "half")
    half = load_checkpoint(checkpoint_path(tmp_path / "half", 4))
    assert half.progress["curriculum"] == {"far": 1.0}
    train("far", make_task(), CONFIG, tmp_path / "half", resume=half)
    train("far", make_task(), CONFIG, tmp_path / "whole")
    one, other = (
        load_checkpoint(checkpoint_path(tmp_path / name, 8)) for name in ("half", "whole")
    )
    for field in ("agent", "collector", "progress"):
        torch.testing.assert_close(getattr(one, field), getattr(other, field), rtol=0.0, atol=0.0)
    levels = [row["curriculum/far"] for row in read_metrics(tmp_path / "whole")]
    assert levels == [0.25, 0.5, 0.75] + 5 * [1.0]


def test_levels_of_other_lessons_are_refused(tmp_path: Path) -> None:
    plain = TaskRun(env=FarPoints(CONFIG.num_envs), train=RECIPE, symmetry=MIRROR)
    train("far", plain, replace(CONFIG, iterations=1), tmp_path)
    checkpoint: Checkpoint = load_checkpoint(checkpoint_path(tmp_path, 1))
    with pytest.raises(BadInput, match=r"curriculum: lessons \[\], expected \['far'\]"):
        train("far", make_task(), CONFIG, tmp_path, resume=checkpoint)


def ignore(level: float, metrics: Mapping[str, float]) -> float:
    del metrics
    return level


@pytest.mark.parametrize(
    ("lessons", "message"),
    [
        ([{"name": "a", "start": 1.5}], "lesson 'a': start = 1.5"),
        ([{"name": "a"}, {"name": "b"}, {"name": "a"}], "different names, not a, b, a"),
    ],
)
def test_bad_lessons_are_refused(lessons: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Curriculum([Lesson(rule=ignore, apply=print, **lesson) for lesson in lessons])
