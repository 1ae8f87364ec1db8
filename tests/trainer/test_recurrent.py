"""Recurrent PPO against slow obvious loops: outputs, values, gradients, images, resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.scripted import ScriptedEnv
from tests.trainer.toys.memory import CueEnv
from trainer.checkpoint import Checkpoint, load_checkpoint
from trainer.config import InvalidSetting, NetworkConfig, PPOConfig, SymmetryConfig, TrainConfig
from trainer.networks.actor_critic import Actor
from trainer.networks.body import features, recall
from trainer.networks.policy import DeterministicPolicy
from trainer.networks.recurrent import forget
from trainer.ppo import PPO
from trainer.rollout import Collector, Rollout
from trainer.sequence_batch import SequenceBatch
from trainer.sequences import Padded
from trainer.symmetry import Mirror, MirrorTable
from trainer.tasks.base import TaskRun
from trainer.train import train
from trainer.values import rollout_values

CPU = torch.device("cpu")
STEPS, ENVS, ROLLOUTS = 30, 20, 5
DIMS = {"policy": 3, "critic": 4}
TABLE = MirrorTable(
    obs={"policy": Mirror.of([1, 0, 2], [1, 1, -1]), "critic": Mirror.of(range(4), [-1] * 4)},
    action=Mirror.of([1, 0], [1, 1]),
)
KINDS = [("lstm", 1), ("lstm", 2), ("gru", 2)]


def make(kind: str = "gru", layers: int = 1, *, network: Any = None, **settings: Any) -> PPO:
    shape = NetworkConfig(
        kind=kind, rnn_hidden=8, rnn_layers=layers, actor_hidden=(8,), critic_hidden=(8,),
        **(network or {}),
    )  # fmt: skip
    config = PPOConfig(**{"num_steps": STEPS, "minibatches": 2, "epochs": 2, **settings})
    agent = PPO(DIMS, 2, config=config, network=shape, seed=0, device=CPU, symmetry=TABLE)
    with torch.no_grad():
        list(agent.actor.net.parameters())[-2].mul_(50.0)  # actions that differ
    return agent


def ending(seed: int = 0, share: float = 0.1) -> ScriptedEnv:
    """Random numbers in which episodes end at random, in both ways, for all rollouts."""
    g = torch.Generator().manual_seed(seed)
    steps = STEPS * ROLLOUTS

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    def flags() -> Tensor:
        return torch.rand(steps, ENVS, generator=g) < share / 2.0

    return ScriptedEnv(
        {name: draw(steps + 1, ENVS, dim) for name, dim in DIMS.items()},
        draw(steps, ENVS),
        flags(),
        flags(),
        final_obs={name: draw(steps, ENVS, dim) for name, dim in DIMS.items()},
    )


def copied(rollout: Rollout) -> Rollout:
    """A rollout that the next one does not overwrite."""
    parts = {name: getattr(rollout, name) for name in rollout.__dataclass_fields__}
    clones = {k: v.clone() if isinstance(v, Tensor) else v for k, v in parts.items()}
    obs = {name: x.clone() for name, x in rollout.obs.items()}
    return Rollout(**{**clones, "obs": obs})


def collected(agent: PPO, env: ScriptedEnv) -> list[Rollout]:
    collector = Collector(env, num_steps=STEPS, device=CPU)
    return [copied(collector.collect(agent.act)) for _ in range(ROLLOUTS)]


@pytest.mark.parametrize(("kind", "layers"), KINDS)
def test_stepping_padding_and_evaluation_agree_over_3000_steps(kind: str, layers: int) -> None:
    """With some 300 ends of episodes; one robot at a time and one step at a time is the oracle."""
    agent, env = make(kind, layers), ending()
    rollouts = collected(agent, env)
    outputs = torch.cat([rollout.outputs for rollout in rollouts])
    done = env._terminated | env._truncated
    assert int(done.sum()) > 200
    alone, together = torch.empty_like(outputs), torch.empty_like(outputs)
    policy = DeterministicPolicy(agent.actor)
    for t in range(STEPS * ROLLOUTS):
        together[t] = policy(env._obs["policy"][t])
        policy.reset(done[t])
    for n in range(0, ENVS, 5):
        state: tuple[Tensor, ...] = tuple(torch.zeros(p, 1, h) for p, h in shapes(agent.actor))
        for t in range(STEPS * ROLLOUTS):
            with torch.no_grad():
                action, *after = agent.actor(env._obs["policy"][t, n : n + 1], *state)
            alone[t, n] = action[0]
            state = tuple(part * (~done[t, n]) for part in after)
    padded = []
    for rollout in rollouts:
        batch = agent._batch(rollout, None)
        data = batch.minibatch(torch.arange(ENVS), images=False, standardize=False)
        assert data is not None
        with torch.no_grad():
            new = agent.actor.net(features(agent.actor, data.actor_in))
        torch.testing.assert_close(new, data.old_outputs, rtol=0.0, atol=1e-5)
        padded.append(len(new))
    assert sum(padded) == STEPS * ROLLOUTS * ENVS
    # float32 sums in another order, over episodes of 10 steps and more.
    torch.testing.assert_close(together, outputs, rtol=0.0, atol=1e-5)
    torch.testing.assert_close(alone[:, ::5], outputs[:, ::5], rtol=0.0, atol=1e-5)


def shapes(actor: Actor) -> tuple[tuple[int, int], ...]:
    assert actor.rnn is not None
    return actor.rnn.state_shapes


@pytest.mark.parametrize("shared", [False, True])
def test_values_are_those_of_whole_episodes_and_ends_follow_their_own(shared: bool) -> None:
    """Each value, also that of a final observation, from the episode's first step on."""
    agent, env = make("lstm", network={"shared": shared}), ending()
    group = "policy" if shared else "critic"
    collector = Collector(env, num_steps=STEPS, device=CPU, groups=agent.groups)
    state: tuple[Tensor, ...] = ()
    found, final, last = [], [], torch.empty(0)
    for _ in range(3):
        rollout = collector.collect(agent.act)
        before = rollout.state if shared else state
        values = rollout_values(rollout, agent.critic, (group,), before)
        state = values.state
        found.append(values.value[:-1])
        final.append(values.final.clone())
        last = values.value[-1]
    value, at_end, total = torch.cat(found), torch.cat(final), 3 * STEPS
    done = (env._terminated | env._truncated)[:total]
    assert env._final is not None
    for n in range(0, ENVS, 4):
        begin = 0
        for t in range(total):
            episode = env._obs[group][begin : t + 1, n]
            assert float(value[t, n]) == pytest.approx(whole(agent, episode), abs=1e-5)
            if env._truncated[t, n] and not env._terminated[t, n]:
                episode = torch.cat([episode, env._final[group][t, n].unsqueeze(0)])
                assert float(at_end[t, n]) == pytest.approx(whole(agent, episode), abs=1e-5)
            else:
                assert at_end[t, n] == 0.0
            begin = t + 1 if done[t, n] else begin
        episode = env._obs[group][begin : total + 1, n]
        assert float(last[n]) == pytest.approx(whole(agent, episode), abs=1e-5)


