"""Losses that networks bring along: each is added with its coefficient, for whoever has it."""

import pytest
import torch

from tests.trainer.scripted import scripted
from trainer.config import EncoderConfig, NetworkConfig, PPOConfig, SymmetryConfig
from trainer.ppo import PPO
from trainer.rollout import Collector
from trainer.symmetry import Mirror, MirrorTable

CPU = torch.device("cpu")
TABLE = MirrorTable(
    obs={"policy": Mirror.of([1, 0, 2], [1, 1, -1])}, action=Mirror.of([1, 0], [1, 1])
)
GUESS = EncoderConfig(group="policy", kind="toy-guess", width=4, heads=1)


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("role", ["actor", "critic"])
def test_it_counts_by_its_coefficient(role: str, augment: bool) -> None:
    """The toy's loss is that of a linear guess, which starts at 0, of what the critic sees first.

    So its gradient for the layer that guesses is -2 E[y x], and its coefficient is 2.
    """
    network = NetworkConfig(
        encoders=(GUESS,), normalize_obs=False, actor_hidden=(8,), critic_hidden=(8,)
    )
    config = PPOConfig(
        num_steps=6, epochs=1, minibatches=1, symmetry=SymmetryConfig(augment=augment)
    )
    agent = PPO(
        {"policy": 3}, 2, config=config, network=network, seed=0, device=CPU, symmetry=TABLE
    )
    rollout = Collector(scripted(), num_steps=6, device=CPU).collect(agent.act)
    batch = agent._batch(rollout, None)
    data = batch.minibatch(torch.arange(24), images=augment, standardize=False)
    assert data is not None
    loss, metrics = agent._loss(data, batch.old_constants)
    part = {"actor": agent.actor, "critic": agent.critic}[role]
    guess, weight = (
        next(p for name, p in part.named_parameters() if name.endswith(end))
        for end in (".guess", ".weight")
    )
    (gradient,) = torch.autograd.grad(loss, guess)
    x, expected = rollout.obs["policy"][:-1].reshape(-1, 3), torch.zeros(4)
    rows = torch.cat([x, TABLE.obs["policy"].apply(x)]) if augment else x
    for row in rows:
        expected += 2.0 * -2.0 * float(row[0]) * torch.tanh(weight.detach() @ row) / len(rows)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)
    assert float(metrics["loss/guess"]) == pytest.approx(float(rows[:, 0].square().mean()))
