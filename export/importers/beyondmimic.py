"""BeyondMimic and its relatives: ONNX with CSV metadata and the motion inside the graph.

Stated are joints, gains, pose, action scale, the terms' names and the anchor body; the motion is in
the graph, which also says what a frame looks like. Not stated are periods and how the motion's
heading is laid onto the robot's. `motion_graph.py` moves the motion terms into the graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from export.importers.foreign import Foreign
from export.importers.graph import Graph, Reference, make_graph, original_of, read_onnx
from export.importers.mjlab import TERMS, numbers, per_term, state_joints, texts
from export.importers.motion_graph import (
    OBSERVATION,
    STATES,
    MotionLayout,
    compose,
    observation_input,
)
from export.importers.motion_reference import MotionReference
from export.importers.reading import is_list, shorten, show
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
    if not any(tensor.name == "time_step" for tensor in model.graph.input):
        raise BadInput(f"{path.name}: no input 'time_step', so no motion: import it as mjlab")
    plain = motion_file(model, path)
    if "joint_names" not in plain.metadata and "dof_names" in plain.metadata:
        raise BadInput(f"{path.name} has the metadata of holosoma: import it as holosoma")
    state_joints(sheet, plain, foreign.model)
    anchor, bodies = _bodies(sheet, plain)
    if anchor not in bodies:
        raise BadInput(f"{plain.name}: the anchor '{anchor}' is none of {shorten(bodies)}")
    _check_bodies(plain, model, bodies)
    names = texts(plain, "observation_names")
    sheet.state("motion.delay", 0, "default", "the motion's frame of the same step")
    place = bodies.index(anchor)
    return read_motion(
        foreign, sheet, plain, model, names,
        original=original_of(path), anchor=(anchor, place), sources=TERMS,
    )  # fmt: skip


def _bodies(sheet: Sheet, plain: Graph) -> tuple[str, list[str]]:
    """The anchor and the motion's bodies; early files state neither."""
    if plain.metadata.get("anchor_body_name"):
        found = texts(plain, "anchor_body_name")[0]
        sheet.state("motion.anchor", found, "file", f"{plain.name} anchor_body_name")
    if plain.metadata.get("body_names"):
        found = texts(plain, "body_names")
        sheet.state("motion.bodies", found, "file", f"{plain.name} body_names")
    meaning = "body at which motion and robot are compared"
    sheet.ask("motion.anchor", meaning, "torso_link")
    meaning = "bodies of the motion, in the order of the graph's body_quat_w"
    bodies = sheet.require("motion.bodies", meaning, "[pelvis, ..., torso_link, ...]")
    anchor = sheet.require("motion.anchor", meaning)
    if not is_list(bodies) or not all(isinstance(body, str) for body in bodies):
        raise BadInput(f"motion.bodies: expected names of bodies, found {show(bodies)}")
    return str(anchor), bodies


def _check_bodies(plain: Graph, model: onnx.ModelProto, bodies: list[str]) -> None:
    """The graph must give as many orientations as there are names, else they are others'."""
    for out in model.graph.output:
        shape = [d.dim_value for d in out.type.tensor_type.shape.dim]
        if out.name == "body_quat_w" and all(shape) and math.prod(shape) != 4 * len(bodies):
            raise BadInput(
                f"{plain.name}: body_quat_w has {math.prod(shape) // 4} orientations, the names "
                f"are of {len(bodies)} bodies: {shorten(bodies)}"
            )


def motion_file(model: onnx.ModelProto, path: Path) -> Graph:
    """A motion-tracking file before its graph is taken apart: name and metadata."""
    metadata = {prop.key: prop.value for prop in model.metadata_props}
    return Graph(
        model=b"",
        name=path.name,
        inputs={},
        outputs={},
        states=(),
        normalized=False,
        metadata=metadata,
        reference=_no_reference,
    )


def _no_reference(output: str) -> Reference:
    raise AssertionError(f"a graph that was not taken apart has no '{output}'")


