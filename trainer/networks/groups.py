"""Which observation groups each network sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.network_config import NetworkConfig
from trainer.settings import InvalidSetting
from trainer.symmetry import Mirror

ACTOR_GROUP = "policy"
"""The observation group the actor sees if nothing else is said: what the robot can measure."""


def critic_group(obs_dims: Mapping[str, int]) -> str:
    """Return the group the critic sees if nothing else is said: `critic` where there is one."""
    return "critic" if "critic" in obs_dims else ACTOR_GROUP


@dataclass(frozen=True, kw_only=True, slots=True)
class Groups:
    """Observation groups by network; where there are several, one network sees them joined.

    Attributes:
        actor: What the actor sees.
        critic: What the critic sees.
    """

    actor: tuple[str, ...]
    critic: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """Every group that some network sees."""
        return tuple(dict.fromkeys((*self.actor, *self.critic)))


def groups_of(config: NetworkConfig, obs_dims: Mapping[str, int]) -> Groups:
    """Return what each network sees in an environment with these groups.

    Raises:
        InvalidSetting: A setting names a group that is not there.
    """
    for setting in ("actor_groups", "critic_groups", "raw_groups"):
        for name in getattr(config, setting):
            _check_known(f"network.{setting}", name, obs_dims)
    for encoder in config.encoders:
        _check_known("network.encoders", encoder.group, obs_dims)
    actor = config.actor_groups or (ACTOR_GROUP,)
    critic = config.critic_groups or (critic_group(obs_dims),)
    return Groups(actor=actor, critic=actor if config.shared else critic)


def observed(obs: Mapping[str, Tensor], names: tuple[str, ...]) -> Tensor:
    """Return some groups joined, ``(..., dim)``; one alone is not copied."""
    if len(names) == 1:
        return obs[names[0]]
    return torch.cat([obs[name] for name in names], dim=-1)


def joined_mirror(mirrors: Mapping[str, Mirror], names: tuple[str, ...]) -> Mirror:
    """Return the reflection of some groups joined."""
    return mirrors[names[0]] if len(names) == 1 else Mirror.joined([mirrors[n] for n in names])


def _check_known(setting: str, name: str, obs_dims: Mapping[str, int]) -> None:
    if name not in obs_dims:
        raise InvalidSetting(
            f"{setting} names the observation group '{name}'; the environment gives: "
            f"{', '.join(obs_dims)}"
        )
