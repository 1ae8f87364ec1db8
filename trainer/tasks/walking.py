"""The contract that walking tasks share: what a legged robot measures, and joint targets out."""

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
from robot_runtime.robots import RobotModel
from trainer.envs.model import imu_mount, joint_axes


def walking_contract(
    robot: RobotModel,
    *,
    name: str,
    action_scale: float,
    action_bound: float,
    gait_period: float,
    commands: tuple[CommandChannel, CommandChannel, CommandChannel],
) -> PolicyContract:
    """What a policy that walks to a clock expects of the world.

    Joints, gains and limits come from the robot's profile. MuJoCo's position actuators realize the
    PD of the motors: at 10 ms they follow a finely stepped PD better than an explicit law does.

    Args:
        robot: The robot.
        name: Name of the policy.
        action_scale: Joint target per unit of action, around the default pose, [rad].
        action_bound: Largest raw action.
        gait_period: Period of the gait clock, [s].
        commands: Forward and left velocity, [m/s], and yaw rate, [rad/s].
    """
    joints = _joints(robot)
    names = tuple(joint.name for joint in joints)
    each = (1.0,) * len(names)
    return PolicyContract(
        schema=SCHEMA,
        name=name,
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
                    scale=tuple(action_scale * one for one in each),
                    offset=tuple(joint.default_pos for joint in joints),
                    relative_to="offset",
                    raw_lower=tuple(-action_bound * one for one in each),
                    raw_upper=tuple(action_bound * one for one in each),
                    target_lower=tuple(j.lower for j in robot.profile.joints),
                    target_upper=tuple(j.upper for j in robot.profile.joints),
                ),
            ),
            hold=(),
            filter=1.0,
        ),
        commands=commands,
        phase=PhaseClock(
            period=gait_period,
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
            _term("phase", "phase_sin_cos"),
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
        # The IMU of our robots stands like their base; what it measures is the same.
        sensor="base",
        value=None,
    )
