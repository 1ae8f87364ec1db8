"""Losses by hand, and what must not change them."""

import math

import pytest
import torch

from trainer.losses import (
    entropy_loss,
    explained_variance,
    mirror_loss,
    surrogate_loss,
    value_loss,
)
from trainer.symmetry import Mirror

LOG_HALF, LOG_TWO = math.log(0.5), math.log(2.0)


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "loss", "clipped"),
    [
        (0.0, 2.0, -2.0, 0.0),
        (LOG_TWO, 1.0, -1.2, 1.0),  # a good action, made likelier than the clip allows
        (LOG_TWO, -1.0, 2.0, 1.0),  # a bad one made likelier: the whole of it counts
        (LOG_HALF, 1.0, -0.5, 1.0),
        (LOG_HALF, -1.0, 0.8, 1.0),
    ],
)
def test_surrogate_by_hand(log_ratio: float, advantage: float, loss: float, clipped: float) -> None:
    value, metrics = surrogate_loss(
        torch.tensor([log_ratio]), torch.zeros(1), torch.tensor([advantage]), clip=0.2
    )
    assert float(value) == pytest.approx(loss, rel=1e-6)
    assert float(metrics["policy/clip_fraction"]) == clipped


def test_surrogate_stays_finite_for_absurd_ratios() -> None:
    log_prob = torch.tensor([1e4, -1e4], requires_grad=True)
    loss, _ = surrogate_loss(log_prob, torch.zeros(2), torch.tensor([-1.0, -1.0]), clip=0.2)
    loss.backward()
    assert loss.isfinite()
    assert log_prob.grad is not None
    assert log_prob.grad.isfinite().all()


def test_a_clipped_sample_gives_no_gradient() -> None:
    log_prob = torch.tensor([LOG_TWO, 0.1], requires_grad=True)
    loss, _ = surrogate_loss(log_prob, torch.zeros(2), torch.ones(2), clip=0.2)
    loss.backward()
    assert log_prob.grad is not None
    assert log_prob.grad[0] == 0.0
    assert log_prob.grad[1] != 0.0


def test_value_loss_by_hand() -> None:
    value, old, returns = torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([3.0])
    assert float(value_loss(value, old, returns, clip=None)[0]) == pytest.approx(4.0)
    # Moved by 1 where 0.2 is allowed: the error of 0.2 counts, (0.2 - 3)^2.
    assert float(value_loss(value, old, returns, clip=0.2)[0]) == pytest.approx(7.84)


def test_entropy_loss_is_minus_the_entropy() -> None:
    for entropy in (torch.tensor(2.5), torch.tensor([1.0, 4.0])):
        loss, metrics = entropy_loss(entropy)
        assert float(metrics["policy/entropy"]) == -float(loss) == 2.5


def test_mirror_loss_is_zero_for_a_symmetric_policy_only() -> None:
    mirror = Mirror.of([1, 0], [-1.0, -1.0])
    mean = torch.tensor([[1.0, 2.0], [0.5, -3.0]], requires_grad=True)
    image = torch.tensor([[-2.0, -1.0], [3.0, -0.5]], requires_grad=True)
    assert mirror_loss(mean, image, mirror)[0].item() == 0.0
    loss, _ = mirror_loss(mean, image + torch.tensor([2.0, 0.0]), mirror)
    assert loss.item() == pytest.approx(2.0)  # (2^2 + 0) / 2
    loss.backward()
    assert mean.grad is None  # the images of the means are targets
    assert image.grad is not None


def test_explained_variance() -> None:
    returns = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert float(explained_variance(returns, returns)) == 1.0
    assert float(explained_variance(torch.full((4,), 2.5), returns)) == pytest.approx(0.0)
    assert float(explained_variance(-returns, returns)) == pytest.approx(-3.0)
