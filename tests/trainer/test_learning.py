"""Does it learn? A toy with a known best policy in seconds, CartPole where there is time."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from tests.trainer.toys.surefoot_toys import RECIPE, PointEnv, best_action, make
from trainer.checkpoint import build_actor, load_checkpoint
from trainer.config import NetworkConfig, PPOConfig, TrainConfig
from trainer.env import Observations, StepResult
from trainer.metrics import read_metrics
from trainer.tasks.base import ActMean, TaskRun
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


class CartPole:
    """CartPole-v1, many at once; a positive action pushes right, any other left."""

    def __init__(self, num_envs: int, seed: int) -> None:
        mode = gymnasium.vector.AutoresetMode.SAME_STEP
        self._env = gymnasium.make_vec(
            "CartPole-v1",
            num_envs,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": mode},
        )
        self.num_envs, self.num_actions = num_envs, 1
        self.obs_dims: Mapping[str, int] = {"policy": 4}
        self.max_episode_length = 500
        self.device = torch.device("cpu")
        self._seed = seed

    def reset(self, *, random_episode_length: bool = False) -> Observations:
        return {"policy": torch.from_numpy(self._env.reset(seed=self._seed)[0])}

    def step(self, actions: Tensor) -> StepResult:
        push = (actions[:, 0] > 0).long().numpy()
        obs, reward, terminated, truncated, info = self._env.step(push)
        final = np.array(obs)
        for row in np.flatnonzero(terminated | truncated):
            final[row] = info["final_obs"][row]
        return StepResult(
            obs={"policy": torch.from_numpy(np.array(obs))},
            reward=torch.from_numpy(reward),
            terminated=torch.from_numpy(terminated),
            truncated=torch.from_numpy(truncated),
            final_obs={"policy": torch.from_numpy(final)},
            log={},
        )

    def reset_rows(self, rows: Tensor) -> Observations:
        raise AssertionError("CartPole gives no bad numbers")

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        del state


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cartpole_is_solved_within_150_000_steps(tmp_path: Path, seed: int) -> None:
    config = TrainConfig(
        num_envs=16,
        iterations=146,
        seed=seed,
        random_episode_length=False,
        network=NetworkConfig(actor_hidden=(64, 64), critic_hidden=(64, 64), activation="tanh"),
        ppo=PPOConfig(num_steps=64, epochs=6, entropy_coef=0.0, reward_scale=0.1),
    )
    train("cartpole", TaskRun(env=CartPole(16, seed), train=config), config, tmp_path)
    rows = [row for row in read_metrics(tmp_path) if row.get("episode/count", 0.0) > 0]
    assert rows[-1]["progress/env_steps"] <= 150_000
    # The best stretch of 20 iterations, some 40 episodes.
    window = [row["episode/return"] for row in rows]
    best = max(float(np.mean(window[i : i + 20])) for i in range(len(window) - 19))
    assert best >= 475.0
