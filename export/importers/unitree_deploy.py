"""unitree_rl_lab and unitree_rl_mjlab: ``deploy.yaml`` and ONNX.

Policy joint ``i`` is motor ``joint_ids_map[i]``. Stiffness and damping stand in the motors' order,
everything else in the policy's; motors are the actuators of the robot's model. Every number was
rounded to three digits when the file was written.
"""

from __future__ import annotations

from typing import Any

from export.importers.foreign import Foreign
from export.importers.graph import Graph
from export.importers.reading import PythonTag, Table, as_number, is_dict, is_list, show
from export.importers.sheet import Sheet
from export.importers.shorthand import term
from robot_runtime.errors import BadInput

_RUNTIME = "the stack's C++ observation manager"
_TERMS = {
    "base_lin_vel": "base_lin_vel",
    "base_ang_vel": "base_ang_vel",
    "projected_gravity": "projected_gravity",
    "velocity_commands": "command",
    "command": "command",
    "command_lin_vel": "command",
    "command_ang_vel": "command",
    "generated_commands": "command",
    "keyboard_velocity_commands": "command",
    "joint_pos": "joint_pos",
    "joint_pos_rel": "joint_pos_rel",
    "joint_vel": "joint_vel",
    "joint_vel_rel": "joint_vel",
    "last_action": "last_action",
    "actions": "last_action",
    "gait_phase": "phase_sin_cos",
    "phase": "phase_sin_cos",
}
_KEYS = "joint_ids_map step_dt stiffness damping default_joint_pos commands actions observations"
_SWITCHES = ("use_gym_history", "scale_first")
_JOINTED = ("joint_pos", "joint_pos_rel", "joint_vel")
_CHANNELS = ("lin_vel_x", "lin_vel_y", "ang_vel_z")
_KINDS = {
    "velocity": "velocity",
    "effort": "effort",
    "torque": "effort",
    "position": "position",
    "joint_pos": "position",
    "joint_vel": "velocity",
}
_PARTS = {"command_lin_vel": list(_CHANNELS[:2]), "command_ang_vel": list(_CHANNELS[2:])}


def read(foreign: Foreign, sheet: Sheet) -> Graph:
    """State what the files say; see the head of this module.

    Raises:
        BadInput: The files are incomplete or of another robot than the model.
    """
    table = foreign.the_table("deploy.yaml", "joint_ids_map")
    graph = foreign.graph(foreign.network())
    sheet.unread(table, _KEYS)
    period = table.number("step_dt")
    sheet.state("timing.control_dt", period, "file", table.where("step_dt"))
    names = _joints(foreign, sheet, table)
    defaults = table.numbers("default_joint_pos", len(names))
    where = table.where("default_joint_pos")
    sheet.state("joints.default_pos", defaults, "file", where)
    _commands(sheet, table)
    _actions(sheet, table, names)
    _observation(sheet, table, graph, period)
    _flag_rounding(sheet, table)
    return graph


def _joints(foreign: Foreign, sheet: Sheet, table: Table) -> list[str]:
    """Names through the motors; gains from the motors' order into the policy's."""
    ids = table.indices("joint_ids_map")
    motors = sheet.get("motors")
    where = "the user's motors"
    if motors is None:
        motors = foreign.motors(sheet, table.name)
        where = f"actuators of {foreign.model.path.name}"
    if not motors or max(ids) >= len(motors):
        raise BadInput(
            f"{table.where('joint_ids_map')}: names motor {max(ids)}, but {where} are "
            f"{len(motors)}: a file of another robot? If not, give the joints in the order of the "
            "robot's motors as motors: [NAME, ...]"
        )
    driven = foreign.model.driven
    idle = [str(name) for i, name in enumerate(motors) if i not in ids and name in driven]
    if idle and "joints.others" not in sheet:
        sheet.ask(
            "joints.others",
            f"{table.name} has {len(ids)} joints, the model {len(driven)}: another robot? The file "
            f"says nothing about {', '.join(idle)}",
            "passive",
        )
    names = [str(motors[i]) for i in ids]
    unknown = [str(i) for i, name in zip(ids, names, strict=True) if name not in driven]
    if unknown:
        raise BadInput(
            f"{table.where('joint_ids_map')}: motor {unknown[0]} of {where} moves "
            f"'{motors[int(unknown[0])]}', which is no joint that the model drives"
        )
    mapped = f"{table.where('joint_ids_map')} through {where}"
    sheet.state("joints.names", names, "model", mapped)
    sheet.state("joints.motor", ids, "file", table.where("joint_ids_map"))
    for key, field in (("stiffness", "kp"), ("damping", "kd")):
        values = table.numbers(key)
        if max(ids) < len(values):
            picked = [values[i] for i in ids]
            sheet.state(f"joints.{field}", picked, "file", f"{table.where(key)}, in motor order")
        elif len(values) == len(ids):
            _ask_packed(sheet, table, key, field, values)
        else:
            raise BadInput(
                f"{table.where(key)}: has {len(values)} numbers in the motors' order, "
                f"joint_ids_map names motor {max(ids)}"
            )
    return list(sheet.get("joints.names"))


