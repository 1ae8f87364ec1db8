"""Adversarial motion priors against hand-computed numbers; and does the style move?"""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from robot_runtime.errors import BadInput
from tests.trainer.extensions.rollouts import make_rollout
from tests.trainer.toys.orbit import TURN, PlaneEnv, orbit
from tests.trainer.toys.surefoot_toys import make
from trainer.checkpoint import load_checkpoint, save_checkpoint
from trainer.config import (
    AmpConfig,
    InvalidSetting,
    NetworkConfig,
    PPOConfig,
    RndConfig,
    TrainConfig,
)
from trainer.envs.mirror_check import make_mirror_table
from trainer.envs.robot_env import RobotEnv
from trainer.extensions.amp import MotionPrior, gradient_penalty, least_squares, style_reward
from trainer.extensions.motion import Motion, load_motion, save_motion
from trainer.rollout import Rollout
from trainer.tasks.base import TaskRun
from trainer.tasks.quadruped_flat import env_config, train_config
from trainer.train import Run

CPU = torch.device("cpu")
CONFIG = AmpConfig(motion="orbit.npz", group="motion", task_weight=0.5, style_weight=2.0)
MOTION = Motion(names=("x",), dt=0.1, clips=(np.array([[1.0], [2.0], [4.0]], dtype=np.float32),))


def make_prior(config: AmpConfig = CONFIG, motion: Motion = MOTION) -> MotionPrior:
    return MotionPrior(config, motion, seed=0, device=CPU)


class Sum(nn.Module):
    """D(s, s') = s' - s."""

    def forward(self, pairs: Tensor) -> Tensor:
        return pairs[..., 1:] - pairs[..., :1]


def by_hand(prior: MotionPrior) -> None:
    """Take a discriminator one can follow, on raw features."""
    prior._learner.net = Sum()
    prior._normalized = lambda pairs: pairs  # pyright: ignore[reportAttributeAccessIssue]


def rollout_of(last: Tensor | None, ended: bool = True) -> Rollout:
    """Two environments, two steps; the first environment's first episode ends with step 0."""
    obs = torch.tensor([[[0.0], [5.0]], [[100.0], [6.0]], [[101.5], [6.5]]])
    flag = torch.tensor([[ended, False], [False, False]])
    reward = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    return make_rollout(obs, reward, truncated=flag, last=last, group="motion")


def test_style_reward_by_hand() -> None:
    judged = torch.tensor([1.0, 0.0, -1.0, 3.0, -2.0, 2.0])
    assert style_reward(judged).tolist() == [1.0, 0.75, 0.0, 0.0, 0.0, 0.75]


def test_least_squares_by_hand() -> None:
    # ((0.5 - 1)^2 + 0) / 2 + ((-1 + 1)^2 + (1 + 1)^2) / 2
    loss = least_squares(torch.tensor([-1.0, 1.0]), torch.tensor([0.5, 1.0]))
    assert float(loss) == 0.125 + 2.0


def test_the_gradient_penalty_of_a_linear_map_is_the_square_of_its_weights() -> None:
    net = nn.Linear(3, 1)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0, -2.0, 0.5]]))
    penalty = gradient_penalty(net, torch.randn(7, 3))
    assert penalty.item() == pytest.approx(5.25)
    # And it can be descended: d|w|^2 / dw = 2 w.
    penalty.backward()
    assert net.weight.grad is not None
    torch.testing.assert_close(net.weight.grad, 2.0 * net.weight.detach())


def test_the_gradient_penalty_of_the_discriminator_against_finite_differences() -> None:
    prior = make_prior(replace(CONFIG, hidden=(8,)))
    net = copy.deepcopy(prior.discriminator).double()
    x, h = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), 1e-5
    slow = 0.0
    for row in x:
        for i in range(2):
            step = torch.zeros(2, dtype=torch.float64)
            step[i] = h
            slow += float((net(row + step) - net(row - step)).detach() / (2 * h)) ** 2 / len(x)
    # Central differences in float64 are good to h^2.
    assert float(gradient_penalty(net, x).detach()) == pytest.approx(slow, rel=1e-6)


