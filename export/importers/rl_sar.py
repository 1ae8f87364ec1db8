"""rl_sar: ``base.yaml`` of a robot, ``config.yaml`` of a policy, and TorchScript or ONNX.

Policy joint ``i`` is motor ``joint_mapping[i]``; ``joint_names`` of the base file are in the order
of the motors, everything of the policy file in the order of the policy. History indices count back
from the latest frame, which is 0. Wheels are driven by velocity and their positions are not
observed.
"""

from __future__ import annotations

import itertools
from typing import Any

from export.importers.foreign import Foreign
from export.importers.graph import Graph
from export.importers.reading import Table, is_list, show
from export.importers.sheet import Sheet
from export.importers.shorthand import term
from robot_runtime.errors import BadInput

_RUNTIME = "the stack's own runtime"
_TERMS = {
    "lin_vel": ("base_lin_vel", "lin_vel_scale"),
    "ang_vel": ("base_ang_vel", "ang_vel_scale"),
    "ang_vel_body": ("base_ang_vel", "ang_vel_scale"),
    # A simulator's velocity in the world, which the runtime turns into the body first.
    "ang_vel_world": ("base_ang_vel", "ang_vel_scale"),
    "gravity_vec": ("projected_gravity", None),
    "commands": ("command", "commands_scale"),
    "dof_pos": ("joint_pos_rel", "dof_pos_scale"),
    "dof_vel": ("joint_vel", "dof_vel_scale"),
    "actions": ("last_action", None),
    "g1_phase": ("phase_sin_cos", None),
}
_KEYS = (
    "dt decimation model_name num_observations observations observations_history "
    "observations_history_priority clip_obs clip_actions clip_actions_lower clip_actions_upper "
    "rl_kp rl_kd fixed_kp fixed_kd num_of_dofs action_scale wheel_indices lin_vel_scale "
    "ang_vel_scale dof_pos_scale dof_vel_scale commands_scale torque_limits default_dof_pos "
    "joint_names joint_controller_names joint_mapping ang_vel_axis default_commands"
)
_GAIT_PERIOD = 0.8
"""Of the term ``g1_phase``, a constant of the runtime, [s]."""


def read(foreign: Foreign, sheet: Sheet) -> Graph:
    """State what the files say; see the head of this module.

    Raises:
        BadInput: The files are incomplete or contradict each other.
    """
    base, policy, name = _sections(foreign)
    both = Table(policy.name, {**base.data, **policy.data})
    sheet.unread(base, _KEYS)
    sheet.unread(policy, _KEYS)
    count = both.count("num_of_dofs")
    history = _history(policy)
    frame = both.count("num_observations")
    graph = foreign.graph(_network(foreign, policy), frame * history["length"])
    sheet.state("name", name.replace("/", "-"), "file", f"{policy.name}")
    sheet.state("hint.robot", name.split("/")[0], "file", policy.name)
    step, n = both.number("dt"), both.count("decimation")
    where = _where(base, policy, "dt")
    sheet.state("timing.control_dt", round(step * n, 12), "file", f"{where} x decimation")
    # The stack computes no PD in between: motors do, and its simulators at their own step.
    sheet.ask("timing.pd_dt", "period of the PD in simulation, [s]", *_steps(foreign, step))
    names = _joints(foreign, sheet, base, policy, count)
    for key, field in (("rl_kp", "kp"), ("rl_kd", "kd"), ("default_dof_pos", "default_pos")):
        sheet.state(f"joints.{field}", both.numbers(key, count), "file", _where(base, policy, key))
    wheels = both.indices("wheel_indices") if "wheel_indices" in both else []
    _compare_limits(foreign, sheet, both, names)
    _state_observation(sheet, both, policy, history, wheels, names)
    _state_action(sheet, both, policy, wheels, names)
    return graph


