"""What is not finite is excluded, counted and named, and weights stay finite."""

import logging
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.trainer.scripted import ScriptedEnv, scripted
from tests.trainer.toys.surefoot_toys import MIRROR, RECIPE, PointEnv
from trainer.checkpoint import load_checkpoint
from trainer.config import PPOConfig, TrainConfig
from trainer.env import StepResult
from trainer.guard import LastFinite, screen
from trainer.metrics import read_metrics
from trainer.ppo import PPO
from trainer.rollout import Acted, Collector, Rollout
from trainer.tasks.base import TaskRun
from trainer.train import train

CPU = torch.device("cpu")


def collect(env: ScriptedEnv) -> Rollout:
    collector = Collector(env, num_steps=env.max_episode_length, device=CPU)
    return collector.collect(lambda obs: Acted(obs[:, :2], obs[:, :2], obs[:, :2]))


def bad(valid: Tensor | None) -> list[list[int]]:
    assert valid is not None
    return (~valid).nonzero().tolist()


def test_a_clean_rollout_is_wholly_valid() -> None:
    screening = screen(collect(scripted()))
    assert screening.valid is None
    assert not screening.rows.any()
    assert screening.faults == {}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_bad_reward_excludes_one_sample(value: float) -> None:
    env = scripted()
    env._reward[2, 3] = value
    screening = screen(collect(env))
    assert bad(screening.valid) == [[2, 3]]
    assert screening.rows.tolist() == [False, False, False, True]
    assert screening.faults == {"nonfinite/reward": 1}
    assert screening.culprits == ["reward of environment 3, step 2 of the rollout"]


@pytest.mark.parametrize("group", ["policy", "critic"])
def test_a_bad_observation_excludes_the_sample_that_led_there_too(group: str) -> None:
    env = scripted(critic=True)
    env._obs[group][3, 1, 2] = math.inf
    screening = screen(collect(env))
    assert bad(screening.valid) == [[2, 1], [3, 1]]
    assert screening.faults == {f"nonfinite/obs:{group}": 1}
    assert screening.culprits == [
        f"obs:{group} of environment 1, step 3 of the rollout, feature 2 = inf"
    ]


def test_a_bad_first_observation_after_an_end_leaves_the_last_sample_alone() -> None:
    env = scripted()
    env._terminated[2, 1] = True
    env._obs["policy"][3, 1, 0] = math.nan
    assert bad(screen(collect(env)).valid) == [[3, 1]]


def test_a_final_observation_counts_where_its_value_is_needed() -> None:
    env = scripted()
    assert env._final is not None
    env._final["policy"][[1, 2, 3], [0, 1, 2]] = math.nan
    env._truncated[1, 0] = True  # needed
    env._truncated[2, 1] = env._terminated[2, 1] = True  # terminated: worth nothing anyway
    screening = screen(collect(env))
    assert bad(screening.valid) == [[1, 0]]
    assert screening.faults == {"nonfinite/final_obs": 1}


def test_a_bad_last_observation_restarts_the_environment() -> None:
    env = scripted()
    env._obs["policy"][-1, 2, 0] = math.nan
    env._terminated[-1, 2] = True
    screening = screen(collect(env))
    assert screening.rows.tolist() == [False, False, True, False]
    assert bad(screening.valid) == []


class Faulty(PointEnv):
    """The toy environment with one bad number at one step of one environment."""

    def __init__(self, *, reward: float = 0.0, obs: float = 0.0) -> None:
        super().__init__(64, seed=0)
        self._bad, self._step = (reward, obs), 0
        self.restarted: list[list[int]] = []

    def step(self, actions: Tensor) -> StepResult:
        result = super().step(actions)
        if self._step == 5:
            result.reward[9] += self._bad[0]
            result.obs["policy"][9, 1] += self._bad[1]
        self._step += 1
        return result

    def reset_rows(self, rows: Tensor) -> dict[str, Tensor]:
        self.restarted.append(rows.nonzero().flatten().tolist())
        return super().reset_rows(rows)


def test_a_restarted_environment_counts_its_next_episode_from_the_start(tmp_path: Path) -> None:
    config = TrainConfig(
        num_envs=64, iterations=3, ppo=RECIPE.ppo, network=RECIPE.network,
        random_episode_length=False,
    )  # fmt: skip
    env = Faulty(reward=math.inf)
    train("toy-point", TaskRun(env=env, train=config, symmetry=MIRROR), config, tmp_path)
    lengths = [row["episode/length"] for row in read_metrics(tmp_path) if "episode/length" in row]
    assert env.restarted == [[9]]
    assert lengths == [env.max_episode_length] * len(lengths)
    assert len(lengths) == 2


