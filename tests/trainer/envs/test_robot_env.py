"""The robot environment: episodes, randomness, exact resume, and what it tells the learner."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from robot_runtime.errors import BadInput
from robot_runtime.policy.pipeline import PolicyPipeline
from robot_runtime.policy.spec import HistorySpec, Timing
from trainer.envs.config import RobotEnvConfig
from trainer.envs.robot_env import RobotEnv
from trainer.tasks.commands import CommandConfig
from trainer.tasks.quadruped_flat import env_config
from trainer.tasks.randomization import NOMINAL, RandomizationConfig

SHORT_S = 0.6
"""Episode length of most tests: every row sees several resets in a hundred steps."""


def _config(**changes: Any) -> RobotEnvConfig:
    return dataclasses.replace(env_config(), **{"episode_s": SHORT_S, **changes})


def _env(num_envs: int = 8, config: RobotEnvConfig | None = None, **options: Any) -> RobotEnv:
    return RobotEnv(config or _config(), num_envs=num_envs, **{"num_threads": 1, **options})


def _actions(num_envs: int, steps: int, size: float = 0.5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return size * torch.randn(steps, num_envs, 12, generator=generator)


def _run(env: RobotEnv, actions: torch.Tensor) -> list[torch.Tensor]:
    """Everything a learner sees, step by step."""
    seen: list[torch.Tensor] = []
    for action in actions:
        result = env.step(action)
        assert result.final_obs is not None
        seen += [
            *result.obs.values(),
            *result.final_obs.values(),
            result.reward,
            result.terminated,
            result.truncated,
        ]
    return seen


def _equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_shapes_and_dtypes_are_what_the_environment_declares() -> None:
    env = _env(5)
    obs = env.reset()
    result = env.step(torch.zeros(5, 12))
    assert env.obs_dims["policy"] == env.config.contract.observation_dim
    for group in (obs, result.obs, result.final_obs or {}):
        assert {k: v.shape[1] for k, v in group.items()} == env.obs_dims
        assert all(v.dtype == torch.float32 and v.shape[0] == 5 for v in group.values())
    assert result.reward.shape == result.terminated.shape == result.truncated.shape == (5,)
    assert result.terminated.dtype == result.truncated.dtype == torch.bool
    assert result.reward.dtype == torch.float32
    with pytest.raises(ValueError, match=r"\(5, 11\).*\(5, 12\)"):
        env.step(torch.zeros(5, 11))


def test_same_seed_same_run_on_any_number_of_threads() -> None:
    actions = _actions(8, 60)
    runs = []
    for seed, threads in ((0, 1), (0, 2), (1, 1)):
        env = _env(seed=seed, num_threads=threads)
        runs.append([*env.reset(random_episode_length=True).values(), *_run(env, actions)])
    assert _equal(runs[0], runs[1])
    assert not _equal(runs[0], runs[2])


def test_a_row_does_not_notice_how_many_others_there_are() -> None:
    actions = _actions(12, 60)
    many, few = _env(12), _env(4)
    first, second = many.reset(random_episode_length=True), few.reset(random_episode_length=True)
    assert torch.equal(first["critic"][:4], second["critic"])
    for action in actions:
        a, b = many.step(action), few.step(action[:4])
        for name in ("reward", "terminated", "truncated"):
            assert torch.equal(getattr(a, name)[:4], getattr(b, name))
        # Vectorized float32 functions may round the tail of an array otherwise.
        torch.testing.assert_close(a.obs["critic"][:4], b.obs["critic"], rtol=1e-6, atol=1e-6)


def _with_history(config: RobotEnvConfig) -> RobotEnvConfig:
    """Three frames, every other step."""
    history = HistorySpec(
        length=3,
        layout="term_major",
        order="oldest_first",
        fill="first",
        includes_current=True,
        stride=2,
    )
    block = dataclasses.replace(config.contract.observation[0], history=history)
    contract = dataclasses.replace(config.contract, observation=(block,))
    return dataclasses.replace(config, contract=contract)


def test_resume_continues_bit_for_bit() -> None:
    """With history, delays and episodes under way, in a new environment."""
    base = _with_history(_config())
    contract = dataclasses.replace(
        base.contract,
        actuator=dataclasses.replace(base.contract.actuator, delay=0.01, target_filter=0.7),
        action=dataclasses.replace(base.contract.action, filter=0.8),
    )
    config = dataclasses.replace(base, contract=contract)
    actions = _actions(8, 47)
    env = _env(config=config)
    env.reset(random_episode_length=True)
    _run(env, actions[:17])
    saved = env.state_dict()
    want = _run(env, actions[17:])
    other = _env(config=config, seed=3)
    other.reset()
    _run(other, actions[:5])
    other.load_state_dict(saved)
    assert _equal(want, _run(other, actions[17:]))
    # A saved state is a copy: running on has not changed it.
    again = _env(config=config)
    again.load_state_dict(saved)
    assert _equal(want, _run(again, actions[17:]))


def test_the_callers_actions_stay_as_they_are() -> None:
    env = _env(4)
    env.reset()
    actions = torch.ones(4, 12)
    for _ in range(env.max_episode_length):
        env.step(actions)
    assert (actions == 1.0).all()


def test_foreign_state_is_refused_by_name() -> None:
    env = _env(4)
    env.reset()
    state = env.state_dict()
    with pytest.raises(ValueError, match=r"number.*\(4,\).*\(3,\)"):
        _env(3).load_state_dict(state)
    del state["targets"]
    with pytest.raises(ValueError, match="'targets' is missing"):
        env.load_state_dict(state)


def _both_actions(config: RobotEnvConfig) -> RobotEnvConfig:
    """The network's output and what becomes of it, both observed, and not the same."""
    block = config.contract.observation[0]
    last = next(term for term in block.terms if term.source == "last_action")
    seen = (
        dataclasses.replace(last, name="raw", stage="raw"),
        dataclasses.replace(last, name="applied", stage="applied"),
    )
    others = tuple(term for term in block.terms if term is not last)
    contract = dataclasses.replace(
        config.contract,
        observation=(dataclasses.replace(block, terms=(*others, *seen)),),
        action=dataclasses.replace(config.contract.action, filter=0.8),
    )
    return dataclasses.replace(config, contract=contract)


