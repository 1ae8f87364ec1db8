"""The actor and the critic: a normalizer, a network and, for the actor, a distribution."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from trainer.config import NetworkConfig
from trainer.distributions import DiagonalGaussian
from trainer.networks.mlp import make_mlp
from trainer.normalizer import RunningNormalizer

ACTOR_GROUP = "policy"
"""The observation group the actor sees: what the robot can measure."""


def critic_group(obs_dims: Mapping[str, int]) -> str:
    """Return the observation group the critic sees: `critic` where there is one."""
    return "critic" if "critic" in obs_dims else ACTOR_GROUP


class Actor(nn.Module):
    """Raw observations to the mean of the action distribution.

    Attributes:
        normalizer: Raw to normalized observations.
        net: Normalized observations to mean actions. The update calls it directly, because the
            normalizer is frozen then and its output is computed once per rollout.
        distribution: The spread around the mean.
    """

    def __init__(
        self, obs_dim: int, num_actions: int, config: NetworkConfig, generator: torch.Generator
    ) -> None:
        """Build the actor with small first actions.

        Args:
            obs_dim: Length of the group `policy`.
            num_actions: Length of an action.
            config: Shape and start.
            generator: Source of the random weights, on the CPU.
        """
        super().__init__()
        self.normalizer = _normalizer(obs_dim, config)
        self.net = make_mlp(
            obs_dim,
            config.actor_hidden,
            num_actions,
            activation=config.activation,
            out_gain=0.01,
            generator=generator,
        )
        self.distribution = DiagonalGaussian(
            num_actions,
            init_std=config.init_std,
            min_std=config.min_std,
            max_std=config.max_std,
            kind=config.std_kind,
        )

    def forward(self, obs: Tensor) -> Tensor:
        """Return mean actions, shape ``(..., num_actions)``, for raw ``(..., obs_dim)``."""
        return self.net(self.normalizer(obs))


class Critic(nn.Module):
    """Raw observations to the value of the state."""

    def __init__(self, obs_dim: int, config: NetworkConfig, generator: torch.Generator) -> None:
        """Build the critic; see `Actor`."""
        super().__init__()
        self.normalizer = _normalizer(obs_dim, config)
        self.net = make_mlp(
            obs_dim,
            config.critic_hidden,
            1,
            activation=config.activation,
            out_gain=1.0,
            generator=generator,
        )

    def forward(self, obs: Tensor) -> Tensor:
        """Return values, shape ``(...)``, for raw observations ``(..., obs_dim)``."""
        return self.net(self.normalizer(obs)).squeeze(-1)


def _normalizer(obs_dim: int, config: NetworkConfig) -> nn.Module:
    """Build what stands between raw observations and a network."""
    if not config.normalize_obs:
        return nn.Identity()
    return RunningNormalizer(obs_dim, eps=config.norm_eps, clip=config.obs_clip)
