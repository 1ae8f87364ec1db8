"""Random network distillation against hand-computed numbers and slow loops; and does it explore?"""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.extensions.rollouts import make_rollout
from tests.trainer.scripted import scripted
from tests.trainer.toys.sparse import CorridorEnv
from tests.trainer.toys.surefoot_toys import RECIPE, make
from trainer.checkpoint import load_checkpoint
from trainer.config import (
    InvalidSetting,
    NetworkConfig,
    PPOConfig,
    RndConfig,
    SymmetryConfig,
    TrainConfig,
    config_from_plain,
    config_to_plain,
)
from trainer.extensions.rnd import RandomNetworkDistillation, scheduled_weight
from trainer.guard import screen
from trainer.metrics import read_metrics
from trainer.rollout import Acted, Collector
from trainer.tasks.base import TaskRun
from trainer.train import Run, train

CPU = torch.device("cpu")
PLAIN = RndConfig(weight=0.5, normalize_states=False, normalize_reward="none")


def make_rnd(
    config: RndConfig = PLAIN, *, envs: int = 2, dim: int = 3
) -> RandomNetworkDistillation:
    return RandomNetworkDistillation(config, {"policy": dim}, num_envs=envs, seed=0, device=CPU)


def random_rollout(steps: int = 4, envs: int = 2, dim: int = 3, seed: int = 0, **more: Any) -> Any:
    g = torch.Generator().manual_seed(seed)
    obs = torch.randn(steps + 1, envs, dim, generator=g)
    return make_rollout(obs, torch.randn(steps, envs, generator=g), **more)


def flags(shape: tuple[int, int], *at: tuple[int, int]) -> Tensor:
    where = torch.zeros(shape, dtype=torch.bool)
    for index in at:
        where[index] = True
    return where


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_a_finished_step_is_paid_for_its_final_observation_and_never_for_the_reset_one(
    flag: str,
) -> None:
    rnd, ended = make_rnd(), flags((4, 2), (1, 0))
    last = torch.full((4, 2, 3), 50.0)
    rollout = random_rollout(last=last, **dict[str, Any]({flag: ended}))
    # The next episode begins far away, where the novelty is very different.
    rollout.obs["policy"][2, 0] = -300.0
    mixed, _ = rnd.mix(rollout, None)
    intrinsic = mixed - rollout.reward
    for t in range(4):
        for n in range(2):
            state = last[t, n] if ended[t, n] else rollout.obs["policy"][t + 1, n]
            error = (rnd.target(state) - rnd.predictor(state)).detach()
            expected = 0.5 * float(error.square().mean())
            # The rest is float32 rounding of batched products.
            assert float(intrinsic[t, n]) == pytest.approx(expected, rel=1e-4)
    far = float(rnd.novelty(torch.full((3,), -300.0)))
    assert float(intrinsic[1, 0]) < 0.1 * far


def test_the_norm_is_the_other_error() -> None:
    rnd = make_rnd(replace(PLAIN, error="norm"))
    state = torch.tensor([0.3, -0.2, 1.0])
    with torch.no_grad():
        error = (rnd.target(state) - rnd.predictor(state)).numpy()
    assert float(rnd.novelty(state)) == pytest.approx(float((error**2).sum() ** 0.5), rel=1e-5)


