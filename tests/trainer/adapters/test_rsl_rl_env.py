"""Environments in the style of rsl_rl, in all their interfaces, and the way back."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

from robot_runtime.errors import Refused
from tests.trainer.adapters.rsl_rl_envs import Grouped, LeggedGym, Simulation, Tuple
from tests.trainer.adapters.test_gymnasium import MODES, act, advantages, collect
from tests.trainer.toys.surefoot_toys import PointEnv
from trainer.envs.as_rsl_rl import RslRlVecEnv
from trainer.envs.rsl_rl_adapter import RslRlEnv
from trainer.envs.rsl_rl_groups import groups_of, resolve_sets
from trainer.rollout import Acted, Collector

ALL = {"actor": ["proprio", "step"]}
FORMS = ("final_obs", "terminal", "playground", "gymnasium")


def collector(env: RslRlEnv) -> Collector:
    return Collector(env, num_steps=40, device=torch.device("cpu"))


def _policy(width: int) -> Any:
    def act_on(obs: Tensor) -> Acted:
        return act(obs[:, :width])

    return act_on


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_last_observations_gives_gymnasiums_advantages(form: str) -> None:
    expected = advantages(collect(MODES[1]))
    env = RslRlEnv(Grouped(form), obs_groups=ALL)
    found = advantages(collector(env).collect(act))
    assert len(found) == len(expected) == 120
    for step, advantage in expected.items():
        assert found[step] == pytest.approx(advantage, abs=1e-6)


def test_without_last_observations_the_value_before_stands_in(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        rollout = collector(RslRlEnv(Grouped(), obs_groups=ALL)).collect(act)
    cut = rollout.truncated
    assert int(cut.sum()) > 10
    torch.testing.assert_close(rollout.final_obs[cut], rollout.obs["policy"][:-1][cut])
    assert caplog.text.count("V(s_t) stands in") == 1


def test_last_observations_can_be_left_alone() -> None:
    env = RslRlEnv(Grouped("final_obs"), obs_groups=ALL, use_final_obs=False)
    rollout = collector(env).collect(act)
    cut = rollout.truncated
    torch.testing.assert_close(rollout.final_obs[cut], rollout.obs["policy"][:-1][cut])


def test_nothing_is_said_before_something_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    """An environment that gives last observations in the steps that have some, and only there."""
    with caplog.at_level(logging.WARNING):
        collector(RslRlEnv(Grouped("final_obs"), obs_groups=ALL)).collect(act)
    assert caplog.text == ""


def test_terminated_and_truncated_are_told_apart() -> None:
    rollout = collector(RslRlEnv(Grouped("final_obs"), obs_groups=ALL)).collect(act)
    oracle = collect(MODES[1])
    assert torch.equal(rollout.terminated, oracle.terminated)
    assert torch.equal(
        rollout.truncated & ~rollout.terminated, oracle.truncated & ~oracle.terminated
    )
    torch.testing.assert_close(rollout.reward, oracle.reward)
    assert float(rollout.log["Reward/alive"]) == 1.5


def test_a_tensordict_is_a_dict_of_groups() -> None:
    tensordict = pytest.importorskip("tensordict")

    def make(groups: dict[str, Tensor]) -> Any:
        return tensordict.TensorDict(groups, batch_size=[3])

    env = RslRlEnv(Grouped("final_obs", make=make), obs_groups=ALL)
    found = advantages(collector(env).collect(act))
    expected = advantages(collect(MODES[1]))
    assert found == pytest.approx(expected, abs=1e-6)


def test_the_tuple_interface() -> None:
    env = RslRlEnv(Tuple())
    assert env.sets == {"policy": ["policy"], "critic": ["critic"]}
    assert env.obs_dims == {"policy": 3, "critic": 6}
    rollout = collector(env).collect(_policy(3))
    torch.testing.assert_close(rollout.obs["policy"], collect(MODES[1]).obs["policy"])
    torch.testing.assert_close(rollout.obs["critic"][..., 3:], rollout.obs["policy"])


def test_the_interface_of_legged_gym() -> None:
    theirs = LeggedGym()
    env = RslRlEnv(theirs)
    assert theirs.resets == 1
    rollout = collector(env).collect(_policy(3))
    oracle = collect(MODES[1])
    torch.testing.assert_close(rollout.obs["policy"], oracle.obs["policy"])
    assert rollout.obs["critic"].shape == (41, 3, 6)
    # Its time-outs outlive the step they belong to.
    assert torch.equal(rollout.truncated, oracle.truncated & ~oracle.terminated)
    assert float(rollout.log["Episode/rew_alive"]) == 2.0
    assert float(rollout.log["Episode/terrain"]) == 3.0


def test_the_environment_is_looked_at_as_often_as_by_rsl_rl() -> None:
    """`get_observations` advances the history of Isaac Lab's observations."""
    theirs = Grouped("final_obs")
    env = RslRlEnv(theirs, obs_groups=ALL)
    env.reset()
    assert theirs.looks == 1
    env.reset(random_episode_length=True)
    assert theirs.looks == 2


def test_ages_are_drawn_once_asked() -> None:
    theirs = Grouped()
    theirs.episode_length_buf = torch.zeros(3, dtype=torch.long)
    env = RslRlEnv(theirs, obs_groups=ALL)
    torch.manual_seed(0)
    seen = set()
    for _ in range(20):
        env.reset(random_episode_length=True)
        seen |= set(theirs.episode_length_buf.tolist())
    assert seen == {0, 1, 2, 3, 4}
    theirs.max_episode_length = torch.tensor([1, 2, 3])  # pyright: ignore
    env.reset(random_episode_length=True)
    assert (theirs.episode_length_buf < torch.tensor([1, 2, 3])).all()


