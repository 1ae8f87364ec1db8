"""Adam and the clipping of gradients against torch's own."""

import copy

import pytest
import torch
from torch import Tensor, nn

from trainer.adam import Adam, clip_gradients

SHAPES = [(5, 3), (5,), (2, 5), (2,)]
NO = torch.tensor(False)


def parameters(seed: int = 0) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=draw)) for shape in SHAPES]


def give_gradients(params: list[nn.Parameter], seed: int, scale: float = 1.0) -> None:
    draw = torch.Generator().manual_seed(seed)
    for p in params:
        p.grad = scale * torch.randn(p.shape, generator=draw)


def pair(lr: float = 1e-2) -> tuple[list[nn.Parameter], Adam, list[nn.Parameter], torch.optim.Adam]:
    ours, theirs = parameters(), parameters()
    adam = Adam(ours, lr=torch.tensor(lr), eps=1e-5)
    return ours, adam, theirs, torch.optim.Adam(theirs, lr=torch.tensor(lr), eps=1e-5, fused=True)


def same(a: list[nn.Parameter], b: list[nn.Parameter]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_steps_are_those_of_torch_to_the_bit() -> None:
    ours, adam, theirs, reference = pair()
    for i in range(20):
        # A rate that changes, as the KL rule does it.
        rate = 1e-2 / (1 + i)
        adam.lr.fill_(rate)
        reference.param_groups[0]["lr"].fill_(rate)
        give_gradients(ours, i)
        give_gradients(theirs, i)
        adam.step(NO)
        reference.step()
    assert same(ours, theirs)


def test_a_skipped_step_leaves_weights_moments_and_count() -> None:
    ours, adam, _, _ = pair()
    give_gradients(ours, 0)
    adam.step(NO)
    before = [t.clone() for t in (*ours, *adam.moments().values())]
    give_gradients(ours, 1)
    assert ours[0].grad is not None
    ours[0].grad[0] = torch.nan
    adam.step(torch.tensor(True))
    assert all(map(torch.equal, before, (*ours, *adam.moments().values())))


def test_a_parameter_without_a_gradient_stays() -> None:
    ours, adam, _, _ = pair()
    give_gradients(ours, 0)
    ours[1].grad = None
    kept = ours[1].detach().clone()
    adam.step(NO)
    assert torch.equal(ours[1], kept)
    adam.zero_grad()
    assert all(p.grad is None for p in ours)


def test_states_go_to_torch_and_come_back() -> None:
    ours, adam, theirs, reference = pair()
    give_gradients(ours, 0)
    adam.step(NO)
    with torch.no_grad():
        for a, b in zip(ours, theirs, strict=True):
            b.copy_(a)
    reference.load_state_dict(copy.deepcopy(adam.state_dict()))
    back = [nn.Parameter(p.detach().clone()) for p in ours]
    again = Adam(back, lr=torch.tensor(1.0), eps=1e-5)
    again.load_state_dict(copy.deepcopy(reference.state_dict()))
    assert float(again.lr) == pytest.approx(1e-2)
    for params, optimizer in ((ours, adam), (theirs, reference), (back, again)):
        give_gradients(params, 7)
        optimizer.step(NO) if isinstance(optimizer, Adam) else optimizer.step()
    assert same(ours, theirs)
    assert same(ours, back)


def test_before_a_step_there_are_no_moments_and_none_are_needed() -> None:
    ours, adam, _, reference = pair()
    assert adam.state_dict()["state"] == reference.state_dict()["state"] == {}
    give_gradients(ours, 0)
    adam.step(NO)
    adam.load_state_dict(reference.state_dict())
    assert all(not t.any() for t in adam.moments().values())


@pytest.mark.parametrize("what", ["count", "shape"])
def test_a_state_of_other_parameters_is_refused(what: str) -> None:
    ours, adam, _, _ = pair()
    give_gradients(ours, 0)
    adam.step(NO)
    state = copy.deepcopy(adam.state_dict())
    if what == "count":
        state["param_groups"][0]["params"].pop()
    else:
        state["state"][1]["exp_avg"] = torch.zeros(9)
    with pytest.raises(ValueError, match=r"of 3 parameters|parameter 1 has shape \(9,\)"):
        adam.load_state_dict(state)


@pytest.mark.parametrize("scale", [1e-3, 10.0])
def test_gradients_are_clipped_as_torch_does(scale: float) -> None:
    ours, theirs = parameters(), parameters()
    give_gradients(ours, 3, scale)
    give_gradients(theirs, 3, scale)
    norm = clip_gradients(ours, 1.0)
    reference = nn.utils.clip_grad_norm_(theirs, 1.0)
    # One sum instead of one per tensor: float32 rounding.
    torch.testing.assert_close(norm, reference, rtol=1e-6, atol=0.0)
    for a, b in zip(ours, theirs, strict=True):
        assert isinstance(a.grad, Tensor)
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-6, atol=0.0)
