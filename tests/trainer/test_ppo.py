"""The update: what it must do, what it must leave alone, and rsl_rl as a judge."""

import dataclasses
import importlib.util
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.trainer.scripted import scripted
from trainer.batch import Batch, make_batch
from trainer.config import InvalidSetting, NetworkConfig, PPOConfig, SymmetryConfig
from trainer.networks.actor_critic import Actor, Critic
from trainer.normalizer import RunningNormalizer
from trainer.ppo import PPO
from trainer.rollout import Collector, Rollout
from trainer.symmetry import Mirror, MirrorTable
from trainer.table import Images

CPU = torch.device("cpu")
NETWORK = NetworkConfig(actor_hidden=(16,), critic_hidden=(16,))
TABLE = MirrorTable(
    obs={"policy": Mirror.of([1, 0, 2], [1, 1, -1]), "critic": Mirror.of(range(5), [-1] * 5)},
    action=Mirror.of([1, 0], [1, 1]),
)


def make(seed: int = 0, *, critic: bool = False, **settings: Any) -> PPO:
    dims = {"policy": 3} | ({"critic": 5} if critic else {})
    config = PPOConfig(**{"num_steps": 6, "minibatches": 2, "epochs": 3, **settings})
    return PPO(dims, 2, config=config, network=NETWORK, seed=seed, device=CPU, symmetry=TABLE)


def images_of(agent: PPO) -> Images:
    """How the images of the table are made, whatever the agent uses."""
    actor, critic = (TABLE.obs[names[0]] for names in (agent.groups.actor, agent.groups.critic))
    head = agent.actor.distribution.reflection(TABLE.action)
    return Images(actor=actor, critic=critic, action=TABLE.action, head=head)


def statistics(part: Actor | Critic) -> RunningNormalizer:
    assert isinstance(part.normalizer, RunningNormalizer)
    return part.normalizer


def rollout_of(agent: PPO, *, critic: bool = False, envs: int = 4) -> Rollout:
    env = scripted(envs=envs, critic=critic)
    return Collector(env, num_steps=6, device=CPU).collect(agent.act)


def state(agent: PPO) -> dict[str, Tensor]:
    parts = {"actor": agent.actor, "critic": agent.critic}
    return {
        f"{part}.{name}": value.clone()
        for part, module in parts.items()
        for name, value in module.state_dict().items()
    }


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_same_seed_same_weights_and_another_seed_others() -> None:
    states = []
    for seed in (3, 3, 4):
        agent = make(seed)
        agent.update(rollout_of(agent))
        states.append(state(agent))
    assert same(states[0], states[1])
    assert not same(states[0], states[2])


def test_nothing_of_it_depends_on_torchs_global_generator() -> None:
    torch.manual_seed(0)
    agent = make()
    agent.update(rollout_of(agent))
    torch.manual_seed(1)
    other = make()
    other.update(rollout_of(other))
    assert same(state(agent), state(other))


@pytest.mark.parametrize("critic", [False, True])
def test_a_checkpointed_state_continues_bit_for_bit(critic: bool) -> None:
    agent, other = make(0, critic=critic), make(1, critic=critic)
    agent.update(rollout_of(agent, critic=critic))
    other.load_state_dict(agent.state_dict())
    for one in (agent, other):
        one.update(rollout_of(one, critic=critic))
    assert same(state(agent), state(other))
    assert float(agent.lr) == float(other.lr)


def test_before_the_first_step_the_policy_is_the_one_that_acted() -> None:
    agent = make(epochs=1, minibatches=1)
    for _ in range(3):  # the normalizer has moved twice by the last time
        metrics = agent.update(rollout_of(agent))
        assert float(metrics["policy/kl"]) < 1e-9
        assert float(metrics["policy/clip_fraction"]) == 0.0


def test_the_normalizer_is_frozen_until_the_optimizer_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = make()
    rollout = rollout_of(agent)
    seen: list[float] = []
    step = agent._optimizer.step

    def watched(skip: Tensor) -> None:
        step(skip)
        seen.append(float(statistics(agent.actor).count))

    monkeypatch.setattr(agent._optimizer, "step", watched)
    agent.update(rollout)
    assert seen == [0.0] * 6
    expected = RunningNormalizer(3)
    expected.update(rollout.obs["policy"][:-1].flatten(0, 1))
    assert torch.equal(statistics(agent.actor).mean, expected.mean)


