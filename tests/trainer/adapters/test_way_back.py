"""Our environments for other trainers: gymnasium's checker, and a runner of rsl_rl that learns."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from robot_runtime.errors import Refused
from tests.trainer.toys.surefoot_toys import PointEnv
from trainer.env import VecEnv
from trainer.envs.as_gymnasium import GymnasiumSingleEnv, GymnasiumVectorEnv
from trainer.envs.as_rsl_rl import RslRlVecEnv
from trainer.envs.gymnasium_adapter import GymnasiumEnv
from trainer.envs.robot_env import RobotEnv
from trainer.tasks import quadruped_flat


def points(seed: int) -> VecEnv:
    return PointEnv(4, seed=seed)


def one_point(seed: int) -> VecEnv:
    return PointEnv(1, seed=seed)


def quadruped(num_envs: int, seed: int = 0) -> RobotEnv:
    return RobotEnv(quadruped_flat.env_config(), num_envs=num_envs, seed=seed, num_threads=1)


def test_gymnasiums_own_checker_passes() -> None:
    with warnings.catch_warnings():
        # It advises on infinite bounds and missing specifications.
        warnings.simplefilter("ignore")
        check_env(GymnasiumSingleEnv(one_point), skip_render_check=True)
        check_env(
            GymnasiumSingleEnv(lambda seed: quadruped(1, seed), groups=("policy", "critic")),
            skip_render_check=True,
        )


def test_a_vector_environment_steps_as_ours_does() -> None:
    env, plain = GymnasiumVectorEnv(points), points(7)
    obs, info = env.reset(seed=7)
    assert info == {}
    assert env.observation_space.contains(obs)
    np.testing.assert_array_equal(obs, plain.reset()["policy"].numpy())
    ends = 0
    for _ in range(25):
        actions = np.full((4, 2), 0.3, np.float32)
        obs, reward, terminated, truncated, info = env.step(actions)
        result = plain.step(torch.from_numpy(actions))
        np.testing.assert_array_equal(obs, result.obs["policy"].numpy())
        np.testing.assert_array_equal(reward, result.reward.numpy())
        assert terminated.tolist() == result.terminated.tolist()
        assert truncated.tolist() == result.truncated.tolist()
        ended = terminated | truncated
        assert ("final_obs" in info) == bool(ended.any())
        for i in np.flatnonzero(ended):
            assert result.final_obs is not None
            np.testing.assert_array_equal(info["final_obs"][i], result.final_obs["policy"][i])
            ends += 1
    assert ends == 4
    assert env.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP


def test_it_comes_back_through_the_adapter_as_it_was() -> None:
    there, plain = GymnasiumEnv(GymnasiumVectorEnv(points), seed=3), points(3)
    torch.testing.assert_close(there.reset(), plain.reset())
    for _ in range(45):
        actions = torch.full((4, 2), -0.2)
        one, two = there.step(actions), plain.step(actions)
        torch.testing.assert_close(one.obs, two.obs)
        assert torch.equal(one.truncated, two.truncated)
        torch.testing.assert_close(one.final_obs, two.final_obs)


def test_groups_tensors_and_bounds() -> None:
    class Two(PointEnv):
        def __init__(self) -> None:
            super().__init__(2)
            self.obs_dims: Mapping[str, int] = {"policy": 2, "critic": 2}

        def _observe(self) -> dict[str, torch.Tensor]:
            return {"policy": self._position, "critic": -self._position}

    env = GymnasiumVectorEnv(Two(), groups=("policy", "critic"), arrays="torch", action_bound=1.0)
    obs, _ = env.reset()
    assert set(obs) == {"policy", "critic"}
    kept = obs["policy"].clone()
    after = [env.step(torch.zeros(2, 2)) for _ in range(20)][-1]
    torch.testing.assert_close(obs["policy"], kept)
    assert isinstance(after[3], torch.Tensor)
    assert set(after[4]["final_obs"][0]) == {"policy", "critic"}
    assert env.single_action_space.high.tolist() == [1.0, 1.0]  # pyright: ignore
    with pytest.raises(Refused, match="no observation group 'teacher'; there are: policy, critic"):
        GymnasiumVectorEnv(Two(), groups=("teacher",))


def test_seeds_and_masks(caplog: pytest.LogCaptureFixture) -> None:
    env = GymnasiumVectorEnv(points)
    first, _ = env.reset(seed=1)
    other, _ = env.reset(seed=2)
    again, _ = env.reset(seed=1)
    assert (first == again).all()
    assert (first != other).any()
    kept, _ = env.reset(options={"reset_mask": np.array([True, False, False, False])})
    assert (kept[0] != again[0]).any()
    assert (kept[1:] == again[1:]).all()
    fixed = GymnasiumVectorEnv(points(0))
    with caplog.at_level(logging.WARNING):
        fixed.reset(seed=1)
        fixed.reset(seed=2)
    assert caplog.text.count("took its seed when it was built") == 1


def test_a_single_environment_wants_one_row() -> None:
    with pytest.raises(Refused, match="this has 4"):
        GymnasiumSingleEnv(points)


def test_a_runner_of_rsl_rl_learns_on_our_robot(tmp_path: Path) -> None:
    runners = pytest.importorskip("rsl_rl.runners")
    env = RslRlVecEnv(quadruped(4), step_dt=0.02)
    shape: dict[str, Any] = {"class_name": "MLPModel", "hidden_dims": [16], "activation": "elu",
                             "obs_normalization": True}  # fmt: skip
    config = {
        "num_steps_per_env": 6,
        "save_interval": 10,
        "obs_groups": {"actor": ["policy"], "critic": ["critic"]},
        "actor": shape | {"distribution_cfg": {"class_name": "GaussianDistribution"}},
        "critic": shape,
        "algorithm": {"class_name": "PPO", "num_learning_epochs": 1, "num_mini_batches": 2},
    }
    runner = runners.OnPolicyRunner(env, config, log_dir=None, device="cpu")
    before = {k: v.clone() for k, v in runner.alg.actor.state_dict().items()}
    runner.learn(3, init_at_random_ep_len=True)
    after = runner.alg.actor.state_dict()
    assert not torch.equal(before["mlp.0.weight"], after["mlp.0.weight"])
    assert int(after["obs_normalizer.count"]) == 3 * 24
    assert all(value.isfinite().all() for value in after.values())


def test_stable_baselines3_learns_on_our_robot_and_sees_what_we_see() -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.vec_env import (  # pyright: ignore[reportMissingImports]
        DummyVecEnv,
    )

    def one() -> GymnasiumSingleEnv:
        return GymnasiumSingleEnv(lambda seed: quadruped(1, seed), action_bound=100.0)

    shape = {"net_arch": [16]}
    model = sb3.PPO(
        "MlpPolicy", DummyVecEnv([one, one]), n_steps=24, batch_size=16, n_epochs=2, seed=3,
        device="cpu", policy_kwargs=shape,
    )  # fmt: skip
    before = {k: v.clone() for k, v in model.policy.state_dict().items()}
    model.learn(48)
    after = model.policy.state_dict()
    assert not torch.equal(before["action_net.weight"], after["action_net.weight"])
    assert all(value.isfinite().all() for value in after.values())
    # It has numbered its environments from its seed on: the second one again, by ourselves.
    buffer, env = model.rollout_buffer, quadruped(1, seed=4)
    obs = env.reset()["policy"]
    # To learn it has put its rows one environment after the other, all but the rewards.
    for t in range(24):
        np.testing.assert_array_equal(buffer.observations[24 + t], obs[0].numpy())
        result = env.step(torch.from_numpy(buffer.actions[24 + t : 25 + t]))
        assert buffer.rewards[t, 1] == float(result.reward[0])
        obs = result.obs["policy"]
