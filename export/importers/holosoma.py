"""holosoma: ONNX with JSON metadata, and the inference config as YAML where there is one.

The metadata state joints, gains and command ranges; default pose, action scale, observation and
gait are the config's (sections ``robot``, ``observation``, ``task``). Terms are sorted by name,
histories hold zeros at first, and the two legs' clocks stand at half a cycle while nothing is asked
for. A policy that tracks a motion has it in its graph; what it observes of it is what its graph
gave at the call before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from export.importers.beyondmimic import motion_file, read_motion
from export.importers.foreign import Foreign
from export.importers.graph import Graph, original_of, read_onnx
from export.importers.reading import Table, as_number, is_dict, is_list, parse_json, shorten, show
from export.importers.sheet import Sheet
from export.importers.shorthand import term
from robot_runtime.errors import BadInput

_RUNTIME = "the stack's inference code"
_SOURCES: dict[str, tuple[str, tuple[str, ...] | None]] = {
    "actions": ("last_action", None),
    "base_ang_vel": ("base_ang_vel", None),
    "base_lin_vel": ("base_lin_vel", None),
    "command_ang_vel": ("command", ("ang_vel_z",)),
    "command_lin_vel": ("command", ("lin_vel_x", "lin_vel_y")),
    "cos_phase": ("phase_cos", None),
    "dof_pos": ("joint_pos_rel", None),
    "dof_vel": ("joint_vel", None),
    "projected_gravity": ("projected_gravity", None),
    "sin_phase": ("phase_sin", None),
}
_WALKING = [name for name in _SOURCES if name != "base_lin_vel"]
_TRACKING = ["motion_command", "motion_ref_ori_b", "base_ang_vel", "dof_pos", "dof_vel", "actions"]
_RANGES = {"lin_vel_x": "lin_vel_x", "lin_vel_y": "lin_vel_y", "ang_vel_yaw": "ang_vel_z"}


def read(foreign: Foreign, sheet: Sheet) -> Graph:
    """State what the files say; see the head of this module.

    Raises:
        BadInput: The metadata are incomplete, or contradict each other.
    """
    config = _config(foreign, sheet)
    task = config.table("task") if "task" in config else Table("task", {})
    named = task.data.get("model_path")
    path = foreign.network(named if isinstance(named, str) and named else None)
    graph = foreign.graph(path)
    if "time_step" in graph.inputs:
        return _read_tracking(foreign, sheet, config, task, path)
    metadata = _metadata(graph)
    robot = config.table("robot") if "robot" in config else Table("robot", {})
    names = metadata.names("dof_names")
    sheet.state("joints.names", names, "file", metadata.where("dof_names"))
    _state_joints(sheet, metadata, robot, names)
    _state_action(sheet, task, robot, names)
    if "action_scale" in graph.metadata:
        # The runtime of walking policies takes its config's; a file that says otherwise is noted.
        scale = _either(graph.metadata["action_scale"], f"{graph.name} action_scale")
        sheet.state("action.scale", scale, "file", f"{graph.name} metadata action_scale")
    _state_commands(sheet, metadata)
    _state_observation(sheet, graph, config, names)
    _state_timing(sheet, task)
    return graph


def _config(foreign: Foreign, sheet: Sheet) -> Table:
    """The inference config among the YAML files of a run, without items where there is none."""
    sections = {"robot", "observation", "task"}
    tables = list(foreign.tables().values())
    found = [table for table in tables if sections & table.data.keys()]
    if len(found) > 1:
        names = shorten([table.name for table in found])
        raise BadInput(
            f"holosoma: several inference configs (sections {', '.join(sorted(sections))}): "
            f"{names}; give one"
        )
    for table in tables:
        if table not in found:
            sheet.note(f"{table.name}: not read, it is no inference config")
    return found[0] if found else Table("", {})


def _read_tracking(foreign: Foreign, sheet: Sheet, config: Table, task: Table, path: Path) -> Graph:
    """A policy with a motion inside."""
    model = read_onnx(path)
    plain = motion_file(model, path)
    metadata = _metadata(plain)
    robot = config.table("robot") if "robot" in config else Table("robot", {})
    names = metadata.names("dof_names")
    sheet.state("joints.names", names, "file", metadata.where("dof_names"))
    _state_joints(sheet, metadata, robot, names)
    if "action_scale" in plain.metadata:
        scale = _either(plain.metadata["action_scale"], f"{plain.name} action_scale")
        sheet.state("action.scale", scale, "file", f"{plain.name} metadata action_scale")
    _state_action(sheet, task, robot, names)
    _state_timing(sheet, task)
    if "motion" in robot and "body_name_ref" in robot.table("motion"):
        motion = robot.table("motion")
        body = motion.names("body_name_ref")[0]
        sheet.state("motion.anchor", body, "file", motion.where("body_name_ref"))
    meaning = "body at which motion and robot are compared"
    anchor = str(sheet.require("motion.anchor", meaning, "torso_link"))
    sheet.state("motion.alignment", "yaw", "default", f"{_RUNTIME} lays the motion's heading")
    if "motion_end_timestep" in task:
        sheet.note(f"{task.where('motion_end_timestep')}: not read, the motion plays to its end")
    if "motion_start_timestep" in task:
        start = task.count("motion_start_timestep")
        sheet.state("motion.start", start, "file", task.where("motion_start_timestep"))
    where = f"{_RUNTIME} observes what the graph gave at the call before"
    sheet.state("motion.delay", 1, "default", where)
    terms = _tracking_terms(config)
    sheet.state("observation.actions.stage", "applied", "default", f"{_RUNTIME} keeps the clipped")
    sources = {name: source for name, (source, _) in _SOURCES.items()}
    # The graph gives the pose of this body alone.
    return read_motion(
        foreign, sheet, plain, model, terms,
        original=original_of(path), anchor=(anchor, 0), sources=sources,
    )  # fmt: skip


def _tracking_terms(config: Table) -> list[str]:
    """Terms of a tracking policy, sorted; the graph has no place for scales and histories."""
    table = config.table("observation") if "observation" in config else Table("observation", {})
    if "obs_dict" not in table:
        return sorted(_TRACKING)
    groups = table.table("obs_dict")
    if len(groups.data) != 1:
        raise BadInput(f"{groups.name}: expected one group, found {shorten(list(groups))}")
    (group,) = groups
    terms = sorted(groups.names(group))
    scales, lengths = (
        table.table(key) if key in table else Table(key, {})
        for key in ("obs_scales", "history_length_dict")
    )
    scaled = [name for name in terms if name in scales and scales.number(name) != 1.0]
    if scaled or (group in lengths and lengths.number(group) != 1):
        raise BadInput(
            f"{table.name}: a motion policy with a history or with scaled terms "
            f"({', '.join(scaled) or 'none'}) cannot be imported"
        )
    return terms


def _either(text: str, where: str) -> Any:
    """A number or numbers, as JSON or separated by commas."""
    value = parse_json(text if text.lstrip().startswith("[") else f"[{text}]", where)
    if not is_list(value) or not value:
        raise BadInput(f"{where}: expected numbers, found {show(value)}")
    numbers = [as_number(item, where) for item in value]
    return numbers[0] if len(numbers) == 1 else numbers


def _metadata(graph: Graph) -> Table:
    name = f"{graph.name} metadata"
    if "dof_names" not in graph.metadata:
        found = shorten(list(graph.metadata)) or "none"
        raise BadInput(f"{graph.name}: metadata 'dof_names' is missing; there are {found}")
    wanted = ("dof_names", "kp", "kd", "command_ranges")
    return Table(
        name,
        {k: parse_json(graph.metadata[k], f"{name} {k}") for k in wanted if k in graph.metadata},
    )


def _state_joints(sheet: Sheet, metadata: Table, robot: Table, names: list[str]) -> None:
    count = len(names)
    # Of two statements of one rank the first counts: the stack lets its config override the file.
    if "motor_kp" in robot and "motor_kd" in robot:
        for key, field in (("motor_kp", "kp"), ("motor_kd", "kd")):
            sheet.state(f"joints.{field}", _by_name(robot, key, names), "file", robot.where(key))
    for key in ("kp", "kd"):
        if key in metadata:
            values = metadata.numbers(key, count)
            sheet.state(f"joints.{key}", values, "file", metadata.where(key))
    if "default_dof_angles" in robot:
        pose = _by_name(robot, "default_dof_angles", names)
        sheet.state("joints.default_pos", pose, "file", robot.where("default_dof_angles"))
    heard = {
        "motor_effort_limit": "effort_limit",
        "joint_pos_min": "lower",
        "joint_pos_max": "upper",
        "joint_vel_limit": "velocity_limit",
    }
    for key, field in heard.items():
        if _fits(robot, key, names):
            sheet.hear(f"joints.{field}", _by_name(robot, key, names), "file", robot.where(key))
    for key in ("joint_offsets_deg", "dof_names_parallel_mech"):
        if robot.data.get(key):
            sheet.note(f"{robot.where(key)}: of the robot's motors, left to its driver")
    if _fits(robot, "joint2motor", names):
        robot.indices("joint2motor")
        motors: list[Any] = [int(i) for i in _by_name(robot, "joint2motor", names)]
        sheet.state("joints.motor", motors, "file", robot.where("joint2motor"))


def _fits(robot: Table, key: str, names: list[str]) -> bool:
    """Whether a column has one number per joint: robots may have more motors than joints."""
    values = robot.data.get(key)
    order = robot.names("dof_names") if "dof_names" in robot else names
    return is_list(values) and len(values) == len(order)


def _by_name(robot: Table, key: str, names: list[str]) -> list[float]:
    """A column of the config, which has joints in its own order, in the network's."""
    order = robot.names("dof_names") if "dof_names" in robot else names
    values = dict(zip(order, robot.numbers(key, len(order)), strict=True))
    missing = [name for name in names if name not in values]
    if missing:
        raise BadInput(f"{robot.where('dof_names')}: joint '{missing[0]}' is missing")
    return [values[name] for name in names]


