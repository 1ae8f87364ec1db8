"""Evaluation: whole episodes, the rules that end a run, and that it changes nothing else."""

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robot_runtime.errors import BadInput
from tests.trainer.toys.surefoot_toys import RECIPE, PointEnv, best_action, make
from trainer.checkpoint import Checkpoint, checkpoint_path, find_checkpoint, load_checkpoint
from trainer.config import EvaluationConfig, InvalidSetting, TrainConfig
from trainer.env import Observations, StepResult
from trainer.evaluation import (
    Evaluator,
    best_path,
    evaluate,
    is_best,
    moving_average,
    reason_to_stop,
    unchanged_random_states,
)
from trainer.metrics import read_metrics
from trainer.train import TrainResult, train

CONFIG = replace(
    RECIPE, num_envs=8, iterations=6, checkpoint_every=3,
    evaluation=EvaluationConfig(every=2, episodes=4, average=2),
)  # fmt: skip
WITHOUT = replace(CONFIG, evaluation=EvaluationConfig())


def global_draws() -> tuple[float, ...]:
    """One number of every global generator."""
    legacy = np.random.rand()  # noqa: NPY002 - the point is that somebody may use it
    return float(torch.rand(1)), float(legacy), random.random()


class Reckless(PointEnv):
    """The toy, drawing from every global generator there is at each step."""

    def step(self, actions: Tensor) -> StepResult:
        global_draws()
        return super().step(actions)


def run(folder: Path, config: TrainConfig = CONFIG, **more: Any) -> TrainResult:
    task = make(num_envs=config.num_envs, seed=config.seed, device="cpu", num_threads=1)
    eval_env = Reckless(config.evaluation.episodes, seed=77)
    return train("toy-point", task, config, folder, eval_env=eval_env, **more)


class Countdown:
    """Environment i ends after ``ends[i]`` steps, by a fall where ``falls[i]``; reward i + 1."""

    def __init__(self, ends: list[int], falls: list[bool], *, next_step: bool = False) -> None:
        self.num_envs, self.num_actions = len(ends), 1
        self.obs_dims: Mapping[str, int] = {"policy": 1}
        self.max_episode_length = 10
        self.device = torch.device("cpu")
        self._ends, self._falls = torch.tensor(ends), torch.tensor(falls)
        self._next_step = next_step

    def reset(self, *, random_episode_length: bool = False) -> Observations:
        self._age = torch.zeros(self.num_envs, dtype=torch.int64)
        return self._observe()

    def step(self, actions: Tensor) -> StepResult:
        idle = self._age >= self._ends if self._next_step else torch.zeros_like(self._falls)
        self._age = torch.where(idle, 0, self._age + 1)
        done = (self._age == self._ends) & ~idle
        if not self._next_step:
            self._age = torch.where(done, 0, self._age)
        return StepResult(
            obs=self._observe(),
            reward=torch.arange(1.0, self.num_envs + 1),
            terminated=done & self._falls,
            truncated=(done & ~self._falls) | idle,
            final_obs=None,
            log={"reward/pay": torch.tensor(2.0)},
            valid=~idle,
        )

    def reset_rows(self, rows: Tensor) -> Observations:
        raise AssertionError("an evaluation restarts nothing")

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        del state

    def _observe(self) -> Observations:
        return {"policy": self._age[:, None].float()}


@pytest.mark.parametrize("next_step", [False, True])
def test_one_whole_episode_of_every_environment_counts(next_step: bool) -> None:
    # The last one would never end by itself; the time limit does it.
    env = Countdown([2, 5, 99], [True, False, False], next_step=next_step)
    found = evaluate(lambda obs: obs, env)
    assert found.lengths.tolist() == [2, 5, 10]
    assert found.returns.tolist() == [2.0, 10.0, 30.0]
    assert found.terminated.tolist() == [True, False, False]
    metrics = found.metrics()
    assert metrics["eval/return"] == 14.0
    assert metrics["eval/return_std"] == pytest.approx(np.std([2.0, 10.0, 30.0]))
    assert metrics["eval/length"] == pytest.approx(17 / 3)
    assert metrics["eval/terminated"] == pytest.approx(1 / 3)
    assert metrics["eval/reward/pay"] == 2.0


def test_a_policy_that_remembers_is_told_where_episodes_begin() -> None:
    told: list[list[bool]] = []

    class Remembering:
        def reset(self, rows: Tensor) -> None:
            told.append(rows.tolist())

        def __call__(self, obs: Tensor) -> Tensor:
            return obs

    evaluate(Remembering(), Countdown([2, 3], [True, True]))
    # At the start everywhere; then where an episode ended, also one after the first.
    assert told == [[True, True], [True, False], [False, True]]


def test_a_better_policy_gets_a_higher_return() -> None:
    good, idle = (
        evaluate(policy, PointEnv(50, seed=3)).mean_return
        for policy in (best_action, torch.zeros_like)
    )
    assert good > idle + 1.0