@pytest.mark.parametrize("change", [lambda config: config, _both_actions], ids=["task", "actions"])
def test_observation_is_the_runtime_pipeline_of_the_measured_state(
    change: Callable[[RobotEnvConfig], RobotEnvConfig],
) -> None:
    """What the policy is trained on is what the robot computes, across resets."""
    randomization = dataclasses.replace(RandomizationConfig(), sensor_noise=0.0)
    env = _env(3, change(_config(randomization=randomization)))
    obs = env.reset()["policy"]
    taken = torch.zeros(12)
    robot = PolicyPipeline(env.config.contract, lambda _: taken.numpy())
    for action in _actions(3, 70):
        state, episodes = env.robot_state, env.episodes
        if int(episodes.step[1]) == 0:
            robot.reset()
        taken = action[1]
        one = dataclasses.replace(
            state,
            **{
                f.name: getattr(state, f.name)[1].numpy()
                for f in dataclasses.fields(state)
                if f.name != "time"
            },
        )
        want = robot.step(one, episodes.asked[1].numpy(), float(episodes.step[1]) * 0.02)
        # float32 operations in another order.
        np.testing.assert_allclose(obs[1].numpy(), want.observation, rtol=1e-5, atol=1e-6)
        obs = env.step(action).obs["policy"]