def test_without_final_observations_the_state_before_stands_in() -> None:
    rnd, rollout = make_rnd(), random_rollout(truncated=flags((4, 2), (2, 1)))
    mixed, _ = rnd.mix(rollout, None)
    expected = 0.5 * float(rnd.novelty(rollout.obs["policy"][2, 1]))
    assert float((mixed - rollout.reward)[2, 1]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", ["return", "reward"])
def test_rewards_are_divided_by_the_running_deviation(kind: str) -> None:
    """Against a loop over plain numbers, over two rollouts and an end of an episode."""
    config = replace(PLAIN, normalize_reward=kind, gamma=0.9)  # pyright: ignore[reportArgumentType]
    rnd = make_rnd(config)
    seen: list[float] = []
    sums = [0.0, 0.0]
    for seed in (0, 1):
        rollout = random_rollout(seed=seed, terminated=flags((4, 2), (1, 0)))
        mixed, _ = rnd.mix(rollout, None)
        novelty = rnd.novelty(rollout.reached(("policy",)))
        for t in range(4):
            for n in range(2):
                reward = float(novelty[t, n])
                sums[n] = 0.9 * sums[n] + reward
                seen.append(sums[n] if kind == "return" else reward)
        mean = sum(seen) / len(seen)
        deviation = (sum((x - mean) ** 2 for x in seen) / len(seen)) ** 0.5
        expected = rollout.reward + 0.5 * novelty / deviation
        torch.testing.assert_close(mixed, expected, rtol=1e-5, atol=1e-5)


def test_states_are_normalized_by_what_was_reached_and_bounded() -> None:
    rnd = make_rnd(replace(PLAIN, normalize_states=True, state_clip=2.0))
    rollout = random_rollout(steps=50)
    rollout.obs["policy"].mul_(torch.tensor([1.0, 100.0, 0.01])).add_(7.0)
    rnd.mix(rollout, None)
    x = rollout.obs["policy"][1:].reshape(-1, 3)
    torch.testing.assert_close(rnd.states.mean.float(), x.mean(0))
    torch.testing.assert_close(rnd.states.var.float(), x.var(0, correction=0))
    # Beyond the bound nothing is any newer.
    far = torch.tensor([[1e6, 7.0, 7.0], [2e6, 7.0, 7.0]])
    assert float(rnd.novelty(far)[0]) == float(rnd.novelty(far)[1])


def test_excluded_samples_teach_nothing() -> None:
    config = replace(PLAIN, normalize_states=True, normalize_reward="return")
    rollout = random_rollout(steps=6, envs=3)
    rollout.obs["policy"][3, 1] = torch.nan
    valid = ~flags((6, 3), (2, 1), (3, 1))
    rnd = make_rnd(config, envs=3)
    mixed, metrics = rnd.mix(rollout, valid)
    more = rnd.update(rollout, valid)
    assert all(bool(value.isfinite()) for value in (metrics | more).values())
    assert bool(mixed[valid].isfinite().all())
    assert float(rnd.states.count) == float(rnd.rewards.count) == 16.0
    # What the bad row holds does not matter.
    other = make_rnd(config, envs=3)
    rollout.obs["policy"][3, 1] = 1e3
    other_mixed, _ = other.mix(rollout, valid)
    other.update(rollout, valid)
    assert torch.equal(mixed[valid], other_mixed[valid])
    assert torch.equal(rnd.parameters()[0], other.parameters()[0])


def test_the_predictor_learns_and_the_target_stays_as_it_is() -> None:
    rnd, rollout = make_rnd(), random_rollout(steps=32, envs=2)
    target = copy.deepcopy(rnd.target.state_dict())
    first = float(rnd.update(rollout, None)["loss/rnd"])
    losses = [float(rnd.update(rollout, None)["loss/rnd"]) for _ in range(100)]
    assert losses[-1] < 0.2 * first
    for name, value in rnd.target.state_dict().items():
        assert torch.equal(value, target[name])


def test_one_step_of_the_update_is_one_step_of_adam() -> None:
    rnd = make_rnd(replace(PLAIN, minibatches=1, predictor_hidden=(), learning_rate=0.01))
    rollout = random_rollout(steps=5)
    net = copy.deepcopy(rnd.predictor)
    x = rollout.obs["policy"][1:].reshape(-1, 3)
    loss = torch.nn.functional.mse_loss(net(x), rnd.target(x))
    adam = torch.optim.Adam(net.parameters(), lr=0.01)
    loss.backward()
    adam.step()
    assert float(rnd.update(rollout, None)["loss/rnd"]) == pytest.approx(loss.item(), rel=1e-5)
    for ours, theirs in zip(rnd.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_gradient_or_a_weight_that_is_not_finite_is_left_out_and_counted() -> None:
    rnd, rollout = make_rnd(replace(PLAIN, minibatches=1)), random_rollout()
    before = rnd.parameters()[0].detach().clone()
    rollout.obs["policy"][1] = 1e30  # its square is not finite
    metrics = rnd.update(rollout, None)
    assert float(metrics["nonfinite/rnd_grad"]) == 1.0
    assert torch.equal(rnd.parameters()[0], before)
    after = rnd.update(random_rollout(), None)
    assert bool(after["loss/rnd"].isfinite())
    with torch.no_grad():
        rnd.parameters()[0][0, 0] = torch.nan
    metrics = rnd.update(random_rollout(), None)
    assert float(metrics["nonfinite/rnd_parameter"]) == 1.0
    assert all(bool(p.isfinite().all()) for p in rnd.parameters())


def test_after_a_resume_a_bad_weight_goes_back_to_the_loaded_one() -> None:
    trained, resumed = make_rnd(PLAIN), make_rnd(PLAIN)
    trained.update(random_rollout(), None)
    resumed.load_state_dict(trained.state_dict())
    with torch.no_grad():
        resumed.parameters()[0][0, 0] = torch.nan
    resumed.update(random_rollout(), None)
    for now, loaded in zip(resumed.parameters(), trained.parameters(), strict=True):
        torch.testing.assert_close(now, loaded, rtol=0.0, atol=0.0)


def test_more_minibatches_than_samples_make_no_empty_step() -> None:
    rnd, rollout = make_rnd(replace(PLAIN, minibatches=100)), random_rollout()
    assert rollout.reward.numel() < 100
    # The loss of an empty one would be NaN, and its step would go on by momentum alone.
    assert bool(rnd.update(rollout, None)["loss/rnd"].isfinite())


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (RndConfig(weight=2.0), [2.0] * 6),
        (RndConfig(weight=2.0, schedule="step", final_step=4, final_weight=0.5),
         [2.0, 2.0, 2.0, 0.5, 0.5, 0.5]),
        (RndConfig(weight=2.0, schedule="linear", initial_step=2, final_step=4, final_weight=0.0),
         [2.0, 2.0, 1.0, 0.0, 0.0, 0.0]),
    ],
)  # fmt: skip
def test_schedules(config: RndConfig, expected: list[float]) -> None:
    assert [scheduled_weight(step, config) for step in range(1, 7)] == expected


