"""mjlab: ONNX whose metadata are comma-separated texts, rounded to three decimals.

Stated are joints, gains, default pose, action scale and the observation terms with scale, clip and
history; not stated are periods, command ranges and effort limits. Files from before April 2026 lack
the fields of the terms.
"""

from __future__ import annotations

import re
from typing import Any

from export.importers.foreign import Foreign
from export.importers.graph import Graph
from export.importers.model import ModelFacts
from export.importers.reading import Table, as_number, shorten, show
from export.importers.sheet import Sheet
from export.importers.shorthand import term
from robot_runtime.errors import BadInput

TERMS = {
    "base_lin_vel": "base_lin_vel",
    "base_ang_vel": "base_ang_vel",
    "projected_gravity": "projected_gravity",
    "joint_pos": "joint_pos_rel",
    "joint_pos_rel": "joint_pos_rel",
    "joint_vel": "joint_vel",
    "joint_vel_rel": "joint_vel",
    "actions": "last_action",
    "last_action": "last_action",
    "command": "command",
    "velocity_commands": "command",
}
"""What mjlab calls a term, and what it is computed from; ``joint_pos`` is relative there."""

_CODE = "the stack's environments"
_KEYS = (
    "run_path joint_names joint_stiffness joint_damping default_joint_pos action_scale "
    "command_names observation_names observation_terms_scale observation_terms_clip "
    "observation_terms_history_length observation_terms_flatten_history_dim "
    "observation_history_lengths observation_dims anchor_body_name body_names"
)


def read(foreign: Foreign, sheet: Sheet) -> Graph:
    """State what the metadata say; see the head of this module.

    Raises:
        BadInput: The metadata are incomplete or cannot be read.
    """
    graph = foreign.graph(foreign.network())
    if "time_step" in graph.inputs:
        raise BadInput(
            f"{graph.name} carries a motion (input 'time_step'): import it as beyondmimic"
        )
    state_joints(sheet, graph, foreign.model)
    names = texts(graph, "observation_names")
    terms = [_term(foreign, sheet, name) for name in names]
    scales = per_term(graph, "observation_terms_scale", names)
    clips = per_term(graph, "observation_terms_clip", names)
    lengths = per_term(graph, "observation_terms_history_length", names)
    if lengths is None:
        # What BeyondMimic's exporter calls it, also for policies without a motion.
        lengths = per_term(graph, "observation_history_lengths", names)
    if scales is None:
        sheet.ask(
            "observation.scale", "file from before the terms' fields: scale of all terms", "1.0"
        )
    for what, given in (("clips", clips), ("histories", lengths)):
        if given is None:
            sheet.note(
                f"{graph.name}: says nothing of its terms' {what}: taken is that none has one"
            )
    for i, (found, clip) in enumerate(zip(terms, clips or [None] * len(names), strict=True)):
        if scales is not None:
            found["scale"] = scales[i]
        if clip is not None:
            found["clip"] = clip
            found["clip_first"] = True
    frames = [max(1, int(n[0])) for n in lengths or [[0.0]] * len(names)]
    block = {"terms": terms, "history": _history(graph, names, terms, frames)}
    sheet.state("observation", [block], "file", f"{graph.name} observation_names")
    sheet.state("observation.history.order", "oldest_first", "default", _CODE)
    sheet.state("observation.history.fill", "first", "default", _CODE)
    return graph