def test_first_observation_after_a_reset_is_fresh() -> None:
    """An episode ends far away and low; the next starts at the origin, at rest, unheard."""
    config = _config(randomization=NOMINAL)
    env = _env(2, config)
    env.give_commands(torch.tensor([[0.5, 0.2, 0.3], [0.5, 0.2, 0.3]]))
    first = env.reset()
    for _ in range(5):
        env.step(torch.full((2, 12), 0.8))
    state = env.physics.read()
    far = dataclasses.replace(
        state,
        base_pos_w=torch.tensor([[5.0, 0.0, 0.1], [0.0, 0.0, 0.3]]),
        base_lin_vel_w=torch.ones(2, 3),
    )
    env.physics.place_rows(np.arange(2), far)
    result = env.step(torch.full((2, 12), 0.8))
    assert result.terminated.tolist() == [True, False]
    # Height, velocity and foot contact of the new pose; no trace of the last action.
    assert torch.equal(result.obs["critic"][0], first["critic"][0])
    last_action = slice(33, 45)
    assert (first["policy"][0, last_action] == 0.0).all()
    assert (result.obs["policy"][1, last_action] != 0.0).any()
    # The last observation of the old episode is kept apart: its base was low and fast.
    assert result.final_obs is not None
    assert float(result.final_obs["critic"][0, 47:50].abs().max()) > 0.3
    assert float(result.final_obs["critic"][0, 50]) < 0.16
    # Feet that jump by five metres have not moved at five metres per control step, and nothing
    # else that a reward remembers is of the episode before.
    new = _env(2, config)
    new.give_commands(torch.tensor([[0.5, 0.2, 0.3], [0.5, 0.2, 0.3]]))
    new.reset()
    want, got = (one.step(torch.full((2, 12), 0.2)) for one in (new, env))
    assert float(want.reward[0]) > 0.0
    assert torch.equal(got.reward[0], want.reward[0])
    assert torch.equal(got.obs["critic"][0], want.obs["critic"][0])


def test_time_limit_truncates_and_a_fall_terminates() -> None:
    env = _env(4, _config(randomization=NOMINAL))
    env.reset()
    length = env.max_episode_length
    assert length == round(SHORT_S / 0.02)
    for k in range(1, length + 1):
        result = env.step(torch.zeros(4, 12))
        assert not result.terminated.any()
        assert result.truncated.all() == (k == length)
    tipped = dataclasses.replace(
        env.physics.read(), base_quat=torch.tensor([[0.6, 0.8, 0.0, 0.0]]).repeat(4, 1)
    )
    env.put(tipped, torch.tensor([0, 1, length - 1, 2]))
    result = env.step(torch.zeros(4, 12))
    assert result.terminated.all()
    # Both at once stay apart: the learner decides that terminated wins.
    assert result.truncated.tolist() == [False, False, True, False]
    assert (result.reward < 0.0).all(), "a fall is charged"


def test_reset_rows_restarts_only_what_it_is_told() -> None:
    env = _env(4)
    obs = env.reset()
    actions = _actions(4, 10, 0.2)
    for action in actions:
        obs = env.step(action).obs
    steps = env.episodes.step.clone()
    untouched = env.reset_rows(torch.zeros(4, dtype=torch.bool))
    assert torch.equal(untouched["critic"], obs["critic"])
    fresh = env.reset_rows(torch.tensor([False, True, False, False]))
    assert env.episodes.step.tolist() == [steps[0], 0, steps[2], steps[3]]
    keep = torch.tensor([0, 2, 3])
    assert torch.equal(fresh["critic"][keep], obs["critic"][keep])
    assert not torch.equal(fresh["critic"][1], obs["critic"][1])


def test_random_ages_spread_the_time_limits() -> None:
    env = _env(64, _config(episode_s=2.0))
    env.reset(random_episode_length=True)
    ages = env.episodes.age
    assert int(ages.min()) >= 0
    assert int(ages.max()) < env.max_episode_length
    assert len(set(ages.tolist())) > 32
    assert (env.episodes.step == 0).all(), "the gait clock starts at zero all the same"
    env.reset()
    assert (env.episodes.age == 0).all()


