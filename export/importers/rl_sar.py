"""rl_sar: ``base.yaml`` of a robot, ``config.yaml`` of a policy, and TorchScript or ONNX.

Everything of the policy's file is in the policy's order; whose joints those are, and what older
files mean, is in `rl_sar_files.py`. History indices count back from the latest frame, which is 0.
Wheels are driven by velocity and their positions are not observed.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from export.importers.foreign import NETWORKS, Foreign
from export.importers.graph import Graph
from export.importers.reading import Table, as_number, is_list, show
from export.importers.rl_sar_files import SarFiles, find_files, state_joints
from export.importers.sheet import Sheet
from export.importers.shorthand import SOURCES, term
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
    "RoboMimic_Deploy/phase": ("phase", None),
    "g1_mimic_phase": ("phase", None),
}
_MOTION = ("RoboMimic_Deploy/phase", "g1_mimic_phase")
"""Names of the part of a motion that is over."""

_BEYOND = {
    "phase": "needs clocks of three periods at once (4, 8 and 16 s), a contract has one",
    "whole_body_tracking/motion_command": "is read from a motion file beside the policy",
    "whole_body_tracking/motion_anchor_ori_b": "is read from a motion file beside the policy",
}
"""Terms that no contract has, and why."""

_KEYS = (
    "dt decimation model_name num_observations observations observations_history "
    "observations_history_priority clip_obs clip_actions clip_actions_lower clip_actions_upper "
    "rl_kp rl_kd fixed_kp fixed_kd num_of_dofs action_scale wheel_indices lin_vel_scale "
    "ang_vel_scale dof_pos_scale dof_vel_scale commands_scale torque_limits default_dof_pos "
    "joint_names joint_controller_names joint_mapping ang_vel_axis default_commands framework rows "
    "cols use_history state_mapping command_mapping action_scale_wheel hip_scale_reduction "
    "hip_scale_reduction_indices"
)
_GAIT_PERIOD = 0.8
"""Of the term ``g1_phase``, a constant of the runtime, [s]."""


def read(foreign: Foreign, sheet: Sheet) -> Graph:
    """State what the files say; see the head of this module.

    Raises:
        BadInput: The files are incomplete or contradict each other.
    """
    files = find_files(foreign, sheet)
    both, name = files.both, files.name
    if both.data.get("use_pmtg_controller"):
        raise BadInput(
            f"{files.where('use_pmtg_controller')}: targets come from a gait generator that the "
            "network corrects, which no contract has"
        )
    for table in (files.base, files.policy):
        sheet.unread(table, _KEYS)
    count = both.count("num_of_dofs")
    history = _history(sheet, files.policy)
    graph = foreign.graph(
        _network(foreign, files.policy), _length(files, count) * history["length"]
    )
    sheet.state("name", name.replace("/", "-"), "file", f"{files.policy.name}")
    sheet.state("hint.robot", files.robot, "file", files.policy.name)
    _state_timing(sheet, files, foreign.model.timestep)
    names = state_joints(files, sheet, foreign.model, count)
    for key, field in (("rl_kp", "kp"), ("rl_kd", "kd"), ("default_dof_pos", "default_pos")):
        if key in both:
            sheet.state(f"joints.{field}", both.spread(key, count), "file", files.where(key))
    wheels = both.indices("wheel_indices") if "wheel_indices" in both else []
    _compare_limits(foreign, sheet, both, names)
    _state_observation(sheet, files, history, wheels, names)
    _state_action(sheet, files, wheels, names)
    return graph


def _network(foreign: Foreign, policy: Table) -> Any:
    """The network beside the policy's file, among those of other policies."""
    beside = next(
        path for path in foreign.tables() if policy.name == f"{path.parent.name}/{path.name}"
    )
    here = [path for path in foreign.paths if path.parent == beside.parent]
    if any(path.suffix in NETWORKS for path in here):
        foreign = dataclasses.replace(foreign, paths=tuple(here))
    named = policy.text("model_name") if "model_name" in policy else None
    return foreign.network(named, beside)


