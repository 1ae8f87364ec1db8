"""What the biped's recipe has of its own."""

import pytest
import torch

from trainer.envs.robot_env import RobotEnv
from trainer.tasks.biped_flat import env_config, make


def test_feet_are_level_where_toe_and_heel_are_as_high() -> None:
    """Through the environment: one ankle bent by hand, the other not."""
    config = env_config()
    (extra,) = config.extra_rewards
    env = RobotEnv(config, num_envs=1, num_threads=1)
    env.reset()
    seen: list[float] = []
    for ankle in (0.0, 0.3):
        state = env.physics.read()
        state.base_quat[:] = torch.tensor([1.0, 0.0, 0.0, 0.0])
        state.joint_pos[:] = torch.from_numpy(config.contract.joint_array("default_pos")).float()
        state.joint_pos[:, list(config.contract.joint_names).index("left_ankle")] += ankle
        env.put(state, torch.zeros(1, dtype=torch.int64))
        inputs = env._reward_inputs(torch.zeros(1, env.num_actions))
        seen.append(float(extra.term(inputs)))
    # Toe and heel are 0.16 m apart.
    assert seen[0] == pytest.approx(0.0, abs=1e-8)
    assert seen[1] == pytest.approx((0.16 * 0.29552) ** 2, rel=1e-3)


def test_nobody_is_pushed_at_first() -> None:
    task = make(num_envs=2, seed=0, device="cpu", num_threads=1)
    assert task.curriculum is not None
    early = task.curriculum.update({"progress/env_steps": 5e5})
    late = task.curriculum.update({"progress/env_steps": 1e8})
    assert (early["curriculum/pushes"], late["curriculum/pushes"]) == (0.0, 1.0)
