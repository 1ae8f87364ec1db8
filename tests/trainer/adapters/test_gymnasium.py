"""Vector environments of gymnasium: spaces, the three autoreset modes, and the tasks `gym:ID`."""

from __future__ import annotations

import functools
import logging
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor

from robot_runtime.errors import BadInput, Refused
from tests.trainer.adapters.counting import LENGTHS, Counting
from trainer.config import NetworkConfig, PPOConfig, TrainConfig
from trainer.env import StepResult
from trainer.envs import action_space
from trainer.envs.gymnasium_adapter import NO_LIMIT, GymnasiumEnv
from trainer.envs.spaces import ActionWriter, ObservationReader
from trainer.gae import generalized_advantages
from trainer.guard import screen
from trainer.metrics import EpisodeTracker
from trainer.networks.actor_critic import Critic
from trainer.rollout import Acted, Collector, Rollout
from trainer.tasks.base import TaskRun, find_task, recipe_of
from trainer.train import Run

MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)
modes = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)


def counting(mode: AutoresetMode, num: int = 3) -> SyncVectorEnv[Any, Any]:
    return SyncVectorEnv([functools.partial(Counting, i) for i in range(num)], autoreset_mode=mode)


def act(obs: Tensor) -> Acted:
    """A policy without noise: what it does depends on the observation alone."""
    action = torch.sin(obs.sum(-1, keepdim=True))
    return Acted(action, action, action)


def collect(mode: AutoresetMode, num_steps: int = 40) -> Rollout:
    env = GymnasiumEnv(counting(mode))
    return Collector(env, num_steps=num_steps, device=torch.device("cpu")).collect(act)


def advantages(rollout: Rollout) -> dict[tuple[float, ...], float]:
    """The advantage of every step that counts, by (environment, episode, step)."""
    critic = Critic(3, NetworkConfig(critic_hidden=(8,)), torch.Generator().manual_seed(0))
    with torch.no_grad():
        value, final = critic(rollout.obs["policy"]), critic(rollout.final_obs)
    valid = screen(rollout).valid
    advantage, _ = generalized_advantages(
        rollout.reward, value[:-1], value[-1], final, rollout.terminated, rollout.truncated,
        gamma=0.9, lam=0.8, valid=valid,
    )  # fmt: skip
    counted = torch.ones_like(advantage, dtype=torch.bool) if valid is None else valid
    steps = rollout.obs["policy"][:-1][counted].tolist()
    values = advantage[counted].tolist()
    return {tuple(step): x for step, x in zip(steps, values, strict=True)}


def test_every_mode_gives_the_same_advantages() -> None:
    found = {mode: advantages(collect(mode)) for mode in MODES}
    # What the end of the rollout cut differs; 8 episodes of each environment are whole.
    whole = {step for step in found[AutoresetMode.NEXT_STEP] if step[1] < 8}
    expected = sum(LENGTHS[(e + n) % 5][0] for n in range(3) for e in range(8))
    assert len(whole) == expected
    for step in whole:
        one, two, three = (found[mode][step] for mode in MODES)
        assert one == pytest.approx(two, abs=1e-6)
        assert two == pytest.approx(three, abs=1e-6)


@modes
def test_final_observations_and_ends(mode: AutoresetMode) -> None:
    rollout = collect(mode)
    ended = rollout.terminated | rollout.truncated
    if rollout.valid is not None:
        ended &= rollout.valid
    before = rollout.obs["policy"][:-1][ended]
    final = rollout.final_obs[ended]
    # The last observation is one step on in the same episode of the same environment.
    torch.testing.assert_close(final, before + torch.tensor([0.0, 0.0, 1.0]))
    for (number, episode, step), terminated, truncated in zip(
        final.tolist(), rollout.terminated[ended], rollout.truncated[ended], strict=True
    ):
        length, end = LENGTHS[int(episode + number) % 5]
        assert step == length
        assert bool(terminated) == (end in ("terminated", "both"))
        assert bool(truncated) == (end in ("truncated", "both"))