def _length(files: SarFiles, count: int) -> int:
    """Numbers in a frame: what its terms have, which is what the stack feeds its network."""
    both = files.both
    sizes = {"dof_pos": count, "dof_vel": count, "actions": count, "g1_phase": 2}
    sizes |= dict.fromkeys(_MOTION, 1)
    terms = both.names("observations") if "observations" in both else []
    if terms and all(name in _TERMS or name in sizes for name in terms):
        return sum(sizes.get(name, 3) for name in terms)
    return both.count("num_observations")


def _state_timing(sheet: Sheet, files: SarFiles, timestep: float) -> None:
    both, steps = files.both, [timestep]
    if "dt" in both and "decimation" in both:
        period = round(both.number("dt") * both.count("decimation"), 12)
        steps.append(both.number("dt"))
        where = f"{files.where('dt')} x decimation"
        sheet.state("timing.control_dt", period, "file", where)
    # Clocks cannot be read without it.
    sheet.require("timing.control_dt", "period of the policy, [s]: dt x decimation", "0.02")
    # The stack computes no PD in between: motors do, and its simulators at their own step.
    likely = dict.fromkeys(f"{step:g}" for step in steps)
    sheet.ask("timing.pd_dt", "period of the PD in simulation, [s]", *likely)


def _compare_limits(foreign: Foreign, sheet: Sheet, both: Table, names: list[str]) -> None:
    """The stack reads torque limits and applies none; the model's count, differences are said."""
    if "torque_limits" not in both:
        return
    said, where = both.spread("torque_limits", len(names)), both.where("torque_limits")
    if any(foreign.model.joint(name).effort_limit is None for name in names):
        sheet.state("joints.effort_limit", said, "file", where)
    else:
        sheet.hear("joints.effort_limit", said, "file", f"{where}, which the stack does not apply")


def _history(sheet: Sheet, policy: Table) -> dict[str, Any]:
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
    return {
        "length": len(indices),
        "layout": _layout(sheet, policy),
        "order": "newest_first" if step > 0 else "oldest_first",
        "includes_current": newest == 0,
        "stride": abs(step),
    }


def _layout(sheet: Sheet, policy: Table) -> str:
    key = "observations_history_priority"
    if key not in policy:
        sheet.note(f"{policy.name}: without {key} {_RUNTIME} puts whole frames one after the other")
        return "frame_major"
    layouts = {"time": "frame_major", "term": "term_major"}
    priority = policy.text(key)
    if priority not in layouts:
        raise BadInput(f"{policy.where(key)}: expected 'time' or 'term', found {show(priority)}")
    return layouts[priority]


def _state_observation(
    sheet: Sheet, files: SarFiles, history: dict[str, Any], wheels: list[int], names: list[str]
) -> None:
    both = files.both
    # The oldest programs have their order of terms in code; and the user's own list counts.
    if "observations" not in both or "observation" in sheet:
        return
    listed = both.names("observations")
    block: dict[str, Any] = {
        "terms": [_term(sheet, both, name, wheels, len(names)) for name in listed],
        "history": dict(history),
    }
    if "clip_obs" in both:
        block["clip"] = both.number("clip_obs")
    sheet.state("observation", [block], "file", files.where("observations"))
    if history["length"] > 1:
        where = f"{_RUNTIME} offers to fill it with the first frame"
        sheet.state("observation.history.fill", "first", "default", where)
        sheet.note(
            "observation.history.fill: taken is that the first frame stands for those before it; "
            "programs of this stack that never ask for that begin with zeros"
        )
    sheet.state("observation.actions.stage", "applied", "default", f"{_RUNTIME} keeps the clipped")
    if "g1_phase" in listed:
        _state_clock(sheet)
    if any(name in _MOTION for name in listed):
        _state_motion(sheet)