def test_without_a_final_observation_the_value_is_that_of_the_step_before() -> None:
    agent, env = make("gru"), ending(share=0.5)
    rollout = Collector(env, num_steps=STEPS, device=CPU, groups=agent.groups).collect(agent.act)
    # What the collector keeps where the environment gives none: s_t itself.
    shown = {"final_obs": rollout.obs["critic"][:-1], "unknown": torch.ones(STEPS).bool()}
    values = rollout_values(replace(rollout, **shown), agent.critic, ("critic",))
    cut = rollout.truncated & ~rollout.terminated
    assert int(cut.sum()) > 20
    torch.testing.assert_close(values.final, torch.where(cut, values.value[:-1], 0.0))


def test_advantages_of_a_minibatch_of_sequences_get_mean_0_and_deviation_1() -> None:
    agent, env = make("gru", normalize_advantage="minibatch"), ending()
    (rollout, *_) = collected(agent, env)
    batch = agent._batch(rollout, None)
    data = batch.minibatch(torch.arange(0, ENVS, 2), images=False, standardize=True)
    assert data is not None
    assert float(data.advantage.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(data.advantage.std()) == pytest.approx(1.0, abs=1e-3)


def whole(agent: PPO, episode: Tensor) -> float:
    """The value after an episode so far, ``(steps, dim)``, in one run from zero."""
    body = agent.critic.body
    assert body.rnn is not None
    with torch.no_grad():
        x = body.normalizer(episode).unsqueeze(1)
        zero = tuple(torch.zeros(p, 1, h) for p, h in body.rnn.state_shapes)
        return float(agent.critic.net(body.rnn(x, zero)[0][-1]))


def test_gradients_are_those_of_a_loop_that_resets_in_the_middle() -> None:
    agent, env = make("gru", 2), ending()
    rollout = collected(agent, env)[1]
    batch = agent._batch(rollout, None)
    data = batch.minibatch(torch.arange(ENVS), images=False, standardize=False)
    assert data is not None
    assert isinstance(data.actor_in, Padded)
    weight = torch.randn(2, generator=torch.Generator().manual_seed(3))
    loss = ((agent.actor.net(features(agent.actor, data.actor_in)) - data.action) @ weight).square()
    fast = torch.autograd.grad(loss.sum(), [*agent.actor.rnn.parameters()])  # pyright: ignore
    state, total = rollout.state, torch.zeros(())
    for t in range(STEPS):
        state = forget(state, rollout.starts()[t])
        x = agent.actor.normalizer(rollout.obs["policy"][t])
        seen, state = recall(agent.actor, x, state)
        total = total + ((agent.actor.net(seen) - rollout.action[t]) @ weight).square().sum()
    slow = torch.autograd.grad(total, [*agent.actor.rnn.parameters()])  # pyright: ignore
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * float(b.abs().max()))