def _ask_packed(sheet: Sheet, table: Table, key: str, field: str, values: list[float]) -> None:
    """As many gains as joints, of motors with gaps: written by hand, in one of two orders."""
    ids = table.indices("joint_ids_map")
    ranks = [sorted(ids).index(i) for i in ids]
    packed, plain = ([values[i] for i in order] for order in (ranks, range(len(ids))))
    sheet.ask(
        f"joints.{field}",
        f"{table.where(key)} has {len(values)} numbers, joint_ids_map names motor {max(ids)}: in "
        "policy order they are the first of these if the file packs the motors' order, the second "
        "if it keeps the policy's; the stack's own program gives some motors none",
        str(packed),
        str(plain),
    )


def _commands(sheet: Sheet, table: Table) -> None:
    if "commands" not in table:
        return
    for name in table.table("commands"):
        command = table.table("commands").table(name)
        if "ranges" not in command:
            continue
        ranges = command.table("ranges")
        for channel in _CHANNELS:
            if channel in ranges:
                value = ranges.numbers(channel, 2)
                sheet.state(f"commands.{channel}", value, "file", ranges.where(channel))


def _actions(sheet: Sheet, table: Table, names: list[str]) -> None:
    terms: list[dict[str, Any]] = []
    actions = table.table("actions")
    for name in actions:
        action = actions.table(name)
        kind = next((kind for word, kind in _KINDS.items() if word in name.lower()), None)
        if kind is None:
            raise BadInput(
                f"{actions.where(name)}: an action of unknown kind; known: {', '.join(_KINDS)}"
            )
        joints = _picked(action, "joint_ids", names)
        found: dict[str, Any] = {"name": name, "kind": kind, "joints": joints}
        for field in ("scale", "offset"):
            if field in action:
                found[field] = action.spread(field, len(joints))
        if kind != "position" and "offset" not in found:
            # A position target needs to be told where it begins, a speed or an effort does not.
            where = f"a zero action is no {kind}"
            sheet.state(f"action.{name}.offset", [0.0] * len(joints), "default", where)
        if "clip" in action:
            found["target_clip"] = _target_clip(action, len(joints))
        terms.append(found)
    sheet.state("action.terms", terms, "file", table.where("actions"))


def _picked(action: Table, key: str, names: list[str]) -> list[str]:
    """All joints, or those that indices or a slice pick in the policy's order."""
    ids = action.data.get(key)
    if isinstance(ids, PythonTag):
        bounds = ids.value if is_list(ids.value) else []
        fits = len(bounds) == 3 and all(b is None or type(b) is int for b in bounds)
        if not ids.name.endswith("slice") or not fits:
            raise BadInput(f"{action.where(key)}: expected joints, found {show(ids)}")
        return names[slice(*bounds)]
    if ids is None:
        return list(names)
    if not is_list(ids):
        raise BadInput(f"{action.where(key)}: expected indices, found {show(ids)}")
    picked = action.indices(key)
    if picked and max(picked) >= len(names):
        raise BadInput(f"{action.where(key)}: {max(picked)} of {len(names)} joints")
    return [names[i] for i in picked]


def _target_clip(action: Table, count: int) -> list[Any]:
    value = action.get("clip")
    if is_list(value) and len(value) == 2 and not is_list(value[0]):
        return action.numbers("clip", 2)
    if is_list(value) and len(value) == count:
        return value
    raise BadInput(f"{action.where('clip')}: expected bounds, found {show(value)}")


def _observation(sheet: Sheet, table: Table, graph: Graph, period: float) -> None:
    section = table.table("observations")
    groups = _groups(section)
    if len(groups) == len(graph.inputs) == 1:
        (only,) = groups.values()
        groups = dict[str | None, Table]({None: only})
    if set(groups) != {None} and set(groups) != set(graph.inputs):
        raise BadInput(
            f"{section.name}: groups {', '.join(map(str, groups))}, but {graph.name} has the "
            f"inputs {', '.join(graph.inputs)}"
        )
    order = list(groups) if None in groups else [name for name in graph.inputs if name in groups]
    blocks: list[dict[str, Any]] = []
    for name in order:
        block = _block(sheet, groups[name], period)
        if name is not None:
            block["input"] = name
        blocks.append(block)
    _state_joint_terms(sheet, groups, blocks)
    sheet.state("observation", blocks, "file", section.name)
    sheet.state("observation.history.order", "oldest_first", "default", _RUNTIME)
    sheet.state("observation.history.fill", "first", "default", _RUNTIME)


