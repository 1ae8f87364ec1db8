"""unitree_rl_lab and unitree_rl_mjlab: ``deploy.yaml`` and ONNX.

Policy joint ``i`` is motor ``joint_ids_map[i]``. Stiffness and damping stand in the motors' order,
everything else in the policy's; `unitree_motors.py` knows the order of the vendor's own robots,
that of another is asked for where the model's actuators do not tell. Every number was rounded to
three digits when the file was written.
"""

from __future__ import annotations

import math
from typing import Any

from export.importers.foreign import Foreign
from export.importers.graph import Graph
from export.importers.reading import Table, as_number, is_list, show
from export.importers.sheet import Sheet
from export.importers.unitree_motors import motor_order
from export.importers.unitree_terms import CHANNELS, picked, state_observation
from robot_runtime.errors import BadInput

_KEYS = "joint_ids_map step_dt stiffness damping default_joint_pos commands actions observations"
_ACTION_KEYS = (
    "clip raw_clip joint_names scale offset joint_ids class_type asset_name debug_vis "
    "preserve_order use_default_offset use_zero_offset rescale_to_limits"
)
_SMOOTHED = "low_pass_filter_cutoff_hz low_pass_alpha filter_alpha action_filter smoothing alpha"
_KINDS = {
    "velocity": "velocity",
    "effort": "effort",
    "torque": "effort",
    "position": "position",
    "joint_pos": "position",
    "joint_vel": "velocity",
}
_OTHER = ("tolimits", "emajoint", "differential", "nonholonomic", "reference", "residual")


def read(foreign: Foreign, sheet: Sheet) -> Graph:
    """State what the files say; see the head of this module.

    Raises:
        BadInput: The files are incomplete or of another robot than the model.
    """
    table = foreign.the_table("deploy.yaml", "joint_ids_map")
    graph = foreign.graph(foreign.network())
    sheet.unread(table, _KEYS)
    if "step_dt" in table:
        sheet.state("timing.control_dt", table.number("step_dt"), "file", table.where("step_dt"))
    # Clocks and filters of the file cannot be read without it.
    period = as_number(
        sheet.require("timing.control_dt", "period of the policy, [s]", "0.02"),
        "timing.control_dt",
    )
    names = _joints(foreign, sheet, table)
    if "default_joint_pos" in table:
        defaults = table.numbers("default_joint_pos", len(names))
        where = table.where("default_joint_pos")
        sheet.state("joints.default_pos", defaults, "file", where)
    _commands(sheet, table)
    _actions(foreign, sheet, table, names, period)
    state_observation(sheet, table, graph, period)
    _flag_rounding(sheet, table)
    return graph


def _joints(foreign: Foreign, sheet: Sheet, table: Table) -> list[str]:
    """Names through the motors; gains from the motors' order into the policy's."""
    ids = table.indices("joint_ids_map")
    if not ids:
        raise BadInput(f"{table.where('joint_ids_map')}: names no motor")
    motors, where = foreign.motors(sheet, table.name, ids)
    if not motors or max(ids) >= len(motors):
        raise BadInput(
            f"{table.where('joint_ids_map')}: names motor {max(ids)}, but {where} are "
            f"{len(motors)}: a file of another robot? If not, give the joints in the order of the "
            "robot's motors as motors: [NAME, ...]"
        )
    driven = foreign.model.driven
    idle = [name for i, name in enumerate(motors) if i not in ids and name in driven]
    if idle and "joints.others" not in sheet:
        sheet.ask(
            "joints.others",
            f"{table.name} has {len(ids)} joints, the model {len(driven)}: another robot? The file "
            f"says nothing about {', '.join(idle)}",
            "passive",
        )
    names = [motors[i] for i in ids]
    unknown = [str(i) for i, name in zip(ids, names, strict=True) if name not in driven]
    if unknown:
        raise BadInput(
            f"{table.where('joint_ids_map')}: motor {unknown[0]} of {where} moves "
            f"'{motors[int(unknown[0])]}', which is no joint that the model drives"
        )
    mapped = f"{table.where('joint_ids_map')} through {where}"
    sheet.state("joints.names", names, "file", mapped)
    sheet.state("joints.motor", ids, "file", table.where("joint_ids_map"))
    for key, field in (("stiffness", "kp"), ("damping", "kd")):
        if key not in table:
            continue
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
    if packed == plain:
        sheet.state(f"joints.{field}", plain, "file", f"{table.where(key)}, one per joint")
        return
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
        sheet.unread(command, "ranges")
        if "ranges" not in command:
            continue
        ranges = command.table("ranges")
        sheet.unread(ranges, f"heading {' '.join(CHANNELS)}")
        for channel in CHANNELS:
            if channel in ranges:
                value = ranges.numbers(channel, 2)
                sheet.state(f"commands.{channel}", value, "file", ranges.where(channel))