def test_steps_that_only_reset_count_nowhere() -> None:
    rollout = collect(AutoresetMode.NEXT_STEP)
    valid = screen(rollout).valid
    assert valid is not None
    assert rollout.valid is not None
    ended = (rollout.terminated | rollout.truncated) & rollout.valid
    # Every end is followed by one of them, but for those in the last row.
    assert torch.equal(~valid[1:], ended[:-1])
    assert (rollout.reward[~valid] == 0.0).all()
    metrics = EpisodeTracker(3, torch.device("cpu")).update(
        rollout.reward, rollout.terminated | rollout.truncated, rollout.valid
    )
    same = collect(AutoresetMode.SAME_STEP)
    ended = [final.tolist() for final in same.final_obs[same.terminated | same.truncated]]
    # As many episodes as the same number of counted steps gives without idle ones, each as long.
    whole = [step for number, episode, step in ended if [number, episode] in _seen(rollout)]
    assert int(metrics["episode/count"]) == len(whole)
    assert float(metrics["episode/length"]) == pytest.approx(np.mean(whole))


def _seen(rollout: Rollout) -> list[list[float]]:
    """(environment, episode) of what ended in a rollout."""
    assert rollout.valid is not None
    ended = (rollout.terminated | rollout.truncated) & rollout.valid
    return rollout.final_obs[ended][:, :2].tolist()


def test_a_run_counts_and_learns_from_what_is_a_step() -> None:
    config = TrainConfig(
        num_envs=3, iterations=1, random_episode_length=False,
        network=NetworkConfig(actor_hidden=(4,), critic_hidden=(4,)),
        ppo=PPOConfig(num_steps=10, epochs=1, minibatches=1),
    )  # fmt: skip
    run = Run("toy", TaskRun(env=GymnasiumEnv(counting(MODES[0])), train=config), config)
    run.step()
    taken = sum(len(env.actions) for env in _counters(run))
    assert run.env_steps == taken
    assert taken < 30
    assert run.faults == {}


def _counters(run: Run) -> list[Counting]:
    env: Any = run.collector.env
    return env.env.envs


@modes
def test_rows_that_are_reset_begin_their_next_episode(mode: AutoresetMode) -> None:
    env = GymnasiumEnv(counting(mode, 2))
    env.reset()
    env.step(torch.zeros(2, 1))
    obs = env.reset_rows(torch.tensor([False, True]))["policy"]
    assert obs.tolist() == [[0, 0, 1], [1, 1, 0]]
    assert env.reset_rows(torch.zeros(2, dtype=torch.bool))["policy"].tolist() == obs.tolist()


def test_rows_that_ended_and_are_reset_do_not_idle() -> None:
    env = GymnasiumEnv(counting(AutoresetMode.NEXT_STEP))
    env.reset()
    result = [env.step(torch.zeros(3, 1)) for _ in range(3)][-1]
    # Environment 2 had an episode of one step, and the idle step after it.
    assert result.truncated.tolist() == [True, False, False]
    env.reset_rows(torch.tensor([True, False, False]))
    assert env.step(torch.zeros(3, 1)).valid is None


def test_an_async_vector_environment() -> None:
    venv = AsyncVectorEnv([functools.partial(Counting, i) for i in range(2)],
                          autoreset_mode=AutoresetMode.SAME_STEP)  # fmt: skip
    try:
        env = GymnasiumEnv(venv)
        first = env.reset()["policy"].clone()
        result = [env.step(torch.zeros(2, 1)) for _ in range(3)][-1]
        assert first.tolist() == [[0, 0, 0], [1, 0, 0]]
        assert result.truncated.tolist() == [True, False]
        assert result.final_obs is not None
        assert result.final_obs["policy"].tolist() == [[0, 0, 3], [1, 0, 3]]
        assert result.obs["policy"].tolist() == [[0, 1, 0], [1, 0, 3]]
    finally:
        venv.close()


