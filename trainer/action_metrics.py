"""What there is to know about the actions of a rollout: spread, saturation, symmetry."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.envs.action_space import ActionSpace
from trainer.networks.actor_critic import Actor
from trainer.networks.groups import joined_mirror, observed
from trainer.networks.policy import DeterministicPolicy
from trainer.rollout import Rollout
from trainer.symmetry import MirrorTable


class ActionMetrics:
    """Measures the actions of rollouts; nothing is drawn and nothing that is learned changes."""

    def __init__(
        self,
        space: ActionSpace,
        groups: Sequence[str],
        symmetry: MirrorTable | None,
        device: torch.device,
    ) -> None:
        """Take what does not change.

        Args:
            space: The actions; nothing is measured of discrete ones.
            groups: Observation groups that the actor sees.
            symmetry: The mirror table; None where there is none.
            device: Where the rollouts are.
        """
        self._space = space
        self._groups = tuple(groups)
        self._names = space.names or [str(i) for i in range(space.num_actions)]
        self._mirror = None
        if symmetry is not None and all(name in symmetry.obs for name in groups):
            obs = joined_mirror(symmetry.obs, self._groups)
            self._mirror = (obs.to(device), symmetry.action.to(device))
        self._bounds: tuple[Tensor, Tensor] | None = None
        if space.bounds is not None:
            low, high = (torch.tensor(bound, device=device) for bound in space.bounds)
            self._bounds = (low, high)

    @torch.no_grad()
    def measure(self, actor: Actor, rollout: Rollout, valid: Tensor | None) -> dict[str, Tensor]:
        """Measure a rollout that `actor` has sampled.

        Args:
            actor: The actor, unchanged since.
            rollout: The rollout.
            valid: False where a sample is excluded, bool ``(T, N)``; None: none is.

        Returns:
            0-d tensors: ``std/NAME``, the deviation of each action from the one without
            exploration; ``policy/saturation`` and ``saturation/NAME``, the share of actions at or
            beyond the bounds of the action space; ``policy/symmetry_error``, the distance between
            the action of a mirrored observation and the mirrored action, raw action units.
        """
        if self._space.kind != "continuous":
            return {}
        head = actor.distribution
        action, aim = head.action(rollout.action), head.deterministic(rollout.outputs)
        if valid is not None:
            action, aim = action[valid], aim[valid]
        action, aim = action.flatten(0, -2), aim.flatten(0, -2)
        std = (action - aim).square().mean(0).sqrt()
        metrics = self._named("std", std)
        if self._bounds is not None:
            low, high = self._bounds
            share = ((action <= low) | (action >= high)).float().mean(0)
            metrics |= {"policy/saturation": share.mean(), **self._named("saturation", share)}
        if self._mirror is not None:
            metrics["policy/symmetry_error"] = self._symmetry_error(actor, rollout)
        return metrics

    def _symmetry_error(self, actor: Actor, rollout: Rollout) -> Tensor:
        """Root mean square over the robots of one step; a memory begins anew for both images."""
        assert self._mirror is not None
        of_obs, of_action = self._mirror
        obs = observed(rollout.obs, self._groups)[0].nan_to_num(0.0, 0.0, 0.0)
        straight = DeterministicPolicy(actor)(obs)
        mirrored = DeterministicPolicy(actor)(of_obs.apply(obs))
        return (mirrored - of_action.apply(straight)).square().mean().sqrt()

    def _named(self, prefix: str, values: Tensor) -> dict[str, Tensor]:
        pairs = zip(self._names, values.unbind(), strict=True)
        return {f"{prefix}/{name}": value for name, value in pairs}