def test_huge_action_is_bounded_and_observed_as_applied() -> None:
    """T08: what acts, what is observed and what is charged is the bounded action."""
    env = _env(3, _config(randomization=NOMINAL))
    env.reset()
    bound = env.config.contract.action.terms[0].raw_upper
    assert bound is not None
    action = torch.zeros(3, 12)
    action[1] = 1e6
    result = env.step(action)
    last = result.final_obs["policy"] if result.final_obs else result.obs["policy"]
    assert torch.equal(last[1, 33:45], torch.tensor(bound))
    assert torch.isfinite(result.reward).all()
    assert all(torch.isfinite(v) for v in result.log.values())
    assert abs(float(result.log["reward/action_rate"])) <= 0.01 * 12 * bound[0] ** 2


@pytest.mark.parametrize("change", [lambda config: config, _with_history], ids=["task", "history"])
def test_broken_physics_is_quarantined_and_counted(
    change: Callable[[RobotEnvConfig], RobotEnvConfig],
) -> None:
    env = _env(4, change(_config()))
    env.reset()
    env.step(torch.zeros(4, 12))
    broken = dataclasses.replace(env.physics.read(), joint_pos=torch.full((4, 12), torch.nan))
    env.physics.place_rows(
        np.array([2]),
        dataclasses.replace(
            broken, **{f.name: getattr(broken, f.name)[2:3] for f in dataclasses.fields(broken)}
        ),
    )
    result = env.step(torch.zeros(4, 12))
    assert float(result.log["nonfinite/state"]) == 1.0
    assert result.terminated[2]
    assert float(result.reward[2]) == 0.0
    assert result.final_obs is not None
    for name, seen in result.obs.items():
        assert torch.isfinite(seen).all()
        # What it saw last is worth nothing; the others have not ended.
        assert torch.equal(result.final_obs[name], seen)
    assert all(torch.isfinite(v) for v in result.log.values())
    assert float(env.step(torch.zeros(4, 12)).log["nonfinite/state"]) == 0.0


def test_commands_stay_in_range_change_in_time_and_sometimes_stand() -> None:
    commands = CommandConfig(interval_s=(0.6, 1.0), stand_probability=0.2, zero_probability=0.0)
    env = _env(100, _config(episode_s=30.0, randomization=NOMINAL, commands=commands))
    env.reset()
    lower = torch.tensor([c.lower for c in env.config.contract.commands])
    upper = torch.tensor([c.upper for c in env.config.contract.commands])
    rate = torch.tensor([c.max_rate for c in env.config.contract.commands]) * 0.02
    asked, command = env.episodes.asked.clone(), env.episodes.command.clone()
    changes, stood = [], []
    for k in range(60):
        env.step(torch.zeros(100, 12))
        episodes = env.episodes
        going = episodes.step > 0
        for values in (episodes.asked, episodes.command):
            assert (values >= lower).all()
            assert (values <= upper).all()
        # What the policy is told moves no faster than the contract says.
        assert ((episodes.command - command).abs()[going] <= rate * (1.0 + 1e-5)).all()
        moved = (episodes.asked != asked).any(-1) & going
        changes += [(k + 1) * 0.02] * int(moved.sum())
        stood.append(float((episodes.asked == 0.0).all(-1).float().mean()))
        asked, command = episodes.asked.clone(), episodes.command.clone()
    shortest, longest = env.config.commands.interval_s
    first = [t for t in changes if t < 2.0 * shortest]
    assert min(changes) >= shortest - 0.03
    assert max(first) <= longest + 0.03
    share = env.config.commands.stand_probability
    # 100 robots with about two draws each: five standard errors.
    assert abs(np.mean(stood) - share) < 5.0 * (share * (1 - share) / 200) ** 0.5
    # The whole range is used.
    spread = asked.amax(0) - asked.amin(0)
    assert (spread > 0.9 * (upper - lower)).all()


