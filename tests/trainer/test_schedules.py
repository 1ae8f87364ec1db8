"""Learning rates and the ceiling of the deviation by hand."""

import math

import pytest
import torch

from trainer.config import InvalidSetting, PPOConfig
from trainer.networks.gaussian_heads import DiagonalGaussian
from trainer.schedules import adaptive_kl_lr, linear_lr, std_ceiling


def test_edges_of_the_adaptive_rule() -> None:
    lr = torch.tensor(1e-3)
    seen = []
    for kl in (0.05, 0.004, 0.0, math.nan):
        lr = adaptive_kl_lr(lr, torch.tensor(kl), desired_kl=0.01)
        seen.append(float(lr))
    assert seen == pytest.approx([6.6667e-4, 1e-3, 1e-3, 1e-3], rel=1e-4)


@pytest.mark.parametrize(
    ("kl", "expected"),
    [(0.02, 1e-3), (0.0201, 1e-3 / 3), (0.005, 1e-3), (0.0049, 3e-3), (math.inf, 1e-3)],
)
def test_the_band_and_the_factor_are_settings(kl: float, expected: float) -> None:
    lr = adaptive_kl_lr(torch.tensor(1e-3), torch.tensor(kl), desired_kl=0.01, factor=3.0, band=2.0)
    assert float(lr) == pytest.approx(expected, rel=1e-6)


def test_floor_and_ceiling() -> None:
    bounds = {"desired_kl": 0.01, "min_lr": 5e-4, "max_lr": 2e-3}
    low = high = torch.tensor(1e-3)
    for _ in range(10):
        low = adaptive_kl_lr(low, torch.tensor(1.0), **bounds)
        high = adaptive_kl_lr(high, torch.tensor(1e-4), **bounds)
    assert (float(low), float(high)) == pytest.approx((5e-4, 2e-3))


def test_linear() -> None:
    line = [linear_lr(i, 4, start=1.0, end=0.2) for i in (0, 1, 2, 4, 9)]
    assert line == pytest.approx([1.0, 0.8, 0.6, 0.2, 0.2])


def test_two_schedules_at_once_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="lr_anneal = linear and desired_kl"):
        PPOConfig(lr_anneal="linear")
    PPOConfig(lr_anneal="linear", desired_kl=None)


def test_the_ceiling_of_the_deviation_falls_geometrically() -> None:
    path = [std_ceiling(i, 5, start=0.8, end=0.05) for i in range(6)]
    assert path == pytest.approx([0.8, 0.4, 0.2, 0.1, 0.05, 0.05])


def test_a_ceiling_bounds_the_deviation_and_keeps_its_gradient() -> None:
    head = DiagonalGaussian(3, init_std=0.7)
    head.limit(0.2)
    std = head.std()
    std.sum().backward()
    # The parameter is the logarithm: exp(log 0.2) is 0.2 to a rounding.
    assert std.tolist() == pytest.approx([0.2] * 3)
    assert head.param.grad is not None
    assert (head.param.grad > 0.0).all()
    head.project_()
    head.limit(0.5)
    assert head.std().tolist() == pytest.approx([0.2] * 3)
