"""An imported contract against the robot's model: is it this robot, are its numbers plausible."""

from __future__ import annotations

import re

from export.findings import contract_findings
from export.importers.model import ModelFacts
from export.importers.sheet import Sheet
from robot_runtime.errors import Refused
from robot_runtime.policy.contract import PolicyContract

_REACH = 0.02
"""How far beyond its range a default position may lie, [rad]: models round their ranges."""

_GENERIC = ("scene", "mujoco", "model", "robot", "flat", "terrain", "mjx", "description")
"""Words of a model's name that name no robot."""


def check_contract(
    contract: PolicyContract, model: ModelFacts, sheet: Sheet, *, allow_privileged: bool
) -> None:
    """Refuse a contract that is not this robot's, and note what a reader should know.

    Args:
        contract: The contract.
        model: The robot's model.
        sheet: Gets the notes.
        allow_privileged: Whether terms that robots do not measure are accepted.

    Raises:
        Refused: A joint cannot hold its default position, the files name another robot, or a term
            needs what no robot measures.
    """
    _check_robot(model, sheet)
    _check_poses(contract, model)
    _check_others(contract, model, sheet)
    for finding in contract_findings(contract):
        sheet.note(finding)
    _note_servos(contract, model, sheet)
    _note_gravity(contract, sheet)
    _note_positions(contract, sheet)
    speed = [t.name for b in contract.observation for t in b.terms if t.source == "base_lin_vel"]
    if speed and not allow_privileged:
        raise Refused(
            f"term '{speed[0]}' needs the base's velocity, which robots do not measure: the policy "
            "runs in simulation, or with an estimator; if that is meant, say --allow-privileged"
        )
    if speed:
        sheet.note(
            f"term '{speed[0]}' needs the base's velocity: only for simulation, or with an "
            "estimator"
        )


def _check_robot(model: ModelFacts, sheet: Sheet) -> None:
    """The robot that a file names must be found in the model's name, or at least in its place."""
    hint = sheet.get("hint.robot")
    said = sheet.origin("robot.name")
    if not hint or (said is not None and said[0] == "user"):
        return
    wanted = _words(hint)
    for place in (model.name, model.path.stem, model.path.parent.name):
        # "h1" is a word of "h1_2" too, and another robot.
        if re.search(rf"_{re.escape(wanted)}_(?!\d+_)", f"_{_words(place)}_"):
            return
    told = [word for word in _words(model.name).split("_") if word and word not in _GENERIC]
    if not told:
        sheet.note(f"the files are of '{hint}'; the model does not say which robot it is")
        return
    origin = sheet.origin("hint.robot")
    raise Refused(
        f"the files are of the robot '{hint}' ({origin[1] if origin else 'its name'}), the model "
        f"is '{model.name}'; if they are the same, say robot.name: {hint}"
    )


def _words(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def _check_poses(contract: PolicyContract, model: ModelFacts) -> None:
    for joint in contract.joints:
        found = model.joint(joint.name)
        if found.lower is None or found.upper is None:
            continue
        if not found.lower - _REACH <= joint.default_pos <= found.upper + _REACH:
            raise Refused(
                f"default position {joint.default_pos:g} of joint '{joint.name}' is outside of the "
                f"model's range [{found.lower:g}, {found.upper:g}]: files of another robot, or "
                "joints in another order?"
            )


def _check_others(contract: PolicyContract, model: ModelFacts, sheet: Sheet) -> None:
    """Joints of the model that the policy leaves alone would hang limp: that is asked."""
    idle = [name for name in model.driven if name not in contract.joint_names]
    if not idle:
        return
    if sheet.get("joints.others") == "passive":
        sheet.note(f"joints without any target: {', '.join(idle)}")
        return
    sheet.ask(
        "joints.others",
        f"the model can drive {', '.join(idle)}, and no target is stated for them: add them to "
        "joints.names with gains and action.hold, or say that they are passive",
        "passive",
    )
    sheet.settle()


def _note_gravity(contract: PolicyContract, sheet: Sheet) -> None:
    """Gravity is a unit vector, down is -1: a policy fed with metres per second squared falls."""
    for term in (term for block in contract.observation for term in block.terms):
        if term.source == "projected_gravity" and set(term.scale) != {1.0}:
            sheet.note(
                f"term '{term.name}' scales gravity by {', '.join(f'{s:g}' for s in term.scale)}: "
                "here gravity is the unit vector that points down, (0, 0, -1) for an upright robot"
            )


def _note_positions(contract: PolicyContract, sheet: Sheet) -> None:
    """Other stacks call positions relative to the default pose ``joint_pos``."""
    said = sheet.origin("observation")
    if said is None or said[0] != "user" or not any(j.default_pos for j in contract.joints):
        return
    for term in (term for block in contract.observation for term in block.terms):
        if term.source == "joint_pos":
            sheet.note(
                f"term '{term.name}' gives the positions themselves; what most stacks call so is "
                "relative to the default pose: source joint_pos_rel"
            )


def _note_servos(contract: PolicyContract, model: ModelFacts, sheet: Sheet) -> None:
    """Position actuators of the model with other gains would override the policy's PD."""
    for joint in contract.joints:
        servo = model.joint(joint.name).servo
        if servo is not None and abs(servo[0] - joint.kp) > 1e-6 * max(1.0, joint.kp):
            sheet.note(
                f"the model has position actuators of its own (kp {servo[0]:g} on {joint.name}, "
                f"the policy's is {joint.kp:g}): they must not act beside the policy's PD"
            )
            return