@pytest.mark.parametrize(
    ("fault", "counter"),
    [({"reward": math.inf}, "nonfinite/reward"), ({"obs": math.nan}, "nonfinite/obs:policy")],
)
def test_one_bad_number_in_a_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: dict[str, float], counter: str
) -> None:
    env = Faulty(**fault)
    config = TrainConfig(num_envs=64, iterations=3, ppo=RECIPE.ppo, network=RECIPE.network)
    task = TaskRun(env=env, train=config, symmetry=MIRROR)
    with caplog.at_level(logging.WARNING):
        result = train("toy-point", task, config, tmp_path)
    agent = load_checkpoint(result.checkpoint).agent
    tensors = [*agent["actor"].values(), *agent["critic"].values()]
    assert all(tensor.isfinite().all() for tensor in tensors)
    assert result.metrics[counter] == 1.0
    assert result.metrics["nonfinite/grad"] == result.metrics["nonfinite/parameter"] == 0.0
    assert [row["guard/quarantined_envs"] for row in read_metrics(tmp_path)] == [1.0, 0.0, 0.0]
    assert env.restarted == [[9]]
    named = [r.message for r in caplog.records if "environment 9" in r.message]
    assert len(named) == 1
    assert named[0].startswith("iteration 1: not finite: ")
    # A sample that is excluded is in no statistic either: 3 rollouts of 64 x 16 samples, doubled.
    lost = 1 if counter == "nonfinite/reward" else 2
    assert float(agent["actor"]["normalizer.count"]) == 2 * (3 * 64 * 16 - lost)


def make_agent(**changes: object) -> PPO:
    config = PPOConfig(num_steps=6, minibatches=1, epochs=2, **changes)  # pyright: ignore
    return PPO({"policy": 3}, 2, config=config, network=RECIPE.network, seed=0, device=CPU)


def weights(agent: PPO) -> list[Tensor]:
    return [p.detach().clone() for p in (*agent.actor.parameters(), *agent.critic.parameters())]


def test_a_step_with_bad_gradients_is_skipped_and_counted() -> None:
    agent = make_agent()
    rollout = Collector(scripted(), num_steps=6, device=CPU).collect(agent.act)
    agent.update(rollout)
    before = weights(agent)
    moments = [t.clone() for t in agent._optimizer.moments().values()]
    agent.actor.get_parameter("distribution.param").register_hook(lambda grad: grad * math.nan)
    agent.update(rollout)
    assert int(agent.faults["nonfinite/grad"]) == 2
    assert all(torch.equal(a, b) for a, b in zip(before, weights(agent), strict=True))
    assert all(map(torch.equal, moments, agent._optimizer.moments().values()))


def test_a_bad_weight_brings_the_last_finite_ones_back(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make_agent()
    rollout = Collector(scripted(), num_steps=6, device=CPU).collect(agent.act)
    agent.update(rollout)
    kept_weights = weights(agent)
    moments = [t.clone() for t in agent._optimizer.moments().values()]
    step = agent._optimizer.step

    def poisoned(skip: Tensor) -> None:
        step(skip)
        with torch.no_grad():
            agent.actor.get_parameter("distribution.param").fill_(math.nan)

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(agent._optimizer, "step", poisoned)
        agent.update(rollout)
    assert int(agent.faults["nonfinite/parameter"]) == 1
    assert [record.name for record in caplog.records] == ["trainer.ppo"]
    assert all(torch.equal(a, b) for a, b in zip(kept_weights, weights(agent), strict=True))
    assert all(map(torch.equal, moments, agent._optimizer.moments().values()))
    agent.update(rollout)
    assert all(w.isfinite().all() for w in weights(agent))


def test_weights_that_are_bad_from_the_start_are_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        LastFinite(lambda: [torch.tensor([1.0, math.nan])])


def test_a_kl_that_is_not_finite_is_counted_and_changes_no_rate() -> None:
    agent = make_agent()
    rollout = Collector(scripted(), num_steps=6, device=CPU).collect(agent.act)
    rollout.outputs[0, 0, 0] = math.inf
    agent.update(rollout)
    assert int(agent.faults["nonfinite/kl"]) == 2
    assert float(agent.lr) == pytest.approx(1e-3)
