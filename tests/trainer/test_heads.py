"""Heads: floors whose gradient stays alive, mirror images, actions, and which head is chosen."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from trainer.config import InvalidSetting, NetworkConfig
from trainer.distributions import Gaussian
from trainer.envs.action_space import ActionSpace
from trainer.networks.gaussian_heads import DiagonalGaussian
from trainer.networks.graph_spec import NoGraphSpecError
from trainer.networks.heads import BetaHead, CategoricalHead, Heads, make_head
from trainer.symmetry import Mirror

CONTINUOUS = ActionSpace(kind="continuous", num_actions=3)
MIRROR = Mirror.of([1, 0, 2], [1.0, 1.0, -1.0])
KINDS = ("gaussian", "state-gaussian", "beta", "tanh")


def head_of(kind: Any, **settings: Any) -> Heads:
    return make_head(CONTINUOUS, NetworkConfig(head=kind, **settings))


def outputs_of(head: Heads, rows: int = 20, scale: float = 1.0) -> Tensor:
    g = torch.Generator().manual_seed(1)
    return scale * torch.randn(rows, head.num_outputs, generator=g)


@pytest.mark.parametrize("kind", ["log", "scalar"])
def test_a_deviation_below_its_floor_works_and_comes_back(kind: Any) -> None:
    gaussian = DiagonalGaussian(3, init_std=1.0, min_std=0.05, kind=kind)
    with torch.no_grad():
        gaussian.param.fill_(-1e9)
    std = gaussian.std()
    assert torch.allclose(std, torch.tensor(0.05), rtol=1e-6)
    assert torch.normal(torch.zeros(3), std.detach()).isfinite().all()
    # Entropy wants a larger deviation. At a plain clamp its gradient is exactly 0, for ever.
    Gaussian(torch.zeros(3), std).entropy().backward()
    assert (gaussian.param.grad > 0.0).all()  # pyright: ignore[reportOptionalOperand]
    gaussian.project_()
    optimizer = torch.optim.SGD(gaussian.parameters(), lr=0.01, maximize=True)
    optimizer.step()
    assert (gaussian.std() > 0.05).all()


def test_a_deviation_inside_its_bounds_is_what_was_asked_for() -> None:
    for kind in ("log", "scalar"):
        gaussian = DiagonalGaussian(2, init_std=0.7, kind=kind)
        assert gaussian.std().tolist() == pytest.approx([0.7, 0.7], rel=1e-6)
        state = head_of("state-gaussian", init_std=0.7, std_kind=kind)
        policy = state.distribution(torch.zeros(1, 6), ())
        assert isinstance(policy, Gaussian)
        assert policy.std[0].tolist() == pytest.approx([0.7] * 3, rel=1e-6)


def test_a_nan_is_not_hidden() -> None:
    gaussian = DiagonalGaussian(2)
    with torch.no_grad():
        gaussian.param[0] = math.nan
    gaussian.project_()
    assert gaussian.std().isnan().tolist() == [True, False]


@pytest.mark.parametrize(
    ("kind", "raw"), [("state-gaussian", -50.0), ("state-gaussian", 50.0), ("beta", -50.0),
                      ("beta", 1e7)],
)  # fmt: skip
@pytest.mark.parametrize("std_kind", ["log", "scalar"])
def test_outputs_beyond_a_bound_come_back_and_go_no_further(
    kind: str, raw: float, std_kind: str
) -> None:
    """Beyond a bound the gradient that leads back lives, the other one is cut."""
    head = head_of(kind, min_std=0.05, max_std=5.0, std_kind=std_kind)
    outputs = torch.full((1, 6), raw, requires_grad=True)
    policy = head.distribution(outputs, head.constants())
    entropy = policy.entropy().sum()
    assert entropy.isfinite()
    assert 0.02 < float(policy.shown()["policy/std"]) <= 5.01
    (narrower,) = torch.autograd.grad(entropy, outputs, retain_graph=True)
    (wider,) = torch.autograd.grad(-entropy, outputs)
    spread = slice(3, 6) if kind == "state-gaussian" else slice(0, 6)
    # Large outputs mean a wide Gaussian, and a narrow Beta.
    inward, outward = wider, narrower
    if (raw > 0.0) == (kind == "state-gaussian"):
        inward, outward = narrower, wider
    assert (inward[:, spread].abs() > 0.0).all()
    assert (outward[:, spread] == 0.0).all()


def test_bounded_heads_stay_in_their_interval_and_others_are_left_alone() -> None:
    for kind in KINDS:
        head = head_of(kind, action_range=(-0.5, 2.0), init_std=3.0)
        outputs = outputs_of(head, 500, scale=5.0)
        policy = head.distribution(outputs, head.constants())
        action = head.action(policy.sample(torch.Generator().manual_seed(0)))
        best = head.deterministic(outputs)
        assert action.shape == best.shape == (500, 3)
        inside = all(((x >= -0.5) & (x <= 2.0)).all() for x in (action, best))
        assert inside == (kind in ("beta", "tanh"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_mirrored_distribution_gives_mirrored_actions_their_probability(kind: str) -> None:
    head = head_of(kind, action_range=(-2.0, 2.0))
    mirror, outputs = head.reflection(MIRROR), outputs_of(head)
    constants = tuple(c[MIRROR.index] for c in head.constants())
    policy = head.distribution(outputs, head.constants())
    image = head.distribution(mirror.outputs(outputs), constants)
    sample = policy.sample(torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        head.action(mirror.sample(sample)), MIRROR.apply(head.action(sample))
    )
    torch.testing.assert_close(image.log_prob(mirror.sample(sample)), policy.log_prob(sample))
    torch.testing.assert_close(
        head.deterministic(mirror.outputs(outputs)), MIRROR.apply(head.deterministic(outputs))
    )


@pytest.mark.parametrize("kind", ["beta", "tanh"])
def test_a_lopsided_interval_has_no_mirror_image(kind: str) -> None:
    head = head_of(kind, action_range=(-1.0, 2.0))
    with pytest.raises(InvalidSetting, match=r"action_range = -1.0 to 2.0 is not symmetric"):
        head.reflection(MIRROR)
    head.reflection(Mirror.of([1, 0, 2], [1.0, 1.0, 1.0]))
    with pytest.raises(InvalidSetting, match="discrete actions have no mirror"):
        CategoricalHead((2, 3)).reflection(MIRROR)


@pytest.mark.parametrize("kind", KINDS)
def test_the_plain_form_of_a_head_is_its_action_without_exploration(kind: str) -> None:
    head = head_of(kind, action_range=(-0.5, 2.0))
    outputs = outputs_of(head)
    squash, wanted = head.squash(), head.deterministic(outputs).numpy()
    x = outputs.numpy()
    if squash is None:
        found = x[:, :3]
    elif squash.kind == "tanh":
        found = squash.offset + squash.scale * np.tanh(x)
    else:
        a, b = (1.0 + np.log1p(np.exp(part)) for part in np.split(x, 2, axis=-1))
        found = squash.offset + squash.scale * a / (a + b)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_choices_are_indices_and_the_likeliest_is_taken() -> None:
    head = make_head(ActionSpace(kind="discrete", num_actions=2, sizes=(2, 3)), NetworkConfig())
    outputs = torch.tensor([[0.1, 0.2, 5.0, -1.0, 2.0]])
    assert head.deterministic(outputs).tolist() == [[1.0, 0.0]]
    assert head.num_outputs == 5
    with pytest.raises(NoGraphSpecError):
        head.squash()


def test_the_head_must_fit_the_actions() -> None:
    space = ActionSpace(kind="discrete", num_actions=1, sizes=(4,))
    with pytest.raises(InvalidSetting, match=r"network.head = beta: the actions are discrete"):
        make_head(space, NetworkConfig(head="beta"))
    for bad in ((1.0, 1.0), (2.0, -2.0), (0.0, math.inf)):
        with pytest.raises(InvalidSetting, match="action_range = "):
            NetworkConfig(action_range=bad)


def test_a_beta_that_is_narrowest_has_the_floor_as_its_deviation() -> None:
    head = head_of("beta", min_std=0.02, action_range=(-2.0, 2.0))
    assert isinstance(head, BetaHead)
    policy = head.distribution(torch.full((1, 6), 1e9), ())
    assert float(policy.shown()["policy/std"]) == pytest.approx(0.02, rel=1e-2)