def _groups(section: Table) -> dict[str | None, Table]:
    """Groups by input name, or one without a name where terms stand there directly."""
    entries = [key for key in section if key not in _SWITCHES]
    if not entries:
        raise BadInput(f"{section.name}: no observation terms")
    flat = any(
        is_dict(section.data[key])
        and {"scale", "clip", "history_length", "params"} & section.data[key].keys()
        for key in entries
    )
    if flat:
        return {None: section}
    return {key: section.table(key) for key in entries}


def _block(sheet: Sheet, group: Table, period: float) -> dict[str, Any]:
    terms: list[dict[str, Any]] = []
    lengths: list[int] = []
    scale_first = group.flag("scale_first", absent=False)
    for name in group:
        if name in _SWITCHES:
            continue
        entry = group.table(name)
        terms.append(_term(sheet, name, entry, scale_first, period))
        # Isaac Lab's 0 and 1 are both no history.
        lengths.append(max(1, entry.count("history_length") if "history_length" in entry else 1))
    if group.flag("use_gym_history", absent=False):
        if len(set(lengths)) != 1:
            raise BadInput(f"{group.name}: use_gym_history with history lengths {lengths}")
        history: dict[str, Any] = {"length": lengths[0], "layout": "frame_major"}
        return {"terms": terms, "history": history}
    longest = max(lengths)
    for found, length in zip(terms, lengths, strict=True):
        if length != longest:
            found["history_length"] = length
    return {"terms": terms, "history": {"length": longest, "layout": "term_major"}}


def _term(
    sheet: Sheet, name: str, entry: Table, scale_first: bool, period: float
) -> dict[str, Any]:
    source = _TERMS.get(name)
    if source is None:
        likely = "a term that needs a motion or a sensor cannot be imported from this format"
        sheet.ask(f"observation.{name}.source", f"what '{name}' is computed from; {likely}")
        source = sheet.get(f"observation.{name}.source", "constant")
    found = term(name, source)
    if name in _PARTS:
        found["channels"] = _PARTS[name]
    if "scale" in entry:
        value = entry.get("scale")
        found["scale"] = entry.numbers("scale") if is_list(value) else entry.number("scale")
    if "clip" in entry:
        found["clip"] = _term_clip(entry)
    found["clip_first"] = not entry.flag("scale_first", absent=scale_first)
    if source == "phase_sin_cos":
        _clock(sheet, name, entry, period)
    return found


def _state_joint_terms(
    sheet: Sheet, groups: dict[str | None, Table], blocks: list[dict[str, Any]]
) -> None:
    """Joints that a term picks by ``params.asset_cfg``."""
    names = list(sheet.get("joints.names"))
    entries = {key: group.table(key) for group in groups.values() for key in group.data
               if key not in _SWITCHES}  # fmt: skip
    for found in (term_ for block in blocks for term_ in block["terms"]):
        entry = entries[found["name"]]
        params = entry.table("params") if "params" in entry else Table("", {})
        if found["source"] not in _JOINTED or "asset_cfg" not in params:
            continue
        picked = _picked(params.table("asset_cfg"), "joint_ids", names)
        if picked != names:
            found["joints"] = picked


def _term_clip(entry: Table) -> list[float]:
    """Lower and upper bound of a term; some files have one pair per element, all alike."""
    value = entry.get("clip")
    pairs = value if is_list(value) and value and is_list(value[0]) else [value]
    if any(pair != pairs[0] for pair in pairs) or not is_list(pairs[0]):
        raise BadInput(f"{entry.where('clip')}: expected [lowest, highest], found {show(value)}")
    if len(pairs[0]) != 2:
        raise BadInput(f"{entry.where('clip')}: expected [lowest, highest], found {show(value)}")
    return [as_number(side, entry.where("clip")) for side in pairs[0]]


def _clock(sheet: Sheet, name: str, entry: Table, period: float) -> None:
    params = entry.table("params")
    cycle = params.number("period")
    if cycle <= 0.0:
        raise BadInput(f"{params.where('period')}: {cycle} is not positive")
    sheet.state("phase.period", cycle, "file", params.where("period"))
    step = f"{period / cycle:g}"
    sheet.ask(
        "phase.start",
        f"phase at the first observation, [cycles]: {step} in {_RUNTIME}, which counts before it "
        "looks, 0 in training",
        step,
        "0.0",
    )
    sheet.ask("phase.stand", f"what '{name}' does while standing", "run", "zero")


def _flag_rounding(sheet: Sheet, table: Table) -> None:
    """Say that the numbers are rounded, unless one of them cannot be."""
    numbers = [*table.numbers("stiffness"), *table.numbers("damping")]
    numbers += table.numbers("default_joint_pos")
    for term_ in sheet.get("action.terms", []):
        numbers += [v for v in term_.get("scale", []) if isinstance(v, float)]
    if all(float(f"{value:.3g}") == value for value in numbers):
        sheet.note(
            f"{table.name}: no number has more than three digits: this format rounds (a scale of "
            "0.0745 arrives as 0.0745 or 0.07); compare gains, pose and scales with the training"
        )