def _sections(foreign: Foreign) -> tuple[Table, Table, str]:
    """The only section of each file; the policy's is named robot/policy."""
    found: dict[bool, list[tuple[Table, str]]] = {True: [], False: []}
    for path, table in foreign.tables().items():
        for key in table:
            section = Table(f"{path.parent.name}/{path.name}", table.table(key).data)
            found["/" in key].append((section, key))
    if len(found[True]) != 1 or len(found[False]) > 1:
        raise BadInput(
            "rl_sar: expected one base.yaml (section 'ROBOT') and one config.yaml (section "
            f"'ROBOT/POLICY'), found sections {', '.join(k for v in found.values() for _, k in v)}"
        )
    policy, name = found[True][0]
    if not found[False]:
        raise BadInput(f"rl_sar: the base.yaml of '{name.split('/')[0]}' is missing: give it too")
    base, robot = found[False][0]
    if robot != name.split("/")[0]:
        raise BadInput(f"rl_sar: base.yaml is of '{robot}', the policy of '{name}'")
    return base, policy, name


def _network(foreign: Foreign, policy: Table) -> Any:
    beside = next(p for p, t in foreign.tables().items() if any("/" in key for key in t))
    return foreign.network(policy.text("model_name"), beside)


def _steps(foreign: Foreign, step: float) -> tuple[str, ...]:
    return tuple(dict.fromkeys((f"{foreign.model.timestep:g}", f"{step:g}")))


def _where(base: Table, policy: Table, key: str) -> str:
    return (policy if key in policy else base).where(key)


def _joints(foreign: Foreign, sheet: Sheet, base: Table, policy: Table, count: int) -> list[str]:
    mapping_of = policy if "joint_mapping" in policy else base
    mapping = mapping_of.indices("joint_mapping")
    if len(mapping) != count:
        raise BadInput(
            f"{mapping_of.where('joint_mapping')}: has {len(mapping)} numbers for {count} joints"
        )
    # What the policy's file states overrides the robot's, in the stack's own reader too.
    names_of = policy if "joint_names" in policy else base
    where = f"{names_of.where('joint_names')} through {mapping_of.where('joint_mapping')}"
    motors = names_of.names("joint_names")
    if max(mapping) >= len(motors):
        raise BadInput(
            f"{mapping_of.where('joint_mapping')}: motor {max(mapping)}, but there are "
            f"{len(motors)} joint_names"
        )
    names = [motors[i] for i in mapping]
    sheet.state("joints.names", names, "file", where)
    sheet.state("joints.motor", mapping, "file", mapping_of.where("joint_mapping"))
    for name in sheet.get("joints.names"):
        foreign.model.joint(name)
    return list(sheet.get("joints.names"))


def _compare_limits(foreign: Foreign, sheet: Sheet, both: Table, names: list[str]) -> None:
    """The stack reads torque limits and applies none; the model's count, differences are said."""
    if "torque_limits" not in both:
        return
    said, where = both.spread("torque_limits", len(names)), both.where("torque_limits")
    if any(foreign.model.joint(name).effort_limit is None for name in names):
        sheet.state("joints.effort_limit", said, "file", where)
    else:
        sheet.hear("joints.effort_limit", said, "file", f"{where}, which the stack does not apply")


def _history(policy: Table) -> dict[str, Any]:
    """History indices as length, order, stride and whether the current frame is among them."""
    indices = policy.indices("observations_history") if "observations_history" in policy else []
    usual: dict[str, Any] = {"length": 1}
    if not indices or indices == [0]:
        return usual
    steps = {b - a for a, b in itertools.pairwise(indices)} or {1}
    newest = min(indices)
    if len(steps) != 1 or newest > 1 or (newest == 1 and abs(next(iter(steps))) != 1):
        raise BadInput(
            f"{policy.where('observations_history')}: {show(indices)} are not evenly spaced frames "
            "from the latest (0) or the one before it (1) on"
        )
    step = next(iter(steps))
    layout: dict[str, Any] = {}
    # Files from before that field leave it open, so it is asked for.
    if "observations_history_priority" in policy:
        priority = policy.text("observations_history_priority")
        layouts = {"time": "frame_major", "term": "term_major"}
        if priority not in layouts:
            raise BadInput(
                f"{policy.where('observations_history_priority')}: expected 'time' or 'term', "
                f"found {show(priority)}"
            )
        layout = {"layout": layouts[priority]}
    return {
        "length": len(indices),
        **layout,
        "order": "newest_first" if step > 0 else "oldest_first",
        "includes_current": newest == 0,
        "stride": abs(step),
    }


