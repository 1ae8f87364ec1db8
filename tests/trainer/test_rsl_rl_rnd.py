"""Random network distillation as rsl_rl configures it: settings, rewards and files of both."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_runtime.errors import BadInput
from tests.trainer.extensions.rollouts import make_rollout
from tests.trainer.rsl_rl_scripts import Points, config_5
from trainer.compat.rnd import RndWeights
from trainer.compat.rnd_agent import load_rnd, rnd_weights
from trainer.compat.settings import read_settings
from trainer.config import RndConfig
from trainer.envs.as_rsl_rl import RslRlVecEnv
from trainer.envs.rsl_rl_groups import resolve_sets
from trainer.extensions.rnd import RandomNetworkDistillation
from trainer.rsl_rl import OnPolicyRunner

CPU = torch.device("cpu")
LINEAR = {"mode": "linear", "initial_step": 2, "final_step": 12, "final_value": 0.1}
SECTION: dict[str, Any] = {
    "weight": 50.0,
    "weight_schedule": LINEAR,
    "num_outputs": 4,
    "predictor_hidden_dims": [8, -1],
    "target_hidden_dims": [6],
    "state_normalization": True,
    "reward_normalization": True,
    "learning_rate": 3e-3,
}


class Stepping(RslRlVecEnv):
    """An environment that tells how long a step is, as rsl_rl's RND asks it to."""

    step_dt = 0.02

    @property
    def unwrapped(self) -> "Stepping":
        return self


def rnd_config(**changes: Any) -> RndConfig:
    settings = read_settings(config_5(rnd_cfg=SECTION | changes))
    assert settings.rnd is not None
    return settings.rnd.resolve({"policy": 2, "critic": 3, "rnd_state": 5}, 0.02)


def test_settings_become_ours() -> None:
    assert rnd_config() == RndConfig(
        weight=1.0, schedule="linear", initial_step=2, final_step=12, final_weight=0.1,
        groups=("rnd_state",), error="norm", normalize_states=True, state_clip=0.0,
        normalize_reward="return", num_outputs=4, predictor_hidden=(8, 5), target_hidden=(6,),
        learning_rate=3e-3, epochs=3, minibatches=4,
    )  # fmt: skip
    assert rnd_config(weight_schedule={"mode": "step", "final_step": 7, "final_value": 0.5}) == (
        replace(rnd_config(), schedule="step", initial_step=0, final_step=7, final_weight=0.5)
    )
    assert rnd_config(reward_normalization=False).normalize_reward == "none"
    assert read_settings(config_5()).rnd is None


def test_without_the_duration_of_a_step_the_weight_stays_and_this_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = read_settings(config_5(rnd_cfg=SECTION)).rnd
    assert settings is not None
    with caplog.at_level(logging.WARNING):
        assert settings.resolve({"policy": 2}, None).weight == 50.0
    assert "no step_dt" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight_schedule": {"mode": "cosine"}}, r"mode = 'cosine'.*constant, step and linear"),
        ({"weight_schedule": {"mode": "step"}}, "needs final_step, final_value"),
        ({"predictor_hidden_dims": None}, "predictor_hidden_dims"),
    ],
)
def test_what_rsl_rl_could_not_read_either_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    section = {key: value for key, value in (SECTION | changes).items() if value is not None}
    with pytest.raises(BadInput, match=message):
        read_settings(config_5(rnd_cfg=section))


def test_the_set_is_found_as_rsl_rl_finds_it() -> None:
    groups = {name: torch.zeros(2, 3) for name in ("policy", "rnd_state", "pose")}
    sets = {"actor": ["policy"], "critic": ["policy"]}
    needed = ("rnd_state",)
    assert resolve_sets(groups, sets, needed)["rnd_state"] == ["rnd_state"]
    named = sets | {"rnd_state": ["pose"]}
    assert resolve_sets(groups, named, needed)["rnd_state"] == ["pose"]
    del groups["rnd_state"]
    assert resolve_sets(groups, sets, needed)["rnd_state"] == ["policy"]


def theirs_of(obs_dim: int = 5) -> Any:
    """rsl_rl's module with the settings above, the weight already multiplied by the step."""
    extensions = pytest.importorskip("rsl_rl.extensions")
    torch.manual_seed(1)
    section = {key: value for key, value in SECTION.items() if key != "weight"}
    groups = {"rnd_state": ["rnd_state"]}
    return extensions.RandomNetworkDistillation(
        num_states=obs_dim, obs_groups=groups, weight=1.0, **section
    )


def ours_of(theirs: Any, config: RndConfig, envs: int) -> RandomNetworkDistillation:
    """Ours with the weights and statistics of theirs."""
    ours = RandomNetworkDistillation(config, {"rnd_state": 5}, num_envs=envs, seed=0, device=CPU)
    weights = RndWeights(state=theirs.state_dict(), optimizer=None, num_states=5, num_outputs=4)
    load_rnd(ours, weights)
    return ours


