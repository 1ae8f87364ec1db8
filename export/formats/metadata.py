"""Metadata that controllers of mjlab and BeyondMimic policies read, at full precision."""

from __future__ import annotations

from collections.abc import Iterable

from robot_runtime.policy.contract import PolicyContract

_NAMES = {
    "joint_pos_rel": "joint_pos",
    "last_action": "actions",
}


def controller_metadata(contract: PolicyContract) -> dict[str, str]:
    """The contract as those controllers read it: comma-separated texts.

    What they cannot say (offsets, clips of actions, periods, limits) stays in the contract. A list
    inside a list is separated by semicolons.

    Args:
        contract: The contract.

    Returns:
        Text by key: joints, gains, default pose, action scale, observation terms with scale, clip
        and history, commands.
    """
    terms = [(block, term) for block in contract.observation for term in block.terms]
    scale = {
        name: value
        for term in contract.action.terms
        for name, value in zip(term.joints, term.scale, strict=True)
    }
    frame_major = [block.history.layout == "frame_major" for block, _ in terms]
    lengths = [block.length_of(term) for block, term in terms]
    clips = [term.clip or (float("-inf"), float("inf")) for _, term in terms]
    return {
        "joint_names": ",".join(contract.joint_names),
        "joint_stiffness": _csv(contract.joint_array("kp").tolist()),
        "joint_damping": _csv(contract.joint_array("kd").tolist()),
        "default_joint_pos": _csv(contract.joint_array("default_pos").tolist()),
        "action_scale": _csv(scale[name] for name in contract.action_joints),
        "command_names": ",".join(contract.command_names),
        "observation_names": ",".join(_NAMES.get(t.source, t.name) for _, t in terms),
        "observation_terms_scale": ",".join(_nested(t.scale) for _, t in terms),
        "observation_terms_clip": ",".join(_nested(clip) for clip in clips),
        "observation_terms_history_length": ",".join(str(n if n > 1 else 0) for n in lengths),
        "observation_terms_flatten_history_dim": ",".join(
            str(int(not whole)) for whole in frame_major
        ),
        "observation_history_lengths": ",".join(str(n) for n in lengths),
    }


def _csv(values: Iterable[float]) -> str:
    return ",".join(repr(float(value)) for value in values)


def _nested(values: Iterable[float]) -> str:
    return ";".join(repr(float(value)) for value in values)