def test_the_schedule_goes_step_by_step_and_on_after_a_resume() -> None:
    config = replace(
        PLAIN, weight=1.0, schedule="linear", initial_step=0, final_step=10, final_weight=0.0
    )
    rnd, rollout = make_rnd(config), random_rollout()
    mixed, _ = rnd.mix(rollout, None)
    novelty = rnd.novelty(rollout.reached(("policy",)))
    weights = torch.tensor([0.9, 0.8, 0.7, 0.6]).unsqueeze(-1)
    torch.testing.assert_close(mixed, rollout.reward + weights * novelty)
    resumed = make_rnd(config)
    resumed.load_state_dict(copy.deepcopy(rnd.state_dict()))
    assert float(resumed.mix(rollout, None)[1]["rnd/weight"]) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight": -1.0}, "weight = -1.0"),
        ({"groups": ()}, "rnd.groups is empty"),
        ({"schedule": "linear", "initial_step": 5, "final_step": 5}, "above initial_step = 5"),
        ({"predictor_hidden": (0,)}, "predictor_hidden"),
        ({"learning_rate": 0.0}, "learning_rate"),
    ],
)
def test_nonsense_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        RndConfig(**settings)


def test_settings_survive_a_checkpoint_and_old_ones_have_none() -> None:
    config = replace(RECIPE, rnd=RndConfig(weight=0.1, groups=("policy",)))
    plain = json.loads(json.dumps(config_to_plain(config)))
    assert config_from_plain(plain) == config
    del plain["rnd"]
    assert not config_from_plain(plain).rnd.enabled


def test_the_collector_keeps_the_last_observation_of_the_group() -> None:
    """Also where the episode terminated, which nobody else looks at; and a bad one is screened."""
    env = scripted(critic=True)
    env._terminated[2, 1] = True
    assert env._final is not None
    env._final["policy"][4, 3] = torch.nan  # no episode ends there
    env._final["policy"][2, 1] = 9.0
    collector = Collector(env, num_steps=6, device=CPU, extra=("policy",))
    rollout = collector.collect(lambda obs: Acted(obs[:, :2], obs[:, :2], obs[:, :2]))
    reached = rollout.reached(("policy",))
    assert torch.equal(reached[2, 1], torch.full((3,), 9.0))
    assert torch.equal(reached[3], rollout.obs["policy"][4])
    assert not screen(rollout).faults
    rollout.last["policy"][2, 1, 0] = torch.inf
    screening = screen(rollout)
    assert screening.faults == {"nonfinite/last:policy": 1}
    assert screening.valid is not None
    assert screening.valid.flatten().nonzero().numel() == 23


