"""The observation in a ``deploy.yaml`` of unitree_rl_lab or unitree_rl_mjlab.

What the files leave open is read as the stack's C++ observation manager computes it.
"""

from __future__ import annotations

import re
from typing import Any

from export.importers.graph import Graph
from export.importers.reading import (
    PythonTag,
    Table,
    as_number,
    is_dict,
    is_list,
    one_line,
    shorten,
    show,
)
from export.importers.sheet import Sheet
from export.importers.shorthand import term
from robot_runtime.errors import BadInput, Refused

CHANNELS = ("lin_vel_x", "lin_vel_y", "ang_vel_z")
"""A velocity command."""

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
    "joint_pos_rel_without_wheel": "joint_pos_rel",
    "joint_vel": "joint_vel",
    "joint_vel_rel": "joint_vel",
    "last_action": "last_action",
    "actions": "last_action",
    "gait_phase": "phase_sin_cos",
    "phase": "phase_sin_cos",
}
_MOTION = ("motion_command", "motion_anchor_pos_b", "motion_anchor_ori_b")
_MAX_PATTERN = 100
_MAX_REPEATS = 4
_SLOW = re.compile(r"\)\s*[*+?{]|\\\d|\(\?")
"""What a matcher can take for ever over: repeated groups, references, and many repeats."""
_SWITCHES = ("use_gym_history", "scale_first")
_KEYS = "params clip scale history_length scale_first func noise modifiers flatten_history_dim"
_PARAMS = "command_name asset_cfg period wheel_asset_cfg wheel_joint_ids action_name"
_JOINTED = ("joint_pos", "joint_pos_rel", "joint_vel")
_PARTS = {"command_lin_vel": list(CHANNELS[:2]), "command_ang_vel": list(CHANNELS[2:])}


def picked(sheet: Sheet, table: Table, names: list[str]) -> list[str]:
    """All joints, or those that ``joint_ids`` picks in the policy's order, by indices or a slice.

    Args:
        sheet: Gets a note where the file's names cannot be compared.
        table: What picks joints; its ``joint_names`` are the patterns that it was made with.
        names: The policy's joints.

    Raises:
        BadInput: Not that, or the names of some picked joints are none of the file's.
    """
    key = "joint_ids"
    ids = table.data.get(key)
    if isinstance(ids, PythonTag):
        bounds = ids.value if is_list(ids.value) else []
        fits = len(bounds) == 3 and all(b is None or type(b) is int for b in bounds)
        if not ids.name.endswith("slice") or not fits:
            raise BadInput(f"{table.where(key)}: expected joints, found {show(ids)}")
        found = names[slice(*bounds)]
    elif ids is None:
        found = list(names)
    elif not is_list(ids):
        raise BadInput(f"{table.where(key)}: expected indices, found {show(ids)}")
    else:
        numbers = table.indices(key)
        if numbers and max(numbers) >= len(names):
            raise BadInput(f"{table.where(key)}: {max(numbers)} of {len(names)} joints")
        found = [names[i] for i in numbers]
    _check_names(sheet, table, found)
    return found


def _check_names(sheet: Sheet, table: Table, found: list[str]) -> None:
    """Refuse joints that the patterns of the same file do not name: another order of motors."""
    value = table.data.get("joint_names")
    given: list[Any] = value if is_list(value) else [value]
    patterns = [pattern for pattern in given if isinstance(pattern, str)]
    if len(patterns) != len(given):
        return
    where = table.where("joint_names")
    if not all(_quick(pattern) for pattern in patterns):
        sheet.note(f"{where}: patterns of a kind that is not compared with the joints found")
        return
    try:
        strays = [n for n in found if not any(re.fullmatch(p, n) for p in patterns)]
    except (re.error, RecursionError) as error:
        raise BadInput(f"{where}: not a pattern: {one_line(error)}") from None
    if strays and len(strays) == len(found):
        sheet.note(f"{where}: fits no joint of the model, which names them otherwise: not compared")
    elif strays:
        raise BadInput(
            f"{where}: does not name '{strays[0]}', which joint_ids picks: a file of another "
            "robot, or motors in another order? If the latter, give the joints in the order of the "
            f"robot's motors as motors: [NAME, ...]; the file names {shorten(patterns)}"
        )


def _quick(pattern: str) -> bool:
    """Whether a foreign pattern is matched in no time, whatever the names."""
    repeats = sum(pattern.count(sign) for sign in "*+{")
    return len(pattern) <= _MAX_PATTERN and repeats <= _MAX_REPEATS and not _SLOW.search(pattern)


def state_observation(sheet: Sheet, table: Table, graph: Graph, period: float) -> None:
    """State the observation blocks of a ``deploy.yaml``.

    Args:
        sheet: Knows the joints already.
        table: The file.
        graph: Its network.
        period: The policy's, [s].

    Raises:
        BadInput: Groups and inputs differ, or a term cannot be read.
        Refused: A term follows a motion, which the files do not hold.
    """
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
    # The manager has one such switch for all groups, and the last one that sets it counts.
    switches = [g.flag(_SWITCHES[0], absent=False) for g in groups.values() if _SWITCHES[0] in g]
    blocks: list[dict[str, Any]] = []
    for name in order:
        block = _block(sheet, groups[name], period, frames=bool(switches and switches[-1]))
        if name is not None:
            block["input"] = name
        blocks.append(block)
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
    # A switch beside the groups holds for each that does not set it itself.
    shared = {key: section.data[key] for key in _SWITCHES if key in section}
    return {
        key: Table(group.name, {**shared, **group.data})
        for key, group in ((key, section.table(key)) for key in entries)
    }


