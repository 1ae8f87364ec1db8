"""PPO of stable-baselines3 2.9.2 with our settings, on environments of gymnasium."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import TransformReward
from stable_baselines3 import PPO  # pyright: ignore[reportMissingImports]
from stable_baselines3.common.callbacks import (  # pyright: ignore[reportMissingImports]
    BaseCallback,
)
from stable_baselines3.common.distributions import (  # pyright: ignore[reportMissingImports]
    DiagGaussianDistribution,
)
from stable_baselines3.common.vec_env import (  # pyright: ignore[reportMissingImports]
    DummyVecEnv,
    VecNormalize,
)
from torch import Tensor, nn

import trainer.ppo
from trainer.config import PPOConfig, TrainConfig

NAME = "stable-baselines3 2.9.2"

_ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU, "elu": torch.nn.ELU}


class Opponent:
    """A model of stable-baselines3 and its environments.

    Attributes:
        model: The model.
    """

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]], config: TrainConfig) -> None:
        """Build them.

        Args:
            make: Builds one environment.
            config: Our settings.

        Raises:
            ValueError: A setting of ours has no counterpart there.
        """
        scaled = functools.partial(_scaled, make, config.ppo.reward_scale)
        self._envs: Any = DummyVecEnv([scaled] * config.num_envs)
        self._envs.seed(config.seed)
        if config.network.normalize_obs:
            clip = config.network.obs_clip
            self._envs = VecNormalize(self._envs, norm_reward=False, clip_obs=clip or math.inf)
        self.model: Any = PPO("MlpPolicy", self._envs, device="cpu", **_settings(config))
        self._rollout = config.num_envs * config.ppo.num_steps

    def iterate(self) -> None:
        """Collect a rollout and learn from it."""
        self.model.learn(self._rollout, reset_num_timesteps=False)

    def learn(self, iterations: int, each: Callable[[int, int], None]) -> None:
        """Learn for so many iterations.

        Args:
            iterations: How many.
            each: Called with iteration, from 1, and environment steps after every update but the
                last; nothing that it does is part of what is learned.
        """
        self.model.learn(iterations * self._rollout, callback=_Each(each))
        each(iterations, self.model.num_timesteps)

    def policy(self) -> Callable[[Tensor], Tensor]:
        """Return the policy without exploration, for raw observations, with what it knows now."""

        def act(obs: Tensor) -> Tensor:
            array = obs.numpy()
            if isinstance(self._envs, VecNormalize):
                array = self._envs.normalize_obs(array)
            action, _ = self.model.predict(array, deterministic=True)
            return torch.as_tensor(action, dtype=torch.float32).reshape(len(obs), -1)

        return act


class _Each(BaseCallback):
    """Calls a function between an update and the next rollout."""

    def __init__(self, each: Callable[[int, int], None]) -> None:
        super().__init__()
        self._each, self._rollouts = each, 0

    def _on_rollout_start(self) -> None:
        if self._rollouts:
            self._each(self._rollouts, self.num_timesteps)
        self._rollouts += 1

    def _on_step(self) -> bool:
        return True


class SameDraws:
    """Lets a model draw what ours draws: first weights, exploration noise, minibatches.

    What is left between the two is their code.
    """

    def __init__(self, model: Any, agent: trainer.ppo.PPO, config: TrainConfig) -> None:
        """Give the model our first weights; both are fresh, actions are continuous.

        Args:
            model: Theirs.
            agent: Ours.
            config: Our settings.
        """
        with torch.no_grad():
            for ours, theirs in weight_pairs(model, agent).values():
                theirs.copy_(ours)
        self._generator = torch.Generator()
        self._generator.set_state(agent.generator.get_state())
        self._steps, self._envs = config.ppo.num_steps, config.num_envs

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Go on drawing as ours does, as long as the context lasts."""
        with (
            mock.patch.object(DiagGaussianDistribution, "sample", lambda it: self._sample(it)),
            mock.patch.object(np.random, "permutation", self._permutation),
        ):
            yield

    def _sample(self, policy: Any) -> Tensor:
        mean, std = policy.distribution.mean, policy.distribution.stddev
        return mean + std * torch.randn(mean.shape, generator=self._generator)

    def _permutation(self, count: int) -> Any:
        order = torch.randperm(count, generator=self._generator).numpy()
        return as_they_count(order, self._steps, self._envs)