def test_rewards_are_mixed_and_the_last_transition_ends_at_the_final_observation() -> None:
    last = torch.full((2, 2, 1), 0.5)
    prior = make_prior()
    by_hand(prior)
    mixed, metrics = prior.mix(rollout_of(last), None)
    # D is 0.5 (not 100), 1, 1.5, 0.5; the style 1 - (D - 1)^2 / 4.
    style = torch.tensor([[0.9375, 1.0], [0.9375, 0.9375]])
    torch.testing.assert_close(mixed, 0.5 * rollout_of(None).reward + 2.0 * style)
    assert float(metrics["amp/style"]) == pytest.approx(float(style.mean()))


def test_without_final_observations_the_last_transition_is_nobodys() -> None:
    prior = make_prior()
    by_hand(prior)
    mixed, metrics = prior.mix(rollout_of(None), None)
    assert float(mixed[0, 0]) == 0.5
    assert float(metrics["amp/style"]) == pytest.approx((1.0 + 2 * 0.9375) / 3)
    # Three states of the policy and as many of the reference.
    assert float(prior.states.count) == 6.0


def test_excluded_samples_teach_nothing() -> None:
    valid = torch.tensor([[True, True], [False, True]])
    last = torch.full((2, 2, 1), 0.5)
    prior, rollout = make_prior(replace(CONFIG, replay=100)), rollout_of(last)
    rollout.obs["motion"][2, 0] = torch.nan
    metrics = prior.mix(rollout, valid)[1] | prior.update(rollout, valid)
    assert all(bool(value.isfinite()) for value in metrics.values())
    assert sorted(prior._replay[:, 1].tolist()) == [0.5, 6.0, 6.5]


def test_one_update_is_one_step_of_adam_on_the_papers_loss() -> None:
    """One transition of each kind, so that every draw is known."""
    motion = Motion(names=("x",), dt=0.1, clips=(np.array([[1.0], [2.0]], dtype=np.float32),))
    prior = make_prior(replace(CONFIG, minibatches=1, hidden=(), learning_rate=0.01), motion)
    prior._normalized = lambda pairs: pairs  # pyright: ignore[reportAttributeAccessIssue]
    obs = torch.tensor([[[3.0]], [[7.0]]])
    net = copy.deepcopy(prior.discriminator)
    layer = next(part for part in net.modules() if isinstance(part, nn.Linear))
    of_policy, of_reference = net(torch.tensor([3.0, 7.0])), net(torch.tensor([1.0, 2.0]))
    loss = (of_reference - 1) ** 2 + (of_policy + 1) ** 2 + 0.5 * 10.0 * layer.weight.square().sum()
    adam = torch.optim.Adam(net.parameters(), lr=0.01)
    loss.sum().backward()
    adam.step()
    prior.update(make_rollout(obs, torch.zeros(1, 1), group="motion"), None)
    for ours, theirs in zip(prior.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_gradient_is_punished_at_the_reference_alone() -> None:
    prior = make_prior(replace(CONFIG, hidden=(8,)))
    near, far = torch.zeros(3, 2), torch.full((3, 2), 2.0)
    here, elsewhere, there = (
        float(prior._loss(policy, reference)[1]["loss/amp_gradient"])
        for policy, reference in ((near, near), (far, near), (near, far))
    )
    assert here == elsewhere
    assert here != pytest.approx(there, rel=1e-2)


def test_the_replay_buffer_is_bounded_and_trained_against() -> None:
    obs = torch.arange(4.0).reshape(4, 1, 1)
    early, late = (
        make_rollout(obs + shift, torch.zeros(3, 1), group="motion") for shift in (10.0, -10.0)
    )
    old = torch.tensor([[10.0, 11.0], [11.0, 12.0], [12.0, 13.0]])
    judged: list[float] = []
    for replay in (0, 5):
        config = replace(CONFIG, replay=replay, learning_rate=1e-2, gradient_penalty=0.1)
        prior = make_prior(config)
        for _ in range(3):
            prior.update(early, None)
        assert len(prior._replay) == replay
        assert {tuple(pair) for pair in prior._replay.tolist()} <= {tuple(p) for p in old.tolist()}
        for _ in range(50):
            # A policy that has gone elsewhere; what it did first is remembered.
            remembered = prior._replay
            prior.update(late, None)
            prior._replay = remembered
        with torch.no_grad():
            judged.append(float(prior.discriminator(prior._normalized(old)).mean()))
    # Only who remembers still tells it from the reference, by -1 of it.
    assert judged[1] == pytest.approx(-1.0, abs=0.2)
    assert judged[0] > judged[1] + 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"style_weight": -1.0}, "style_weight"),
        ({"gradient_penalty": -1.0}, "gradient_penalty"),
        ({"group": ""}, "amp.group is empty"),
        ({"hidden": (0,)}, "hidden"),
        ({"replay": -1}, "replay"),
    ],
)
def test_nonsense_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        AmpConfig(**settings)


