"""Means and variances of samples that lie in several places."""

from __future__ import annotations

import torch
from torch import Tensor

Moments = tuple[Tensor, Tensor, Tensor]
"""Mean, shape ``(dim,)``, population variance, shape ``(dim,)``, and count, 0-d."""


def moments(x: Tensor) -> Moments:
    """Return the moments of `x`, shape ``(count, dim)``, in float64; of no samples they are 0."""
    x = x.double()
    count = x.new_full((), x.shape[0])
    if x.shape[0] == 0:
        return x.new_zeros(x.shape[1]), x.new_zeros(x.shape[1]), count
    mean = x.mean(0)
    return mean, (x - mean).square().mean(0), count


def merge_moments(a: Moments, b: Moments) -> Moments:
    """Return the moments of two samples taken together.

    Exact for any split of the data: Chan, Golub and LeVeque, "Updating formulae and a pairwise
    algorithm for computing sample variances", 1979.

    Args:
        a: Mean, shape ``(dim,)``, population variance, shape ``(dim,)``, and count, 0-d.
        b: The same of the other sample; one of the two counts must be above 0.

    Returns:
        Mean, population variance and count of the union.
    """
    mean_a, var_a, count_a = a
    mean_b, var_b, count_b = b
    count = count_a + count_b
    share = count_b / count
    delta = mean_b - mean_a
    mean = mean_a + share * delta
    var = var_a + share * (var_b - var_a) + share * (1.0 - share) * delta.square()
    return mean, var, count


def packed(of: Moments) -> Tensor:
    """Return moments as one vector, ``(2 dim + 1,)``."""
    mean, var, count = of
    return torch.cat([mean, var, count.reshape(1)])


def unpacked(vector: Tensor) -> Moments:
    """Return the moments that `packed` made a vector of."""
    mean, var, count = vector.split([len(vector) // 2, len(vector) // 2, 1])
    return mean, var, count.squeeze(0)