def as_they_count(order: Any, num_steps: int, num_envs: int) -> Any:
    """Return numbers of samples as theirs: we count step by step, they one environment at a time.

    Args:
        order: Ours, int64, any shape.
        num_steps: Steps per rollout.
        num_envs: Environments.
    """
    return order % num_envs * num_steps + order // num_envs


def weight_pairs(model: Any, agent: trainer.ppo.PPO) -> dict[str, tuple[Tensor, Tensor]]:
    """Return every weight, ours and theirs, as they live, by name."""
    policy = model.policy
    shaping = policy.mlp_extractor
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for name, ours, theirs in (
        ("actor", agent.actor.net, nn.Sequential(shaping.policy_net, policy.action_net)),
        ("critic", agent.critic.net, nn.Sequential(shaping.value_net, policy.value_net)),
    ):
        for i, (one, other) in enumerate(zip(_linear(ours), _linear(theirs), strict=True)):
            pairs[f"{name}.{i}.weight"] = one.weight, other.weight
            pairs[f"{name}.{i}.bias"] = one.bias, other.bias
    for name, one in agent.actor.named_parameters():
        if name.startswith("distribution."):
            pairs["log_std"] = one, policy.log_std
    return {name: (ours.detach(), theirs.detach()) for name, (ours, theirs) in pairs.items()}


def _linear(net: nn.Module) -> list[nn.Linear]:
    return [layer for layer in net.modules() if isinstance(layer, nn.Linear)]


def _scaled(make: Callable[[], gymnasium.Env[Any, Any]], scale: float) -> gymnasium.Env[Any, Any]:
    env = make()
    return env if scale == 1.0 else TransformReward(env, lambda reward: scale * float(reward))


def _settings(config: TrainConfig) -> dict[str, Any]:
    """Return the keywords of their PPO that mean what our settings do."""
    network, ppo = config.network, config.ppo
    _demand(ppo.grad_clip == "joint", "grad_clip", ppo.grad_clip)
    _demand(ppo.normalize_advantage == "minibatch", "normalize_advantage", ppo.normalize_advantage)
    _demand(ppo.desired_kl is None, "desired_kl", ppo.desired_kl)
    # Their clip_range_vf forgets the error beyond the bound, ours is pessimistic.
    _demand(ppo.value_clip is None, "value_clip", ppo.value_clip)
    return {
        "n_steps": ppo.num_steps,
        "batch_size": config.num_envs * ppo.num_steps // ppo.minibatches,
        "n_epochs": ppo.epochs,
        "gamma": ppo.gamma,
        "gae_lambda": ppo.gae_lambda,
        "clip_range": ppo.clip,
        "clip_range_vf": None,
        "ent_coef": ppo.entropy_coef,
        "vf_coef": ppo.value_coef,
        "max_grad_norm": ppo.max_grad_norm,
        "learning_rate": _learning_rate(ppo),
        "seed": config.seed,
        "policy_kwargs": {
            "net_arch": {"pi": [*network.actor_hidden], "vf": [*network.critic_hidden]},
            "activation_fn": _ACTIVATIONS[network.activation],
            "log_std_init": math.log(network.init_std),
            "optimizer_kwargs": {"eps": ppo.adam_eps},
        },
    }


def _learning_rate(ppo: PPOConfig) -> float | Callable[[float], float]:
    if ppo.lr_anneal == "none":
        return ppo.learning_rate
    start, end = ppo.learning_rate, ppo.lr_floor
    return lambda remaining: end + (start - end) * remaining


def _demand(holds: bool, name: str, value: Any) -> None:
    if not holds:
        raise ValueError(f"ppo.{name} = {value} has no counterpart in {NAME}")