def train_toy(folder: Path, iterations: int, *, resume: bool = False, **ppo: Any) -> Any:
    config = replace(
        RECIPE,
        num_envs=8,
        iterations=iterations,
        checkpoint_every=10,
        ppo=replace(RECIPE.ppo, **ppo),
        rnd=RndConfig(weight=0.1, schedule="linear", initial_step=5, final_step=250),
    )
    task = make(num_envs=8, seed=0, device="cpu", num_threads=1)
    from_ = load_checkpoint(folder / "checkpoints/iteration_0000010.pt") if resume else None
    return train("toy-point", task, config, folder, resume=from_).checkpoint


def test_ten_and_ten_more_are_twenty_with_symmetry_too(tmp_path: Path) -> None:
    whole = load_checkpoint(train_toy(tmp_path / "whole", 20))
    train_toy(tmp_path / "half", 10)
    resumed = load_checkpoint(train_toy(tmp_path / "half", 20, resume=True))
    assert whole.extensions["rnd"]["steps"] == 20 * 16
    for field in ("agent", "extensions", "collector", "rng"):
        torch.testing.assert_close(
            getattr(whole, field), getattr(resumed, field), rtol=0.0, atol=0.0
        )
    rows = read_metrics(tmp_path / "half")
    assert [row["iteration"] for row in rows] == list(range(1, 21))
    assert rows[-1]["rnd/weight"] == 0.0
    assert rows[0]["rnd/weight"] == pytest.approx(0.1 * (1 - 11 / 245))
    # The task's own reward is what is logged as such.
    assert rows[3]["rollout/reward"] == pytest.approx(-rows[3]["reward/distance"], rel=1e-5)


def test_the_intrinsic_reward_reaches_the_agent_with_mirror_images_too() -> None:
    """Other advantages are other weights; without a weight everything is as it was."""
    weights: dict[tuple[float, bool], Tensor] = {}
    for augment in (False, True):
        for weight in (0.0, 1e-12, 5.0):
            config = replace(
                RECIPE,
                num_envs=8,
                rnd=RndConfig(weight=weight),
                ppo=replace(RECIPE.ppo, symmetry=SymmetryConfig(augment=augment)),
            )
            run = Run("x", make(num_envs=8, seed=0, device="cpu", num_threads=1), config)
            run.step()
            weights[weight, augment] = next(run.agent.actor.net.parameters()).detach()
        torch.testing.assert_close(weights[0.0, augment], weights[1e-12, augment])
        assert not torch.allclose(weights[0.0, augment], weights[5.0, augment], atol=1e-4)


def test_a_group_that_is_not_there_is_named() -> None:
    config = replace(RECIPE, num_envs=8, rnd=RndConfig(weight=1.0, groups=("policy", "heights")))
    task = make(num_envs=8, seed=0, device="cpu", num_threads=1)
    with pytest.raises(InvalidSetting, match=r"rnd.groups names .* 'heights'; .* gives: policy"):
        Run("x", task, config)


def corridor_return(seed: int, weight: float) -> float:
    """Train in the corridor and return the mean return of the last iteration's episodes."""
    config = TrainConfig(
        num_envs=16,
        iterations=80,
        seed=seed,
        random_episode_length=False,
        network=NetworkConfig(actor_hidden=(32,), critic_hidden=(32,), normalize_obs=False),
        ppo=PPOConfig(num_steps=32, epochs=4, desired_kl=None),
        rnd=RndConfig(weight=weight),
    )
    run = Run("corridor", TaskRun(env=CorridorEnv(16), train=config), config)
    return [run.step()["episode/return"] for _ in range(config.iterations)][-1]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_reward_too_far_away_to_be_found_by_chance_is_found_by_curiosity(seed: int) -> None:
    assert corridor_return(seed, 0.1) == 1.0
    assert corridor_return(seed, 0.0) == 0.0
