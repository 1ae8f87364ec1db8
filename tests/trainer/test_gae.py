"""Advantages against hand numbers and against a slow sum, episode by episode."""

import math

import pytest
import torch
from torch import Tensor

from trainer.gae import generalized_advantages

GAMMA, LAM = 0.9, 0.8


def column(*values: float) -> Tensor:
    return torch.tensor(values).unsqueeze(-1)


def flags(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool).unsqueeze(-1)


def test_hand_numbers_inside_one_episode() -> None:
    # delta_1 = 2 + 0.9 * 6 - 4 = 3.4; delta_0 = 1 + 0.9 * 4 - 3 = 1.6
    # A_1 = 3.4; A_0 = 1.6 + 0.9 * 0.8 * 3.4 = 4.048
    advantage, returns = generalized_advantages(
        column(1.0, 2.0), column(3.0, 4.0), torch.tensor([6.0]), column(0.0, 0.0),
        flags(0, 0), flags(0, 0), gamma=GAMMA, lam=LAM,
    )  # fmt: skip
    assert advantage.flatten().tolist() == pytest.approx([4.048, 3.4], rel=1e-6)
    assert returns.flatten().tolist() == pytest.approx([7.048, 7.4], rel=1e-6)


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        (1, 0, 1.0 - 3.0),  # what follows a fall is worth nothing
        (0, 1, 1.0 + 0.9 * 100.0 - 3.0),  # a time limit: V(final), not V of the next episode
        (1, 1, 1.0 - 3.0),  # both: terminated
    ],
)
def test_end_of_an_episode(terminated: int, truncated: int, expected: float) -> None:
    advantage, _ = generalized_advantages(
        column(1.0, 50.0), column(3.0, 4.0), torch.tensor([6.0]), column(100.0, 0.0),
        flags(terminated, 0), flags(truncated, 0), gamma=GAMMA, lam=LAM,
    )  # fmt: skip
    # The sum is cut: the 50 of the next episode is nowhere in it.
    assert float(advantage[0]) == pytest.approx(expected, rel=1e-6)


def slow(
    reward: Tensor, value: Tensor, last: Tensor, final: Tensor, term: Tensor, trunc: Tensor
) -> Tensor:
    """Sum (gamma lam)^k delta_{t+k} up to the end of each episode, one number at a time."""
    steps, envs = reward.shape
    advantage = torch.zeros(steps, envs)
    for n in range(envs):
        for t in range(steps):
            for k in range(t, steps):
                if term[k, n]:
                    follows = 0.0
                elif trunc[k, n]:
                    follows = float(final[k, n])
                else:
                    follows = float(value[k + 1, n] if k + 1 < steps else last[n])
                delta = float(reward[k, n]) + GAMMA * follows - float(value[k, n])
                advantage[t, n] += (GAMMA * LAM) ** (k - t) * delta
                if term[k, n] or trunc[k, n]:
                    break
    return advantage


def random_rollout(seed: int) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    shape = (12, 7)
    reward, value, final = (torch.randn(shape, generator=g) for _ in range(3))
    last = torch.randn(7, generator=g)
    term, trunc = (torch.rand(shape, generator=g) < 0.2 for _ in range(2))
    return reward, value, last, final, term, trunc


@pytest.mark.parametrize("seed", range(5))
def test_random_rollouts_against_a_slow_sum(seed: int) -> None:
    rollout = random_rollout(seed)
    advantage, returns = generalized_advantages(*rollout, gamma=GAMMA, lam=LAM)
    # float32 against Python floats: sums of up to 12 terms of size 1.
    torch.testing.assert_close(advantage, slow(*rollout), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(returns, advantage + rollout[1])


def test_an_excluded_sample_ends_the_sum_before_it() -> None:
    reward, value, last, final, term, trunc = random_rollout(0)
    term[:], trunc[:] = False, False
    reward[6, 2] = math.inf
    valid = torch.ones_like(term)
    valid[6, 2] = False
    advantage, _ = generalized_advantages(
        reward, value, last, final, term, trunc, gamma=GAMMA, lam=LAM, valid=valid
    )
    assert advantage.isfinite().all()
    # As if the rollout of that environment had ended with the value of step 6, and begun after it.
    head, _ = generalized_advantages(
        reward[:6, 2:3], value[:6, 2:3], value[6, 2:3], final[:6, 2:3], term[:6, 2:3],
        trunc[:6, 2:3], gamma=GAMMA, lam=LAM,
    )  # fmt: skip
    after = (x[7:, 2:3] for x in (reward, value))
    ends = (x[7:, 2:3] for x in (final, term, trunc))
    tail = slow(*after, last[2:3], *ends)  # pyright: ignore[reportCallIssue] - 2 + 1 + 3
    torch.testing.assert_close(advantage[:6, 2:3], head)
    torch.testing.assert_close(advantage[7:, 2:3], tail, rtol=1e-5, atol=1e-5)
    assert float(advantage[6, 2]) == 0.0


def test_nothing_that_is_cut_off_can_be_nan() -> None:
    reward, value, last, final, term, trunc = random_rollout(1)
    final[~trunc] = math.nan  # never read
    advantage, _ = generalized_advantages(
        reward, value, last, final, term, trunc, gamma=GAMMA, lam=LAM
    )
    assert advantage.isfinite().all()