def test_rows_are_restarted_through_their_time_limit(caplog: pytest.LogCaptureFixture) -> None:
    theirs = Grouped()
    env = RslRlEnv(theirs, obs_groups=ALL)
    env.reset_rows(torch.tensor([False, True, False]))
    assert theirs.episode_length_buf.tolist() == [0, 5, 0]
    del theirs.episode_length_buf
    with caplog.at_level(logging.WARNING):
        env.reset_rows(torch.tensor([False, True, False]))
    assert "single environments cannot be restarted" in caplog.text


def test_sets_are_resolved_as_in_rsl_rl() -> None:
    groups = {"policy": torch.zeros(2, 3), "critic": torch.zeros(2, 4), "scan": torch.zeros(2, 5)}
    assert resolve_sets(groups, None) == {"policy": ["policy"], "critic": ["critic"]}
    assert resolve_sets(groups, {"policy": ["policy", "scan"], "critic": ["critic"]}) == {
        "policy": ["policy", "scan"], "critic": ["critic"]}  # fmt: skip
    assert resolve_sets(groups, {"actor": ["policy"], "critic": ["policy"], "rnd_state": ["scan"]}
                        ) == {"policy": ["policy"], "rnd_state": ["scan"]}  # fmt: skip
    assert resolve_sets({"policy": groups["policy"]}, None) == {"policy": ["policy"]}
    assert resolve_sets({"actor": groups["policy"]}, {}) == {"policy": ["actor"]}


@pytest.mark.parametrize(("groups", "sets", "said"), [
    ({"state": torch.zeros(2, 3)}, None, "neither 'actor' nor 'policy' among ['state']"),
    ({"policy": torch.zeros(2, 3)}, {"critic": ["x"]}, "set 'critic': group 'x' is not there"),
    ({"policy": torch.zeros(2, 3, 4)}, None, "group 'policy' has shape (2, 3, 4)"),
    ({"policy": {"joint_pos": torch.zeros(2, 3)}}, None, "group 'policy' has parts"),
    ({"policy": torch.zeros(2, 3)}, {"teacher": []}, "set 'teacher': it is empty"),
    ({"policy": torch.zeros(2, 3), "a": torch.zeros(2, 3)}, {"actor": ["a"], "policy": ["policy"]},
     "both 'actor' and 'policy'"),
])  # fmt: skip
def test_sets_that_cannot_be_resolved_are_refused(groups: Any, sets: Any, said: str) -> None:
    with pytest.raises(Refused) as caught:
        resolve_sets(groups, sets)
    assert said in str(caught.value)


def test_what_is_no_environment_is_refused_by_name() -> None:
    with pytest.raises(Refused, match="Simulation is no environment for rsl_rl: no 'step'"):
        RslRlEnv(Simulation())
    with pytest.raises(Refused, match="observation is a list"):
        groups_of([1.0], None)


def test_last_observations_that_lack_a_group_are_refused() -> None:
    class Short(Grouped):
        def _final(self, out: dict[str, Tensor]) -> dict[str, Any]:
            return {"final_obs": {"proprio": out["final"][:, :2]}}

    env = RslRlEnv(Short(), obs_groups=ALL)
    with pytest.raises(Refused, match="give no observation set 'policy'"):
        env.step(torch.zeros(3, 1))


def test_counters_of_curricula_are_kept() -> None:
    theirs = Grouped()
    env = RslRlEnv(theirs, obs_groups=ALL)
    env.step(torch.zeros(3, 1))
    state = env.state_dict()
    fresh = Grouped()
    again = RslRlEnv(fresh, obs_groups=ALL)
    assert again.load_state_dict(state) is not None
    assert fresh.common_step_counter == 1
    with pytest.raises(ValueError, match="num_envs: the state has 9"):
        again.load_state_dict({"num_envs": 9})


@pytest.mark.parametrize("interface", ["tensordict", "tuple"])
def test_there_and_back_is_the_same_environment(interface: Any) -> None:
    if interface == "tensordict":
        pytest.importorskip("tensordict")

    def points() -> PointEnv:
        return PointEnv(4, seed=5)

    there = RslRlEnv(RslRlVecEnv(points(), interface=interface))
    plain = points()
    torch.testing.assert_close(there.reset(), plain.reset())
    generator = torch.Generator().manual_seed(1)
    for _ in range(60):
        actions = torch.randn(4, 2, generator=generator)
        one, two = there.step(actions), plain.step(actions)
        torch.testing.assert_close(one.obs, two.obs)
        torch.testing.assert_close(one.reward, two.reward)
        assert torch.equal(one.terminated, two.terminated)
        assert torch.equal(one.truncated, two.truncated & ~two.terminated)
        done = two.terminated | two.truncated
        assert one.final_obs is not None
        assert two.final_obs is not None
        torch.testing.assert_close(one.final_obs["policy"][done], two.final_obs["policy"][done])
        torch.testing.assert_close(dict(one.log), dict(two.log))
    state = there.state_dict()
    after = there.step(torch.ones(4, 2)).obs["policy"].clone()
    assert there.load_state_dict(state) is None
    torch.testing.assert_close(there.step(torch.ones(4, 2)).obs["policy"], after)
