"""The policy that a runner hands out for inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from robot_runtime.errors import BadInput
from trainer.envs.rsl_rl_groups import compose, is_dict
from trainer.networks.actor_critic import ACTOR_GROUP


class InferencePolicy(nn.Module):
    """Observations, in whatever form the environment gives them, to mean actions."""

    def __init__(
        self, actor: nn.Module, sets: Mapping[str, Sequence[str]], device: torch.device
    ) -> None:
        """Take the actor and which observation groups it sees.

        Args:
            actor: Raw observations ``(N, dim)`` to mean actions.
            sets: Observation groups by set; the actor's is called `policy`.
            device: Where it runs.
        """
        super().__init__()
        self.actor = actor.to(device).eval()
        self._members = {ACTOR_GROUP: list(sets[ACTOR_GROUP])}
        self._device = device

    @torch.no_grad()
    def forward(self, obs: Any) -> Tensor:
        """Return mean actions, ``(N, num_actions)``.

        Args:
            obs: Observation groups by name (a dict or TensorDict), or what the actor sees as one
                tensor, ``(N, dim)``.

        Raises:
            BadInput: A group is missing.
        """
        if is_dict(obs):
            groups = dict(obs.items())
            composed = compose(groups, self._members)
            if ACTOR_GROUP not in composed:
                raise BadInput(
                    f"the policy sees the groups {self._members[ACTOR_GROUP]}; given were "
                    f"{sorted(groups)}"
                )
            obs = composed[ACTOR_GROUP]
        return self.actor(obs.to(self._device, torch.float32))

    def reset(self, dones: Tensor | None = None) -> None:
        """Forget what episodes that ended have left behind; without recurrent layers, nothing."""
