"""Does it learn? A toy with a known best policy in seconds, CartPole where there is time."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_runtime.cli import main
from tests.trainer.toys.surefoot_toys import RECIPE, PointEnv, best_action, make
from trainer.checkpoint import build_actor, load_checkpoint
from trainer.tasks.base import ActMean
from trainer.train import train


def mean_reward(act: ActMean) -> float:
    """Mean reward of a policy over one episode of 200 fresh points."""
    env = PointEnv(200, seed=99)
    obs = env.reset()["policy"]
    total = 0.0
    for _ in range(19):
        with torch.no_grad():
            result = env.step(act(obs))
        total += float(result.reward.mean())
        obs = result.obs["policy"]
    return total / 19


@pytest.mark.parametrize(
    ("head", "seed"),
    [("gaussian", 0), ("gaussian", 1), ("state-gaussian", 0), ("beta", 0), ("tanh", 0)],
)
def test_the_toy_is_learned_to_near_its_optimum(tmp_path: Path, head: Any, seed: int) -> None:
    config = replace(RECIPE, iterations=60, seed=seed, network=replace(RECIPE.network, head=head))
    task = make(num_envs=config.num_envs, seed=seed, device="cpu", num_threads=1)
    result = train("toy-point", task, config, tmp_path)
    learned = mean_reward(build_actor(load_checkpoint(result.checkpoint)))
    idle = mean_reward(lambda obs: torch.zeros_like(obs))
    best = mean_reward(best_action)
    # Of what there is to gain over standing still, at least 95 %.
    assert (learned - idle) / (best - idle) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cartpole_is_solved_within_150_000_steps(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the recipe for gymnasium; the best of its evaluations, judged on 100 other episodes."""
    run = ["--seed", str(seed), "--iterations", "73", "--evaluation.every", "8", "--json"]
    assert main(["train", "gym:CartPole-v1", *run, "--out", str(tmp_path / "run")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["env_steps"] <= 150_000
    assert main(["eval", told["best"], "--episodes", "100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["return"] >= 475.0