def test_intrinsic_rewards_and_losses_are_theirs() -> None:
    """With the same weights, over 14 steps of a schedule; rewards are normalized in none.

    Theirs normalizes each step's reward by what it has seen up to that step, ours by the rollout's.
    """
    theirs = theirs_of()
    generator = torch.Generator().manual_seed(3)
    states = 2.0 * torch.randn(15, 6, 5, generator=generator) + 1.0
    theirs.update_normalization({"rnd_state": states[1:].flatten(0, 1)})
    theirs.reward_normalizer = torch.nn.Identity()
    config = replace(rnd_config(), normalize_reward="none")
    ours = ours_of(theirs, replace(config, minibatches=1, epochs=1), 6)
    # Ours learns the statistics of the rollout itself; they are loaded already.
    ours.states.update = lambda *_, **__: None  # pyright: ignore[reportAttributeAccessIssue]
    rollout = make_rollout(states, torch.zeros(14, 6), group="rnd_state")
    mixed, _ = ours.mix(rollout, None)
    for t in range(14):
        expected = theirs.get_intrinsic_reward({"rnd_state": states[t + 1]})
        torch.testing.assert_close(mixed[t], expected, rtol=1e-4, atol=1e-6)
    loss = theirs.compute_loss({"rnd_state": states[1:].flatten(0, 1)})
    theirs.optimizer.zero_grad()
    loss.backward()
    theirs.optimizer.step()
    metrics = ours.update(rollout, None)
    assert float(metrics["loss/rnd"]) == pytest.approx(loss.item(), rel=1e-5)
    for one, other in zip(ours.parameters(), theirs.predictor.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_state_of_one_number_has_the_shape_of_theirs() -> None:
    theirs, settings = theirs_of(1), read_settings(config_5(rnd_cfg=SECTION)).rnd
    assert settings is not None
    config = settings.resolve({"policy": 2, "rnd_state": 1}, 0.02)
    theirs.update_normalization({"rnd_state": torch.tensor([[1.0], [4.0]])})
    ours = RandomNetworkDistillation(config, {"rnd_state": 1}, num_envs=2, seed=0, device=CPU)
    weights = RndWeights(state=theirs.state_dict(), optimizer=None, num_states=1, num_outputs=4)
    load_rnd(ours, weights)
    assert float(ours.states.mean) == 2.5
    back = rnd_weights(ours).state
    assert {key: back[key].shape for key in back} == {
        key: value.shape for key, value in theirs.state_dict().items()
    }


def runner_of(kind: Any = OnPolicyRunner, folder: Path | None = None, **changes: Any) -> Any:
    torch.manual_seed(0)
    config = config_5(rnd_cfg=SECTION | changes)
    config["obs_groups"] |= {"rnd_state": ["critic"]}
    return kind(Stepping(Points()), config, log_dir=None if folder is None else str(folder))


def test_a_run_trains_and_continues_where_it_was_saved(tmp_path: Path) -> None:
    whole = runner_of()
    whole.learn(2)
    whole.save(tmp_path / "two.pt")
    whole.learn(2)
    resumed = runner_of()
    resumed.load(tmp_path / "two.pt")
    resumed.learn(2)
    states = [runner._run.extensions["rnd"].state_dict() for runner in (whole, resumed)]
    assert states[0]["steps"] == 40
    torch.testing.assert_close(states[0], states[1], rtol=0.0, atol=0.0)
    weights = [runner.alg.actor.state_dict() for runner in (whole, resumed)]
    torch.testing.assert_close(weights[0], weights[1], rtol=0.0, atol=0.0)


def test_files_travel_both_ways(tmp_path: Path) -> None:
    runners = pytest.importorskip("rsl_rl.runners")
    ours = runner_of()
    ours.learn(2)
    ours.save(tmp_path / "ours.pt")
    theirs = runner_of(runners.OnPolicyRunner)
    theirs.load(str(tmp_path / "ours.pt"))
    x = torch.randn(9, 3)
    obs = {"critic": x}
    theirs.alg.rnd.eval()

    def error() -> torch.Tensor:
        seen = theirs.alg.rnd.state_normalizer(theirs.alg.rnd.get_rnd_state(obs))
        return (theirs.alg.rnd.target(seen) - theirs.alg.rnd.predictor(seen)).norm(dim=1).detach()

    torch.testing.assert_close(error(), ours._rnd.novelty(x), rtol=1e-5, atol=1e-6)
    deviation = float(theirs.alg.rnd.reward_normalizer.emp_norm.std)
    assert deviation == pytest.approx(float(ours._rnd.rewards.var.sqrt()), rel=1e-5)
    theirs.learn(1)
    theirs.save(str(tmp_path / "theirs.pt"))
    again = runner_of()
    again.load(tmp_path / "theirs.pt")
    torch.testing.assert_close(again._rnd.novelty(x), error(), rtol=1e-5, atol=1e-6)
    moments = theirs.alg.rnd.optimizer.state_dict()["state"]
    adam = rnd_weights(again._rnd).optimizer
    assert adam is not None
    for i, name in enumerate(adam.names):
        torch.testing.assert_close(adam.slots[name].exp_avg, moments[i]["exp_avg"])
    again.learn(1)
    other = runner_of(num_outputs=3)
    with pytest.raises(BadInput, match=r"rnd_state_dict: 'predictor.4"):
        other.load(tmp_path / "theirs.pt")