def _block(sheet: Sheet, group: Table, period: float, *, frames: bool) -> dict[str, Any]:
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
    if not terms:
        raise BadInput(f"{group.name}: no observation terms")
    if frames:
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
    params = entry.table("params") if "params" in entry else Table(entry.where("params"), {})
    sheet.unread(entry, _KEYS)
    sheet.unread(params, _PARAMS)
    source = _source(sheet, name, entry)
    found = term(name, source)
    if name in _PARTS:
        found["channels"] = _PARTS[name]
    if "scale" in entry:
        value = entry.get("scale")
        found["scale"] = entry.numbers("scale") if is_list(value) else entry.number("scale")
    if "clip" in entry:
        found["clip"] = _term_clip(entry)
    found["clip_first"] = not entry.flag("scale_first", absent=scale_first)
    if source in _JOINTED:
        _state_joints(sheet, found, params, list(sheet.get("joints.names")))
    if source == "phase_sin_cos":
        _clock(sheet, name, params, period)
    return found


def _source(sheet: Sheet, name: str, entry: Table) -> str:
    """What a term is computed from; asked for where its name does not tell."""
    if name in _MOTION:
        raise Refused(
            f"{entry.name}: follows a motion, which lies in none of these files; where the network "
            "has an input 'time_step' it carries its motion: import it as beyondmimic"
        )
    path = f"observation.{name}.source"
    if name == "joint_pos":
        meaning = "absolute in the stack's C++ program, relative in Isaac Lab's own tasks"
        sheet.ask(path, f"'{name}' is {meaning}", "joint_pos", "joint_pos_rel")
    elif name not in _TERMS:
        likely = "a term that needs a motion or a sensor cannot be imported from this format"
        sheet.ask(path, f"what '{name}' is computed from; {likely}")
    return str(sheet.get(path, _TERMS.get(name, "constant")))


def _state_joints(sheet: Sheet, found: dict[str, Any], params: Table, names: list[str]) -> None:
    """Joints that a term picks by ``asset_cfg``, and wheels, whose angle it gives as zero."""
    chosen = names
    if "asset_cfg" in params:
        chosen = picked(sheet, params.table("asset_cfg"), names)
    if chosen != names:
        found["joints"] = chosen
    wheels: list[str] = []
    if "wheel_asset_cfg" in params:
        wheels = picked(sheet, params.table("wheel_asset_cfg"), names)
    elif "wheel_joint_ids" in params:
        by_ids = Table(params.name, {"joint_ids": params.get("wheel_joint_ids")})
        wheels = picked(sheet, by_ids, names)
    elif found["name"] == "joint_pos_rel_without_wheel":
        path = f"observation.{found['name']}.scale"
        sheet.ask(path, f"{params.name} names no wheels: scale by joint, 0 for a wheel's")
    if wheels:
        scale = found.get("scale", 1.0)
        scales = scale if is_list(scale) and len(scale) == len(chosen) else [scale] * len(chosen)
        found["scale"] = [0.0 if j in wheels else s for j, s in zip(chosen, scales, strict=True)]


def _term_clip(entry: Table) -> list[float]:
    """Lower and upper bound of a term; some files have one pair per element, all alike."""
    value = entry.get("clip")
    pairs = value if is_list(value) and value and is_list(value[0]) else [value]
    if any(pair != pairs[0] for pair in pairs) or not is_list(pairs[0]):
        raise BadInput(f"{entry.where('clip')}: expected [lowest, highest], found {show(value)}")
    if len(pairs[0]) != 2:
        raise BadInput(f"{entry.where('clip')}: expected [lowest, highest], found {show(value)}")
    return [as_number(side, entry.where("clip")) for side in pairs[0]]


def _clock(sheet: Sheet, name: str, params: Table, period: float) -> None:
    if "period" in params:
        cycle = params.number("period")
        if cycle <= 0.0:
            raise BadInput(f"{params.where('period')}: {cycle} is not positive")
        sheet.state("phase.period", cycle, "file", params.where("period"))
    cycle = sheet.get("phase.period")
    known = isinstance(cycle, int | float) and cycle > 0.0
    # Its reset computes every term once to fill the histories, and the first step once more.
    first = f"{2.0 * period / cycle:g}" if known else "2 * step_dt / period"
    sheet.ask(
        "phase.start",
        f"phase at the first observation, [cycles]: {first} in {_RUNTIME}, which counts at its "
        "reset and again before it looks, 0 in training",
        *([first] if known else []),
        "0.0",
    )
    sheet.ask(
        "phase.stand",
        f"what '{name}' does while standing: runs in unitree_rl_lab, zeros in unitree_rl_mjlab",
        "run",
        "zero",
    )
