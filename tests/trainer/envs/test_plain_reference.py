"""The batched environment against the same task written plainly, one robot at a time."""

import dataclasses

import numpy as np
import pytest
import torch

from tests.helpers.plain_quadruped import PlainQuadruped
from trainer.envs.config import RobotEnvConfig
from trainer.envs.physics import PhysicsState
from trainer.envs.robot_env import RobotEnv
from trainer.tasks.quadruped_flat import env_config
from trainer.tasks.randomization import NOMINAL
from trainer.tasks.rewards import RewardConfig, active_terms

COMMANDS = [[0.5, 0.0, 0.0], [0.0, 0.3, -0.5], [0.0, 0.0, 0.0], [-0.8, -0.2, 0.9]]


def _config() -> RobotEnvConfig:
    return dataclasses.replace(env_config(), randomization=NOMINAL, episode_s=1.0)


def _starts() -> PhysicsState:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return 2.0 * torch.rand(len(COMMANDS), *shape, generator=generator) - 1.0

    quat = torch.tensor([[1.0, 0.0, 0.0, 0.0]]) + 0.1 * draw(4)
    default = torch.tensor(_config().contract.joint_array("default_pos"), dtype=torch.float32)
    return PhysicsState(
        base_pos_w=torch.zeros(len(COMMANDS), 3),
        base_quat=quat / quat.norm(dim=-1, keepdim=True),
        base_lin_vel_w=0.3 * draw(3),
        base_ang_vel_b=0.3 * draw(3),
        joint_pos=default + 0.1 * draw(12),
        joint_vel=draw(12),
    )


@pytest.mark.parametrize(
    "rewards",
    [
        env_config().rewards,
        # Every term at once, and the sum as it is, so that no clip at zero hides a difference.
        dataclasses.replace(RewardConfig(), joint_vel=-0.001, foot_slip=-0.2, only_positive=False),
    ],
)
def test_every_observation_and_reward_agrees(rewards: RewardConfig) -> None:
    config = dataclasses.replace(_config(), rewards=rewards)
    env = RobotEnv(config, num_envs=len(COMMANDS), num_threads=1)
    env.give_commands(torch.tensor(COMMANDS))
    start = _starts()
    obs = env.put(start, torch.zeros(len(COMMANDS), dtype=torch.int64))["critic"]
    plain = [PlainQuadruped(config) for _ in COMMANDS]
    seen = [
        one.reset(
            seed=0,
            options={
                "qpos": np.concatenate(
                    [start.base_pos_w[i], start.base_quat[i], start.joint_pos[i]]
                ),
                "qvel": np.concatenate(
                    [start.base_lin_vel_w[i], start.base_ang_vel_b[i], start.joint_vel[i]]
                ),
                "command": COMMANDS[i],
            },
        )[0]
        for i, one in enumerate(plain)
    ]
    generator = torch.Generator().manual_seed(1)
    rewards_seen = []
    for _ in range(40):
        # float32 against float64: positions to 1e-7, foot velocities by differences to 1e-5.
        np.testing.assert_allclose(obs.numpy(), np.stack(seen), rtol=1e-4, atol=1e-4)
        actions = 0.4 * torch.randn(len(COMMANDS), 12, generator=generator)
        result = env.step(actions)
        steps = [one.step(actions[i].double().numpy()) for i, one in enumerate(plain)]
        rewards_seen.append([step[1] for step in steps])
        np.testing.assert_allclose(result.reward.numpy(), rewards_seen[-1], rtol=1e-4, atol=2e-5)
        assert result.terminated.tolist() == [step[2] for step in steps]
        assert result.truncated.tolist() == [step[3] for step in steps]
        if result.terminated.any():
            break
        obs, seen = result.obs["critic"], [step[0] for step in steps]
    assert len(rewards_seen) > 15, "the robots must live long enough to be compared"
    assert np.std(rewards_seen) > 1e-3


def test_every_term_has_a_weight_of_its_name() -> None:
    config = RewardConfig(joint_vel=-1.0)
    assert set(active_terms(config)) <= {f.name for f in dataclasses.fields(RewardConfig)}
    assert "joint_vel" not in active_terms(RewardConfig(joint_vel=0.0))
