"""Distributions of actions against torch.distributions, sampling, and the number line's ends."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch import distributions as oracle

from trainer.distributions import (
    Beta,
    Choices,
    Gaussian,
    SquashedGaussian,
    gaussian_entropy,
    gaussian_kl,
    gaussian_log_prob,
)

SIZES = (3, 2, 5)


def draw(seed: int, dim: int = 4, rows: int = 50) -> Tensor:
    """Normal numbers in double precision, so that nothing but rounding differs."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(rows, dim, generator=g, dtype=torch.float64)


def squashed(seed: int, low: float = -2.0, high: float = 3.0) -> tuple[Any, Any]:
    mean, std = draw(seed), draw(seed + 50).exp().clamp(0.05, 0.8)
    transforms = [
        oracle.TanhTransform(cache_size=1),
        oracle.AffineTransform((low + high) / 2.0, (high - low) / 2.0, cache_size=1),
    ]
    theirs = oracle.TransformedDistribution(oracle.Normal(mean, std), transforms)
    return SquashedGaussian(Gaussian(mean, std), (high - low) / 2.0), theirs


def beta(seed: int, low: float = -2.0, high: float = 3.0) -> tuple[Beta, Any]:
    a, b = 1.0 + draw(seed).exp(), 1.0 + draw(seed + 50).exp()
    theirs = oracle.TransformedDistribution(
        oracle.Beta(a, b), [oracle.AffineTransform(low, high - low)]
    )
    return Beta(a, b, high - low), theirs


def choices(seed: int) -> tuple[Choices, list[oracle.Categorical]]:
    logits = 2.0 * draw(seed, sum(SIZES))
    parts = logits.split(list(SIZES), dim=-1)
    return Choices.of(logits, SIZES), [oracle.Categorical(logits=part) for part in parts]


def kl(a: Any, b: Any) -> Tensor:
    return oracle.kl_divergence(a, b).sum(-1)


@pytest.mark.parametrize("wide", [False, True])
def test_a_gaussian_is_that_of_torch(wide: bool) -> None:
    """Its deviation may be one for all states, or one for each."""
    std, other_std = (draw(seed).exp() + 0.1 for seed in (2, 3))
    if not wide:
        std, other_std = std[0], other_std[0]
    p, q = Gaussian(draw(0), std), Gaussian(draw(1), other_std)
    theirs, other = oracle.Normal(p.mean, p.std), oracle.Normal(q.mean, q.std)
    x = draw(4)
    torch.testing.assert_close(p.log_prob(x), theirs.log_prob(x).sum(-1))
    torch.testing.assert_close(gaussian_log_prob(x, p.mean, std), p.log_prob(x))
    torch.testing.assert_close(p.entropy().expand(50), theirs.entropy().sum(-1))
    torch.testing.assert_close(gaussian_entropy(std), p.entropy())
    torch.testing.assert_close(p.kl(q), kl(theirs, other))
    torch.testing.assert_close(gaussian_kl(p.mean, std, q.mean, other_std), p.kl(q))


def test_a_squashed_gaussian_is_that_of_torch() -> None:
    ours, theirs = squashed(0)
    other, _ = squashed(1)
    u = draw(2).clamp(-3.0, 3.0)  # beyond, the oracle inverts tanh and loses digits
    action = 0.5 + 2.5 * torch.tanh(u)
    torch.testing.assert_close(ours.log_prob(u), theirs.log_prob(action).sum(-1))
    inner = oracle.Normal(ours.inner.mean, ours.inner.std)
    torch.testing.assert_close(
        ours.kl(other), kl(inner, oracle.Normal(other.inner.mean, other.inner.std))
    )
    # There is no closed form: against a million draws, whose error is about 1e-3.
    one, of_one = SquashedGaussian(Gaussian(ours.inner.mean[0], ours.inner.std[0]), 2.5), theirs
    torch.manual_seed(0)
    drawn = inner.sample((200_000,))[:, 0]
    sampled = -of_one.log_prob(0.5 + 2.5 * torch.tanh(drawn).unsqueeze(1)).sum(-1)[:, 0].mean()
    assert float(one.entropy()) == pytest.approx(float(sampled), abs=0.02)


def test_a_squashed_sample_far_out_keeps_a_finite_probability() -> None:
    policy = SquashedGaussian(Gaussian(torch.tensor([[0.0]]), torch.tensor([1.0])), 1.0)
    far = torch.tensor([[30.0]])  # tanh of it is 1 in float32: the action alone says nothing
    # Normal: -450 - log(2 pi) / 2; slope of tanh: 4 exp(-60).
    expected = -450.0 - 0.5 * math.log(2 * math.pi) - (math.log(4.0) - 60.0)
    assert float(policy.log_prob(far)) == pytest.approx(expected, rel=1e-6)


