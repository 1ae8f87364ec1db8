"""The losses of PPO, each a pure function that returns ``(loss, metrics)``.

Every loss is the mean over the samples it is given, 0-d; metrics are detached 0-d tensors.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trainer.symmetry import Mirror

Metrics = dict[str, Tensor]


class AuxiliaryLoss(NamedTuple):
    """A loss that a network brings along.

    A module inside an actor or a critic that has a method ``auxiliary_losses(seen, data)`` adds
    what it returns, ``Mapping[str, AuxiliaryLoss]``, to the loss of every minibatch: `seen` is what
    the last layers see of the samples, ``(rows, width)``, with its gradient, `data` the
    `trainer.batch.Minibatch`.

    Attributes:
        coef: Its weight.
        loss: The mean over the samples, 0-d.
    """

    coef: float
    loss: Tensor


LOG_RATIO_BOUND = 20.0
"""Bound of log pi / pi_old: exp of it is far outside any clip, and still far from overflow."""


def surrogate_loss(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, *, clip: float
) -> tuple[Tensor, Metrics]:
    """Return the clipped surrogate loss, eq. 7 of arXiv:1707.06347, with its sign for descent.

    Args:
        log_prob: log pi(a_t | s_t) of the sampled actions, shape ``(B,)``.
        old_log_prob: The same under the policy that sampled them, shape ``(B,)``.
        advantage: Advantages, shape ``(B,)``.
        clip: Bound of the ratio's distance to 1.
    """
    ratio = (log_prob - old_log_prob).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
    bounded = ratio.clamp(1.0 - clip, 1.0 + clip)
    loss = -torch.min(advantage * ratio, advantage * bounded).mean()
    with torch.no_grad():
        clipped = (ratio != bounded).float().mean()
    return loss, {"loss/surrogate": loss.detach(), "policy/clip_fraction": clipped}


def value_loss(
    value: Tensor, old_value: Tensor, returns: Tensor, *, clip: float | None
) -> tuple[Tensor, Metrics]:
    """Return the mean squared error of the value, pessimistically clipped around the old value.

    Args:
        value: V(s_t), shape ``(B,)``.
        old_value: V(s_t) when the rollout was taken, shape ``(B,)``.
        returns: Targets, shape ``(B,)``.
        clip: Bound of ``|value - old_value|``, beyond which only a larger error counts; None: off.
    """
    error = (value - returns).square()
    if clip is not None:
        bounded = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.max(error, (bounded - returns).square())
    loss = error.mean()
    return loss, {"loss/value": loss.detach()}


def entropy_loss(entropy: Tensor) -> tuple[Tensor, Metrics]:
    """Return minus the mean entropy of the action distributions, [nat].

    Args:
        entropy: Their entropies, shape ``(B,)``, or 0-d if it is always the same.
    """
    entropy = entropy.mean()
    return -entropy, {"policy/entropy": entropy.detach()}


def mirror_loss(mean: Tensor, mean_of_mirrored: Tensor, mirror: Mirror) -> tuple[Tensor, Metrics]:
    """Return how far the policy is from symmetric: the mean squared error of its mirrored means.

    The images of the means are targets and pass no gradient (as in rsl_rl); both means come from
    the forward pass that the other losses use, so this costs no second one.

    Args:
        mean: Actions without exploration for the observations, shape ``(B, num_actions)``.
        mean_of_mirrored: The same for the mirrored observations, shape ``(B, num_actions)``.
        mirror: The reflection of actions.
    """
    loss = (mean_of_mirrored - mirror.apply(mean.detach())).square().mean()
    return loss, {"loss/mirror": loss.detach()}


def explained_variance(value: Tensor, returns: Tensor) -> Tensor:
    """Return ``1 - var(returns - value) / var(returns)``, 0-d: 1 is perfect, 0 a constant's worth.

    Args:
        value: V(s_t), shape ``(B,)``.
        returns: Targets, shape ``(B,)``.
    """
    spread = returns.var(correction=0)
    return 1.0 - (returns - value).var(correction=0) / spread.clamp(min=1e-12)