def orbit_config(path: Path, style: float = 1.0, iterations: int = 80, **more: Any) -> TrainConfig:
    amp: dict[str, Any] = {
        "hidden": (64, 32), "learning_rate": 2e-3, "gradient_penalty": 0.02, "epochs": 4, **more
    }  # fmt: skip
    return TrainConfig(
        num_envs=64,
        iterations=iterations,
        network=NetworkConfig(actor_hidden=(32,), critic_hidden=(32,), init_std=0.5),
        ppo=PPOConfig(num_steps=20, epochs=4, gamma=0.9, entropy_coef=0.0, learning_rate=3e-3),
        amp=AmpConfig(motion=str(path), group="motion", style_weight=style, **amp),
    )


@pytest.fixture(scope="module")
def orbit_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("motion") / "orbit.npz"
    save_motion(path, orbit())
    return path


def turn(run: Run) -> tuple[float, float]:
    """Return the mean angle turned in a step without exploration, and the mean radius."""
    env = PlaneEnv(200, seed=1)
    obs, turns, radii = env.reset()["motion"], [], []
    for _ in range(19):
        with torch.no_grad():
            after = env.step(run.agent.actor(obs)).obs["motion"]
        one, other = (torch.atan2(x[:, 1], x[:, 0]) for x in (obs, after))
        turns.append((other - one + torch.pi).remainder(2 * torch.pi) - torch.pi)
        obs = after
        radii.append(obs.norm(dim=-1))
    return float(torch.stack(turns).mean()), float(torch.stack(radii).mean())


def test_points_without_a_task_learn_to_run_around_the_circle(orbit_file: Path) -> None:
    config = orbit_config(orbit_file)
    run = Run("orbit", TaskRun(env=PlaneEnv(64), train=config), config)
    for _ in range(config.iterations):
        run.step()
    turned, radius = turn(run)
    assert turned == pytest.approx(TURN, rel=0.25)
    assert radius == pytest.approx(1.0, rel=0.25)
    idle = Run("orbit", TaskRun(env=PlaneEnv(64), train=config), orbit_config(orbit_file, 0.0))
    for _ in range(20):
        idle.step()
    assert abs(turn(idle)[0]) < 0.25 * TURN


def test_a_run_goes_on_bit_for_bit_and_only_against_the_same_motion(
    orbit_file: Path, tmp_path: Path
) -> None:
    config = orbit_config(orbit_file, iterations=6, replay=500)

    def fresh(at: TrainConfig = config, resume: Any = None) -> Run:
        return Run("orbit", TaskRun(env=PlaneEnv(64), train=config), at, resume)

    torch.manual_seed(0)
    whole = fresh()
    for _ in range(3):
        whole.step()
    save_checkpoint(tmp_path / "three.pt", whole.checkpoint())
    for _ in range(3):
        whole.step()
    resumed = fresh(resume=load_checkpoint(tmp_path / "three.pt"))
    for _ in range(3):
        resumed.step()
    states = [run.checkpoint() for run in (whole, resumed)]
    digests = {state.extensions["amp"].pop("motion") for state in states}
    assert digests == {load_motion(orbit_file).digest()}
    for field in ("agent", "extensions", "collector"):
        one, other = (getattr(state, field) for state in states)
        torch.testing.assert_close(one, other, rtol=0.0, atol=0.0)
    save_motion(tmp_path / "other.npz", orbit(turn=0.3))
    other = replace(config, amp=replace(config.amp, motion=str(tmp_path / "other.npz")))
    with pytest.raises(BadInput, match="trained against another motion"):
        fresh(other, load_checkpoint(tmp_path / "three.pt"))


