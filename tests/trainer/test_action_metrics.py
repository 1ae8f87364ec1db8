"""Spread, saturation and symmetry of actions, by hand and against the contract's own mapping."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from robot_runtime.policy.action import ActionMapper
from tests.trainer.toys.surefoot_toys import MIRROR, RECIPE, PointEnv
from trainer.action_metrics import ActionMetrics
from trainer.config import NetworkConfig
from trainer.envs.action_space import ActionSpace, action_bounds
from trainer.metrics import read_metrics, to_floats
from trainer.networks.actor_critic import Actor
from trainer.rollout import Rollout
from trainer.symmetry import Mirror, MirrorTable
from trainer.tasks.base import TaskRun
from trainer.tasks.quadruped_flat import env_config
from trainer.train import train

SPACE = ActionSpace(
    kind="continuous", num_actions=2, names=("hip", "knee"), bounds=((-1.0, -2.0), (1.0, 2.0))
)


def make_actor() -> Actor:
    config = NetworkConfig(actor_hidden=(4,), normalize_obs=False)
    return Actor({"policy": 2}, SPACE, config, torch.Generator().manual_seed(0))


def rollout_of(sample: torch.Tensor, mean: torch.Tensor) -> Rollout:
    t, n = sample.shape[:2]
    obs = torch.randn(t + 1, n, 2, generator=torch.Generator().manual_seed(1))
    none = torch.zeros(t, n, dtype=torch.bool)
    return Rollout(
        obs={"policy": obs}, final_obs=obs[1:], action=sample, outputs=mean,
        reward=torch.zeros(t, n), terminated=none, truncated=none, log={},
    )  # fmt: skip


def measured(rollout: Rollout, valid: torch.Tensor | None = None) -> dict[str, float]:
    metrics = ActionMetrics(SPACE, ["policy"], MIRROR, torch.device("cpu"))
    return to_floats(metrics.measure(make_actor(), rollout, valid))


def test_spread_and_saturation_by_hand() -> None:
    mean = torch.tensor([[[0.0, 1.0]], [[0.5, 0.0]]])
    noise = torch.tensor([[[0.3, -0.6]], [[0.5, 2.5]]])
    found = measured(rollout_of(mean + noise, mean))
    assert found["std/hip"] == pytest.approx(((0.3**2 + 0.5**2) / 2) ** 0.5)
    assert found["std/knee"] == pytest.approx(((0.6**2 + 2.5**2) / 2) ** 0.5)
    # 0.5 + 0.5 is at its bound of 1, 2.5 beyond its bound of 2.
    assert found["saturation/hip"] == found["saturation/knee"] == found["policy/saturation"] == 0.5
    first = measured(rollout_of(mean + noise, mean), torch.tensor([[True], [False]]))
    assert first["std/hip"] == pytest.approx(0.3)
    assert first["policy/saturation"] == 0.0


def test_symmetry_error_is_zero_for_a_symmetric_policy_and_what_it_is_for_another() -> None:
    actor = make_actor()
    rollout = rollout_of(torch.zeros(1, 5, 2), torch.zeros(1, 5, 2))
    metrics = ActionMetrics(SPACE, ["policy"], MIRROR, torch.device("cpu"))
    obs = rollout.obs["policy"][0]
    flip = torch.tensor([1.0, -1.0])
    with torch.no_grad():
        expected = ((actor(obs * flip) - actor(obs) * flip) ** 2).mean() ** 0.5
    found = metrics.measure(actor, rollout, None)["policy/symmetry_error"]
    torch.testing.assert_close(found, expected)
    assert float(found) > 1e-3
    for parameter in actor.parameters():
        parameter.data.zero_()
    assert float(metrics.measure(actor, rollout, None)["policy/symmetry_error"]) == 0.0


def test_nothing_is_said_of_what_is_not_known() -> None:
    silent = ActionSpace(kind="continuous", num_actions=2)
    metrics = ActionMetrics(silent, ["policy"], None, torch.device("cpu"))
    rollout = rollout_of(torch.ones(1, 3, 2), torch.zeros(1, 3, 2))
    assert set(metrics.measure(make_actor(), rollout, None)) == {"std/0", "std/1"}
    other = MirrorTable(obs={"critic": Mirror.of([0], [1.0])}, action=MIRROR.action)
    metrics = ActionMetrics(silent, ["policy"], other, torch.device("cpu"))
    assert "policy/symmetry_error" not in metrics.measure(make_actor(), rollout, None)
    discrete = ActionSpace(kind="discrete", num_actions=1, sizes=(3,))
    nothing = ActionMetrics(discrete, ["policy"], None, torch.device("cpu"))
    assert nothing.measure(make_actor(), rollout, None) == {}


def test_bounds_of_a_contract_are_where_its_targets_stop() -> None:
    contract = env_config().contract
    low, high = (torch.tensor(bound) for bound in action_bounds(contract))
    mapper = ActionMapper(contract, lambda x: torch.as_tensor(x, dtype=torch.float32))
    here = torch.tensor(contract.joint_array("default_pos"), dtype=torch.float32)

    def target(raw: torch.Tensor) -> torch.Tensor:
        return mapper.targets(mapper.apply(raw, mapper.zero()), here).position

    for bound, outward in ((low, -1.0), (high, 1.0)):
        step = 0.01 * outward
        torch.testing.assert_close(target(bound), target(bound + step), atol=1e-6, rtol=0.0)
        # Just inside it still moves: 0.01 of an action is 0.003 rad.
        assert bool(((target(bound) - target(bound - step)).abs() > 2e-3).all())


def test_it_is_logged_by_default_and_changes_nothing(tmp_path: Path) -> None:
    env = PointEnv(8)
    config = replace(RECIPE, num_envs=8, iterations=2, loggers=())
    train("toy", TaskRun(env=env, train=RECIPE, symmetry=MIRROR), config, tmp_path)
    row = read_metrics(tmp_path)[0]
    assert {"std/0", "std/1", "policy/symmetry_error"} <= set(row)
    # The policy has not learned yet: 256 draws with the deviation it starts with.
    assert row["std/0"] == pytest.approx(RECIPE.network.init_std, rel=0.2)
