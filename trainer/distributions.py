"""The distributions of actions as values: a Gaussian, a squashed one, a Beta, categorical choices.

No `torch.distributions` objects: they check, expand and cache on every call, which costs more
than the arithmetic for action vectors of a robot. Everything is in closed form but the entropy of
a squashed Gaussian, which has none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from numpy.polynomial.hermite_e import hermegauss
from torch import Tensor
from torch.nn import functional

_LOG_2PI = math.log(2.0 * math.pi)

_EDGE = 1e-6
"""Samples of a Beta distribution keep this distance from 0 and 1, where its density may be 0."""

_NODES, _WEIGHTS = (array.tolist() for array in hermegauss(16))
"""Quadrature over a standard normal: exact to 1e-5 for deviations up to 1, to 3e-3 up to 2."""


class Distribution(Protocol):
    """A distribution of actions for each of some states, all of shape ``(..., dim)``.

    A *sample* is what is drawn and learned from. The action is what `trainer.networks.heads.Head`
    makes of it: for a squashed Gaussian the sample is what is squashed, because near the bounds it
    could not be recovered from the action.
    """

    def sample(self, generator: torch.Generator) -> Tensor:
        """Draw one sample per state, without gradient."""
        ...

    def log_prob(self, sample: Tensor) -> Tensor:
        """Return the log-density or log-probability of the actions of samples, shape ``(...)``."""
        ...

    def entropy(self) -> Tensor:
        """Return the entropy of the action, [nat], shape ``(...)``, or 0-d if always the same."""
        ...

    def kl(self, other: Any) -> Tensor:
        """Return KL(this || other), [nat], shape ``(...)``; exactly 0 for equal ones."""
        ...

    def shown(self) -> dict[str, Tensor]:
        """Return what to log of it, detached and 0-d, by name."""
        ...


def gaussian_log_prob(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return the log-density of `x` under independent normal distributions.

    Args:
        x: Where, shape ``(..., dim)``.
        mean: Means, shape ``(..., dim)``.
        std: Standard deviations above 0, shape ``(dim,)`` or ``(..., dim)``.

    Returns:
        Log-density summed over the last axis, shape ``(...)``.
    """
    z = (x - mean) / std
    log_norm = std.log().sum(-1) + 0.5 * x.shape[-1] * _LOG_2PI
    return -0.5 * z.square().sum(-1) - log_norm


def gaussian_entropy(std: Tensor) -> Tensor:
    """Return the differential entropy, [nat], summed over the last axis of `std`."""
    return std.log().sum(-1) + 0.5 * std.shape[-1] * (1.0 + _LOG_2PI)


def gaussian_kl(mean_p: Tensor, std_p: Tensor, mean_q: Tensor, std_q: Tensor) -> Tensor:
    """Return the divergence KL(p || q), [nat].

    Args:
        mean_p: Means of p, shape ``(..., dim)``.
        std_p: Standard deviations of p, shape ``(dim,)`` or ``(..., dim)``.
        mean_q: Means of q, shape ``(..., dim)``.
        std_q: Standard deviations of q, shape ``(dim,)`` or ``(..., dim)``.

    Returns:
        Divergence summed over the last axis, shape ``(...)``. Exactly 0 for p = q.
    """
    spread = ((std_p / std_q).square() - 1.0) * 0.5 + (std_q / std_p).log()
    shift = ((mean_p - mean_q) / std_q).square()
    return 0.5 * shift.sum(-1) + spread.sum(-1)


@dataclass(frozen=True, slots=True, eq=False)
class Gaussian:
    """Independent normal distributions.

    Attributes:
        mean: Means, shape ``(..., dim)``.
        std: Standard deviations, shape ``(dim,)`` or ``(..., dim)``.
    """

    mean: Tensor
    std: Tensor

    def sample(self, generator: torch.Generator) -> Tensor:
        """See `Distribution`."""
        noise = torch.randn(self.mean.shape, generator=generator, device=self.mean.device)
        return torch.addcmul(self.mean, noise, self.std)

    def log_prob(self, sample: Tensor) -> Tensor:
        """See `Distribution`."""
        return gaussian_log_prob(sample, self.mean, self.std)

    def entropy(self) -> Tensor:
        """See `Distribution`."""
        return gaussian_entropy(self.std)

    def kl(self, other: Gaussian) -> Tensor:
        """See `Distribution`."""
        return gaussian_kl(self.mean, self.std, other.mean, other.std)

    def shown(self) -> dict[str, Tensor]:
        """See `Distribution`."""
        return {"policy/std": self.std.detach().mean()}


@dataclass(frozen=True, slots=True, eq=False)
class SquashedGaussian:
    """``offset + scale * tanh(u)`` of normal u; a sample is u.

    Haarnoja et al. 2018, arXiv:1801.01290, appendix C. The divergence is that of the normal
    distributions, as squashing is invertible.

    Attributes:
        inner: The distribution of u.
        scale: Half the width of the action's interval, above 0.
    """

    inner: Gaussian
    scale: float

    def sample(self, generator: torch.Generator) -> Tensor:
        """See `Distribution`."""
        return self.inner.sample(generator)

    def log_prob(self, sample: Tensor) -> Tensor:
        """See `Distribution`."""
        stretch = _log_slope(sample).sum(-1) + sample.shape[-1] * math.log(self.scale)
        return self.inner.log_prob(sample) - stretch

    def entropy(self) -> Tensor:
        """Return that of u plus the expected logarithm of the slope, by Gauss-Hermite quadrature.

        It depends on the mean: an action near its bound has little entropy whatever the deviation.
        """
        mean, std = self.inner.mean, self.inner.std
        expected = torch.zeros_like(mean)
        total = sum(_WEIGHTS)
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            expected = expected + weight / total * _log_slope(mean + node * std)
        stretch = expected.sum(-1) + mean.shape[-1] * math.log(self.scale)
        return self.inner.entropy() + stretch

    def kl(self, other: SquashedGaussian) -> Tensor:
        """See `Distribution`."""
        return self.inner.kl(other.inner)

    def shown(self) -> dict[str, Tensor]:
        """See `Distribution`; the deviation is that of u."""
        return self.inner.shown()


