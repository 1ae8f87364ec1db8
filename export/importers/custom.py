"""Any ONNX or TorchScript with a contract that the user writes.

Nothing is stated here: what neither user nor model says is asked for by name. Short YAML goes a
long way, see `shorthand.py`; the words ``actuators: model`` take gains and form from the model's
own position actuators, and ``keyframe: NAME`` the default pose from one of its keyframes.
"""

from __future__ import annotations

from export.importers.foreign import Foreign
from export.importers.graph import Graph
from export.importers.sheet import Sheet
from robot_runtime.errors import BadInput


def read(foreign: Foreign, sheet: Sheet) -> Graph:
    """Take the network, and from the model what the user points to.

    Raises:
        BadInput: The user points to something that the model does not have.
    """
    graph = foreign.graph(foreign.network())
    model = foreign.model
    if "joints.names" not in sheet and len(model.driven) == sum(graph.outputs.values()):
        where = f"joints of {model.path.name}, as many as actions"
        usual = [name for name in model.by_depth() if name in model.driven]
        other = f": [{', '.join(usual)}]" if usual != model.driven else ""
        sheet.note(
            f"joints.names: nobody says in which order the policy has its joints; taken is that of "
            f"{model.path.name}; a policy of Isaac Lab has them breadth first{other}"
        )
        sheet.state("joints.names", model.driven, "model", where)
    return graph


def from_model(foreign: Foreign, sheet: Sheet) -> None:
    """Act on the words that point into the model, for any format.

    Raises:
        BadInput: The model has no such keyframe, or a joint without a position actuator.
    """
    model = foreign.model
    names = sheet.get("joints.names")
    keyframe = sheet.get("keyframe")
    if keyframe is not None:
        if keyframe not in model.keyframes:
            known = ", ".join(model.keyframes) or "none"
            raise BadInput(f"keyframe: the model has no '{keyframe}'; it has {known}")
        if names is not None:
            pose = [model.keyframes[keyframe].get(name) for name in names]
            where = f"keyframe '{keyframe}' of {model.path.name}"
            sheet.state("joints.default_pos", pose, "model", where)
    if sheet.get("actuators") is None:
        return
    if sheet.get("actuators") != "model":
        raise BadInput(f"actuators: expected 'model', found '{sheet.get('actuators')}'")
    if names is None:
        return
    servos = {name: model.joint(name).servo for name in names}
    without = [name for name, servo in servos.items() if servo is None]
    if without:
        raise BadInput(f"actuators: joint '{without[0]}' of the model has no position actuator")
    found = [servo for servo in servos.values() if servo is not None]
    where = f"position actuators of {model.path.name}"
    own, passive = [kv for _, kv, _ in found], [damping for _, _, damping in found]
    if any(own) and any(passive):
        raise BadInput(
            "actuators: the model damps in actuators and in joints; a contract has one place: say "
            "joints.kd and actuator.damping"
        )
    sheet.state("actuator.form", "native", "model", where)
    sheet.state("actuator.damping", "actuator" if any(own) else "joint", "model", where)
    sheet.state("joints.kp", [kp for kp, _, _ in found], "model", where)
    damping = [a + b for a, b in zip(own, passive, strict=True)]
    sheet.state("joints.kd", damping, "model", f"{where}{'' if any(own) else ' and joint damping'}")
