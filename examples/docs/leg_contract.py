"""The contract of a leg with two joints, printed as the JSON that a policy file holds."""

import json
import re

from robot_runtime.policy.contract import SCHEMA, PolicyContract
from robot_runtime.policy.spec import (
    ActionSpec,
    ActionTerm,
    ActuatorSpec,
    CommandChannel,
    HistorySpec,
    ImuSpec,
    Joint,
    NetworkSpec,
    ObservationBlock,
    ObservationTerm,
    PhaseClock,
    RobotRef,
    Source,
    Timing,
)


def leg_contract() -> PolicyContract:
    """What a policy that makes a leg hop expects of the world."""
    return PolicyContract(
        schema=SCHEMA,
        name="leg-hop",
        robot=RobotRef(name="leg", model_sha256="", base_body="trunk"),
        joints=(joint("hip", 0.8, -1.5, 1.5), joint("knee", -1.6, -2.7, -0.5)),
        timing=Timing(control_dt=0.02, pd_dt=0.005, physics_dt=0.005),
        actuator=ActuatorSpec(form="explicit_pd", damping="actuator", delay=0.0, target_filter=1.0),
        observation=(
            ObservationBlock(
                input="obs",
                terms=(
                    term("gravity", "projected_gravity"),
                    term("joint_vel", "joint_vel", scale=0.05),
                    term("command", "command"),
                ),
                history=HistorySpec(
                    length=1,
                    layout="term_major",
                    order="oldest_first",
                    fill="first",
                    includes_current=True,
                    stride=1,
                ),
                clip=100.0,
            ),
        ),
        action=ActionSpec(
            terms=(
                ActionTerm(
                    name="leg",
                    kind="position",
                    joints=("hip", "knee"),
                    scale=(0.25, 0.25),
                    offset=(0.8, -1.6),
                    relative_to="offset",
                    raw_lower=None,
                    raw_upper=None,
                    target_lower=(-1.5, -2.7),
                    target_upper=(1.5, -0.5),
                ),
            ),
            hold=(),
            filter=1.0,
        ),
        commands=(CommandChannel(name="lin_vel_x", lower=-0.5, upper=0.5, max_rate=1.0),),
        phase=PhaseClock(
            period=0.5,
            offsets=(0.0,),
            start=0.0,
            stand="run",
            stand_channels=None,
            stand_norm="euclidean",
            stand_threshold=0.1,
            stand_phase=0.0,
            restart=None,
        ),
        imu=ImuSpec(
            site="imu",
            position=(0.0, 0.0, 0.0),
            quat=(1.0, 0.0, 0.0, 0.0),
            quaternion_order="wxyz",
        ),
        network=NetworkSpec(output="actions", normalizer="in_graph", states=()),
    )


def joint(name: str, default_pos: float, lower: float, upper: float) -> Joint:
    """A joint that turns about the y axis, with the motor that both have."""
    return Joint(
        name=name,
        motor=None,
        axis=(0.0, 1.0, 0.0),
        default_pos=default_pos,
        lower=lower,
        upper=upper,
        velocity_limit=20.0,
        effort_limit=24.0,
        stall_effort=None,
        no_load_speed=None,
        kp=30.0,
        kd=0.8,
    )


def term(name: str, source: Source, *, scale: float = 1.0) -> ObservationTerm:
    """A term without clip, noise and history of its own."""
    return ObservationTerm(
        name=name,
        source=source,
        scale=(scale,),
        clip=None,
        clip_first=True,
        noise=(0.0,),
        history_length=None,
        joints=None,
        channels=None,
        stage="raw",
        frame="body",
        sensor="base",
        value=None,
    )


def one_line(match: re.Match[str]) -> str:
    """An innermost list or object without line breaks, where it is short enough."""
    short = " ".join(match[0].split())
    return short if len(short) <= 92 else match[0]


if __name__ == "__main__":
    text = json.dumps(leg_contract().to_dict(), indent=2)
    print(re.sub(r"[\[{][^][{}]+[\]}]", one_line, text))