def _actions(foreign: Foreign, sheet: Sheet, table: Table, names: list[str], period: float) -> None:
    terms: list[dict[str, Any]] = []
    actions = table.table("actions")
    for name in actions:
        action = actions.table(name)
        sheet.unread(action, f"{_ACTION_KEYS} {_SMOOTHED}")
        kind = _kind(sheet, actions, name)
        joints = picked(sheet, action, names)
        _check_order(foreign, sheet, action, joints)
        found: dict[str, Any] = {"name": name, "kind": kind, "joints": joints}
        for field in ("scale", "offset"):
            if field in action:
                found[field] = action.spread(field, len(joints))
        if kind != "position" and "offset" not in found:
            # A position target needs to be told where it begins, a speed or an effort does not.
            where = f"a zero action is no {kind}"
            sheet.state(f"action.{name}.offset", [0.0] * len(joints), "default", where)
        for key, field in (("clip", "target_clip"), ("raw_clip", "raw_clip")):
            if key in action:
                found[field] = _bounds(action, key, len(joints))
        _ask_filter(sheet, action, period)
        terms.append(found)
    sheet.state("action.terms", terms, "file", table.where("actions"))


def _kind(sheet: Sheet, actions: Table, name: str) -> str:
    """What an action commands; the file has only the name that somebody gave it."""
    word = name.lower()
    kind = next((kind for part, kind in _KINDS.items() if part in word), None)
    other = next((part for part in _OTHER if part in word.replace("_", "")), None)
    if kind is None or other or actions.table(name).data.get("rescale_to_limits"):
        raise BadInput(
            f"{actions.where(name)}: an action of unknown kind"
            f"{f' ({other})' if kind and other else ''}; known: {', '.join(_KINDS)}, whose target "
            "is scale times action plus offset; another one can be said with custom"
        )
    if "relative" in word:
        meaning = f"what the scaled action of '{name}' is added to"
        sheet.ask(f"action.{name}.relative_to", meaning, "measured", "offset")
    return kind


def _ask_filter(sheet: Sheet, action: Table, period: float) -> None:
    """Forks smooth their actions with a low-pass that no two of them write alike."""
    for key in _SMOOTHED.split():
        if key not in action:
            continue
        likely: tuple[str, ...] = ()
        if key.endswith("hz"):
            turn = 2.0 * math.pi * action.number(key) * period
            if turn <= 0.0:
                raise BadInput(f"{action.where(key)}: {action.number(key):g} is not positive")
            likely = (f"{1.0 - math.exp(-turn):.6g}", f"{turn / (1.0 + turn):.6g}")
        meaning = (
            f"{action.where(key)}: share of a new action in the one applied, 1.0 for no filter"
        )
        sheet.ask("action.filter", meaning, *likely)


def _check_order(foreign: Foreign, sheet: Sheet, action: Table, joints: list[str]) -> None:
    """The joints that the file names one by one, against those found through the motors."""
    named = action.data.get("joint_names")
    if "motors" in sheet or motor_order(foreign.model.driven) or not is_list(named):
        return
    if not all(isinstance(name, str) for name in named):
        return
    if named == joints or len(named) != len(joints) or set(named) != set(joints):
        return
    sheet.ask(
        "motors",
        f"{action.where('joint_names')} begins with {named[0]}, the joints found through the "
        f"actuators of {foreign.model.path.name} with {joints[0]}: the joints behind the robot's "
        "motors, in their order; the first of these if the file lists its joints in another order "
        "than the policy's",
        f"[{', '.join(foreign.model.actuators)}]",
    )


def _bounds(action: Table, key: str, count: int) -> list[Any]:
    value = action.get(key)
    if is_list(value) and len(value) == 2 and not is_list(value[0]):
        return action.numbers(key, 2)
    if is_list(value) and len(value) == count:
        return value
    raise BadInput(f"{action.where(key)}: expected bounds, found {show(value)}")


def _flag_rounding(sheet: Sheet, table: Table) -> None:
    """Say that the numbers are rounded, unless one of them cannot be."""
    keys = [key for key in ("stiffness", "damping", "default_joint_pos") if key in table]
    numbers = [number for key in keys for number in table.numbers(key)]
    actions = table.table("actions")
    for each in (actions.table(name) for name in actions):
        scale = each.data.get("scale")
        numbers += [v for v in (scale if is_list(scale) else [scale]) if isinstance(v, float)]
    if all(float(f"{value:.3g}") == value for value in numbers):
        sheet.note(
            f"{table.name}: no number has more than three digits: this format rounds (a scale of "
            "0.0745 arrives as 0.0745 or 0.07); compare gains, pose and scales with the training"
        )
