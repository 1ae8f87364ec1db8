"""Tasks named ``gym:ID``: environments that gymnasium has registered."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from robot_runtime.errors import BadInput
from trainer.config import NetworkConfig, PPOConfig, TrainConfig
from trainer.envs.gymnasium_adapter import GymnasiumEnv
from trainer.tasks.base import MakeTask, TaskRun

PREFIX = "gym:"

RECIPE = TrainConfig(
    num_envs=8,
    iterations=500,
    checkpoint_every=100,
    random_episode_length=False,
    network=NetworkConfig(actor_hidden=(64, 64), critic_hidden=(64, 64), activation="tanh"),
    ppo=PPOConfig(
        num_steps=256,
        epochs=10,
        minibatches=32,
        # Rewards come in units of their own: a bound for the value would be one of them.
        value_clip=None,
        entropy_coef=0.0,
        value_coef=0.5,
        learning_rate=3e-4,
        desired_kl=None,
        lr_anneal="linear",
        max_grad_norm=0.5,
        grad_clip="joint",
        normalize_advantage="minibatch",
    ),
)
"""Settings that the field uses for small continuous tasks (Huang et al., "The 37 Implementation
Details of Proximal Policy Optimization", ICLR blog 2022)."""


def gymnasium_task(name: str) -> MakeTask:
    """Return the task of a registered environment; see `gymnasium_maker`."""
    build = gymnasium_maker(name)

    def make(*, num_envs: int, seed: int, device: str, num_threads: int) -> TaskRun:
        """Build the environments in this process, one after the other."""
        del num_threads
        envs = SyncVectorEnv([build] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        return TaskRun(env=GymnasiumEnv(envs, seed=seed, device=device), train=RECIPE)

    return make


def gymnasium_maker(name: str) -> Callable[[], gymnasium.Env[Any, Any]]:
    """Return what builds one environment of a task.

    Args:
        name: ``gym:ID``, with arguments like ``gym:LunarLander-v3?enable_wind=True&gravity=-9.0``.

    Raises:
        BadInput: An argument is not of the form ``name=value``.
    """
    identifier, _, query = name.removeprefix(PREFIX).partition("?")
    arguments = dict(_argument(name, part) for part in query.split("&") if part)
    return functools.partial(_make_one, identifier, arguments)


def _make_one(identifier: str, arguments: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    try:
        return gymnasium.make(identifier, **arguments)
    except (gymnasium.error.Error, TypeError, ValueError, ImportError) as error:
        text = " ".join(str(error).split())
        given = f" with {arguments}" if arguments else ""
        raise BadInput(f"gymnasium cannot make '{identifier}'{given}: {text}") from error


def _argument(name: str, part: str) -> tuple[str, Any]:
    key, equals, text = part.partition("=")
    if not key or not equals:
        raise BadInput(f"task '{name}': '{part}' is not of the form name=value")
    try:
        return key, ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return key, text