def test_observations_are_copies() -> None:
    venv = SyncVectorEnv([Counting], copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
    env = GymnasiumEnv(venv)
    first = env.reset()["policy"]
    env.step(torch.zeros(1, 1))
    assert first.tolist() == [[0, 0, 0]]


class _Silent(VectorEnv[Any, Any, Any]):
    """A vector environment that does not say how it resets."""

    metadata = {}  # noqa: RUF012
    num_envs = 1
    single_observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    single_action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros((1, 2), np.float32), {}

    def step(self, actions: Any) -> Any:
        end = np.ones(1, np.bool_)
        return np.zeros((1, 2), np.float32), np.zeros(1), ~end, end, {}


def test_an_unknown_mode_is_refused_and_can_be_stated() -> None:
    with pytest.raises(Refused, match=r"_Silent: autoreset mode None.* one of NextStep"):
        GymnasiumEnv(_Silent())
    env = _Silent()
    env.metadata = {"autoreset_mode": "Sometimes"}
    with pytest.raises(Refused, match="'Sometimes'"):
        GymnasiumEnv(env)
    with pytest.raises(Refused, match="'SameStep', stated as 'Disabled'"):
        GymnasiumEnv(counting(AutoresetMode.SAME_STEP), autoreset="Disabled")
    assert GymnasiumEnv(_Silent(), autoreset="NextStep").autoreset == "NextStep"


def test_what_a_foreign_vector_environment_cannot_do_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = GymnasiumEnv(_Silent(), autoreset="SameStep")
    with caplog.at_level(logging.WARNING):
        env.reset(random_episode_length=True)
        env.reset_rows(torch.ones(1, dtype=torch.bool))
        env.reset_rows(torch.ones(1, dtype=torch.bool))
    assert "random ages" in caplog.text
    assert caplog.text.count("_Silent cannot restart single environments") == 1
    # A last observation that is owed and not given is none, and the collector says what stands in.
    result: StepResult = env.step(torch.zeros(1, 1))
    assert result.final_obs is None


def test_dict_observations_become_groups() -> None:
    space = spaces.Dict({
        "goal": spaces.Box(-1.0, 1.0, (2,), np.float64),
        "arm": spaces.Dict({"pos": spaces.Box(-1, 1, (2, 1)), "mode": spaces.Discrete(3, start=1)}),
        "pair": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3]))),
    })  # fmt: skip
    obs = {
        "goal": np.array([[0.1, 0.2]]),
        "arm": {"pos": np.array([[[3.0], [4.0]]]), "mode": np.array([3])},
        "pair": (np.array([[1, 0]], np.int8), np.array([[1, 2]])),
    }
    together = ObservationReader(space).read(obs, 1)
    # gymnasium sorts the keys: arm/mode, arm/pos, goal, pair/0, pair/1.
    assert together["policy"].tolist()[0] == pytest.approx(
        [0, 0, 1, 3, 4, 0.1, 0.2, 1, 0, 0, 1, 0, 0, 1]
    )
    reader = ObservationReader(space, {"policy": ["goal", "arm/pos"], "critic": ["arm", "goal"]})
    assert reader.obs_dims == {"policy": 4, "critic": 7}
    named = reader.read(obs, 1)
    assert named["policy"].tolist()[0] == pytest.approx([0.1, 0.2, 3, 4])
    assert named["critic"].tolist()[0] == pytest.approx([0, 0, 1, 3, 4, 0.1, 0.2])
    rows = reader.read_rows([{**obs, "goal": obs["goal"][0], "arm": {"pos": obs["arm"]["pos"][0],
                              "mode": np.int64(3)}}])  # fmt: skip
    torch.testing.assert_close(rows, named)
    with pytest.raises(Refused, match="group 'policy': no part 'leg'; there are: arm/mode"):
        ObservationReader(space, {"policy": ["leg"]})
    with pytest.raises(Refused, match="no observation group is called 'policy'"):
        ObservationReader(space, {"actor": ["goal"]})


def test_a_dict_with_a_policy_key_is_read_as_groups() -> None:
    space = spaces.Dict({"policy": spaces.Box(-1, 1, (2,)), "critic": spaces.Box(-1, 1, (5,))})
    assert ObservationReader(space).obs_dims == {"policy": 2, "critic": 5}


def test_observations_that_are_no_vectors_are_refused_by_name() -> None:
    space = spaces.Dict({"note": spaces.Text(5), "x": spaces.Box(-1, 1, (2,))})
    with pytest.raises(Refused, match="observation 'note' is a Text"):
        ObservationReader(space)
    with pytest.raises(Refused, match="'of the environment' is a Graph"):
        ObservationReader(spaces.Graph(spaces.Box(-1, 1, (2,)), None))