def _state_action(sheet: Sheet, task: Table, robot: Table, names: list[str]) -> None:
    if task.flag("action_scales_by_effort_limit_over_p_gain", absent=False):
        if "default_per_joint_action_scale" in robot:
            scale = _by_name(robot, "default_per_joint_action_scale", names)
            where = robot.where("default_per_joint_action_scale")
            factor = task.number("policy_action_scale") if "policy_action_scale" in task else 1.0
            # The config's column holds a quarter of effort over stiffness already.
            if factor not in (0.25, 1.0):
                raise BadInput(f"{task.where('policy_action_scale')}: {factor} of scales per joint")
            sheet.state("action.scale", scale, "file", where)
    elif "policy_action_scale" in task:
        value = task.number("policy_action_scale")
        sheet.state("action.scale", value, "file", task.where("policy_action_scale"))
    sheet.ask("action.scale", "policy_action_scale of the stack's config", "0.25")
    sheet.state("action.offset", "default_pos", "default", _RUNTIME)
    sheet.state("action.raw_clip", 100.0, "default", f"{_RUNTIME} clips at 100")


def _state_commands(sheet: Sheet, metadata: Table) -> None:
    if "command_ranges" not in metadata:
        return
    ranges = metadata.table("command_ranges")
    for key, channel in _RANGES.items():
        if key in ranges:
            sheet.state(f"commands.{channel}", ranges.numbers(key, 2), "file", ranges.where(key))