def read_motion(
    foreign: Foreign,
    sheet: Sheet,
    plain: Graph,
    model: onnx.ModelProto,
    names: list[str],
    *,
    original: bytes | str,
    anchor: tuple[str, int],
    sources: Mapping[str, str],
) -> Graph:
    """Give a network with a motion inside its motion terms.

    Args:
        foreign: The files.
        sheet: Knows the joints already.
        plain: The file, see `motion_file`.
        model: Its graph.
        names: Its observation terms in order.
        original: The file as it came, see `original_of`.
        anchor: The body that the motion is compared at, and its place among the motion's bodies.
        sources: What a term that is no motion's is computed from, by its name.

    Raises:
        BadInput: The terms do not make up the graph's input, or the graph carries no motion.
        Refused: The policy needs the robot's place in the world.
    """
    outputs = [out.name for out in model.graph.output]
    obs, dim = observation_input(model, plain.name)
    action = next((name for name in ("actions", "action") if name in outputs), "")
    if not action:
        raise BadInput(f"{plain.name}: no output 'actions'; there are {shorten(outputs)}")
    parts, terms = _parts(sheet, plain, names, sources)
    layout, measured = _layout(foreign, sheet, plain, outputs, anchor, parts)
    _check_length(plain, layout, dim, names, len(sheet.get("joints.names")))
    graph = make_graph(compose(model, obs, layout), plain.name, plain.metadata)
    where = f"{plain.name} observation terms, motion terms inside"
    sheet.state("observation", [*measured, *terms], "file", where)
    where = "the graph takes w, x, y, z"
    sheet.state("imu.quaternion_order", "wxyz", "inferred", where)
    sheet.note(
        f"{plain.name}: the motion terms are computed inside the graph, from the base's attitude "
        f"and {shorten(list(layout.hinges)) or 'no joint'}; after its last frame the motion stands "
        "still"
    )
    return Graph(
        model=graph.model,
        name=plain.name,
        inputs={"obs": layout.measured},
        outputs={action: graph.outputs[action]},
        states=STATES,
        normalized=_normalized(plain, sheet),
        metadata=plain.metadata,
        reference=lambda _: MotionReference(original, obs, action, layout),
        observed=OBSERVATION,
    )


def _normalized(plain: Graph, sheet: Sheet) -> bool:
    """The format puts the normalizer into the graph; behind the motion terms it is not seen."""
    where = f"{plain.name}: its exporter copies the normalizer"
    sheet.state("network.normalizer", "in_graph", "default", where)
    return bool(sheet.get("network.normalizer") == "in_graph")


def _layout(
    foreign: Foreign,
    sheet: Sheet,
    plain: Graph,
    outputs: list[str],
    anchor: tuple[str, int],
    parts: list[str | int],
) -> tuple[MotionLayout, list[dict[str, Any]]]:
    """How the observation is made, and the terms that the anchor's orientation needs."""
    chain = foreign.model.chain(anchor[0])
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
    delay = sheet.get("motion.delay")
    if delay not in (0, 1):
        raise BadInput(f"motion.delay: expected 0 or 1 steps, found {delay}")
    measured = [term("base_quat", "base_quat")]
    if hinges:
        measured.append(term("anchor_joints", "joint_pos", joints=list(hinges)))
    layout = MotionLayout(
        parts=tuple(parts),
        hinges=hinges,
        chain=tuple(chain),
        anchor=anchor[1],
        quat_last=found[1],
        align=align == "yaw",
        start=int(sheet.get("motion.start")),
        delay=int(delay),
        joint_pos="joint_pos",
        joint_vel="joint_vel",
        body_quat=found[0],
    )
    return layout, measured


def _parts(
    sheet: Sheet, plain: Graph, names: list[str], sources: Mapping[str, str]
) -> tuple[list[str | int], list[dict[str, Any]]]:
    """The foreign terms in order, and those of them that stay observations."""
    for key in ("observation_history_lengths", "observation_terms_history_length"):
        if key in plain.metadata and any(n > 1 for n in numbers(plain, key)):
            raise BadInput(f"{plain.name}: a motion policy with a history cannot be imported yet")
    count = len(sheet.get("joints.names"))
    _check_plain(plain, names)
    lengths = {"joint_pos_rel": count, "joint_vel": count, "last_action": count}
    parts: list[str | int] = []
    terms: list[dict[str, Any]] = []
    for name in names:
        if name in _COMMANDS:
            parts.append("command")
        elif name in ("motion_anchor_ori_b", "motion_ref_ori_b"):
            parts.append("anchor_ori")
        elif name in ("motion_anchor_pos_b", "motion_ref_pos_b"):
            raise Refused(
                f"{plain.name}: term '{name}' needs the robot's place in the world, which no robot "
                "measures: export the policy without state estimation"
            )
        elif sources.get(name) not in (None, "command"):
            source = sources[name]
            terms.append(term(name, source))
            parts.append(lengths.get(source, 3))
        else:
            raise BadInput(f"{plain.name}: a motion policy with the term '{name}' is not known")
    return parts, terms


def _check_plain(plain: Graph, names: list[str]) -> None:
    """The terms stand inside the graph as they are: scaled or clipped they would be others."""
    usual = {
        "observation_terms_scale": {1.0},
        "observation_terms_clip": {float("-inf"), float("inf")},
    }
    for key, plain_values in usual.items():
        found = per_term(plain, key, names) or []
        odd = [n for n, values in zip(names, found, strict=False) if set(values) - plain_values]
        if odd:
            raise BadInput(
                f"{plain.name} {key}: a motion policy with the scaled or clipped term '{odd[0]}' "
                "cannot be imported"
            )


def _check_length(
    plain: Graph, layout: MotionLayout, dim: int, names: list[str], count: int
) -> None:
    sizes = {"command": 2 * count, "anchor_ori": 6}
    total = sum(sizes[p] if isinstance(p, str) else p for p in layout.parts)
    if total != dim:
        raise BadInput(
            f"{plain.name}: takes {dim} numbers, its terms give {total} ({', '.join(names)})"
        )
