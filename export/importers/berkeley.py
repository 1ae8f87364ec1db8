"""Berkeley Humanoid Lite: one YAML and ONNX.

The YAML states joints, gains, limits and periods. The observation is the one of the stack's code:
command, gyro, gravity, joints, last action; frames of the past stand before it, zeros at first, and
``history_length`` counts them without the present one.
"""

from __future__ import annotations

from typing import Any

from export.importers.foreign import Foreign
from export.importers.graph import Graph
from export.importers.reading import Table
from export.importers.sheet import Sheet
from export.importers.shorthand import term
from robot_runtime.errors import BadInput

_CODE = "the stack's observation code"
_KEYS = (
    "policy_checkpoint_path ip_robot_addr ip_policy_obs_port ip_host_addr ip_policy_acs_port "
    "control_dt policy_dt physics_dt cutoff_freq num_joints joints joint_kp joint_kd effort_limits "
    "default_base_position default_joint_positions num_observations history_length "
    "command_velocity num_actions action_scale action_indices action_limit_lower "
    "action_limit_upper"
)


def read(foreign: Foreign, sheet: Sheet) -> Graph:
    """State what the files say; see the head of this module.

    Raises:
        BadInput: The files are incomplete.
    """
    table = foreign.the_table("policy configuration", "policy_dt")
    path = next(p for p, found in foreign.tables().items() if found.name == table.name)
    named = table.text("policy_checkpoint_path") if "policy_checkpoint_path" in table else None
    count, dim = table.count("num_actions"), table.count("num_observations")
    past = table.count("history_length") if "history_length" in table else 0
    graph = foreign.graph(foreign.network(named, path), dim * (past + 1))
    sheet.unread(table, _KEYS)
    _state_timing(sheet, table)
    names = table.names("joints")
    if "num_joints" in table and table.count("num_joints") != len(names):
        raise BadInput(f"{table.where('joints')}: {len(names)} names, num_joints says otherwise")
    sheet.state("joints.names", names, "file", table.where("joints"))
    columns = {
        "joint_kp": "kp",
        "joint_kd": "kd",
        "effort_limits": "effort_limit",
        "default_joint_positions": "default_pos",
    }
    for key, field in columns.items():
        if key in table:
            sheet.state(f"joints.{field}", table.spread(key, len(names)), "file", table.where(key))
    _state_action(sheet, table, names, count)
    _state_observation(sheet, table, count, past)
    return graph


def _state_timing(sheet: Sheet, table: Table) -> None:
    if "policy_dt" in table:
        period = table.number("policy_dt")
        sheet.state("timing.control_dt", period, "file", table.where("policy_dt"))
    if "physics_dt" in table:
        step = table.number("physics_dt")
        sheet.state("timing.physics_dt", step, "file", table.where("physics_dt"))
        # The stack's simulator evaluates its PD at every physics step; control_dt is the period of
        # the link to the motor boards, which run their own loop.
        where = f"{table.where('physics_dt')}: its simulator evaluates the PD at every step"
        sheet.state("timing.pd_dt", step, "file", where)
    if "control_dt" in table:
        sheet.note(
            f"{table.where('control_dt')} {table.number('control_dt'):g} s is the period of the "
            "link to the motors, not that of a PD"
        )


def _state_action(sheet: Sheet, table: Table, names: list[str], count: int) -> None:
    if "action_scale" in table:
        scale = table.spread("action_scale", count)
        sheet.state("action.scale", scale, "file", table.where("action_scale"))
    sheet.state("action.offset", "default_pos", "default", _CODE)
    if "action_indices" in table:
        picked = table.indices("action_indices")
        if len(picked) != count or max(picked) >= len(names):
            raise BadInput(f"{table.where('action_indices')}: not {count} of {len(names)} joints")
        joints = [names[i] for i in picked]
        sheet.state("action.joints", joints, "file", table.where("action_indices"))
        if len(joints) < len(names):
            pose = table.spread("default_joint_positions", len(names))
            rest = dict(zip(names, pose, strict=True))
            hold = {name: rest[name] for name in names if name not in joints}
            sheet.state("action.hold", hold, "file", table.where("default_joint_positions"))
            bent = [name for name, position in hold.items() if position != 0.0]
            if bent:
                sheet.note(
                    f"joints without an action keep their default position, as in training; the "
                    f"stack's own simulator holds them at 0: {', '.join(bent)}"
                )
    keys = ("action_limit_lower", "action_limit_upper")
    if all(key in table for key in keys):
        ends = [table.spread(key, count) for key in keys]
        sheet.state("action.raw_clip", ends, "file", table.where(", ".join(keys)))
    else:
        sheet.ask("action.raw_clip", "ends of the raw action, as numbers", "[-10000, 10000]")


def _state_observation(sheet: Sheet, table: Table, count: int, past: int) -> None:
    """The present frame of ``num_observations`` numbers after ``history_length`` past ones."""
    names, dim = table.names("joints"), table.count("num_observations")
    terms: list[dict[str, Any]] = [
        term("command", "command"),
        term("base_ang_vel", "base_ang_vel"),
        term("projected_gravity", "projected_gravity"),
        term("joint_pos", "joint_pos_rel"),
        term("joint_vel", "joint_vel"),
        term("last_action", "last_action", stage="applied"),
    ]
    # The stack's simulator hands over the driven joints, in the order of the actions.
    if dim == 9 + 3 * count and sheet.get("action.joints", names) != names:
        for each in terms[3:5]:
            each["joints"] = sheet.get("action.joints")
    frame = {9 + 2 * len(names) + count, 9 + 3 * count}
    if dim not in frame:
        if "observation" not in sheet:
            sheet.note(f"num_observations is {dim}, {_CODE} gives {sorted(frame)} per frame")
        return
    history: dict[str, Any] = {"length": past + 1}
    if past:
        history |= {"layout": "frame_major", "order": "oldest_first", "fill": "zero"}
    block = {"terms": terms, "history": history}
    sheet.state("observation", [block], "default", f"order in {_CODE}")