@pytest.mark.parametrize("symmetry", [False, True])
def test_before_the_first_step_the_policy_is_the_one_that_acted(symmetry: bool) -> None:
    chosen = SymmetryConfig(augment=symmetry, mirror_coef=0.1 * symmetry)
    agent = make(epochs=1, minibatches=1, symmetry=chosen)
    collector = Collector(ending(), num_steps=STEPS, device=CPU)
    for _ in range(3):
        metrics = agent.update(collector.collect(agent.act))
        assert float(metrics["policy/kl"]) < 1e-9
        assert float(metrics["policy/clip_fraction"]) == 0.0 or symmetry


def test_excluded_samples_pass_through_the_memory_and_are_in_no_loss() -> None:
    valid = torch.ones(STEPS, ENVS, dtype=torch.bool)
    valid[4, 3] = valid[9, 0] = False
    weights = []
    for reward, action in ((0.0, 0.0), (float("nan"), float("inf"))):
        agent = make()
        rollout = collected(agent, ending())[0]
        agent.generator.manual_seed(5)
        rollout.reward[4, 3], rollout.action[4, 3] = reward, action
        agent.update(rollout, valid)
        weights.append(torch.cat([p.detach().flatten() for p in agent.actor.parameters()]))
    assert torch.equal(*weights)
    batch = agent._batch(rollout, valid)
    parts = [batch.minibatch(torch.tensor([n]), images=False, standardize=False) for n in (3, 4)]
    assert [len(part.action) for part in parts if part is not None] == [STEPS - 1, STEPS]


def test_environments_without_samples_make_no_minibatch() -> None:
    agent = make(minibatches=2, epochs=1)
    rollout = collected(agent, ending())[0]
    valid = torch.ones(STEPS, ENVS, dtype=torch.bool)
    valid[:, 1:] = False
    before = [p.clone() for p in agent.actor.parameters()]
    metrics = agent.update(rollout, valid)
    assert all(value.isfinite() for value in metrics.values())
    assert not torch.equal(before[0], next(iter(agent.actor.parameters())))


def test_rows_that_are_restarted_forget() -> None:
    agent, env = make(), ending(share=0.0)
    collector = Collector(env, num_steps=STEPS, device=CPU)
    collector.collect(agent.act)
    rows = torch.zeros(ENVS, dtype=torch.bool)
    rows[2] = True
    collector.reset_rows(rows)
    rollout = collector.collect(agent.act)
    assert rollout.first is not None
    assert rollout.first.tolist() == rows.tolist()
    fresh, _ = agent.actor.step(rollout.obs["policy"][0])
    assert torch.allclose(rollout.outputs[0, 2], fresh[2], atol=1e-6)
    assert not torch.allclose(rollout.outputs[0, 1], fresh[1], atol=1e-3)