def test_a_beta_is_that_of_torch() -> None:
    ours, theirs = beta(0)
    other, _ = beta(1)
    x = torch.sigmoid(draw(2))
    torch.testing.assert_close(ours.log_prob(x), theirs.log_prob(-2.0 + 5.0 * x).sum(-1))
    bases = [oracle.Beta(p.alpha, p.beta) for p in (ours, other)]
    torch.testing.assert_close(ours.kl(other), kl(*bases))
    stretched = bases[0].entropy().sum(-1) + 4 * math.log(5.0)
    torch.testing.assert_close(ours.entropy(), stretched)
    assert float(ours.shown()["policy/std"]) == pytest.approx(float(5.0 * bases[0].stddev.mean()))


def test_choices_are_those_of_torch() -> None:
    ours, theirs = choices(0)
    other, of_other = choices(1)
    index = torch.stack([p.sample() for p in theirs], dim=-1)
    log_prob = sum(p.log_prob(index[:, i]) for i, p in enumerate(theirs))
    torch.testing.assert_close(ours.log_prob(index.float()), log_prob)
    torch.testing.assert_close(ours.entropy(), sum(p.entropy() for p in theirs))
    divergence = sum(oracle.kl_divergence(p, q) for p, q in zip(theirs, of_other, strict=True))
    torch.testing.assert_close(ours.kl(other), divergence)
    best = torch.stack([p.probs.amax(-1) for p in theirs]).mean()
    assert float(ours.shown()["policy/best_probability"]) == pytest.approx(float(best))


@pytest.mark.parametrize("kind", ["gaussian", "squashed", "beta", "choices"])
def test_the_divergence_from_itself_is_exactly_zero(kind: str) -> None:
    p: Any = {
        "gaussian": lambda: Gaussian(draw(0).float(), draw(1)[0].exp().float()),
        "squashed": lambda: squashed(0)[0],
        "beta": lambda: beta(0)[0],
        "choices": lambda: choices(0)[0],
    }[kind]()
    assert (p.kl(p) == 0.0).all()


def repeated(p: Any, count: int) -> Any:
    """The same distribution in many rows."""
    if isinstance(p, SquashedGaussian):
        return SquashedGaussian(repeated(p.inner, count), p.scale)
    if isinstance(p, Gaussian):
        return Gaussian(p.mean[:1].repeat(count, 1), p.std[:1].repeat(count, 1))
    if isinstance(p, Beta):
        return Beta(p.alpha[:1].repeat(count, 1), p.beta[:1].repeat(count, 1), p.span)
    return Choices(p.log_p[:1].repeat(count, 1), p.sizes)


def test_samples_come_from_the_generator_and_have_the_right_moments() -> None:
    """40000 draws: their means lie within 4 standard errors, some 0.02 deviations."""
    torch.manual_seed(0)
    a, b = beta(0)[0].alpha[0], beta(0)[0].beta[0]
    probs = torch.cat([p.probs[0] for p in choices(0)[1]])
    hot = [torch.nn.functional.one_hot(torch.arange(n), n).double() for n in SIZES]
    for p, mean, std in (
        (squashed(0)[0], squashed(0)[0].inner.mean[0], squashed(0)[0].inner.std[0]),
        (beta(0)[0], a / (a + b), (a * b / (a + b + 1.0)).sqrt() / (a + b)),
        (choices(0)[0], probs, (probs * (1 - probs)).sqrt()),
    ):
        many = repeated(p, 40_000)
        drawn = many.sample(torch.Generator().manual_seed(7))
        again = many.sample(torch.Generator().manual_seed(7))
        assert torch.equal(drawn, again)
        if isinstance(p, Choices):
            drawn = torch.cat([h[drawn[:, i].long()] for i, h in enumerate(hot)], dim=-1)
        assert ((drawn.double().mean(0) - mean).abs() < 0.02 * std).all()
        torch.testing.assert_close(drawn.double().std(0), std, rtol=0.02, atol=5e-3)


def test_a_beta_sample_is_never_at_the_edge() -> None:
    p = Beta(torch.full((10_000, 1), 1e-2), torch.full((10_000, 1), 1e-2), 1.0)
    x = p.sample(torch.Generator().manual_seed(0))
    assert 0.0 < float(x.min()) < 1e-3 < 0.999 < float(x.max()) < 1.0
    assert p.log_prob(x).isfinite().all()


def test_certain_choices_stay_finite() -> None:
    logits = torch.tensor([[1e4, 0.0, -1e4]], requires_grad=True)
    p = Choices.of(logits, (3,))
    assert p.sample(torch.Generator().manual_seed(0)).tolist() == [[0.0]]
    total = p.entropy() + p.log_prob(torch.tensor([[0.0]])) + p.kl(Choices.of(-logits, (3,)))
    total.sum().backward()
    assert total.isfinite().all()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
