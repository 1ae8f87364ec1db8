"""What the tests of the runner share: an environment, configurations, a script for any runner."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.trainer.toys.surefoot_toys import PointEnv
from trainer.env import Observations, StepResult
from trainer.envs.as_rsl_rl import RslRlVecEnv

MEMORIES = {
    f"{kind}{layers}": {"class_name": "RNNModel", "rnn_type": kind, "rnn_hidden_dim": 8,
                        "rnn_num_layers": layers}
    for kind in ("lstm", "gru") for layers in (1, 2)
}  # fmt: skip
"""Networks with a memory, as configurations of release 5 have them."""


class Points(PointEnv):
    """The toy with a critic that sees more, and episodes that end in both ways."""

    def __init__(self, num_envs: int = 8, seed: int = 0) -> None:
        super().__init__(num_envs, seed)
        self.obs_dims: Mapping[str, int] = {"policy": 2, "critic": 3}
        self.max_episode_length = 7

    def step(self, actions: Tensor) -> StepResult:
        return super().step(5.0 * actions)

    def _observe(self) -> Observations:
        age = self._age.float().unsqueeze(-1)
        return {"policy": self._position.clone(), "critic": torch.cat([self._position, age], -1)}


def config_5(actor: Any = None, critic: Any = None, **algorithm: Any) -> dict[str, Any]:
    """A configuration of release 5, with changes."""
    shape: dict[str, Any] = {"class_name": "MLPModel", "hidden_dims": [16, 8], "activation": "elu",
                             "obs_normalization": True}  # fmt: skip
    gaussian = {"class_name": "GaussianDistribution", "init_std": 0.8, "std_type": "scalar"}
    return {
        "seed": 3,
        "num_steps_per_env": 10,
        "save_interval": 2,
        "obs_groups": {"actor": ["policy"], "critic": ["policy", "critic"]},
        "actor": shape | {"distribution_cfg": gaussian} | (actor or {}),
        "critic": shape | (critic or {}),
        "algorithm": {"class_name": "PPO", "num_learning_epochs": 3, "num_mini_batches": 4,
                      **algorithm},
    }  # fmt: skip


def images(env: Any, obs: Any = None, actions: Tensor | None = None) -> tuple[Any, Tensor | None]:
    """An augmentation function as users of rsl_rl write them: the axes of the toy exchanged."""
    del env
    if obs is not None:
        parts = {name: torch.cat([x, _exchanged(x)]) for name, x in obs.items()}
        kind = type(obs)
        double = [2 * obs.batch_size[0]] if hasattr(obs, "batch_size") else None
        obs = kind(parts) if double is None else kind(parts, batch_size=double)
    if actions is not None:
        actions = torch.cat([actions, _exchanged(actions)])
    return obs, actions


def _exchanged(x: Tensor) -> Tensor:
    return torch.cat([x[:, [1, 0]], x[:, 2:]], -1)


def script(runner_class: Any, config: dict[str, Any], path: Path, *, seed: int = 12) -> Any:
    """A training script for rsl_rl 5.5.1: the class is all that differs."""
    torch.manual_seed(seed)
    env = RslRlVecEnv(Points())
    runner = runner_class(env, copy.deepcopy(config), log_dir=None, device="cpu")
    runner.learn(num_learning_iterations=3, init_at_random_ep_len=True)
    runner.save(str(path))
    return runner
