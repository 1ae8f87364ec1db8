"""Tasks named ``gym:ID``: environments that gymnasium has registered."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import load_env_creator
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
        if build.args[1]:
            _try_arguments(*build.args)
        envs = SyncVectorEnv([build] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        return TaskRun(env=GymnasiumEnv(envs, seed=seed, device=device), train=RECIPE)

    return make


def gymnasium_maker(name: str) -> functools.partial[gymnasium.Env[Any, Any]]:
    """Return what builds one environment of a task.

    Args:
        name: ``gym:ID``, with arguments like ``gym:LunarLander-v3?enable_wind=True&gravity=-9.0``.

    Raises:
        BadInput: An argument is not of the form ``name=value``, or, where it is called, gymnasium
            cannot make the environment; the message names it and its argument.
    """
    identifier, _, query = name.removeprefix(PREFIX).partition("?")
    arguments = dict(_argument(name, part) for part in query.split("&") if part)
    return functools.partial(_make_one, identifier, arguments)


def _make_one(identifier: str, arguments: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """Make one environment; whatever its constructor raises is said in one line."""
    try:
        return gymnasium.make(identifier, **arguments)
    except Exception as error:
        raise _refusal(identifier, arguments, error) from error


def _try_arguments(identifier: str, arguments: dict[str, Any]) -> None:
    """Take one step: many constructors keep an argument that only the dynamics stumble over."""
    env = _make_one(identifier, arguments)
    try:
        env.reset(seed=0)
        env.action_space.seed(0)
        env.step(env.action_space.sample())
    except Exception as error:
        raise _refusal(identifier, arguments, error) from error
    finally:
        env.close()


def _refusal(identifier: str, arguments: dict[str, Any], error: Exception) -> BadInput:
    """Return what is wrong, naming environment and argument."""
    known = _known_arguments(identifier)
    unknown = [name for name in arguments if known is not None and name not in known]
    if unknown and known is not None:
        return BadInput(
            f"gymnasium's '{identifier}' has no argument {', '.join(map(repr, unknown))}; "
            f"there are: {', '.join(sorted(known))}"
        )
    text = " ".join(str(error).split())
    if not isinstance(error, gymnasium.error.Error | ImportError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    given = f" with {', '.join(f'{k}={v!r}' for k, v in arguments.items())}" if arguments else ""
    return BadInput(f"gymnasium cannot make '{identifier}'{given}: {text}")


def _known_arguments(identifier: str) -> set[str] | None:
    """Return what can be said about an environment; None if that cannot be known."""
    try:
        entry_point = gymnasium.spec(identifier).entry_point
        create = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        taken = inspect.signature(cast("Callable[..., Any]", create)).parameters.values()
        of_make = inspect.signature(gymnasium.make).parameters.values()
    # A module that is not installed or breaks is its own error, which is said.
    except Exception:
        return None
    if any(one.kind is one.VAR_KEYWORD for one in taken):
        return None
    return {one.name for one in (*taken, *of_make) if one.kind is not one.VAR_KEYWORD} - {"id"}


def _argument(name: str, part: str) -> tuple[str, Any]:
    key, equals, text = part.partition("=")
    if not key or not equals:
        raise BadInput(f"task '{name}': '{part}' is not of the form name=value")
    try:
        return key, ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return key, text
