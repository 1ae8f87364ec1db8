"""The policy that a runner hands out for inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from robot_runtime.errors import BadInput
from trainer.envs.rsl_rl_groups import compose, is_dict
from trainer.networks.actor_critic import ACTOR_GROUP, Actor
from trainer.networks.policy import DeterministicPolicy


class InferencePolicy(nn.Module):
    """Observations, in whatever form the environment gives them, to mean actions.

    With recurrent layers it remembers, one row per environment, apart from what the training
    remembers.
    """

    def __init__(
        self,
        actor: Actor,
        sets: Mapping[str, Sequence[str]],
        device: torch.device,
        seen: Sequence[str] = (),
    ) -> None:
        """Take the actor and which observation groups it sees.

        Args:
            actor: The actor.
            sets: Observation groups by set; the actor's is called `policy`.
            device: Where it runs.
            seen: Sets that the actor sees, joined; empty: `policy`.
        """
        super().__init__()
        self.actor = actor.to(device).eval()
        self._members = {name: list(sets[name]) for name in seen or (ACTOR_GROUP,)}
        self._device = device
        self._policy, self._rows = DeterministicPolicy(actor), 0

    @torch.no_grad()
    def forward(self, obs: Any) -> Tensor:
        """Return mean actions, ``(N, num_actions)``.

        Args:
            obs: Observation groups by name (a dict or TensorDict), or what the actor sees as one
                tensor, ``(N, dim)``.

        Raises:
            BadInput: A group is missing, or what is remembered is of another number of
                environments.
        """
        if is_dict(obs):
            groups = dict(obs.items())
            composed = compose(groups, self._members)
            if len(composed) != len(self._members):
                names = [name for members in self._members.values() for name in members]
                raise BadInput(f"the policy sees the groups {names}; given were {sorted(groups)}")
            obs = torch.cat(list(composed.values()), dim=-1)
        obs = obs.to(self._device, torch.float32)
        if self.actor.rnn is not None and self._rows not in (0, len(obs)):
            raise BadInput(
                f"the policy remembers {self._rows} environments and sees {len(obs)}: call reset()"
            )
        self._rows = len(obs)
        return self._policy(obs)

    def reset(self, dones: Tensor | None = None) -> None:
        """Forget what episodes that ended have left behind; without recurrent layers, nothing.

        Args:
            dones: Not 0 where an episode ended, ``(N,)`` of any type; None: everywhere.
        """
        if dones is None:
            self._rows = 0
        self._policy.reset(None if dones is None else dones.reshape(-1) > 0)
