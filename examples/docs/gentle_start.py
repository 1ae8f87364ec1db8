"""A curriculum and a reward term of your own: commands that grow as they are followed.

python examples/docs/gentle_start.py RUN_FOLDER ENVIRONMENTS ITERATIONS
"""

import dataclasses
import sys
from pathlib import Path

from torch import Tensor

from trainer.curriculum import Curriculum, Lesson, share_between, when_below
from trainer.envs.mirror_check import make_mirror_table
from trainer.envs.recorder import RobotDeployment
from trainer.envs.robot_env import RobotEnv
from trainer.tasks import quadruped_flat
from trainer.tasks.base import TaskRun
from trainer.tasks.extra_rewards import ExtraReward
from trainer.tasks.rewards import RewardInputs
from trainer.train import train


def mechanical_power(x: RewardInputs) -> Tensor:
    """What the motors put in, [W]; braking counts as nothing."""
    return (x.joint_effort * x.joint_vel).clamp_min(0.0).sum(-1)


def make(*, num_envs: int, seed: int, device: str, num_threads: int) -> TaskRun:
    """Build the task; an entry point of the group `surefoot.tasks` names this function."""
    config = dataclasses.replace(
        quadruped_flat.env_config(),
        extra_rewards=(ExtraReward(name="power", term=mechanical_power, weight=-2e-4),),
    )
    env = RobotEnv(config, num_envs=num_envs, seed=seed, device=device, num_threads=num_threads)
    commands = Lesson(
        name="commands",
        rule=when_below("error/lin_vel", 0.25, bad=0.5, step=0.01),
        apply=lambda level: env.set_command_share(share_between(0.3, 1.0, level)),
    )
    return TaskRun(
        env=env,
        train=quadruped_flat.train_config(),
        symmetry=make_mirror_table(config),
        deployment=RobotDeployment(config),
        curriculum=Curriculum([commands]),
    )


if __name__ == "__main__":
    envs, iterations = int(sys.argv[2]), int(sys.argv[3])
    task = make(num_envs=envs, seed=0, device="cpu", num_threads=0)
    settings = dataclasses.replace(task.train, num_envs=envs, iterations=iterations)
    result = train("gentle-start", task, settings, Path(sys.argv[1]))
    print(result.iterations, "iterations at level", result.metrics["curriculum/commands"])