@pytest.mark.parametrize("memory", [True, False])
def test_images_are_what_the_network_sees_of_the_mirrored_world(memory: bool) -> None:
    """Their state, too: as if it had seen the mirror image since the episode began."""
    agent = make(symmetry=SymmetryConfig(augment=True), network={"critic_memory": memory})
    rollouts = collected(agent, ending(share=0.05))
    batches = [agent._batch(rollout, None) for rollout in rollouts[:2]]
    assert isinstance(batches[1], SequenceBatch)
    data = batches[1].minibatch(torch.arange(ENVS), images=True, standardize=False)
    assert data is not None
    assert isinstance(data.critic_in, Padded) == memory
    count = STEPS * ENVS
    assert torch.equal(data.action[count:], data.action[:count].flip(-1))
    assert torch.equal(data.returns[count:], data.returns[:count])
    outputs: list[Tensor] = []
    with torch.no_grad():
        image = agent.actor.net(features(agent.actor, data.actor_in))[count:]
        states: tuple[Tensor, ...] = ()
        for rollout in rollouts[:2]:
            outputs.clear()
            for t in range(STEPS):
                states = forget(states, rollout.starts()[t])
                x = TABLE.obs["policy"].apply(rollout.obs["policy"][t])
                seen, states = recall(agent.actor, agent.actor.normalizer(x), states)
                outputs.append(agent.actor.net(seen))
    assert isinstance(data.actor_in, Padded)
    layout = batches[1]._layout
    step, column = layout.mask.nonzero(as_tuple=True)
    expected = torch.stack(outputs).flatten(0, 1)[layout.row[step, column]]
    torch.testing.assert_close(image, expected, rtol=0.0, atol=1e-5)


def asymmetry(agent: PPO) -> float:
    """How far actions in the mirrored world are from mirrored actions, over ten steps."""
    obs = torch.randn(10, 200, 3, generator=torch.Generator().manual_seed(5))
    here, there = DeterministicPolicy(agent.actor), DeterministicPolicy(agent.actor)
    apart = [there(TABLE.obs["policy"].apply(x)) - TABLE.action.apply(here(x)) for x in obs]
    return float(torch.stack(apart).square().mean().sqrt())


def test_the_mirror_loss_makes_a_policy_with_a_memory_symmetric() -> None:
    left = {}
    for coef in (1e-9, 10.0):
        symmetry = SymmetryConfig(mirror_coef=coef)
        agent = make("lstm", symmetry=symmetry, desired_kl=None, epochs=10, learning_rate=3e-3)
        before = asymmetry(agent)
        collector = Collector(ending(), num_steps=STEPS, device=CPU)
        for _ in range(ROLLOUTS):
            agent.update(collector.collect(agent.act))
        left[coef] = asymmetry(agent) / before
    assert left[10.0] < 0.4
    assert left[1e-9] > 2.0 * left[10.0]


CUE = TrainConfig(
    num_envs=16,
    iterations=6,
    checkpoint_every=100,
    random_episode_length=False,
    network=NetworkConfig(
        kind="lstm", rnn_hidden=16, actor_hidden=(16,), critic_hidden=(16,), normalize_obs=True
    ),
    ppo=PPOConfig(num_steps=13, minibatches=2, epochs=2),
)


def run(folder: Path, config: TrainConfig, resume: Checkpoint | None = None) -> Checkpoint:
    task = TaskRun(env=CueEnv(config.num_envs, config.seed), train=config)
    return load_checkpoint(train("cue", task, config, folder, resume=resume).checkpoint)


@pytest.mark.parametrize("network", [{}, {"kind": "gru", "shared": True, "trunk_hidden": (8,)}])
def test_a_resumed_run_remembers_and_goes_on_bit_for_bit(
    tmp_path: Path, network: dict[str, Any]
) -> None:
    """Thirteen steps of episodes of nine: the rollouts end in the middle of them."""
    config = replace(CUE, network=replace(CUE.network, **network))
    half = run(tmp_path / "half", replace(config, iterations=3))
    assert half.collector["state"][0].abs().max() > 0.0
    resumed = run(tmp_path / "resumed", config, resume=half)
    straight = run(tmp_path / "straight", config)
    for field in ("agent", "collector", "progress", "rng"):
        one, other = getattr(resumed, field), getattr(straight, field)
        torch.testing.assert_close(one, other, rtol=0.0, atol=0.0)


def test_there_must_be_an_environment_for_every_minibatch() -> None:
    with pytest.raises(InvalidSetting, match=r"network.kind = lstm .* num_envs = 3"):
        replace(CUE, num_envs=3, ppo=PPOConfig(num_steps=9, minibatches=4))