@dataclass(frozen=True, slots=True, eq=False)
class Beta:
    """Independent Beta distributions, stretched to an interval; a sample lies in 0 ... 1.

    Chou et al. 2017, "Improving stochastic policy gradients in continuous control with deep
    reinforcement learning using the Beta distribution".

    Attributes:
        alpha: First parameters, shape ``(..., dim)``.
        beta: Second parameters, shape ``(..., dim)``.
        span: Width of the action's interval, above 0.
    """

    alpha: Tensor
    beta: Tensor
    span: float

    def sample(self, generator: torch.Generator) -> Tensor:
        """See `Distribution`."""
        both = torch.stack([self.alpha.detach(), self.beta.detach()], dim=-1)
        drawn = torch._sample_dirichlet(both, generator=generator)[..., 0]  # pyright: ignore
        return drawn.clamp(_EDGE, 1.0 - _EDGE)

    def log_prob(self, sample: Tensor) -> Tensor:
        """See `Distribution`."""
        inside = (self.alpha - 1.0) * sample.log() + (self.beta - 1.0) * torch.log1p(-sample)
        return (inside - _log_beta(self.alpha, self.beta) - math.log(self.span)).sum(-1)

    def entropy(self) -> Tensor:
        """See `Distribution`."""
        a, b = self.alpha, self.beta
        inside = (a - 1.0) * a.digamma() + (b - 1.0) * b.digamma()
        whole = (a + b - 2.0) * (a + b).digamma()
        return (_log_beta(a, b) - inside + whole + math.log(self.span)).sum(-1)

    def kl(self, other: Beta) -> Tensor:
        """See `Distribution`."""
        a, b = self.alpha, self.beta
        more_a, more_b = a - other.alpha, b - other.beta
        moved = more_a * a.digamma() + more_b * b.digamma()
        whole = (more_a + more_b) * (a + b).digamma()
        norm = _log_beta(other.alpha, other.beta) - _log_beta(a, b)
        return (norm + moved - whole).sum(-1)

    def shown(self) -> dict[str, Tensor]:
        """See `Distribution`; the deviation is that of the action."""
        a, b = self.alpha.detach(), self.beta.detach()
        std = (a * b / (a + b + 1.0)).sqrt() / (a + b)
        return {"policy/std": self.span * std.mean()}


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """Independent categorical choices; a sample is a vector of indices, as float32.

    Attributes:
        log_p: Log-probabilities of all choices, one after the other, ``(..., sum(sizes))``.
        sizes: How many there are to choose from each time.
    """

    log_p: Tensor
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, logits: Tensor, sizes: tuple[int, ...]) -> Choices:
        """Normalize logits, shape ``(..., sum(sizes))``."""
        parts = [part.log_softmax(-1) for part in logits.split(list(sizes), dim=-1)]
        return cls(torch.cat(parts, dim=-1), sizes)

    def sample(self, generator: torch.Generator) -> Tensor:
        """Draw by the Gumbel-max trick: one pass for all choices, nothing waits for the device."""
        noise = torch.empty_like(self.log_p).exponential_(generator=generator)
        return likeliest(self.log_p.detach() - noise.log(), self.sizes)

    def log_prob(self, sample: Tensor) -> Tensor:
        """See `Distribution`."""
        starts = [sum(self.sizes[:i]) for i in range(len(self.sizes))]
        places = sample.long() + torch.tensor(starts, device=sample.device)
        return self.log_p.gather(-1, places).sum(-1)

    def entropy(self) -> Tensor:
        """See `Distribution`."""
        return -(self.log_p.exp() * self.log_p).sum(-1)

    def kl(self, other: Choices) -> Tensor:
        """See `Distribution`."""
        return (self.log_p.exp() * (self.log_p - other.log_p)).sum(-1)

    def shown(self) -> dict[str, Tensor]:
        """See `Distribution`: the mean probability of the likeliest choice."""
        parts = self.log_p.detach().split(list(self.sizes), dim=-1)
        best = torch.stack([part.amax(-1).exp().mean() for part in parts])
        return {"policy/best_probability": best.mean()}


def likeliest(scores: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Return the index of the highest score of each choice, float32, ``(..., len(sizes))``."""
    parts = scores.split(list(sizes), dim=-1)
    return torch.stack([part.argmax(-1) for part in parts], dim=-1).to(torch.float32)


def _log_slope(u: Tensor) -> Tensor:
    """Return ``log(1 - tanh(u)^2)``, without cancellation where it is small."""
    return 2.0 * (math.log(2.0) - u - functional.softplus(-2.0 * u))


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    """Return the logarithm of Euler's beta function."""
    return a.lgamma() + b.lgamma() - (a + b).lgamma()