def test_the_first_rollout_may_be_for_the_normalizers_alone() -> None:
    agent, eager = make(prime_normalizer=True), make()
    rollout = rollout_of(agent)
    before = [p.detach().clone() for p in (*agent.actor.parameters(), *agent.critic.parameters())]
    assert agent.update(rollout) == {}
    after = [*agent.actor.parameters(), *agent.critic.parameters()]
    assert all(map(torch.equal, before, after))
    expected = RunningNormalizer(3)
    expected.update(rollout.obs["policy"][:-1].flatten(0, 1))
    for part in (agent.actor, agent.critic):
        assert torch.equal(statistics(part).mean, expected.mean)
    # From then on it learns, as without.
    assert set(agent.update(rollout_of(agent))) == set(eager.update(rollout_of(eager)))
    assert not all(map(torch.equal, before, after))
    config = dataclasses.replace(agent.config, prime_normalizer=True)
    network = dataclasses.replace(NETWORK, normalize_obs=False)
    off = PPO({"policy": 3}, 2, config=config, network=network, seed=0, device=CPU)
    assert off.update(rollout_of(off)) != {}


def test_the_critic_sees_its_own_group() -> None:
    agent = make(critic=True)
    rollout = rollout_of(agent, critic=True)
    agent.update(rollout)
    assert statistics(agent.critic).mean.shape == (5,)
    privileged = rollout.obs["critic"][:-1].flatten(0, 1).double().mean(0)
    torch.testing.assert_close(statistics(agent.critic).mean, privileged)


def minibatches(agent: PPO) -> list[list[int]]:
    """The rows of every minibatch of an update of 24 samples."""
    return [rows.tolist() for rows in agent._minibatches(24)]