def state_joints(sheet: Sheet, graph: Graph, model: ModelFacts) -> None:
    """Joints, gains, default pose and action scale: what mjlab and BeyondMimic files share.

    Raises:
        BadInput: The names are missing, or something has another length than they.
    """
    sheet.unread(Table(f"{graph.name} metadata", dict(graph.metadata)), _KEYS)
    names = texts(graph, "joint_names")
    where = f"{graph.name} joint_names"
    sheet.state("joints.names", names, "file", where)
    columns = {"joint_stiffness": "kp", "joint_damping": "kd", "default_joint_pos": "default_pos"}
    every: list[float] = []
    found: dict[str, set[float]] = {}
    for key, field in columns.items():
        if not graph.metadata.get(key):
            continue
        values = numbers(graph, key)
        if len(values) != len(names):
            raise BadInput(
                f"{graph.name}: metadata '{key}' has {len(values)} numbers for {len(names)} joint "
                f"names{_idle(model, names)}"
            )
        every += values
        found[field] = set(values)
        sheet.state(f"joints.{field}", [v + 0.0 for v in values], "file", f"{graph.name} {key}")
    if found.get("kp") == {1.0} and found.get("kd") == {0.0}:
        sheet.note(
            f"{graph.name}: every kp is 1 and every kd 0: its exporter writes that for actuators "
            "that are no position servos; give joints.kp and joints.kd"
        )
    if graph.metadata.get("action_scale"):
        scale = numbers(graph, "action_scale")
        every += scale
        value: Any = scale[0] if len(scale) == 1 else scale
        sheet.state("action.scale", value, "file", f"{graph.name} action_scale")
    sheet.state("action.offset", "default_pos", "default", _CODE)
    sheet.state(
        "actuator.form", "native", "default", "position actuators of MuJoCo, as in training"
    )
    sheet.state("actuator.damping", "actuator", "default", "damping of its position actuators")
    if every and all(round(v, 3) == v for v in every):
        sheet.note(
            f"{graph.name}: no number has more than three decimals: this format rounds gains, pose "
            "and scales; compare them with the training"
        )
    sheet.ask("timing.control_dt", "period of the policy, [s]", "0.02")
    sheet.ask("timing.pd_dt", "physics step of training, [s]", "0.005")


def _idle(model: ModelFacts, names: list[str]) -> str:
    """What to know of joints that have no motor, where there are some; for a message."""
    idle = [name for name in names if name not in model.driven]
    if not idle:
        return ""
    return (
        f"; {shorten(idle)} of them no actuator of {model.path.name} drives: the policy observes "
        "joints without a motor, which robots do not measure and no contract has; train it with "
        "joint terms of the driven joints alone"
    )


def texts(graph: Graph, key: str) -> list[str]:
    """A metadata entry as comma-separated texts.

    Raises:
        BadInput: It is missing or empty.
    """
    if not graph.metadata.get(key):
        raise BadInput(
            f"{graph.name}: metadata '{key}' is missing; there are "
            f"{shorten(list(graph.metadata)) or 'none'}"
        )
    return [part.strip() for part in graph.metadata[key].split(",")]


def numbers(graph: Graph, key: str) -> list[float]:
    """A metadata entry as comma-separated finite numbers.

    Raises:
        BadInput: It is missing, or one is none.
    """
    where = f"{graph.name} {key}"
    return [as_number(_number(part, where), where) for part in texts(graph, key)]


def _number(text: str, where: str) -> float:
    if text in ("True", "False"):
        return float(text == "True")
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"{where}: expected a number, found {show(text)}") from None


def per_term(graph: Graph, key: str, names: list[str]) -> list[list[float]] | None:
    """One list of numbers per observation term, or None in an old file.

    Raises:
        BadInput: Not one per term, or no numbers.
    """
    if key not in graph.metadata:
        return None
    where = f"{graph.name} {key}"
    # One release wrote Python's own brackets, with commas inside, where others write semicolons.
    text = re.sub(r"\[[^]]*\]", lambda m: m[0].strip("[]").replace(",", ";"), graph.metadata[key])
    found = [[_number(item.strip(), where) for item in p.split(";")] for p in text.split(",")]
    if len(found) != len(names):
        raise BadInput(f"{where}: has {len(found)} entries for {len(names)} terms")
    return found


def _term(foreign: Foreign, sheet: Sheet, name: str) -> dict[str, Any]:
    source = TERMS.get(name)
    if source is None:
        sheet.ask(f"observation.{name}.source", f"what mjlab's term '{name}' is computed from")
        source = sheet.get(f"observation.{name}.source", "constant")
    found = term(name, source)
    site = foreign.model.sites.get(foreign.model.gyro_site)
    if source in ("base_lin_vel", "base_ang_vel") and site is not None and site.on_base:
        # The stack measures both with sensors at the IMU's site.
        found["sensor"] = "imu"
    return found


def _history(
    graph: Graph, names: list[str], terms: list[dict[str, Any]], frames: list[int]
) -> dict[str, Any]:
    flat = per_term(graph, "observation_terms_flatten_history_dim", names)
    loose = [bool(f and not f[0]) and n > 1 for f, n in zip(flat or [], frames, strict=False)]
    longest = max(frames)
    if any(loose):
        if not all(n == longest for n in frames):
            raise BadInput(f"{graph.name}: histories {frames} that are not flattened per term")
        return {"length": longest, "layout": "frame_major"}
    for found, n in zip(terms, frames, strict=True):
        if n != longest:
            found["history_length"] = n
    return {"length": longest, "layout": "term_major"}