def _state_observation(sheet: Sheet, graph: Graph, config: Table, names: list[str]) -> None:
    table = config.table("observation") if "observation" in config else Table("observation", {})
    count, dim = len(names), graph.observation_dim
    legs = 2
    if "obs_dict" in table:
        groups = table.table("obs_dict")
        if len(groups.data) != 1:
            raise BadInput(f"{groups.name}: expected one group, found {shorten(list(groups))}")
        (group,) = groups
        terms, origin = groups.names(group), "file"
        where = f"{groups.where(group)}, sorted by name"
        frames = 1
        if "history_length_dict" in table:
            lengths = table.table("history_length_dict")
            frames = max(1, lengths.count(group)) if group in lengths else 1
        dims = table.data.get("obs_dims")
        if is_dict(dims) and dims.get("sin_phase") == 1:
            # The stack's configs say 1 where the runtime gives 2; the graph's length decides.
            legs = 1 if dim == frames * (14 + 3 * count - 3) else 2
    else:
        terms, origin, frames = _WALKING, "default", 1
        where = f"{_RUNTIME}'s walking policies, sorted by name"
        if dim != 13 + 3 * count:
            if "observation" not in sheet:
                sheet.note(f"{graph.name} takes {dim} numbers, a walking policy {13 + 3 * count}")
            return
    if "observation" in sheet:
        return
    built = [_term(sheet, name) for name in sorted(terms)]
    history: dict[str, Any] = {"length": frames}
    sheet.state("observation", [{"terms": built, "history": history}], origin, where)  # type: ignore[arg-type]
    if frames > 1:
        usual = {"layout": "term_major", "order": "oldest_first", "fill": "zero"}
        for field, value in usual.items():
            sheet.state(f"observation.history.{field}", value, "default", _RUNTIME)
    scales = table.table("obs_scales") if "obs_scales" in table else None
    for name in sorted(terms):
        path = f"observation.{name}.scale"
        if scales is not None and name in scales:
            sheet.state(path, scales.number(name), "file", scales.where(name))
        elif name in ("base_ang_vel", "dof_vel"):
            likely = ("0.25", "1.0") if name == "base_ang_vel" else ("0.05", "0.1")
            sheet.ask(path, f"obs_scales of the stack's config for '{name}'", *likely)
    if "sin_phase" in terms or "cos_phase" in terms:
        _state_clock(sheet, config, legs)


