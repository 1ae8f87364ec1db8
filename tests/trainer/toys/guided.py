"""A toy task with a teacher who sees what the student has to remember."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from tests.trainer.toys.memory import CueEnv
from trainer.checkpoint import load_checkpoint, save_checkpoint
from trainer.config import NetworkConfig, PPOConfig, TrainConfig
from trainer.env import Observations
from trainer.tasks.base import TaskRun
from trainer.train import train


class GuidedCueEnv(CueEnv):
    """`CueEnv` with a second group, ``guide``: the cue at every step, and is this the last step."""

    def __init__(self, num_envs: int, seed: int = 0, *, delay: int = 8) -> None:
        """See `CueEnv`."""
        super().__init__(num_envs, seed, delay=delay)
        self.obs_dims: Mapping[str, int] = {"policy": 2, "guide": 2}

    def _observe(self) -> Observations:
        obs = super()._observe()
        return {**obs, "guide": torch.stack([self.cue, obs["policy"][:, 1]], dim=-1)}


def guided_task(num_envs: int, seed: int = 0, *, delay: int = 8) -> TaskRun:
    """The task, with settings that let it be distilled within seconds."""
    config = TrainConfig(
        num_envs=num_envs,
        network=NetworkConfig(actor_hidden=(32,), critic_hidden=(8,), rnn_hidden=16),
        ppo=PPOConfig(num_steps=2 * (delay + 1)),
        random_episode_length=False,
    )
    return TaskRun(env=GuidedCueEnv(num_envs, seed, delay=delay), train=config)


def write_teacher(path: Path, groups: tuple[str, ...] = ("guide",)) -> Path:
    """Write the checkpoint of a teacher that says the first number it sees, at every step."""
    task = guided_task(4)
    network = NetworkConfig(
        actor_groups=groups, actor_hidden=(), critic_hidden=(8,), normalize_obs=False
    )
    config = TrainConfig(num_envs=4, iterations=1, network=network, loggers=())
    result = train("guided", task, config, path.with_suffix(""))
    checkpoint = load_checkpoint(result.checkpoint)
    dim = 2 * len(groups)
    checkpoint.agent["actor"]["net.0.weight"] = torch.eye(1, dim)
    checkpoint.agent["actor"]["net.0.bias"] = torch.zeros(1)
    save_checkpoint(path, checkpoint)
    return path
