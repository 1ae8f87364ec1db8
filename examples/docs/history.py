"""Frames of two terms in every layout: joint_vel of two joints, and a command."""

import dataclasses
from typing import Any

import numpy as np
from leg_contract import leg_contract, term

from robot_runtime.policy.observation import ObservationBuilder
from robot_runtime.policy.spec import CommandChannel, ObservationBlock
from robot_runtime.policy.state import PolicyInputs, RobotState


def observe(step: int, **history: Any) -> str:
    """The observation of a policy step, counted from 1, with a history of three frames."""
    contract = leg_contract()
    block = contract.observation[0]
    block = ObservationBlock(
        input="obs",
        terms=(term("joint_vel", "joint_vel"), term("command", "command")),
        history=dataclasses.replace(block.history, length=3, **history),
        clip=None,
    )
    command = CommandChannel(name="lin_vel_x", lower=0.0, upper=100.0, max_rate=None)
    contract = dataclasses.replace(contract, observation=(block,), commands=(command,))
    builder = ObservationBuilder(contract)
    observation = np.zeros(contract.observation_dim)
    for k in range(1, step + 1):
        observation = builder.compute(inputs_of(k))
        builder.commit()
    return " ".join(f"{value:2.0f}" for value in observation)


def inputs_of(k: int) -> PolicyInputs:
    """Frame k is (10 k + 1, 10 k + 2) for the joints and 10 k + 3 for the command."""
    zero = np.zeros(2, np.float32)
    return PolicyInputs(
        state=RobotState(
            time=0.02 * k,
            base_quat=np.array([1, 0, 0, 0], np.float32),
            base_ang_vel_b=np.zeros(3, np.float32),
            base_lin_vel_b=None,
            joint_pos=zero,
            joint_vel=np.array([10 * k + 1, 10 * k + 2], np.float32),
        ),
        command=np.array([10 * k + 3], np.float32),
        raw_action=zero,
        applied_action=zero,
        elapsed=np.float64(0.02 * (k - 1)),
    )


if __name__ == "__main__":
    print("step 5, term_major,  oldest_first:", observe(5))
    print("step 5, term_major,  newest_first:", observe(5, order="newest_first"))
    print("step 5, frame_major, oldest_first:", observe(5, layout="frame_major"))
    newest = {"layout": "frame_major", "order": "newest_first"}
    print("step 5, frame_major, newest_first:", observe(5, **newest))
    print("step 5, without the current frame:", observe(5, includes_current=False))
    print("step 5, stride 2:                 ", observe(5, stride=2))
    print("step 1, fill first:               ", observe(1))
    print("step 2, fill first:               ", observe(2))
    print("step 1, fill zero:                ", observe(1, fill="zero"))
