"""The quadruped walks on flat ground at a commanded velocity, trotting to a clock."""

from __future__ import annotations

from robot_runtime.policy.contract import SCHEMA, PolicyContract
from robot_runtime.policy.spec import (
    ActionSpec,
    ActionTerm,
    ActuatorSpec,
    CommandChannel,
    HistorySpec,
    Joint,
    NetworkSpec,
    ObservationBlock,
    ObservationTerm,
    PhaseClock,
    RobotRef,
    Source,
    Timing,
)
from robot_runtime.robots import RobotModel, load_model
from trainer.config import NetworkConfig, PPOConfig, SymmetryConfig, TrainConfig
from trainer.envs.config import FallConfig, RobotEnvConfig
from trainer.envs.mirror_check import make_mirror_table
from trainer.envs.model import SolverOptions, imu_mount, joint_axes
from trainer.envs.recorder import RobotDeployment
from trainer.envs.robot_env import RobotEnv
from trainer.tasks.base import TaskRun
from trainer.tasks.commands import CommandConfig
from trainer.tasks.gait import GaitConfig
from trainer.tasks.randomization import RandomizationConfig
from trainer.tasks.rewards import RewardConfig

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
        iterations=700,
        network=NetworkConfig(actor_hidden=(128, 64), critic_hidden=(128, 64), init_std=0.7),
        ppo=PPOConfig(
            num_steps=24,
            epochs=2,
            minibatches=4,
            gamma=0.97,
            entropy_coef=0.003,
            learning_rate=1e-3,
            max_lr=3e-3,
            symmetry=SymmetryConfig(augment=True),
        ),
    )


def env_config(robot: RobotModel | None = None) -> RobotEnvConfig:
    """The environment of the task.

    Args:
        robot: The robot; None for the built-in quadruped.
    """
    robot = robot or load_model("quadruped")
    contract = make_contract(robot)
    feet = robot.profile.foot_geoms
    return RobotEnvConfig(
        robot=robot,
        contract=contract,
        # The episode ends where thighs or shanks would touch: they need no collisions of their own.
        solver=SolverOptions(colliding_geoms=(*feet, "trunk", "head")),
        gait=GaitConfig(offsets=(0.0, 0.5, 0.5, 0.0)),
        commands=CommandConfig(stand_probability=0.2),
        rewards=RewardConfig(track_mean_lin_vel=1.0, track_mean_ang_vel=0.5),
        pose_weight=tuple(1.0 if "hip" in name else 0.1 for name in contract.joint_names),
        randomization=RandomizationConfig(),
        fall=FallConfig(
            max_tilt=1.0,
            min_height=0.16,
            clear_bodies=tuple(foot.replace("foot", "calf") for foot in feet),
            clear_height=0.03,
        ),
    )


def make_contract(robot: RobotModel) -> PolicyContract:
    """What the policy expects of the world.

    Joints, gains and limits come from the robot's profile. MuJoCo's position actuators realize the
    PD of the motors: at 10 ms they follow a finely stepped PD better than an explicit law does.
    """
    joints = _joints(robot)
    names = tuple(joint.name for joint in joints)
    each = (1.0,) * len(names)
    return PolicyContract(
        schema=SCHEMA,
        name=NAME,
        robot=RobotRef(name=robot.name, model_sha256=robot.hash, base_body=robot.profile.base_body),
        joints=joints,
        timing=Timing(control_dt=0.02, pd_dt=0.01, physics_dt=0.01),
        actuator=ActuatorSpec(form="native", damping="actuator", delay=0.0, target_filter=1.0),
        observation=(_observation(),),
        action=ActionSpec(
            terms=(
                ActionTerm(
                    name="legs",
                    kind="position",
                    joints=names,
                    scale=tuple(ACTION_SCALE * one for one in each),
                    offset=tuple(joint.default_pos for joint in joints),
                    relative_to="offset",
                    raw_lower=tuple(-ACTION_BOUND * one for one in each),
                    raw_upper=tuple(ACTION_BOUND * one for one in each),
                    target_lower=tuple(j.lower for j in robot.profile.joints),
                    target_upper=tuple(j.upper for j in robot.profile.joints),
                ),
            ),
            hold=(),
            filter=1.0,
        ),
        commands=(
            CommandChannel(name="lin_vel_x", lower=-1.0, upper=1.0, max_rate=2.0),
            CommandChannel(name="lin_vel_y", lower=-0.5, upper=0.5, max_rate=2.0),
            CommandChannel(name="ang_vel_z", lower=-1.0, upper=1.0, max_rate=4.0),
        ),
        phase=PhaseClock(
            period=1.0 / 2.2,
            offsets=(0.0,),
            start=0.0,
            stand="zero",
            stand_channels=None,
            stand_norm="euclidean",
            stand_threshold=0.1,
            stand_phase=0.0,
            restart=None,
        ),
        imu=imu_mount(robot),
        network=NetworkSpec(output="actions", normalizer="in_graph", states=()),
    )


def _joints(robot: RobotModel) -> tuple[Joint, ...]:
    axes = joint_axes(robot)
    return tuple(
        Joint(
            name=joint.name,
            motor=None,
            axis=axes[joint.name],
            default_pos=joint.default_pos,
            lower=joint.lower,
            upper=joint.upper,
            velocity_limit=joint.velocity_limit,
            effort_limit=joint.effort_limit,
            stall_effort=None,
            no_load_speed=None,
            kp=joint.kp,
            kd=joint.kd,
        )
        for joint in robot.profile.joints
    )


def _observation() -> ObservationBlock:
    return ObservationBlock(
        input="obs",
        terms=(
            _term("base_ang_vel", "base_ang_vel", scale=0.25, clip=20.0, noise=0.2),
            _term("projected_gravity", "projected_gravity", noise=0.05),
            _term("command", "command"),
            _term("joint_pos", "joint_pos_rel", clip=3.0, noise=0.01),
            _term("joint_vel", "joint_vel", scale=0.05, clip=40.0, noise=0.75),
            _term("last_action", "last_action"),
            _term("phase_sin", "phase_sin"),
            _term("phase_cos", "phase_cos"),
        ),
        history=HistorySpec(
            length=1,
            layout="term_major",
            order="oldest_first",
            fill="first",
            includes_current=True,
            stride=1,
        ),
        clip=None,
    )


def _term(
    name: str, source: Source, *, scale: float = 1.0, clip: float | None = None, noise: float = 0.0
) -> ObservationTerm:
    return ObservationTerm(
        name=name,
        source=source,
        scale=(scale,),
        clip=None if clip is None else (-clip, clip),
        clip_first=True,
        noise=(noise,),
        history_length=None,
        joints=None,
        channels=None,
        stage="applied",
        frame="body",
        # The IMU of the quadruped stands like its base; what it measures is the same.
        sensor="base",
        value=None,
    )
