"""BeyondMimic and its relatives: ONNX with CSV metadata and the motion inside the graph.

Stated are joints, gains, pose, action scale, the terms' names and the anchor body; the motion is in
the graph, which also says what a frame looks like. Not stated are periods and how the motion's
heading is laid onto the robot's. `motion_graph.py` moves the motion terms into the graph.
"""

from __future__ import annotations

from typing import Any

from export.importers.foreign import Foreign
from export.importers.graph import Graph, make_graph, read_onnx
from export.importers.mjlab import TERMS, numbers, state_joints, texts
from export.importers.motion_graph import (
    OBSERVATION,
    STATES,
    MotionLayout,
    compose,
    observation_input,
)
from export.importers.motion_reference import MotionReference
from export.importers.reading import shorten
from export.importers.sheet import Sheet
from export.importers.shorthand import term
from robot_runtime.errors import BadInput, Refused

_COMMANDS = ("command", "motion_command", "motion", "generated_commands")
_QUATS = (("body_quat_w", False), ("ref_quat_wxyz", False), ("ref_quat_xyzw", True))


def read(foreign: Foreign, sheet: Sheet) -> Graph:
    """State what the metadata say, and give the network its motion terms.

    Raises:
        BadInput: The metadata are incomplete, or the graph carries no motion.
        Refused: The policy needs the robot's place in the world.
    """
    path = foreign.network()
    if path.suffix != ".onnx":
        raise BadInput(f"'{path}': a policy of this format is an ONNX file")
    model = read_onnx(path)
    metadata = {prop.key: prop.value for prop in model.metadata_props}
    outputs = {out.name: out for out in model.graph.output}
    if not any(tensor.name == "time_step" for tensor in model.graph.input):
        raise BadInput(f"{path.name}: no input 'time_step', so no motion: import it as mjlab")
    plain = Graph(
        model=b"",
        name=path.name,
        inputs={},
        outputs={},
        states=(),
        normalized=False,
        metadata=metadata,
        reference=lambda _: MotionReference(original, obs, action, layout),
    )
    state_joints(sheet, plain)
    obs, dim = observation_input(model, path.name)
    action = next((name for name in ("actions", "action") if name in outputs), "")
    if not action:
        raise BadInput(f"{path.name}: no output 'actions'; there are {shorten(list(outputs))}")
    layout, terms = _layout(foreign, sheet, plain, list(outputs))
    _check_length(plain, layout, dim, len(texts(plain, "joint_names")))
    original = model.SerializeToString()
    graph = make_graph(compose(model, obs, layout), path.name, metadata)
    where = f"{path.name} observation_names, motion terms inside"
    sheet.state("observation", terms, "file", where)
    where = "the graph takes w, x, y, z"
    sheet.state("imu.quaternion_order", "wxyz", "inferred", where)
    sheet.note(
        f"{path.name}: the motion terms are computed inside the graph, from the base's attitude "
        f"and {shorten(list(layout.hinges)) or 'no joint'}; after its last frame the motion stands "
        "still"
    )
    return Graph(
        model=graph.model,
        name=path.name,
        inputs={"obs": layout.measured},
        outputs={action: graph.outputs[action]},
        states=STATES,
        normalized=_normalized(plain, sheet),
        metadata=metadata,
        reference=plain.reference,
        observed=OBSERVATION,
    )


def _normalized(plain: Graph, sheet: Sheet) -> bool:
    """The format puts the normalizer into the graph; behind the motion terms it is not seen."""
    where = f"{plain.name}: its exporter copies the normalizer"
    sheet.state("network.normalizer", "in_graph", "default", where)
    return bool(sheet.get("network.normalizer") == "in_graph")


def _layout(
    foreign: Foreign, sheet: Sheet, plain: Graph, outputs: list[str]
) -> tuple[MotionLayout, list[dict[str, Any]]]:
    anchor = texts(plain, "anchor_body_name")[0]
    bodies = texts(plain, "body_names")
    if anchor not in bodies:
        raise BadInput(f"{plain.name}: the anchor '{anchor}' is none of {shorten(bodies)}")
    chain = foreign.model.chain(anchor)
    hinges = tuple(name for body in chain for name, _, _ in body.hinges)
    names = list(sheet.get("joints.names"))
    for hinge in hinges:
        if hinge not in names:
            raise BadInput(f"joint '{hinge}' between base and anchor is none of the policy's")
    found = next(((name, last) for name, last in _QUATS if name in outputs), None)
    needed = ("joint_pos", "joint_vel")
    if found is None or any(name not in outputs for name in needed):
        raise BadInput(f"{plain.name}: no motion among the outputs {shorten(outputs)}")
    alignment = "what the motion's heading is at the first step: the robot's (yaw), or its own"
    align = sheet.require("motion.alignment", alignment, "yaw", "none")
    if align not in ("yaw", "none", None):
        raise BadInput(f"motion.alignment: expected yaw or none, found '{align}'")
    sheet.state("motion.start", 0, "default", "the motion's first frame")
    parts, terms = _parts(sheet, plain, len(names))
    measured = [term("base_quat", "base_quat")]
    if hinges:
        measured.append(term("anchor_joints", "joint_pos", joints=list(hinges)))
    layout = MotionLayout(
        parts=tuple(parts),
        hinges=hinges,
        chain=tuple(chain),
        anchor=bodies.index(anchor),
        quat_last=found[1],
        align=align == "yaw",
        start=int(sheet.get("motion.start")),
        joint_pos="joint_pos",
        joint_vel="joint_vel",
        body_quat=found[0],
    )
    return layout, [*measured, *terms]


def _parts(sheet: Sheet, plain: Graph, count: int) -> tuple[list[str | int], list[dict[str, Any]]]:
    """The foreign terms in order, and those of them that stay observations."""
    for key in ("observation_history_lengths", "observation_terms_history_length"):
        if key in plain.metadata and any(n > 1 for n in numbers(plain, key)):
            raise BadInput(f"{plain.name}: a motion policy with a history cannot be imported yet")
    lengths = {"joint_pos_rel": count, "joint_vel": count, "last_action": count}
    parts: list[str | int] = []
    terms: list[dict[str, Any]] = []
    for name in texts(plain, "observation_names"):
        if name in _COMMANDS:
            parts.append("command")
        elif name in ("motion_anchor_ori_b", "motion_ref_ori_b"):
            parts.append("anchor_ori")
        elif name in ("motion_anchor_pos_b", "motion_ref_pos_b"):
            raise Refused(
                f"{plain.name}: term '{name}' needs the robot's place in the world, which no robot "
                "measures: export the policy without state estimation"
            )
        elif TERMS.get(name) not in (None, "command"):
            source = TERMS[name]
            terms.append(term(name, source))
            parts.append(lengths.get(source, 3))
        else:
            raise BadInput(f"{plain.name}: a motion policy with the term '{name}' is not known")
    return parts, terms


def _check_length(plain: Graph, layout: MotionLayout, dim: int, count: int) -> None:
    sizes = {"command": 2 * count, "anchor_ori": 6}
    total = sum(sizes[p] if isinstance(p, str) else p for p in layout.parts)
    if total != dim:
        names = ", ".join(texts(plain, "observation_names"))
        raise BadInput(f"{plain.name}: takes {dim} numbers, its terms give {total} ({names})")
