"""unitree_rl_gym: one YAML for simulation, one for the robot, and TorchScript.

The files name no joint and no observation term. Joint vectors follow the joints of the scene, and
the observation is the one that the stack's deploy scripts write: gyro, gravity, command, joints,
last action, and sine and cosine of a gait clock. One of another length is a fork's, and asked for.
"""

from __future__ import annotations

from typing import Any

from export.importers.foreign import Foreign
from export.importers.graph import Graph
from export.importers.reading import Table
from export.importers.sheet import Origin, Sheet
from export.importers.shorthand import term
from export.importers.unitree_motors import motor_order
from robot_runtime.errors import BadInput

_SCRIPTS = "the stack's deploy scripts"
_KEYS = (
    "policy_path xml_path simulation_duration simulation_dt control_decimation control_dt kps kds "
    "default_angles ang_vel_scale dof_pos_scale dof_vel_scale action_scale cmd_scale num_actions "
    "num_obs cmd_init max_cmd msg_type imu_type weak_motor lowcmd_topic lowstate_topic "
    "leg_joint2motor_idx arm_waist_joint2motor_idx arm_waist_kps arm_waist_kds arm_waist_target "
    "clip_actions hip_scale_reduction"
)
_CHANNELS = ("lin_vel_x", "lin_vel_y", "ang_vel_z")


def read(foreign: Foreign, sheet: Sheet) -> Graph:
    """State what the files say; see the head of this module.

    Raises:
        BadInput: The files are incomplete or of another robot than the model.
    """
    tables = list(foreign.tables().values())
    simulated = [table for table in tables if "simulation_dt" in table]
    real = [table for table in tables if "control_dt" in table]
    if not simulated and not real:
        raise BadInput(
            "unitree_rl_gym: expected a YAML with 'simulation_dt' (deploy_mujoco) or 'control_dt' "
            "(deploy_real)"
        )
    if simulated and real and simulated[0].name == real[0].name:
        simulated = [Table(f"{each.name} (simulation)", each.data) for each in simulated]
        real = [Table(f"{each.name} (robot)", each.data) for each in real]
    table = (simulated or real)[0]
    _check_alike([*simulated, *real])
    count, dim = table.count("num_actions"), table.count("num_obs")
    graph = foreign.graph(foreign.network(_policy_name(table)), dim)
    for each in [*simulated, *real]:
        sheet.unread(each, _KEYS)
        _state_timing(sheet, each)
    _state_robot(sheet, simulated, real)
    joints = _state_joints(foreign, sheet, count, real)
    for each in [*simulated, *real]:
        _state_gains(sheet, each, count, joints)
    _state_observation(sheet, [*simulated, *real], count, dim)
    for each in [*simulated, *real]:
        _state_scale(sheet, each, count)
    sheet.state("action.offset", "default_pos", "default", _SCRIPTS)
    if "joints.names" in sheet:
        sheet.state("action.joints", sheet.get("joints.names")[:count], "inferred", "num_actions")
    for each in real:
        _state_commands(sheet, each)
    sheet.state("name", f"unitree_rl_gym-{foreign.model.name}".strip("-"), "inferred", "the model")
    return graph


def _check_alike(tables: list[Table]) -> None:
    """Refuse files of two policies; other differences are said, and these have no middle."""
    for key in ("num_actions", "num_obs"):
        counts = {table.count(key): table for table in tables if key in table}
        if len(counts) > 1:
            found = ", ".join(f"{count} in {table.name}" for count, table in counts.items())
            raise BadInput(f"{key}: {found}: files of two policies?")


def _state_scale(sheet: Sheet, table: Table, count: int) -> None:
    """What an action means; forks for quadrupeds reduce that of the hips, and clip it."""
    if "action_scale" not in table:
        return
    scale = table.number("action_scale")
    if "hip_scale_reduction" in table:
        less = scale * table.number("hip_scale_reduction")
        names = [str(name) for name in sheet.get("joints.names", [])[:count]]
        reduced = [less if "_hip_" in f"{name}_" else scale for name in names]
        meaning = (
            f"{table.where('hip_scale_reduction')}: scale by joint, in the order of the joints"
        )
        sheet.ask("action.scale", meaning, str(reduced))
    else:
        sheet.state("action.scale", scale, "file", table.where("action_scale"))
    if "clip_actions" in table:
        sheet.state(
            "action.raw_clip", table.number("clip_actions"), "file", table.where("clip_actions")
        )