def test_every_epoch_sees_every_sample_once_in_a_fresh_order() -> None:
    batches = minibatches(make(epochs=3, minibatches=5))
    epochs = [list(itertools.chain(*batches[5 * i : 5 * i + 5])) for i in range(3)]
    assert all(sorted(epoch) == list(range(24)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    batches = minibatches(make(epochs=2, minibatches=4, reuse_permutation=True))
    assert batches[:4] == batches[4:]


def test_gradients_are_clipped_separately_or_jointly() -> None:
    for mode in ("separate", "joint"):
        agent = make(epochs=1, minibatches=1, grad_clip=mode, max_grad_norm=1e-3, value_coef=100.0)
        metrics = agent.update(rollout_of(agent))
        norms = [
            torch.stack([p.grad.norm() for p in part.parameters() if p.grad is not None]).norm()
            for part in (agent.actor, agent.critic)
        ]
        assert float(metrics["policy/grad_norm"]) > 1.0
        if mode == "separate":
            assert [float(n) for n in norms] == pytest.approx([1e-3, 1e-3], rel=1e-3)
        else:
            assert float(torch.stack(norms).norm()) == pytest.approx(1e-3, rel=1e-3)
            assert float(norms[0]) < 1e-4  # the critic's gradient takes nearly all of it


def test_a_reward_scale_scales_the_returns() -> None:
    agent = make(gamma=0.0)
    rollout = rollout_of(agent)
    for scale in (1.0, 0.25):
        batch = make_batch(
            rollout, None, agent.actor, agent.critic,
            config=PPOConfig(gamma=0.0, reward_scale=scale), groups=agent.groups, images=None,
        )  # fmt: skip
        returns = batch.take(torch.arange(24)).returns
        torch.testing.assert_close(returns, scale * rollout.reward.flatten())


@pytest.mark.parametrize("mode", ["rollout", "minibatch", "none"])
def test_advantages_are_standardized_over_what_was_asked_for(mode: str) -> None:
    def batch_of(how: str) -> Batch:
        agent = make(normalize_advantage=how)
        return make_batch(
            rollout_of(agent), None, agent.actor, agent.critic,
            config=agent.config, groups=agent.groups, images=images_of(agent),
        )  # fmt: skip

    batch, everything = batch_of(mode), torch.arange(24)
    raw = batch_of("none").take(everything).advantage.double().numpy()
    # Two minibatches of different epochs that share samples: each is standardized from the raw.
    for rows in (torch.arange(0, 24, 3), torch.arange(0, 24, 2)):
        if mode == "minibatch":
            batch.standardize_advantage(rows)
        among = raw[rows] if mode == "minibatch" else raw
        expected = (raw[rows] - among.mean()) / among.std(ddof=1) if mode != "none" else raw[rows]
        advantage = batch.take(rows).advantage
        np.testing.assert_allclose(advantage.numpy(), expected, rtol=1e-5, atol=1e-5)
        # The images of the samples have the same.
        assert torch.equal(advantage, batch.take(24 + rows).advantage)


def test_mirror_images_are_images_of_their_samples() -> None:
    agent = make(critic=True)
    rollout = rollout_of(agent, critic=True)
    agent.update(rollout)  # so that the normalizers do something
    batch = make_batch(
        rollout, None, agent.actor, agent.critic,
        config=agent.config, groups=agent.groups, images=images_of(agent),
    )  # fmt: skip
    here, there = batch.take(torch.arange(24)), batch.take(torch.arange(24, 48))
    raw = {name: x[:-1].flatten(0, 1) for name, x in rollout.obs.items()}
    policy, critic = agent.actor.normalizer, agent.critic.normalizer
    assert isinstance(here.actor_in, Tensor)
    assert isinstance(there.actor_in, Tensor)
    assert isinstance(there.critic_in, Tensor)
    assert torch.equal(here.actor_in, policy(raw["policy"]))
    assert torch.equal(there.actor_in, policy(TABLE.obs["policy"].apply(raw["policy"])))
    assert torch.equal(there.critic_in, critic(-raw["critic"]))
    assert torch.equal(there.action, here.action.flip(-1))
    assert torch.equal(there.returns, here.returns)
    assert torch.equal(there.old_log_prob, here.old_log_prob)


def asymmetry(agent: PPO) -> float:
    """How far mean(mirrored obs) is from mirrored mean(obs), root mean square."""
    obs = torch.randn(500, 3, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        mean = agent.actor(obs)
        image = agent.actor(TABLE.obs["policy"].apply(obs))
    return float((image - TABLE.action.apply(mean)).square().mean().sqrt())


def test_the_mirror_loss_makes_the_policy_symmetric() -> None:
    left = {}
    for coef in (1e-9, 10.0):
        agent = make(symmetry=SymmetryConfig(mirror_coef=coef), desired_kl=None, epochs=20)
        with torch.no_grad():
            list(agent.actor.net.parameters())[-2].mul_(30.0)  # something to make symmetric
        before = asymmetry(agent)
        for _ in range(5):
            agent.update(rollout_of(agent, envs=16))
        left[coef] = asymmetry(agent) / before
    assert left[10.0] < 0.3
    assert left[1e-9] > 2.0 * left[10.0]


def test_symmetry_without_a_table_is_refused() -> None:
    config = PPOConfig(symmetry=SymmetryConfig(augment=True))
    with pytest.raises(InvalidSetting, match="no mirror table"):
        PPO({"policy": 3}, 2, config=config, network=NETWORK, seed=0, device=CPU)


def test_too_few_valid_samples_teach_nothing() -> None:
    agent = make()
    rollout = rollout_of(agent)
    before = state(agent)
    valid = torch.zeros(6, 4, dtype=torch.bool)
    valid[0, :3] = True
    assert agent.update(rollout, valid) == {}
    assert same(before, state(agent))


def test_excluded_samples_change_nothing_whatever_they_hold() -> None:
    agent, other = make(), make()
    rollout = rollout_of(agent)
    other.generator.set_state(agent.generator.get_state())
    valid = torch.ones(6, 4, dtype=torch.bool)
    valid[2, 1] = False
    agent.update(rollout, valid)
    rollout.reward[2, 1] = float("nan")
    rollout.action[2, 1] = float("inf")
    other.update(rollout, valid)
    assert same(state(agent), state(other))


needs_rsl_rl = pytest.mark.skipif(
    importlib.util.find_spec("rsl_rl") is None, reason="rsl-rl-lib is not installed"
)


@needs_rsl_rl
@pytest.mark.parametrize("symmetry", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_update_is_that_of_rsl_rl(symmetry: bool, dtype: torch.dtype) -> None:
    from benchmarks.rsl_rl_opponent import Case, weights_apart

    case = Case(num_envs=96, hidden=(32, 16), symmetry=symmetry, normalize_obs=True)
    apart = weights_apart(case, dtype)
    assert {"lr", "actor.distribution.param", "critic.net.4.bias"} <= set(apart)
    assert {"actor.normalizer.mean", "critic.normalizer.var"} <= set(apart)
    # In double precision what is left is rsl_rl's float32 discount; in float32 Adam makes the
    # rounding of tiny gradients larger.
    assert max(apart.values()) < (1e-4 if dtype == torch.float32 else 1e-5)
