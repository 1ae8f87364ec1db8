"""Adversarial motion priors (Peng et al. 2021, arXiv:2104.02180): a reward for moving alike.

A discriminator learns to tell transitions (s, s') of the policy from those of a reference motion.
Whatever it takes for the reference is rewarded.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from robot_runtime.errors import BadInput
from trainer.distributed import ALONE, Peers
from trainer.extensions.config import AmpConfig
from trainer.extensions.learner import Learner
from trainer.extensions.motion import Motion
from trainer.losses import Metrics
from trainer.networks.mlp import plain_activation
from trainer.normalizer import RunningNormalizer
from trainer.rollout import Rollout
from trainer.table import kept
from trainer.values import finite


class MotionPrior:
    """Mixes a style reward with the task's; a `trainer.extensions.seam.RewardExtension`.

    Nothing is learned or rewarded across the end of an episode: the last transition of one is
    (s, final observation). Where the environment gives no final observation there is no such
    transition; its style reward is 0 and it trains nobody.

    Attributes:
        groups: The observation group that is compared.
        states: Statistics of the features, of policy and reference alike.
        reference: Transitions of the motion, ``(count, 2 * dim)``.
    """

    def __init__(
        self,
        config: AmpConfig,
        motion: Motion,
        *,
        seed: int,
        device: torch.device,
        peers: Peers = ALONE,
    ) -> None:
        """Build the discriminator.

        Args:
            config: Settings.
            motion: The motion, with the features of the group and the time of a control step.
            seed: Seed of the discriminator and of the minibatches.
            device: Where everything lives.
            peers: Processes that learn together.
        """
        self._peers = peers
        self.config, self.groups = config, (config.group,)
        self.reference = torch.from_numpy(motion.transitions()).to(device)
        self._digest = motion.digest()
        dim = len(motion.names)
        generator = torch.Generator().manual_seed(seed)
        net = _discriminator(2 * dim, config.hidden, config.activation, generator).to(device)
        self._learner = Learner("amp", net, lr=config.learning_rate, seed=seed, peers=peers)
        self.states = RunningNormalizer(dim, eps=config.norm_eps, clip=config.clip).to(device)
        self._replay = torch.zeros(0, 2 * dim, device=device)

    @property
    def discriminator(self) -> nn.Module:
        """The network that tells policy from reference: -1 from 1."""
        return self._learner.net

    @torch.no_grad()
    def mix(self, rollout: Rollout, valid: Tensor | None) -> tuple[Tensor, Metrics]:
        """Return both rewards, weighted; see `RewardExtension.mix`."""
        used = self._used(rollout, valid)
        pairs = self._pairs(rollout)
        self._learn_statistics(kept(pairs, used))
        style = style_reward(self._judge(pairs)) * _known(rollout)
        reward = self.config.task_weight * rollout.reward + self.config.style_weight * style
        return reward, {"amp/style": kept(style.unsqueeze(-1), used).mean()}

    def update(self, rollout: Rollout, valid: Tensor | None) -> Metrics:
        """Train the discriminator; see `RewardExtension.update`."""
        config, learner = self.config, self._learner
        fresh = kept(self._pairs(rollout), self._used(rollout, valid))
        if not self._peers.any(len(fresh) > 0):
            return {}
        pool = torch.cat([fresh, self._remembered(len(fresh))])
        steps: list[Metrics] = []
        for rows in learner.minibatches(
            len(pool), epochs=config.epochs, minibatches=config.minibatches
        ):
            reference = self.reference[self._draw(len(self.reference), len(rows))]
            loss, metrics = self._loss(pool[rows], reference)
            metrics["amp/grad_norm"] = learner.step(loss, len(rows))
            steps.append(metrics)
        self._remember(fresh)
        means = {name: torch.stack([step[name] for step in steps]).mean() for name in steps[0]}
        return means | learner.finish()

    def parameters(self) -> list[nn.Parameter]:
        """Return the discriminator's parameters."""
        return self._learner.parameters()

    def named_tensors(self) -> dict[str, Tensor]:
        """Return discriminator, moments and statistics; every process remembers for itself."""
        statistics = {f"states.{key}": value for key, value in self.states.state_dict().items()}
        return self._learner.named_tensors() | statistics

    def state_dict(self) -> dict[str, Any]:
        """Return discriminator, optimizer, statistics and the remembered transitions."""
        return {
            "motion": self._digest,
            "learner": self._learner.state_dict(),
            "states": self.states.state_dict(),
            "replay": self._replay,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was called; see `RewardExtension.load_state_dict`.

        Raises:
            BadInput: It was trained against another motion.
        """
        if state["motion"] != self._digest:
            raise BadInput(
                f"amp.motion = {self.config.motion}: the run to be resumed was trained against "
                "another motion"
            )
        self._learner.load_state_dict(state["learner"])
        self.states.load_state_dict(state["states"])
        self._replay = state["replay"].to(self._replay.device)

    def _loss(self, policy: Tensor, reference: Tensor) -> tuple[Tensor, Metrics]:
        """Return the loss of the discriminator on raw transitions, ``(B, 2 * dim)`` each."""
        net = self.discriminator
        policy, reference = self._normalized(policy), self._normalized(reference)
        of_policy, of_reference = net(policy).squeeze(-1), net(reference).squeeze(-1)
        error = least_squares(of_policy, of_reference)
        penalty = gradient_penalty(net, reference)
        loss = error + 0.5 * self.config.gradient_penalty * penalty
        return loss, {
            "loss/amp": error.detach(),
            "loss/amp_gradient": penalty.detach(),
            "amp/of_policy": of_policy.detach().mean(),
            "amp/of_reference": of_reference.detach().mean(),
        }

    def _pairs(self, rollout: Rollout) -> Tensor:
        """Return the transitions, raw, ``(T, N, 2 * dim)``."""
        before, after = rollout.obs[self.config.group][:-1], rollout.reached(self.groups)
        return finite(torch.cat([before, after], dim=-1))

    def _used(self, rollout: Rollout, valid: Tensor | None) -> Tensor:
        """Return which transitions count, bool, ``(T, N)``."""
        known = _known(rollout)
        return known if valid is None else known & valid

    def _normalized(self, pairs: Tensor) -> Tensor:
        return self.states(pairs.unflatten(-1, (2, -1))).flatten(-2)

    def _judge(self, pairs: Tensor) -> Tensor:
        return self.discriminator(self._normalized(pairs)).squeeze(-1)

    def _learn_statistics(self, pairs: Tensor) -> None:
        """Learn from the states of some transitions and from as many of the reference."""
        dim = pairs.shape[-1] // 2
        drawn = self.reference[self._draw(len(self.reference), len(pairs))]
        both = torch.cat([pairs[:, :dim], drawn[:, :dim]])
        self.states.update(both, peers=self._peers)

    def _remembered(self, count: int) -> Tensor:
        """Return `count` transitions of earlier policies, none if there are none."""
        if not len(self._replay):
            return self._replay
        return self._replay[self._draw(len(self._replay), count)]

    def _remember(self, pairs: Tensor) -> None:
        """Put transitions into the replay buffer, in place of any others once it is full."""
        size = self.config.replay
        if size:
            together = torch.cat([self._replay, pairs])
            order = torch.randperm(
                len(together), generator=self._learner.generator, device=pairs.device
            )
            self._replay = together[order[:size]]

    def _draw(self, size: int, count: int) -> Tensor:
        """Return `count` random rows of `size`."""
        generator, device = self._learner.generator, self.reference.device
        return torch.randint(size, (count,), generator=generator, device=device)


def style_reward(judged: Tensor) -> Tensor:
    """Return ``max(0, 1 - (D - 1)^2 / 4)``, eq. 7 of the paper.

    Args:
        judged: What the discriminator says, any shape.
    """
    return (1.0 - 0.25 * (judged - 1.0).square()).clamp(min=0.0)


def least_squares(of_policy: Tensor, of_reference: Tensor) -> Tensor:
    """Return ``E[(D(reference) - 1)^2] + E[(D(policy) + 1)^2]``, eq. 6 of the paper, 0-d.

    Args:
        of_policy: What the discriminator says of the policy, ``(B,)``.
        of_reference: The same of the reference, ``(B,)``.
    """
    return (of_reference - 1.0).square().mean() + (of_policy + 1.0).square().mean()


def gradient_penalty(net: nn.Module, x: Tensor) -> Tensor:
    """Return the mean squared norm of the gradient of a network at `x`, eq. 8 of the paper, 0-d.

    Args:
        net: A network with one output, twice differentiable by autograd.
        x: Its inputs, ``(B, dim)``.
    """
    x = x.detach().requires_grad_(True)
    (gradient,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    return gradient.square().sum(-1).mean()


def _known(rollout: Rollout) -> Tensor:
    """Return where it is known what a step led to, bool, ``(T, N)``."""
    return torch.ones_like(rollout.ended) if rollout.last else ~rollout.ended


def _discriminator(
    in_dim: int, hidden: Sequence[int], activation: str, generator: torch.Generator
) -> nn.Sequential:
    """Build a network of plain layers: those of `trainer.networks.mlp` cannot be derived twice."""
    widths = [in_dim, *hidden, 1]
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(widths):
        layer = nn.Linear(n_in, n_out, device="meta").to_empty(device="cpu")
        nn.init.orthogonal_(layer.weight, gain=2.0**0.5 if n_out != 1 else 1.0, generator=generator)
        nn.init.zeros_(layer.bias)
        layers += [layer, plain_activation(activation)]
    return nn.Sequential(*layers[:-1])