def _policy_name(table: Table) -> str | None:
    return table.text("policy_path") if "policy_path" in table else None


def _state_timing(sheet: Sheet, table: Table) -> None:
    if "simulation_dt" in table:
        step, where = table.number("simulation_dt"), table.where("simulation_dt")
        sheet.state("timing.pd_dt", step, "file", where)
        if "control_decimation" in table:
            period = round(step * table.count("control_decimation"), 12)
            sheet.state("timing.control_dt", period, "file", f"{where} x control_decimation")
    else:
        period = table.number("control_dt")
        sheet.state("timing.control_dt", period, "file", table.where("control_dt"))


def _state_robot(sheet: Sheet, simulated: list[Table], real: list[Table]) -> None:
    """The robot that a path names, of the scene or else the policy; the checks compare it."""
    named = [(table, "xml_path") for table in simulated if "xml_path" in table]
    named += [(table, "policy_path") for table in real if "policy_path" in table]
    for table, key in named[:1]:
        parts = table.text(key).replace("\\", "/").split("/")
        folder = parts[-2].removesuffix("_description") if len(parts) > 1 else ""
        if folder not in ("", "pre_train", "."):
            sheet.state("hint.robot", folder, "file", table.where(key))


def _state_joints(
    foreign: Foreign, sheet: Sheet, count: int, real: list[Table]
) -> tuple[list[int], list[int]]:
    """Names by the order of the scene; returns motor indices of legs and of held joints."""
    model = foreign.model
    legs, others = _motors(real)
    numbers = legs if len(model.driven) == count else [*legs, *others]
    by_number = _by_number(foreign, sheet, real, count, numbers)
    if by_number is not None:
        sheet.state("joints.names", *by_number)
    elif len(model.driven) == count:
        where = f"joints of {model.path.name}, in the order in which the scripts read qpos"
        sheet.state("joints.names", model.driven, "model", where)
    else:
        likely = f"[{', '.join(model.driven[:count])}]"
        sheet.require("joints.names", f"the {count} joints of the policy, in its order", likely)
    if len(legs) == len(sheet.get("joints.names")) == count:
        sheet.state("joints.motor", legs, "file", real[0].where("leg_joint2motor_idx"))
    elif len(legs) == count and len(sheet.get("joints.names")) == count + len(others):
        where = real[0].where("leg_joint2motor_idx, arm_waist_joint2motor_idx")
        sheet.state("joints.motor", [*legs, *others], "file", where)
    return legs, others


def _by_number(
    foreign: Foreign, sheet: Sheet, real: list[Table], count: int, numbers: list[int]
) -> tuple[list[str], Origin, str] | None:
    """All joints of the model by the motors' numbers; None where numbers or order do not tell."""
    model = foreign.model
    told = "motors" in sheet or motor_order(model.driven) is not None
    if not real or len(numbers) != len(model.driven):
        return None
    if not told and (len(numbers) == count or sorted(numbers) != list(range(len(numbers)))):
        return None
    order, where = foreign.motors(sheet, real[0].name, numbers, in_order=True)
    names = [order[i] for i in numbers if i < len(order)]
    if sorted(names) != sorted(model.driven):
        return None
    keys = "leg_joint2motor_idx" + ("" if len(numbers) == count else ", arm_waist_joint2motor_idx")
    return names, "file" if told else "model", f"{where} by {real[0].where(keys)}"


def _motors(real: list[Table]) -> tuple[list[int], list[int]]:
    legs, others = [], []
    for table in real:
        if "leg_joint2motor_idx" in table:
            legs = table.indices("leg_joint2motor_idx")
        if "arm_waist_joint2motor_idx" in table:
            others = table.indices("arm_waist_joint2motor_idx")
    return legs, others