def test_moving_average_and_best_against_slow_loops() -> None:
    values = [3.0, 1.0, 4.0, 1.0, 5.0]
    assert moving_average(values, 2) == [3.0, 2.0, 2.5, 2.5, 3.0]
    assert [is_best(values[:i]) for i in range(6)] == [False, True, False, True, False, True]
    # A tie keeps the earlier one.
    assert not is_best([2.0, 2.0])


@pytest.mark.parametrize(
    ("returns", "ends"),
    [
        ([], False),
        ([9.0], False),  # not yet an average of two
        ([9.0, 1.0], True),  # 5.0 has reached the target of 5
        ([1.0, 2.0, 1.5], False),  # averages 1.5, 1.75: still rising
        ([4.0, 4.0, 3.0, 2.0], False),  # 4.0, 3.5, 2.5: two without a new highest
        ([4.0, 4.0, 3.0, 2.0, 1.0], True),  # three
        ([4.0, 4.0, 4.0, 4.0, 4.0], True),  # as good is not better
    ],
)
def test_the_rule_that_ends_a_run(returns: list[float], ends: bool) -> None:
    config = EvaluationConfig(every=1, average=2, patience=3, target=5.0)
    assert (reason_to_stop(returns, config) is not None) == ends
    assert reason_to_stop(returns, EvaluationConfig(every=1, average=2)) is None


def test_rules_without_evaluations_are_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"set evaluation\.every"):
        EvaluationConfig(patience=3)
    with pytest.raises(BadInput, match="no environment to evaluate in"):
        Evaluator(CONFIG.evaluation, None)


def test_evaluation_changes_nothing_that_is_learned(tmp_path: Path) -> None:
    with_it, without = run(tmp_path / "with"), run(tmp_path / "without", WITHOUT)
    one, other = load_checkpoint(with_it.checkpoint), load_checkpoint(without.checkpoint)
    for field in ("agent", "collector", "rng"):
        torch.testing.assert_close(getattr(one, field), getattr(other, field), rtol=0.0, atol=0.0)
    assert without.best is None
    rows = [read_metrics(tmp_path / name) for name in ("with", "without")]
    assert ["eval/return" in row for row in rows[0]] == [False, True] * 3
    for evaluated, plain in zip(*rows, strict=True):
        common = {k: v for k, v in evaluated.items() if k in plain and "perf/" not in k}
        assert common == {k: v for k, v in plain.items() if "perf/" not in k}


def test_every_global_generator_is_left_alone() -> None:
    with unchanged_random_states():
        inside = global_draws()
    assert global_draws() == inside


def test_the_best_checkpoint_is_that_of_the_best_evaluation(tmp_path: Path) -> None:
    result = run(tmp_path, replace(CONFIG, iterations=12))
    rows = [row for row in read_metrics(tmp_path) if "eval/return" in row]
    returns = [row["eval/return"] for row in rows]
    assert [row["eval/average"] for row in rows] == pytest.approx(moving_average(returns, 2))
    best = rows[returns.index(max(returns))]
    assert result.best == best_path(tmp_path)
    kept = load_checkpoint(best_path(tmp_path))
    assert kept.iteration == best["iteration"]
    # What is meant by a run is still its newest checkpoint.
    assert find_checkpoint(tmp_path) == checkpoint_path(tmp_path, 12)


def test_a_run_that_was_never_as_good_again_in_another_folder_has_no_best_there(
    tmp_path: Path,
) -> None:
    first = run(tmp_path / "first", replace(CONFIG, iterations=2))
    kept = load_checkpoint(first.checkpoint)
    unbeatable = {**kept.progress, "evaluation": {"returns": [0.0]}}
    second = run(tmp_path / "second", resume=replace(kept, progress=unbeatable))
    assert first.best == best_path(tmp_path / "first")
    assert second.best is None
    assert not best_path(tmp_path / "second").exists()


def test_a_run_ends_by_the_rule_and_says_why(tmp_path: Path) -> None:
    config = replace(CONFIG, evaluation=replace(CONFIG.evaluation, average=1, target=-1e9))
    result = run(tmp_path, config)
    assert (result.iterations, result.interrupted) == (2, False)
    assert "has reached the target" in str(result.stopped)
    assert load_checkpoint(result.checkpoint).iteration == 2


def test_a_resumed_run_evaluates_and_decides_as_an_uninterrupted_one(tmp_path: Path) -> None:
    run(tmp_path / "half", replace(CONFIG, iterations=3))
    half: Checkpoint = load_checkpoint(checkpoint_path(tmp_path / "half", 3))
    run(tmp_path / "half", resume=half)
    run(tmp_path / "whole")
    rows = [read_metrics(tmp_path / name) for name in ("half", "whole")]
    for one, other in zip(*rows, strict=True):
        assert {k: v for k, v in one.items() if k.startswith("eval/")} == {
            k: v for k, v in other.items() if k.startswith("eval/")
        }
    states = [load_checkpoint(checkpoint_path(tmp_path / name, 6)) for name in ("half", "whole")]
    returns = [state.progress["evaluation"]["returns"] for state in states]
    assert returns[0] == returns[1]
    assert len(returns[0]) == 3