def _term(sheet: Sheet, both: Table, name: str, wheels: list[int], count: int) -> dict[str, Any]:
    """A term with its scale; one that the stack does not have is asked for."""
    if name in _BEYOND:
        raise BadInput(f"{both.where('observations')}: '{name}' {_BEYOND[name]}: not expressible")
    if name not in _TERMS:
        path = f"observation.{name}.source"
        sheet.ask(path, f"what '{name}' is computed from: {', '.join(SOURCES)}")
        return term(name, sheet.get(path, "constant"))
    source, key = _TERMS[name]
    found = term(name, source)
    if key is not None and key not in both:
        sheet.ask(f"observation.{name}.scale", f"{key} of the stack's files")
    elif key is not None:
        value = both.get(key)
        found["scale"] = both.numbers(key) if is_list(value) else [both.number(key)]
    if name == "dof_pos" and wheels and "scale" in found:
        scale = both.number("dof_pos_scale")
        found["scale"] = [0.0 if i in wheels else scale for i in range(count)]
    if name == "actions":
        found["stage"] = "applied"
        # The stack reduces hips in the tensor that it keeps as the last action, too.
        hips, reduction = _hips(both)
        if hips and reduction != 1.0:
            found["scale"] = [reduction if i in hips else 1.0 for i in range(count)]
    return found


def _hips(both: Table) -> tuple[list[int], float]:
    """Joints whose action older files reduce, and by which factor."""
    if "hip_scale_reduction" not in both:
        return [], 1.0
    return both.indices("hip_scale_reduction_indices"), both.number("hip_scale_reduction")


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


def _state_motion(sheet: Sheet) -> None:
    """The part of a motion that is over: a clock of the motion's length."""
    length = sheet.require(
        "phase.period", "length of the motion, which no file states, [s]", "18.0"
    )
    step = float(sheet.get("timing.control_dt")) / as_number(length, "phase.period")
    sheet.state("phase.start", step, "default", f"{_RUNTIME} counts before it looks")
    sheet.state("phase.stand", "run", "default", f"{_RUNTIME} never stops the clock")
    sheet.note(
        f"the motion takes {length} s; {_RUNTIME} then leaves the policy, here it begins anew"
    )


def _state_action(sheet: Sheet, files: SarFiles, wheels: list[int], names: list[str]) -> None:
    count, both = len(names), files.both
    clip = None
    if both.data.get("clip_actions_lower") and both.data.get("clip_actions_upper"):
        clip = [both.spread(f"clip_actions_{end}", count) for end in ("lower", "upper")]
    elif "clip_actions" in both:
        # Files from before the two lists have one number.
        reach = both.number("clip_actions")
        clip = [[-reach] * count, [reach] * count]
    elif {"clip_actions_lower", "clip_actions_upper"} & both.data.keys():
        sheet.note(f"{files.policy.name}: clips of actions of one side only, which do not count")
    scale = _action_scale(both, wheels, count)
    where = files.policy.where(
        "action_scale, clip_actions_lower, clip_actions_upper, wheel_indices"
    )
    groups = _groups(count, wheels)
    terms: list[dict[str, Any]] = []
    for kind, members in groups:
        picked: dict[str, Any] = {
            "name": f"{'wheels' if kind == 'velocity' else 'joints'}_{members[0]}",
            "kind": kind,
            "joints": [names[i] for i in members],
            "offset": 0.0 if kind == "velocity" else "default_pos",
        }
        if scale is not None:
            picked["scale"] = [scale[i] for i in members]
        if clip is not None:
            picked["raw_clip"] = [[end[i] for i in members] for end in clip]
        terms.append(picked)
    sheet.state("action.terms", terms, "file", where)
    if wheels:
        hold = {names[i]: both.spread("default_dof_pos", count)[i] for i in wheels}
        sheet.state("action.hold", hold, "file", files.where("default_dof_pos"))
        sheet.note(f"wheels are driven by velocity: {', '.join(hold)}")


def _action_scale(both: Table, wheels: list[int], count: int) -> list[float] | None:
    """Scale per joint; older files have one for legs, one for wheels, and a factor for hips."""
    if "action_scale" not in both:
        return None
    scale = both.spread("action_scale", count)
    hips, reduction = _hips(both)
    scale = [s * reduction if i in hips else s for i, s in enumerate(scale)]
    if wheels and "action_scale_wheel" in both:
        wheel = both.number("action_scale_wheel")
        scale = [wheel if i in wheels else s for i, s in enumerate(scale)]
    return scale


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