def _state_gains(
    sheet: Sheet, table: Table, count: int, joints: tuple[list[int], list[int]]
) -> None:
    """Gains and default pose of the legs, and of the joints that only the robot's file holds."""
    names = sheet.get("joints.names")
    held = len(names) - count
    extra: dict[str, list[float]] = {"kps": [], "kds": [], "default_angles": []}
    if held and held == len(joints[1]):
        if "arm_waist_kps" not in table:
            return
        extra = {
            "kps": table.numbers("arm_waist_kps", held),
            "kds": table.numbers("arm_waist_kds", held),
            "default_angles": table.numbers("arm_waist_target", held),
        }
        hold = dict(zip(names[count:], extra["default_angles"], strict=True))
        sheet.state("action.hold", hold, "file", table.where("arm_waist_target"))
    for key, field in (("kps", "kp"), ("kds", "kd"), ("default_angles", "default_pos")):
        values: list[Any] = [*table.numbers(key, count), *extra[key]] if key in table else []
        if len(values) == len(names):
            sheet.state(f"joints.{field}", values, "file", table.where(key))
    if "imu_type" in table and table.text("imu_type") == "torso":
        sheet.note(
            f"{table.name}: imu_type torso: this robot measures its attitude in the torso; the "
            "policy wants that of the base, so the driver has to turn it back by the waist"
        )


def _state_observation(sheet: Sheet, tables: list[Table], count: int, dim: int) -> None:
    terms = [
        term("base_ang_vel", "base_ang_vel"),
        term("projected_gravity", "projected_gravity"),
        term("command", "command"),
        term("joint_pos", "joint_pos_rel"),
        term("joint_vel", "joint_vel"),
        term("last_action", "last_action"),
    ]
    clock = [term("phase_sin", "phase_sin"), term("phase_cos", "phase_cos")]
    if dim != 11 + 3 * count:
        if "observation" not in sheet:
            sheet.note(
                f"num_obs is {dim}: the scripts of this stack observe {11 + 3 * count} numbers for "
                f"{count} joints, with a gait clock"
            )
            _ask_observation(sheet, tables[0], count, dim)
        return
    names = sheet.get("joints.names")
    if len(names) > count:
        for each in terms[3:5]:
            each["joints"] = names[:count]
    sheet.state("observation", [*terms, *clock], "default", f"order in {_SCRIPTS}")
    if sheet.origin("observation") != ("default", f"order in {_SCRIPTS}"):
        return
    scales = {
        "base_ang_vel": "ang_vel_scale",
        "joint_pos": "dof_pos_scale",
        "joint_vel": "dof_vel_scale",
        "command": "cmd_scale",
    }
    for name, key in scales.items():
        path = f"observation.{name}.scale"
        for table in (table for table in tables if key in table):
            value = table.numbers(key, 3) if name == "command" else table.number(key)
            sheet.state(path, value, "file", table.where(key))
        sheet.ask(path, f"{key} of the stack's files")
    _ask_clock(sheet)


def _ask_observation(sheet: Sheet, table: Table, count: int, dim: int) -> None:
    """Scripts of forks leave the clock out, or begin with the base's velocity: both are usual."""
    if dim not in (9 + 3 * count, 12 + 3 * count):
        return
    scales = {
        "base_ang_vel": table.number("ang_vel_scale"),
        "projected_gravity": 1.0,
        "command": table.numbers("cmd_scale", 3),
        "joint_pos_rel": table.number("dof_pos_scale"),
        "joint_vel": table.number("dof_vel_scale"),
        "last_action": 1.0,
    }
    if dim == 12 + 3 * count:
        speed = table.number("lin_vel_scale") if "lin_vel_scale" in table else 2.0
        scales = {"base_lin_vel": speed, **scales}
    terms = ", ".join(f"{{{name}: {{scale: {scale}}}}}" for name, scale in scales.items())
    meaning = "terms in the order of the fork's own script, joints in the order of joints.names"
    sheet.ask("observation", meaning, f"[{terms}]")


def _ask_clock(sheet: Sheet) -> None:
    """The clock is in no file, and the stack's own programs start it at two different phases."""
    period = sheet.get("phase.period")
    step = sheet.get("timing.control_dt", 0.02)
    later = step / period if isinstance(period, float) and period > 0 else step / 0.8
    sheet.ask("phase.period", "length of a gait cycle, [s]: 0.8 in the stack's scripts", "0.8")
    sheet.ask(
        "phase.start",
        f"phase at the first observation, [cycles]: {later:g} in the Python scripts, which count "
        "before they look, 0 in the C++ controller",
        f"{later:g}",
        "0.0",
    )
    sheet.state("phase.stand", "run", "default", f"{_SCRIPTS} never stop the clock")


def _state_commands(sheet: Sheet, table: Table) -> None:
    if "max_cmd" not in table:
        return
    for name, value in zip(_CHANNELS, table.numbers("max_cmd", 3), strict=True):
        sheet.state(f"commands.{name}", [-value, value], "file", table.where("max_cmd"))
