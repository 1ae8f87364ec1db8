"""The quadruped walks on flat ground at a commanded velocity, trotting to a clock."""

from __future__ import annotations

from robot_runtime.errors import BadInput
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.spec import CommandChannel, Joint
from robot_runtime.robots import RobotModel, load_model
from trainer.config import NetworkConfig, PPOConfig, SymmetryConfig, TrainConfig
from trainer.envs.anatomy import Foot, anatomy_of
from trainer.envs.config import FallConfig, RobotEnvConfig
from trainer.envs.mirror_check import make_mirror_table
from trainer.envs.model import SolverOptions
from trainer.envs.recorder import RobotDeployment
from trainer.envs.robot_env import RobotEnv
from trainer.tasks.base import TaskRun
from trainer.tasks.commands import CommandConfig
from trainer.tasks.gait import GaitConfig
from trainer.tasks.randomization import RandomizationConfig
from trainer.tasks.rewards import RewardConfig
from trainer.tasks.walking import walking_contract

NAME = "quadruped-flat"
ACTION_SCALE = 0.3
ACTION_BOUND = 6.0


def make(*, num_envs: int, seed: int, device: str, num_threads: int) -> TaskRun:
    """Build the task; see `trainer.tasks.base.MakeTask`."""
    config = env_config()
    env = RobotEnv(config, num_envs=num_envs, seed=seed, device=device, num_threads=num_threads)
    return TaskRun(
        env=env,
        train=train_config(),
        symmetry=make_mirror_table(config),
        deployment=RobotDeployment(config),
    )


def train_config() -> TrainConfig:
    """Settings that make the robot walk within minutes on two cores."""
    return TrainConfig(
        num_envs=256,
        iterations=850,
        network=NetworkConfig(actor_hidden=(128, 64), critic_hidden=(128, 64), init_std=0.7),
        ppo=PPOConfig(
            num_steps=24,
            epochs=2,
            minibatches=4,
            gamma=0.97,
            entropy_coef=0.001,
            final_std=0.1,
            learning_rate=1e-3,
            max_lr=3e-3,
            symmetry=SymmetryConfig(augment=True),
        ),
    )


def env_config(robot: RobotModel | None = None) -> RobotEnvConfig:
    """The environment of the task.

    Feet and base are taken from the robot's model, whatever they are called.

    Args:
        robot: The robot, with a foot in each corner whose knee is the body that carries it; None
            for the built-in quadruped.

    Raises:
        BadInput: The robot is no quadruped.
    """
    robot = robot or load_model("quadruped")
    contract = make_contract(robot)
    parts = anatomy_of(robot)
    return RobotEnvConfig(
        robot=robot,
        contract=contract,
        # The episode ends where thighs or shanks would touch: they need no collisions of their own.
        solver=SolverOptions(colliding_geoms=(*robot.profile.foot_geoms, *parts.base_geoms)),
        gait=GaitConfig(offsets=trot_offsets(robot.name, parts.feet)),
        commands=CommandConfig(stand_probability=0.15),
        rewards=RewardConfig(
            track_mean_lin_vel=1.0,
            track_mean_ang_vel=0.5,
            orientation=-5.0,
            swing_height=-60.0,
        ),
        # Hips stay in, legs may swing: joints that turn about the forward axis weigh more.
        pose_weight=tuple(1.0 if _sideways(joint) else 0.1 for joint in contract.joints),
        randomization=RandomizationConfig(),
        fall=FallConfig(
            max_tilt=1.0,
            min_height=0.16,
            clear_bodies=tuple(foot.body for foot in parts.feet),
            clear_height=0.03,
        ),
    )


def trot_offsets(robot: str, feet: tuple[Foot, ...]) -> tuple[float, ...]:
    """Phases of a trot, [cycles]: feet of a diagonal together, the diagonals half a cycle apart.

    Raises:
        BadInput: There is not one foot in each corner.
    """
    corners = [(foot.forward > 0.0, foot.left > 0.0) for foot in feet]
    if len(feet) != 4 or len(set(corners)) != 4:
        names = ", ".join(foot.geom for foot in feet)
        raise BadInput(f"robot '{robot}' has not one foot in each corner; its feet are {names}")
    return tuple(0.0 if ahead == left else 0.5 for ahead, left in corners)


def make_contract(robot: RobotModel) -> PolicyContract:
    """What the policy expects of the world; see `walking_contract`."""
    return walking_contract(
        robot,
        name=NAME,
        action_scale=ACTION_SCALE,
        action_bound=ACTION_BOUND,
        gait_period=1.0 / 2.2,
        commands=(
            CommandChannel(name="lin_vel_x", lower=-1.0, upper=1.0, max_rate=2.0),
            CommandChannel(name="lin_vel_y", lower=-0.5, upper=0.5, max_rate=2.0),
            CommandChannel(name="ang_vel_z", lower=-1.0, upper=1.0, max_rate=4.0),
        ),
    )


def _sideways(joint: Joint) -> bool:
    """Whether a joint turns about the forward axis and so moves a foot to the side."""
    return joint.axis is not None and abs(joint.axis[0]) > 0.5