def test_pushes_change_the_velocity_at_their_time_only() -> None:
    quiet = dataclasses.replace(NOMINAL, push_speed=0.0)
    pushed = dataclasses.replace(NOMINAL, push_speed=0.5, push_interval_s=(0.2, 0.2))
    envs = [_env(32, _config(randomization=r)) for r in (quiet, pushed)]
    for env in envs:
        env.reset()
        env.give_commands(torch.zeros(32, 3))
        env.reset()
    for k in range(12):
        for env in envs:
            env.step(torch.zeros(32, 12))
        a, b = (env.physics.read().base_lin_vel_w for env in envs)
        difference = (a - b)[:, :2].norm(dim=-1)
        if k < 10:
            assert float(difference.max()) == 0.0
        if k == 10:
            # Uniform in +-0.5 per axis, seen one control step later.
            assert 0.2 < float(difference.mean()) < 0.6
            assert float(difference.max()) < 0.75


def test_latency_delays_the_effect_of_an_action() -> None:
    """With 0, 10 and 20 ms of latency a step in the action shows 0, 1 and 2 PD periods later."""
    config = _config(randomization=dataclasses.replace(NOMINAL, latency_s=(0.0, 0.02)))
    env = _env(64, config)
    env.reset()
    delay = env._robots.queue.delay.clone()
    assert set(delay.tolist()) == {0, 1, 2}
    env.step(torch.zeros(64, 12))
    still = _env(64, config)
    still.reset()
    for _ in range(2):
        still.step(torch.zeros(64, 12))
    env.step(torch.full((64, 12), 0.5))
    # Against a robot that got no step: 20 ms, 10 ms and nothing of it have acted so far.
    difference = (env.robot_state.joint_pos - still.robot_state.joint_pos).abs().amax(-1)
    moved = [float(difference[delay == d].mean()) for d in (0, 1, 2)]
    assert moved[0] > 1.5 * moved[1] > 0.0
    assert moved[2] == 0.0


def test_sensor_noise_stays_within_what_the_contract_states() -> None:
    silent = _env(100, _config(randomization=NOMINAL))
    noisy = _env(100, _config(randomization=dataclasses.replace(NOMINAL, sensor_noise=1.0)))
    error = noisy.reset()["policy"] - silent.reset()["policy"]
    start = 0
    for term in silent.config.contract.observation[0].terms:
        stop = start + silent.config.contract.term_dim(term)
        if term.name == "command":
            # The commands differ from robot to robot but not between the environments.
            assert float(error[:, start:stop].abs().max()) == 0.0
        bound = term.noise[0] * term.scale[0]
        largest = float(error[:, start:stop].abs().max())
        assert largest <= bound * (1.0 + 1e-6) + 1e-6
        # 300 uniform draws or more come within 5 % of their bound.
        assert largest >= 0.95 * bound
        start = stop


def test_explicit_pd_contract_runs_and_resumes() -> None:
    base = _config()
    contract = dataclasses.replace(
        base.contract,
        timing=Timing(control_dt=0.02, pd_dt=0.005, physics_dt=0.005),
        actuator=dataclasses.replace(base.contract.actuator, form="explicit_pd"),
    )
    config = dataclasses.replace(base, contract=contract)
    env = _env(4, config)
    env.reset()
    actions = _actions(4, 30, 0.2)
    _run(env, actions[:10])
    saved = env.state_dict()
    want = _run(env, actions[10:])
    other = _env(4, config)
    other.load_state_dict(saved)
    assert _equal(want, _run(other, actions[10:]))


def test_parts_that_do_not_fit_are_refused_by_name() -> None:
    base = env_config()
    with pytest.raises(BadInput, match=r"gait\.offsets: 3 for 4 feet"):
        dataclasses.replace(
            base, gait=dataclasses.replace(base.gait, offsets=base.gait.offsets[:3])
        )
    with pytest.raises(BadInput, match="pose_weight"):
        dataclasses.replace(base, pose_weight=(1.0,))
    observation = dataclasses.replace(
        base.contract.observation[0], terms=base.contract.observation[0].terms[:6]
    )
    timeless = dataclasses.replace(base.contract, phase=None, observation=(observation,))
    with pytest.raises(BadInput, match=r"contract\.phase"):
        dataclasses.replace(base, contract=timeless)
    toes = dataclasses.replace(base, fall=dataclasses.replace(base.fall, clear_bodies=("toe",)))
    with pytest.raises(BadInput, match="toe"):
        _env(1, toes)