def _state_observation(
    sheet: Sheet,
    both: Table,
    policy: Table,
    history: dict[str, Any],
    wheels: list[int],
    names: list[str],
) -> None:
    terms: list[dict[str, Any]] = []
    for name in policy.names("observations"):
        if name not in _TERMS:
            sheet.ask(f"observation.{name}.source", f"what rl_sar's term '{name}' is computed from")
        source, key = _TERMS.get(name, (sheet.get(f"observation.{name}.source", "constant"), None))
        found = term(name, source)
        if key is not None:
            value = both.get(key)
            found["scale"] = both.numbers(key) if is_list(value) else [both.number(key)]
        if name == "dof_pos" and wheels:
            scale = both.number("dof_pos_scale")
            found["scale"] = [0.0 if i in wheels else scale for i in range(len(names))]
        if name == "actions":
            found["stage"] = "applied"
        terms.append(found)
    block: dict[str, Any] = {"terms": terms, "history": dict(history)}
    if "clip_obs" in both:
        block["clip"] = both.number("clip_obs")
    sheet.state("observation", [block], "file", policy.where("observations"))
    if history["length"] > 1:
        where = f"{_RUNTIME} fills it with the first frame"
        sheet.state("observation.history.fill", "first", "default", where)
    sheet.state("observation.actions.stage", "applied", "default", f"{_RUNTIME} keeps the clipped")
    if any(found["source"] == "phase_sin_cos" for found in terms):
        _state_clock(sheet)
    for name, value in (("lin_vel_x", 1.0), ("lin_vel_y", 1.0), ("ang_vel_z", 1.0)):
        sheet.ask(f"commands.{name}", "what an operator may ask for", f"[-{value}, {value}]")


def _state_clock(sheet: Sheet) -> None:
    sheet.state("phase.period", _GAIT_PERIOD, "default", _RUNTIME)
    step = float(sheet.get("timing.control_dt")) / _GAIT_PERIOD
    sheet.ask(
        "phase.start",
        f"phase at the first observation, [cycles]: {step:g} in {_RUNTIME}, which counts before it "
        "looks, 0 in training",
        f"{step:g}",
        "0.0",
    )
    sheet.state("phase.stand", "run", "default", f"{_RUNTIME} never stops the clock")


def _state_action(
    sheet: Sheet, both: Table, policy: Table, wheels: list[int], names: list[str]
) -> None:
    count = len(names)
    clip = None
    if both.data.get("clip_actions_lower") and both.data.get("clip_actions_upper"):
        clip = [both.spread(f"clip_actions_{end}", count) for end in ("lower", "upper")]
    elif "clip_actions" in both:
        # Files from before the two lists have one number.
        reach = both.number("clip_actions")
        clip = [[-reach] * count, [reach] * count]
    scale = both.spread("action_scale", count)
    where = policy.where("action_scale, clip_actions_lower, clip_actions_upper, wheel_indices")
    groups = _groups(count, wheels)
    terms: list[dict[str, Any]] = []
    for kind, members in groups:
        picked: dict[str, Any] = {
            "name": f"{'wheels' if kind == 'velocity' else 'joints'}_{members[0]}",
            "kind": kind,
            "joints": [names[i] for i in members],
            "scale": [scale[i] for i in members],
            "offset": 0.0 if kind == "velocity" else "default_pos",
        }
        if clip is not None:
            picked["raw_clip"] = [[end[i] for i in members] for end in clip]
        terms.append(picked)
    sheet.state("action.terms", terms, "file", where)
    if wheels:
        hold = {names[i]: both.numbers("default_dof_pos", count)[i] for i in wheels}
        sheet.state("action.hold", hold, "file", both.where("default_dof_pos"))
        sheet.note(f"wheels are driven by velocity: {', '.join(hold)}")


def _groups(count: int, wheels: list[int]) -> list[tuple[str, list[int]]]:
    """Neighbouring actions of one kind, in the order of the network's output."""
    if wheels and max(wheels) >= count:
        raise BadInput(f"wheel_indices: {max(wheels)}, but there are {count} joints")
    groups: list[tuple[str, list[int]]] = []
    for i in range(count):
        kind = "velocity" if i in wheels else "position"
        if groups and groups[-1][0] == kind:
            groups[-1][1].append(i)
        else:
            groups.append((kind, [i]))
    return groups
