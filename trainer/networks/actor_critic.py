"""The actor and the critic: a normalizer, a network and, for the actor, a distribution."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from trainer.envs.action_space import ActionSpace
from trainer.network_config import NetworkConfig
from trainer.networks.head import Head
from trainer.networks.heads import make_head
from trainer.networks.mlp import make_mlp
from trainer.normalizer import RunningNormalizer

ACTOR_GROUP = "policy"
"""The observation group the actor sees: what the robot can measure."""


def critic_group(obs_dims: Mapping[str, int]) -> str:
    """Return the observation group the critic sees: `critic` where there is one."""
    return "critic" if "critic" in obs_dims else ACTOR_GROUP


class Actor(nn.Module):
    """Raw observations to the action without exploration: an encoder and a head.

    Attributes:
        normalizer: Raw to normalized observations.
        net: Normalized observations to the numbers that the head reads. The update calls it
            directly, because the normalizer is frozen then and its output is computed once per
            rollout.
        distribution: The head: those numbers to a distribution of actions.
    """

    def __init__(
        self,
        obs_dim: int,
        actions: ActionSpace | int,
        config: NetworkConfig,
        generator: torch.Generator,
    ) -> None:
        """Build the actor with small first actions.

        Args:
            obs_dim: Length of the group `policy`.
            actions: What the environment takes; a number is the length of a continuous action.
            config: Shape and start.
            generator: Source of the random weights, on the CPU.
        """
        super().__init__()
        if isinstance(actions, int):
            actions = ActionSpace(kind="continuous", num_actions=actions)
        head = make_head(actions, config)
        self.normalizer = _normalizer(obs_dim, config)
        self.net = make_mlp(
            obs_dim,
            config.actor_hidden,
            head.num_outputs,
            activation=config.activation,
            out_gain=0.01,
            generator=generator,
        )
        self.distribution: Head = head

    def outputs(self, obs: Tensor) -> Tensor:
        """Return what the head reads, ``(..., num_outputs)``, for raw ``(..., obs_dim)``."""
        return self.net(self.normalizer(obs))

    def forward(self, obs: Tensor) -> Tensor:
        """Return actions without exploration, ``(..., num_actions)``, for raw observations."""
        return self.distribution.deterministic(self.outputs(obs))


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