def _term(sheet: Sheet, name: str) -> dict[str, Any]:
    if name not in _SOURCES:
        sheet.ask(f"observation.{name}.source", f"what holosoma's '{name}' is computed from")
        return term(name, sheet.get(f"observation.{name}.source", "constant"))
    source, channels = _SOURCES[name]
    found = term(name, source)
    if channels is not None:
        found["channels"] = list(channels)
    if source == "last_action":
        found["stage"] = "applied"
    return found


def _state_clock(sheet: Sheet, config: Table, legs: int) -> None:
    task = config.table("task") if "task" in config else Table("task", {})
    if "gait_period" in task:
        sheet.state("phase.period", task.number("gait_period"), "file", task.where("gait_period"))
    sheet.ask("phase.period", "gait_period of the stack's config, [s]", "1.0")
    period, step = sheet.get("phase.period"), _control_dt(sheet, task)
    known = isinstance(period, int | float) and period > 0 and step is not None
    where = f"{_RUNTIME} moves the clock before it looks"
    # Without both the import ends with their questions.
    sheet.state("phase.start", step / period if known and step else 0.0, "inferred", where)
    offsets = [0.0, 0.5][:legs]
    usual: dict[str, Any] = {
        "offsets": offsets,
        "stand": "fixed",
        "stand_norm": "separate",
        "stand_threshold": 0.01,
        "stand_phase": 0.5,
        "restart": 0.0,
    }
    for field, value in usual.items():
        sheet.state(f"phase.{field}", value, "default", _RUNTIME)


def _control_dt(sheet: Sheet, task: Table) -> float | None:
    if "rl_rate" in task:
        return _period(task)
    value = sheet.get("timing.control_dt")
    return float(value) if isinstance(value, int | float) else None


def _period(task: Table) -> float:
    rate = task.number("rl_rate")
    if rate <= 0.0:
        raise BadInput(f"{task.where('rl_rate')}: {rate} is not positive")
    return 1.0 / rate


def _state_timing(sheet: Sheet, task: Table) -> None:
    debug = task.table("debug") if "debug" in task else Table("debug", {})
    for key, value in debug.data.items():
        if key.startswith("force_") and value:
            sheet.note(f"{debug.where(key)}: not read, a policy is imported as it was trained")
    if "rl_rate" in task:
        sheet.state("timing.control_dt", _period(task), "file", task.where("rl_rate"))
    sheet.ask("timing.control_dt", "period of the policy, [s]: rl_rate 50 in the configs", "0.02")
