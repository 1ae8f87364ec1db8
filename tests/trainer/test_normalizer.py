"""Running statistics against NumPy on all the data at once."""

import numpy as np
import torch

from trainer.normalizer import RunningNormalizer
from trainer.symmetry import Mirror


def data(seed: int, rows: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    # Far from 0 and of very different size: where sums of squares lose their digits.
    return torch.randn(rows, 3, generator=g) * torch.tensor([1.0, 1e-3, 50.0]) + torch.tensor(
        [1e3, 0.0, -7.0]
    )


def test_any_split_gives_the_statistics_of_the_whole() -> None:
    parts = [data(i, rows) for i, rows in enumerate((5, 1000, 1, 300))]
    normalizer = RunningNormalizer(3)
    for part in parts:
        normalizer.update(part)
    whole = torch.cat(parts).double().numpy()
    # Double precision on the same numbers; what remains is the order of the sums.
    np.testing.assert_allclose(normalizer.mean.numpy(), whole.mean(0), rtol=1e-12)
    np.testing.assert_allclose(normalizer.var.numpy(), whole.var(0), rtol=1e-9)
    assert float(normalizer.count) == len(whole)


def test_output_is_standardized_and_bounded() -> None:
    normalizer = RunningNormalizer(3, eps=0.0, clip=5.0)
    x = data(0, 4000)
    normalizer.update(x)
    y = normalizer(x).double()
    # float32 output of numbers around 1e3: 1e-4 of a deviation is its resolution there.
    torch.testing.assert_close(y.mean(0), torch.zeros(3).double(), atol=1e-3, rtol=0.0)
    torch.testing.assert_close(y.std(0), torch.ones(3).double(), atol=2e-3, rtol=0.0)
    assert float(normalizer(torch.full((1, 3), 1e9)).max()) == 5.0
    assert float(RunningNormalizer(3, clip=0.0)(torch.full((1, 3), 1e9)).max()) > 1e8


def test_nothing_seen_is_nearly_the_identity_and_nothing_added_changes_nothing() -> None:
    normalizer = RunningNormalizer(2, eps=0.01)
    x = torch.tensor([[2.02, -1.01]])
    torch.testing.assert_close(normalizer(x), torch.tensor([[2.0, -1.0]]))
    normalizer.update(torch.empty(0, 2))
    torch.testing.assert_close(normalizer(x), torch.tensor([[2.0, -1.0]]))


def test_a_mirror_makes_the_statistics_symmetric_to_the_bit() -> None:
    mirror = Mirror.of([1, 0, 2], [1.0, 1.0, -1.0])
    normalizer, doubled = RunningNormalizer(3), RunningNormalizer(3)
    for i in range(4):
        x = data(i, 100 + i)
        normalizer.update(x, mirror)
        doubled.update(torch.cat([x, mirror.apply(x)]))
    # The same statistics as if the images had been samples...
    torch.testing.assert_close(normalizer.mean, doubled.mean, rtol=1e-12, atol=1e-9)
    torch.testing.assert_close(normalizer.var, doubled.var, rtol=1e-9, atol=1e-12)
    # ... and exactly invariant, so that a symmetric policy can be represented.
    x = data(9, 50)
    assert torch.equal(normalizer(mirror.apply(x)), mirror.apply(normalizer(x)))


def test_gradient_does_not_reach_the_statistics() -> None:
    assert list(RunningNormalizer(3).parameters()) == []
