"""The Gaussian against torch.distributions, and its floor."""

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from trainer.distributions import (
    DiagonalGaussian,
    gaussian_entropy,
    gaussian_kl,
    gaussian_log_prob,
)


@pytest.fixture
def numbers() -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    draw = {name: torch.randn(50, 4, generator=g) for name in ("x", "mean", "other")}
    spread = {name: torch.rand(4, generator=g) + 0.1 for name in ("std", "other_std")}
    return {name: value.double() for name, value in (draw | spread).items()}


def test_log_prob_entropy_and_kl_are_those_of_torch(numbers: dict[str, torch.Tensor]) -> None:
    x, mean, std = numbers["x"], numbers["mean"], numbers["std"]
    p, q = Normal(mean, std), Normal(numbers["other"], numbers["other_std"])
    # Double precision: nothing but rounding may differ.
    torch.testing.assert_close(gaussian_log_prob(x, mean, std), p.log_prob(x).sum(-1))
    torch.testing.assert_close(gaussian_entropy(std).expand(50), p.entropy().sum(-1))
    kl = gaussian_kl(mean, std, numbers["other"], numbers["other_std"])
    torch.testing.assert_close(kl, kl_divergence(p, q).sum(-1))


def test_divergence_of_a_policy_from_itself_is_exactly_zero() -> None:
    mean, std = torch.randn(100, 12), torch.rand(12) + 0.01
    assert (gaussian_kl(mean, std, mean, std) == 0.0).all()


@pytest.mark.parametrize("kind", ["log", "scalar"])
def test_a_deviation_below_its_floor_works_and_comes_back(kind: str) -> None:
    gaussian = DiagonalGaussian(3, init_std=1.0, min_std=0.05, kind=kind)  # pyright: ignore
    with torch.no_grad():
        gaussian.param.fill_(-1e9)
    std = gaussian.std()
    assert torch.allclose(std, torch.tensor(0.05), rtol=1e-6)
    assert torch.normal(torch.zeros(3), std.detach()).isfinite().all()
    # Entropy wants a larger deviation. At a plain clamp its gradient is exactly 0, for ever.
    gaussian_entropy(std).backward()
    assert (gaussian.param.grad > 0.0).all()  # pyright: ignore[reportOptionalOperand]
    gaussian.project_()
    optimizer = torch.optim.SGD(gaussian.parameters(), lr=0.01, maximize=True)
    optimizer.step()
    assert (gaussian.std() > 0.05).all()


def test_a_deviation_inside_its_bounds_is_what_was_asked_for() -> None:
    for kind in ("log", "scalar"):
        gaussian = DiagonalGaussian(2, init_std=0.7, kind=kind)
        assert gaussian.std().tolist() == pytest.approx([0.7, 0.7], rel=1e-6)


def test_a_nan_is_not_hidden() -> None:
    gaussian = DiagonalGaussian(2)
    with torch.no_grad():
        gaussian.param[0] = math.nan
    gaussian.project_()
    assert gaussian.std().isnan().tolist() == [True, False]