def test_a_motion_that_does_not_fit_the_environment_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "short.npz"
    save_motion(path, orbit().select(("position[x]",), ""))
    config = orbit_config(path)
    with pytest.raises(BadInput, match=r"short.npz.*lacks position\[y\].*'motion' has"):
        Run("orbit", TaskRun(env=PlaneEnv(64), train=config), config)
    task = make(num_envs=64, seed=0, device="cpu", num_threads=1)
    with pytest.raises(InvalidSetting, match=r"amp.group names the observation group 'motion'"):
        Run("point", task, config)
    policy = replace(config, amp=replace(config.amp, group="policy"))
    with pytest.raises(BadInput, match=r"PointEnv does not say what is in its .* 'policy'"):
        Run("point", task, policy)


def test_the_robot_shows_its_motion_when_asked_and_only_then() -> None:
    """Against what the robot measures; nothing else about the environment changes."""
    plain, asked = (RobotEnv(env_config(), num_envs=3, seed=4, num_threads=1) for _ in range(2))
    asked.offer("amp")
    assert "amp" not in plain.obs_dims
    before, obs = plain.reset(), asked.reset()
    assert "amp" not in before
    assert torch.equal(before["policy"], obs["policy"])
    for _ in range(2):
        asked.step(torch.full((3, 12), 0.3))
    result = asked.step(torch.full((3, 12), 0.3))
    names, shown = list(asked.feature_names["amp"]), result.obs["amp"]
    assert shown.shape == (3, len(names)) == (3, asked.obs_dims["amp"])
    state, joints = asked.robot_state, [joint.name for joint in env_config().contract.joints]
    for i, joint in enumerate(joints):
        assert torch.equal(shown[:, names.index(f"joint_pos[{joint}]")], state.joint_pos[:, i])
        assert torch.equal(shown[:, names.index(f"joint_vel[{joint}]")], state.joint_vel[:, i])
    for i, axis in enumerate("xyz"):
        turning = shown[:, names.index(f"base_ang_vel_b[{axis}]")]
        assert torch.equal(turning, state.base_ang_vel_b[:, i])
    height = shown[:, names.index("base_height")]
    assert bool(((height > 0.2) & (height < 0.35)).all())
    # Noise-free, and in all that a step returns.
    assert result.final_obs is not None
    assert torch.equal(result.final_obs["amp"], shown)


TROT = Path(__file__).parents[1] / "data" / "trot.npz"


def test_the_quadruped_takes_its_reference_and_curiosity_beside_it(tmp_path: Path) -> None:
    """Also a motion whose features lie in another order and at another rate."""
    motion = load_motion(TROT)
    assert TROT.stat().st_size < 100_000
    other = motion.select(motion.names[::-1], "").resample(0.01)
    save_motion(tmp_path / "other.npz", other)
    references: list[Tensor] = []
    for path in (TROT, tmp_path / "other.npz"):
        recipe = train_config()
        config = replace(
            recipe,
            num_envs=16,
            ppo=replace(recipe.ppo, num_steps=8),
            amp=AmpConfig(motion=str(path)),
            rnd=RndConfig(weight=0.01),
        )
        env = RobotEnv(env_config(), num_envs=16, num_threads=1)
        run = Run(
            "walk", TaskRun(env=env, train=config, symmetry=make_mirror_table(env_config())), config
        )
        metrics = run.step()
        assert 0.0 < metrics["amp/style"] <= 1.0
        assert metrics["rnd/novelty"] > 0.0
        assert metrics["rnd/weight"] == pytest.approx(0.01)
        prior = run.extensions["amp"]
        assert isinstance(prior, MotionPrior)
        references.append(prior.reference)
    # The same motion, found by name: the fine one is met at every other of its frames.
    torch.testing.assert_close(references[0][:50], references[1][:50])
