"""Names for the elements of an observation, so that a message can say which one is wrong."""

from __future__ import annotations

from robot_runtime.policy.contract import PHASE_SOURCES, PolicyContract
from robot_runtime.policy.observation import history_gather
from robot_runtime.policy.spec import ObservationTerm


def term_labels(contract: PolicyContract, term: ObservationTerm) -> list[str]:
    """A name for every feature of one frame of a term, such as ``joint_vel[FL_hip_joint]``."""
    if term.source in ("joint_pos", "joint_pos_rel", "joint_vel"):
        parts = term.joints or contract.joint_names
    elif term.source == "command":
        parts = term.channels or contract.command_names
    elif term.source == "last_action":
        parts = contract.action_joints
    elif term.source == "phase_sin_cos":
        count = contract.term_dim(term) // 2
        parts = tuple(f"{wave} {i}" for i in range(count) for wave in ("sin", "cos"))
    elif term.source in (*PHASE_SOURCES, "constant", "command_active"):
        parts = tuple(str(i) for i in range(contract.term_dim(term)))
    elif term.source == "euler_xyz":
        parts = ("roll", "pitch", "yaw")
    elif term.source == "base_quat":
        parts = tuple(contract.imu.quaternion_order)
    else:
        parts = ("x", "y", "z")
    return [f"{term.name}[{part}]" for part in parts]


def observation_labels(contract: PolicyContract) -> list[str]:
    """A name for every element of the observation; past frames say how many steps back."""
    labels: list[str] = []
    for block in contract.observation:
        frame = [label for term in block.terms for label in term_labels(contract, term)]
        for place in history_gather(contract, block):
            age, feature = divmod(int(place), len(frame))
            labels.append(frame[feature] + (f" {age} steps back" if age else ""))
    return labels
