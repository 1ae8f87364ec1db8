"""The biped walks on flat ground at a commanded velocity, stepping to a clock."""

from __future__ import annotations

from torch import Tensor

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.spec import CommandChannel
from robot_runtime.robots import RobotModel, load_model
from trainer.config import NetworkConfig, PPOConfig, SymmetryConfig, TrainConfig
from trainer.curriculum import Curriculum, Lesson, over_env_steps
from trainer.envs.anatomy import anatomy_of
from trainer.envs.config import FallConfig, RobotEnvConfig
from trainer.envs.mirror_check import make_mirror_table
from trainer.envs.model import SolverOptions
from trainer.envs.recorder import RobotDeployment
from trainer.envs.robot_env import RobotEnv
from trainer.tasks.base import TaskRun
from trainer.tasks.commands import CommandConfig
from trainer.tasks.extra_rewards import ExtraReward
from trainer.tasks.gait import GaitConfig
from trainer.tasks.randomization import RandomizationConfig
from trainer.tasks.rewards import RewardConfig, RewardInputs
from trainer.tasks.walking import walking_contract

NAME = "biped-flat"
ACTION_SCALE = 0.3
ACTION_BOUND = 6.0
PUSHES_FROM, PUSHES_FULL = 1e6, 4e6
"""Environment steps between which pushes grow from nothing to their full speed."""


def make(*, num_envs: int, seed: int, device: str, num_threads: int) -> TaskRun:
    """Build the task; see `trainer.tasks.base.MakeTask`."""
    config = env_config()
    env = RobotEnv(config, num_envs=num_envs, seed=seed, device=device, num_threads=num_threads)
    # Who cannot yet stand learns nothing from being pushed over.
    pushes = Lesson(
        name="pushes", rule=over_env_steps(PUSHES_FROM, PUSHES_FULL), apply=env.set_push_share
    )
    return TaskRun(
        env=env,
        train=train_config(),
        symmetry=make_mirror_table(config),
        deployment=RobotDeployment(config),
        curriculum=Curriculum([pushes]),
    )


def train_config() -> TrainConfig:
    """Settings that make the robot walk within minutes on two cores."""
    return TrainConfig(
        num_envs=256,
        iterations=1000,
        network=NetworkConfig(actor_hidden=(128, 64), critic_hidden=(128, 64), init_std=0.7),
        ppo=PPOConfig(
            num_steps=24,
            epochs=2,
            minibatches=4,
            gamma=0.98,
            entropy_coef=0.01,
            final_std=0.1,
            learning_rate=1e-3,
            max_lr=3e-3,
            symmetry=SymmetryConfig(augment=True),
        ),
    )


def env_config() -> RobotEnvConfig:
    """The environment of the task."""
    robot = load_model("biped")
    contract = make_contract(robot)
    parts = anatomy_of(robot)
    return RobotEnvConfig(
        robot=robot,
        contract=contract,
        # The episode ends where thighs or shanks would touch: they need no collisions of their own.
        # With the three iterations that do for a quadruped, forces under two feet are so wrong that
        # robots fall which would not.
        solver=SolverOptions(
            colliding_geoms=(*robot.profile.foot_geoms, *parts.base_geoms),
            iterations=20,
            ls_iterations=20,
        ),
        gait=GaitConfig(
            # The right foot half a cycle after the left; both on the ground for a tenth of it.
            offsets=tuple(0.0 if foot.left > 0.0 else 0.5 for foot in parts.feet),
            duty=0.55,
            swing_height=0.06,
        ),
        commands=CommandConfig(stand_probability=0.1),
        rewards=RewardConfig(
            # A wide bell pays for stepping in place: narrow enough, walking pays more.
            track_lin_vel=1.5,
            lin_vel_width=0.3,
            track_mean_lin_vel=2.0,
            track_mean_ang_vel=0.5,
            gait=1.0,
            swing_height=-60.0,
            height_target=0.555,
            pose=-0.5,
            orientation=-3.0,
            ang_vel_xy=-0.05,
            mean_time_s=0.6,
            termination=-1.0,
        ),
        extra_rewards=(ExtraReward(name="foot_level", term=foot_level, weight=-40.0),),
        pose_weight=tuple(_pose_weight(name) for name in contract.joint_names),
        randomization=RandomizationConfig(
            payload_kg=(-0.5, 1.0),
            push_speed=0.25,
            start_lin_vel=0.2,
            start_ang_vel=0.2,
            start_tilt=0.05,
        ),
        fall=FallConfig(
            max_tilt=0.9,
            min_height=0.38,
            # The origin of a shank is the knee.
            clear_bodies=("left_shank", "right_shank"),
            clear_height=0.1,
        ),
    )


def foot_level(x: RewardInputs) -> Tensor:
    """Squared difference of height of toe and heel, [m^2], summed over both feet, shape (n,).

    A foot that comes down level stands on both ends, and can push and brake. The profile names the
    toe and the heel of one foot after the other.
    """
    toe, heel = x.foot_height.unflatten(-1, (2, 2)).unbind(-1)
    return (toe - heel).square().sum(-1)


def make_contract(robot: RobotModel) -> PolicyContract:
    """What the policy expects of the world; see `walking_contract`."""
    return walking_contract(
        robot,
        name=NAME,
        action_scale=ACTION_SCALE,
        action_bound=ACTION_BOUND,
        gait_period=0.6,
        commands=(
            CommandChannel(name="lin_vel_x", lower=-0.3, upper=0.6, max_rate=1.5),
            CommandChannel(name="lin_vel_y", lower=-0.2, upper=0.2, max_rate=1.0),
            CommandChannel(name="ang_vel_z", lower=-0.6, upper=0.6, max_rate=3.0),
        ),
    )


def _pose_weight(name: str) -> float:
    """Legs may swing; what turns them to the side or about themselves stays near its place."""
    return 1.0 if name.endswith(("yaw", "roll")) else 0.1
