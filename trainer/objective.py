"""What an update minimizes: PPO's losses and the mirror loss, of one minibatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trainer.batch import Minibatch
from trainer.config import InvalidSetting, PPOConfig
from trainer.distributions import Distribution
from trainer.losses import (
    AuxiliaryLoss,
    Metrics,
    entropy_loss,
    mirror_loss,
    surrogate_loss,
    value_loss,
)
from trainer.networks.actor_critic import Actor, Critic
from trainer.networks.body import features
from trainer.networks.head import Constants
from trainer.symmetry import Mirror


class Objective:
    """The loss of a minibatch, with the networks that it is a loss of."""

    def __init__(
        self, actor: Actor, critic: Critic, *, config: PPOConfig, mirror: Mirror | None
    ) -> None:
        """Take the networks.

        Args:
            actor: The actor.
            critic: The critic.
            config: Settings.
            mirror: The reflection of actions; None where mirror images are not used.

        Raises:
            InvalidSetting: There is no such backend to compile with.
        """
        self._actor, self._critic, self._config, self._mirror = actor, critic, config, mirror
        self._actor_net: Callable[[Tensor], Tensor] = actor.net
        self._critic_net: Callable[[Tensor], Tensor] = critic.net
        self._auxiliary: dict[nn.Module, list[Any]] = {
            network: [part for part in network.modules() if hasattr(part, "auxiliary_losses")]
            for network in (actor, critic)
        }
        if config.compile_backend:
            known = torch.compiler.list_backends(exclude_tags=())
            if config.compile_backend not in known:
                raise InvalidSetting(
                    f"ppo.compile_backend = '{config.compile_backend}': torch.compile has: "
                    f"{', '.join(sorted(known))}"
                )
            # Only the handles are compiled: the modules keep their names in every checkpoint.
            self._actor_net = torch.compile(actor.net, backend=config.compile_backend)
            self._critic_net = torch.compile(critic.net, backend=config.compile_backend)

    def __call__(self, data: Minibatch, old_constants: Constants) -> tuple[Tensor, Metrics]:
        """Return the loss of some samples.

        Args:
            data: The samples and, where mirror images are used, as many images after them.
            old_constants: `Head.constants` when the actions were sampled.
        """
        config, mirror, head = self._config, self._mirror, self._actor.distribution
        count = data.action.shape[0] // (1 if mirror is None else 2)
        seen = features(self._actor, data.actor_in)
        outputs = self._actor_net(seen)
        constants = head.constants()
        with torch.no_grad():
            old = head.distribution(data.old_outputs[:count], old_constants)
            new = head.distribution(outputs[:count], constants)
            metrics = {"policy/kl": old.kl(new).mean(), **new.shown()}
        # Outputs for the images are at hand for the mirror loss even where nothing else uses them.
        all_learned = mirror is None or config.symmetry.augment
        learned = data if all_learned else data.head(count)
        rows = learned.action.shape[0]
        policy = head.distribution(outputs[:rows], constants)
        loss = self._ppo_loss(learned, policy, seen[:rows], metrics)
        if mirror is not None:
            action = head.deterministic(outputs)
            term, more = mirror_loss(action[:count], action[count:], mirror)
            metrics |= more
            loss = loss + config.symmetry.mirror_coef * term
        return loss, metrics

    def _ppo_loss(
        self, data: Minibatch, policy: Distribution, seen: Tensor, metrics: Metrics
    ) -> Tensor:
        """Return the sum of PPO's losses, eq. 9 of the paper, and add to `metrics`.

        Args:
            data: The samples.
            policy: What the actor would do now.
            seen: What the actor's last layers see.
            metrics: What is measured.
        """
        config, critic = self._config, self._critic
        log_prob = policy.log_prob(data.action)
        shared = critic.body is self._actor
        critic_seen = seen if shared else features(critic.body, data.critic_in)
        value = self._critic_net(critic_seen).squeeze(-1)
        surrogate, of_surrogate = surrogate_loss(
            log_prob, data.old_log_prob, data.advantage, clip=config.clip
        )
        error, of_value = value_loss(value, data.old_value, data.returns, clip=config.value_clip)
        disorder, of_entropy = entropy_loss(policy.entropy())
        metrics |= of_surrogate | of_value | of_entropy
        loss = surrogate + config.value_coef * error + config.entropy_coef * disorder
        for part, of_part in ((self._actor, seen), (critic, critic_seen)):
            for coef, term in self._auxiliary_losses(part, of_part, data, metrics):
                loss = loss + coef * term
        return loss

    def _auxiliary_losses(
        self, network: Actor | Critic, seen: Tensor, data: Minibatch, metrics: Metrics
    ) -> list[AuxiliaryLoss]:
        """Return the losses that parts of a network bring along, and add to `metrics`."""
        losses: dict[str, AuxiliaryLoss] = {}
        for part in self._auxiliary[network]:
            losses |= part.auxiliary_losses(seen, data)
        metrics |= {f"loss/{name}": one.loss.detach() for name, one in losses.items()}
        return list(losses.values())
