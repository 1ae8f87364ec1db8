"""Splitting, padding and masking a rollout: exact, and without weight where padded."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trainer.networks.recurrent import Gru
from trainer.sequences import Layout, Padded, pad, pick, split


def numbered(steps: int, envs: int) -> Tensor:
    """Rows that say where they come from: (step, environment)."""
    step, env = torch.meshgrid(torch.arange(steps), torch.arange(envs), indexing="ij")
    return torch.stack([step, env], dim=-1).flatten(0, 1).float()


def random_starts(steps: int, envs: int, share: float, seed: int = 0) -> Tensor:
    return torch.rand(steps, envs, generator=torch.Generator().manual_seed(seed)) < share


def unpad(padded: Tensor, layout: Layout) -> Tensor:
    """Sequences ``(L, M, 2)`` of a whole rollout as its rows, each by the number it came from."""
    rows = {int(layout.row[at]): padded[at] for at in map(tuple, layout.mask.nonzero().tolist())}
    return torch.stack([rows[i] for i in range(len(rows))])


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 1.0])
@pytest.mark.parametrize("shape", [(1, 1), (24, 5), (3, 64)])
def test_there_and_back_is_exact(share: float, shape: tuple[int, int]) -> None:
    starts = random_starts(*shape, share)
    layout, x = split(starts), numbered(*shape)
    assert torch.equal(unpad(pad(x, layout), layout), x)
    assert int(layout.mask.sum()) == len(x)


def test_episodes_of_three_steps_in_a_rollout_of_24() -> None:
    starts = (torch.arange(24) % 3 == 0).unsqueeze(-1).expand(24, 4)
    layout, x = split(starts), numbered(24, 4)
    padded = pad(x, layout)
    assert padded.shape == (3, 32, 2)
    assert layout.mask.all()
    assert torch.equal(unpad(padded, layout), x)
    # Every column holds consecutive steps of one environment.
    assert (padded[1:, :, 0] - padded[:-1, :, 0] == 1.0).all()
    assert (padded[:, :, 1] == layout.env).all()
    assert not layout.goes_on.any()


def test_what_goes_on_keeps_its_state_and_what_begins_has_none() -> None:
    starts = torch.zeros(4, 3, dtype=torch.bool)
    starts[0, 1] = starts[2, 0] = True
    layout = split(starts)
    assert layout.env.tolist() == [0, 0, 1, 2]
    assert layout.goes_on.tolist() == [True, False, False, True]
    state = torch.arange(1.0, 7.0).reshape(1, 3, 2)
    assert pick((state,), layout)[0].tolist() == [[[1, 2], [0, 0], [0, 0], [5, 6]]]


def test_a_part_of_the_environments_is_no_longer_than_it_must_be() -> None:
    starts = torch.zeros(6, 3, dtype=torch.bool)
    starts[1::2, 2] = starts[2, 1] = True
    layout = split(starts)
    assert layout.mask.shape == (6, 7)
    part = layout.of_envs(torch.tensor([2, 1]))
    assert part.mask.shape == (4, 6)
    assert part.env.tolist() == [1, 1, 2, 2, 2, 2]
    assert part.row[:2, 0].tolist() == [1, 4]  # steps 0 and 1 of environment 1 of 3


def test_padded_steps_have_no_weight_and_no_gradient() -> None:
    """Whatever stands there, outputs and gradients are those of the steps alone."""
    starts = random_starts(7, 4, 0.3)
    layout, x = split(starts), torch.randn(28, 3, generator=torch.Generator().manual_seed(1))
    step, column = layout.mask.nonzero(as_tuple=True)
    gru = Gru(3, 5, 1, torch.Generator().manual_seed(0))
    state = (torch.zeros(1, layout.row.shape[1], 5),)
    gradients, outputs = [], []
    for junk in (0.0, 1e3):
        filled = torch.where(layout.mask.unsqueeze(-1), pad(x, layout), junk)
        padded = Padded(x=filled, state=state, step=step, column=column)
        y = gru(padded.x, padded.state)[0][padded.step, padded.column]
        outputs.append(y)
        gradients.append(torch.autograd.grad(y.square().sum(), list(gru.parameters())))
    assert torch.equal(outputs[0], outputs[1])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)  # sums of products with exact zeros
    assert len(outputs[0]) == 28


def test_the_samples_of_the_first_half_are_those_without_their_images() -> None:
    padded = Padded(
        x=torch.arange(12.0).reshape(3, 4, 1),
        state=(torch.arange(4.0).reshape(1, 4, 1),),
        step=torch.tensor([0, 1, 0, 1]),
        column=torch.tensor([0, 1, 2, 3]),
    )
    head = padded.head(2)
    assert head.x[:, :, 0].tolist() == [[0, 1], [4, 5], [8, 9]]
    assert head.state[0].flatten().tolist() == [0, 1]
    assert (head.step.tolist(), head.column.tolist()) == ([0, 1], [0, 1])
