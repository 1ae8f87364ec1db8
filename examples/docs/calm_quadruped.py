"""A task of your own: the quadruped with another reward, trained from Python.

python examples/docs/calm_quadruped.py RUN_FOLDER ENVIRONMENTS ITERATIONS
"""

import dataclasses
import sys
from pathlib import Path

from trainer.envs.mirror_check import make_mirror_table
from trainer.envs.recorder import RobotDeployment
from trainer.envs.robot_env import RobotEnv
from trainer.tasks import quadruped_flat
from trainer.tasks.base import TaskRun
from trainer.train import train


def make(*, num_envs: int, seed: int, device: str, num_threads: int) -> TaskRun:
    """Build the task; an entry point of the group `surefoot.tasks` names this function."""
    flat = quadruped_flat.env_config()
    config = dataclasses.replace(
        flat,
        contract=dataclasses.replace(flat.contract, name="calm-quadruped"),
        rewards=dataclasses.replace(flat.rewards, torque=-5e-4, action_rate=-0.02),
    )
    return TaskRun(
        env=RobotEnv(config, num_envs=num_envs, seed=seed, device=device, num_threads=num_threads),
        train=quadruped_flat.train_config(),
        symmetry=make_mirror_table(config),
        deployment=RobotDeployment(config),
    )


if __name__ == "__main__":
    envs, iterations = int(sys.argv[2]), int(sys.argv[3])
    task = make(num_envs=envs, seed=0, device="cpu", num_threads=0)
    settings = dataclasses.replace(task.train, num_envs=envs, iterations=iterations)
    result = train("calm-quadruped", task, settings, Path(sys.argv[1]))
    print(result.iterations, "iterations,", result.env_steps, "steps")
