"""A rollout holds what happened, in its place."""

import logging
import math

import pytest
import torch
from torch import Tensor

from tests.trainer.scripted import ScriptedEnv, scripted
from trainer.rollout import Acted, Collector, Rollout

CPU = torch.device("cpu")


def act(obs: Tensor) -> Acted:
    """A policy one can follow by hand."""
    mean = obs[:, :2] * 10.0
    return Acted(sample=mean + 1.0, outputs=mean, action=mean + 1.0)


def collect(env: ScriptedEnv) -> Rollout:
    return Collector(env, num_steps=env.max_episode_length, device=CPU).collect(act)


def test_every_number_is_in_its_place() -> None:
    env = scripted(critic=True)
    rollout = collect(env)
    for name in ("policy", "critic"):
        assert torch.equal(rollout.obs[name], env._obs[name])
    assert torch.equal(rollout.outputs, env._obs["policy"][:-1, :, :2] * 10.0)
    assert torch.equal(rollout.action, rollout.outputs + 1.0)
    assert torch.equal(rollout.reward, env._reward)
    assert env._final is not None
    assert torch.equal(rollout.final_obs, env._final["critic"])
    assert float(rollout.log["step"]) == pytest.approx(2.5)  # the mean of 0 ... 5


def test_the_action_goes_to_the_environment_and_the_sample_into_the_storage() -> None:
    env = scripted()
    collector = Collector(env, num_steps=6, device=CPU, num_outputs=3)
    acted = Acted(torch.full((4, 2), 1e6), torch.arange(12.0).reshape(4, 3), torch.ones(4, 2))
    rollout = collector.collect(lambda obs: acted)
    # Clipping is the environment's business; the probability ratio is one of what was sampled.
    assert float(env.actions[0].min()) == float(env.actions[0].max()) == 1.0
    assert float(rollout.action.min()) == 1e6
    assert torch.equal(rollout.outputs[5], acted.outputs)


def test_without_final_observations_the_state_itself_stands_in_and_this_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = scripted(critic=True)
    env._final = None
    with caplog.at_level(logging.WARNING):
        rollout = collect(env)
    assert torch.equal(rollout.final_obs, rollout.obs["critic"][:-1])
    assert [record.message for record in caplog.records] == [
        "the environment gives no final observations: "
        "V(s_t) stands in for their value at truncated steps"
    ]


def test_the_policy_never_sees_what_is_not_finite() -> None:
    env = scripted()
    env._obs["policy"][2, 1, 0] = math.nan
    env._obs["policy"][3, 2, 1] = -math.inf
    rollout = collect(env)
    assert rollout.action.isfinite().all()
    # The rollout keeps what came, for the guard to find.
    assert (~rollout.obs["policy"].isfinite()).nonzero().tolist() == [[2, 1, 0], [3, 2, 1]]


def test_rows_that_are_restarted_begin_the_next_rollout() -> None:
    env = scripted(steps=3)
    collector = Collector(env, num_steps=3, device=CPU)
    collector.collect(act)
    collector.reset_rows(torch.tensor([False, True, False, False]))
    env.actions.clear()
    first = collector.collect(act).obs["policy"][0]
    assert first[1].tolist() == [0.0, 0.0, 0.0]
    assert torch.equal(first[[0, 2, 3]], env._obs["policy"][-1][[0, 2, 3]])
