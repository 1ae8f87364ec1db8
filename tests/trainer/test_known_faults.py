"""Faults that trainers of this kind are known for, where no other test holds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainer.rsl_rl_scripts import Points, config_5
from tests.trainer.scripted import ScriptedEnv, scripted
from trainer.config import NetworkConfig, PPOConfig, SymmetryConfig
from trainer.metrics import read_metrics
from trainer.networks.actor_critic import Actor
from trainer.ppo import PPO
from trainer.rollout import Collector
from trainer.rsl_rl import OnPolicyRunner
from trainer.symmetry import Mirror, MirrorTable

CPU = torch.device("cpu")
TABLE = MirrorTable(
    obs={"policy": Mirror.of([1, 0, 2], [1, 1, -1])}, action=Mirror.of([1, 0], [1, 1])
)


def agent_of(network: NetworkConfig | None = None, **settings: Any) -> PPO:
    config = PPOConfig(**{"num_steps": 6, "minibatches": 2, "epochs": 2, **settings})
    shape = network or NetworkConfig(actor_hidden=(8,), critic_hidden=(8,))
    return PPO({"policy": 3}, 2, config=config, network=shape, seed=0, device=CPU, symmetry=TABLE)


def test_mirror_images_cost_one_pass_through_the_actor() -> None:
    """Augmentation and mirror loss use the same outputs: one call per minibatch for both."""
    calls: list[int] = []
    for symmetry in (SymmetryConfig(), SymmetryConfig(augment=True, mirror_coef=1.0)):
        agent = agent_of(symmetry=symmetry)
        rollout = Collector(scripted(), num_steps=6, device=CPU).collect(agent.act)
        seen: list[int] = []
        agent.actor.net.register_forward_hook(lambda net, args, out: seen.append(len(out)))  # noqa: B023
        agent.update(rollout)
        calls.append(len(seen))
        assert seen[-1] == 12 * (2 if symmetry.enabled else 1)
    assert calls[0] == calls[1] == 2 * 2


class _Waits(TorchDispatchMode):
    """Counts where the host reads a number, which on a GPU it waits for."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.count += func.overloadpacket in (
            torch.ops.aten._local_scalar_dense,
            torch.ops.aten.nonzero,
        )
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("symmetry", [SymmetryConfig(), SymmetryConfig(augment=True)])
def test_no_minibatch_waits_for_the_device(symmetry: SymmetryConfig) -> None:
    """Ten times as many minibatches read no more numbers back."""
    counts = []
    for epochs in (1, 10):
        agent = agent_of(symmetry=symmetry, epochs=epochs)
        rollout = Collector(scripted(), num_steps=6, device=CPU).collect(agent.act)
        with _Waits() as waits:
            agent.update(rollout)
        counts.append(waits.count)
    assert counts[0] == counts[1]


class Bounded(ScriptedEnv):
    """What a contract does: it applies no action beyond 100."""

    def step(self, actions: Tensor) -> Any:
        return super().step(actions.clamp(-100.0, 100.0))


def test_what_was_drawn_is_learned_from_and_not_what_was_applied() -> None:
    agent = agent_of()
    with torch.no_grad():
        list(agent.actor.net.parameters())[-1].fill_(1e6)
    plain = scripted()
    env = Bounded(plain._obs, plain._reward, plain._terminated, plain._truncated,
                  final_obs=plain._final)  # fmt: skip
    rollout = Collector(env, num_steps=6, device=CPU).collect(agent.act)
    assert float(torch.stack(env.actions).max()) == 100.0
    assert float(rollout.action.min()) > 9e5
    metrics = agent.update(rollout)
    # The probability of what was drawn has hardly changed; that of 100 would be nil.
    assert 0.0 <= float(metrics["policy/kl"]) < 1.0
    assert all(bool(value.isfinite()) for value in metrics.values())


@pytest.mark.parametrize("head", ["gaussian", "state-gaussian", "beta", "tanh"])
def test_every_head_explores_alike_in_all_states_at_first(head: Any) -> None:
    """Nothing is known yet, so no state may be explored less than another."""
    config = NetworkConfig(head=head, init_std=0.5, action_range=(-2.0, 2.0))
    actor = Actor(4, 3, config, torch.Generator().manual_seed(0))
    obs = 3.0 * torch.randn(500, 4, generator=torch.Generator().manual_seed(1))
    outputs, _ = actor.requires_grad_(False).step(obs)
    actor_head = actor.distribution
    law = actor_head.distribution(outputs, actor_head.constants())
    g = torch.Generator().manual_seed(2)
    drawn = torch.stack([actor_head.action(law.sample(g)) for _ in range(400)])
    spread, middle = drawn.std(0), drawn.mean(0)
    # 400 draws give a deviation to 4 % (one standard error); 6 of them hold for 1500 numbers.
    assert float((spread / spread.mean() - 1.0).abs().max()) < 0.24
    assert float(middle.abs().max()) < 6.0 * float(spread.mean()) / 400**0.5 + 0.05


def test_a_resumed_run_does_no_iteration_twice_and_counts_on(tmp_path: Path) -> None:
    """rsl_rl up to 5.5.1 does the loaded iteration over and starts its counters anew."""
    folder = tmp_path / "run"
    OnPolicyRunner(Points(), config_5(), folder).learn(3)
    steps = read_metrics(folder)[-1]["progress/env_steps"]
    again = OnPolicyRunner(Points(), config_5(), folder)
    again.load(folder / "model_2.pt")
    again.learn(2)
    rows = read_metrics(folder)
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[-1]["progress/env_steps"] == steps * 5 / 3
    assert sorted(path.name for path in folder.glob("*.pt")) == [
        "model_0.pt", "model_2.pt", "model_4.pt"
    ]  # fmt: skip


def test_a_critic_with_a_memory_does_not_see_a_last_step_twice() -> None:
    """Where no final observation is given, V(s_t) is what the memory said before, not after."""
    plain = scripted(steps=6)
    truncated = torch.zeros_like(plain._truncated)
    truncated[3] = True
    env = ScriptedEnv(plain._obs, plain._reward, plain._terminated, truncated, final_obs=None)
    network = NetworkConfig(kind="gru", rnn_hidden=8, actor_hidden=(8,), critic_hidden=(8,))
    agent = agent_of(network, gamma=1.0, gae_lambda=0.0)
    rollout = Collector(env, num_steps=6, device=CPU).collect(agent.act)
    data = agent._batch(rollout, None).minibatch(torch.arange(4), images=False, standardize=False)
    assert data is not None
    # With lambda 0 and gamma 1 the return of a cut-off step is r + V(s_t), its value V(s_t).
    gains = (data.returns - data.old_value).sort().values
    rewards = rollout.reward[3].sort().values
    for reward in rewards.tolist():
        assert float((gains - reward).abs().min()) < 1e-6
