"""The quadruped walks over slopes, steps, stairs and rough ground, from easy to hard.

The policy sees what the robot measures, so that it can be deployed as it is; the critic also sees
the ground around the robot (Lee et al., "Learning quadrupedal locomotion over challenging terrain",
Science Robotics 2020, train a blind policy with such a critic).
"""

from __future__ import annotations

import dataclasses

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.robots import RobotModel, load_model
from trainer.config import NetworkConfig, TrainConfig
from trainer.curriculum import Curriculum, Lesson, over_env_steps, share_between
from trainer.envs.config import RobotEnvConfig
from trainer.envs.height import ScanConfig
from trainer.envs.levels import LevelConfig
from trainer.envs.mirror_check import make_mirror_table
from trainer.envs.recorder import RobotDeployment
from trainer.envs.robot_env import RobotEnv
from trainer.envs.terrain import TerrainConfig
from trainer.tasks import quadruped_flat
from trainer.tasks.base import TaskRun

NAME = "quadruped-rough"
PUSHES_FROM, PUSHES_FULL = 1e6, 4e6
"""Environment steps between which pushes grow to their full speed."""


def make(*, num_envs: int, seed: int, device: str, num_threads: int) -> TaskRun:
    """Build the task; see `trainer.tasks.base.MakeTask`."""
    config = env_config()
    env = RobotEnv(config, num_envs=num_envs, seed=seed, device=device, num_threads=num_threads)
    pushes = Lesson(
        name="pushes",
        rule=over_env_steps(PUSHES_FROM, PUSHES_FULL),
        apply=lambda level: env.set_push_share(share_between(0.2, 1.0, level)),
    )
    return TaskRun(
        env=env,
        train=train_config(),
        symmetry=make_mirror_table(config),
        deployment=RobotDeployment(config),
        curriculum=Curriculum([pushes], at_full=env.spread_levels),
    )


def train_config() -> TrainConfig:
    """Settings that take a robot that walks on flat ground over steps within minutes.

    Begin with its actor (`surefoot train quadruped-rough --initial RUN`): who has yet to learn to
    walk stops in front of the first step, and learns little else for a long time.
    """
    flat = quadruped_flat.train_config()
    return dataclasses.replace(
        flat,
        iterations=500,
        network=NetworkConfig(
            actor_hidden=(128, 64),
            critic_hidden=(128, 64),
            init_std=0.35,
            critic_groups=("critic", "scan"),
        ),
    )


def env_config(robot: RobotModel | None = None) -> RobotEnvConfig:
    """The environment of the task.

    Args:
        robot: The robot, see `quadruped_flat.env_config`; None for the built-in quadruped.
    """
    robot = robot or load_model("quadruped")
    flat = quadruped_flat.env_config(robot)
    return dataclasses.replace(
        flat,
        contract=make_contract(robot),
        gait=dataclasses.replace(flat.gait, swing_height=0.12),
        rewards=dataclasses.replace(
            flat.rewards,
            # Who climbs moves up and down and leans with the slope.
            lin_vel_z=-0.5,
            orientation=-0.5,
            base_height=-10.0,
            swing_height=-40.0,
        ),
        fall=dataclasses.replace(flat.fall, min_height=0.14, clear_height=0.01),
        # A foot on a height field has up to six contacts: with the three iterations that do on a
        # plane, forces are so wrong that robots fall on a level field.
        solver=dataclasses.replace(flat.solver, iterations=20, ls_iterations=20),
        terrain=TerrainConfig(),
        # All of them at first: a robot that walks soon has the one that is its own.
        levels=LevelConfig(first=TerrainConfig().levels),
        scan=ScanConfig(),
    )


def make_contract(robot: RobotModel) -> PolicyContract:
    """What the policy expects of the world: what a policy for flat ground does."""
    return dataclasses.replace(quadruped_flat.make_contract(robot), name=NAME)