def test_actions_with_bounds() -> None:
    space = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 4.0], np.float32))
    raw = torch.tensor([[0.5, 0.5], [-3.0, 9.0]])
    clip = ActionWriter(space, "clip").write(raw)
    rescale = ActionWriter(space, "rescale").write(raw)
    assert clip.tolist() == [[0.5, 0.5], [-2.0, 4.0]]
    assert rescale.tolist() == [[1.0, 3.0], [-2.0, 4.0]]
    assert clip.dtype == np.float32
    free = spaces.Box(-np.inf, np.inf, (2, 1), np.float64)
    written = ActionWriter(free, "clip").write(raw)
    assert written.dtype == np.float64
    assert written.shape == (2, 2, 1)
    with pytest.raises(Refused, match=r"cannot be rescaled.*infinite"):
        ActionWriter(free, "rescale")


def test_discrete_actions() -> None:
    one = ActionWriter(spaces.Discrete(3, start=5), "clip")
    assert (one.space.kind, one.space.sizes) == ("discrete", (3,))
    assert one.write(torch.tensor([[0.0], [2.0]])).tolist() == [5, 7]
    many = ActionWriter(spaces.MultiDiscrete([2, 4], start=[0, 1]), "clip")
    assert (many.space.num_actions, many.space.sizes) == (2, (2, 4))
    assert many.write(torch.tensor([[1.0, 3.0]])).tolist() == [[1, 4]]
    bits = ActionWriter(spaces.MultiBinary(2), "clip")
    assert bits.space.sizes == (2, 2)
    assert bits.write(torch.tensor([[1.0, 0.0]])).tolist() == [[1, 0]]
    with pytest.raises(Refused, match="action is a Text"):
        ActionWriter(spaces.Text(3), "clip")


def test_tasks_of_gymnasium_are_found_by_name() -> None:
    make = find_task("gym:Pendulum-v1?g=1.62")
    recipe = recipe_of(make)
    run = make(num_envs=2, seed=3, device="cpu", num_threads=1)
    env = run.env
    assert isinstance(env, GymnasiumEnv)
    assert env.max_episode_length == 200
    assert env.env.unwrapped.envs[0].unwrapped.g == 1.62  # pyright: ignore
    assert recipe.random_episode_length is False
    obs = env.reset()["policy"]
    oracle, _ = gymnasium.make("Pendulum-v1").reset(seed=4)
    np.testing.assert_allclose(obs[1].numpy(), oracle, rtol=1e-6)
    with pytest.raises(BadInput, match=r"'Pendulum-v1' has no argument 'gravity'; .*\bg\b"):
        recipe_of(find_task("gym:Pendulum-v1?gravity=1"))
    with pytest.raises(BadInput, match="gymnasium cannot make 'Nowhere-v0'"):
        recipe_of(find_task("gym:Nowhere-v0"))
    with pytest.raises(BadInput, match="'wind' is not of the form name=value"):
        find_task("gym:Pendulum-v1?wind")


def test_a_resumed_run_begins_new_episodes() -> None:
    env = GymnasiumEnv(SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1")],
                                     autoreset_mode=AutoresetMode.SAME_STEP))  # fmt: skip
    assert env.max_episode_length == 200
    first = env.reset()["policy"]
    fresh = env.load_state_dict(env.state_dict())["policy"]
    again = env.load_state_dict(env.state_dict())["policy"]
    assert len({tuple(x[0].tolist()) for x in (first, fresh, again)}) == 3
    with pytest.raises(ValueError, match="num_envs: the state has 7"):
        env.load_state_dict({"num_envs": 7})
    assert GymnasiumEnv(counting(MODES[0])).max_episode_length == NO_LIMIT


def test_actions_without_a_head_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action_space, "KINDS_WITH_A_HEAD", frozenset({"continuous"}))
    task = find_task("gym:CartPole-v1")(num_envs=1, seed=0, device="cpu", num_threads=1)
    with pytest.raises(Refused, match=r"takes discrete actions \(choices: \[2\]\)"):
        Run("gym:CartPole-v1", task, task.train)
