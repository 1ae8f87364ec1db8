"""A sheet, a model and a graph become a contract and the source of each of its fields."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from export.importers.actions import fill_actions
from export.importers.blocks import Filled, check_commands, fill_commands, fill_observation
from export.importers.graph import Graph, Reference, choose_output
from export.importers.model import ModelFacts
from export.importers.provenance import field_sources
from export.importers.reading import as_number, is_dict, is_list, one_line, show
from export.importers.selection import BlockWanted, describe, select, taken
from export.importers.sheet import Sheet
from export.importers.shorthand import matching
from robot_runtime.errors import BadInput
from robot_runtime.policy.contract import PHASE_SOURCES, SCHEMA, PolicyContract

COLUMNS = {
    "motor": "index on the vendor's bus",
    "axis": "unit axis in the base's frame",
    "default_pos": "default position, [rad]",
    "lower": "lowest position, [rad]",
    "upper": "highest position, [rad]",
    "velocity_limit": "highest speed, [rad/s]",
    "effort_limit": "largest effort, [Nm]",
    "stall_effort": "effort at zero speed, [Nm]",
    "no_load_speed": "speed at zero effort, [rad/s]",
    "kp": "stiffness, [Nm/rad]",
    "kd": "damping, [Nm s/rad]",
}
"""The numbers of a joint."""

_NEEDED = {"default_pos", "kp", "kd"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Assembled:
    """A contract with the source of each field.

    Attributes:
        contract: The contract.
        fields: Kind and place of the source by path of the contract.
        graph: The network that takes the contract's observation.
        observer: Gives the observation of the foreign network from the contract's; None where they
            are one.
    """

    contract: PolicyContract
    fields: dict[str, str]
    graph: Graph
    observer: Reference | None


def assemble(sheet: Sheet, model: ModelFacts, graph: Graph) -> Assembled:
    """Fill in what the model and the format's silence say, and build the contract.

    Args:
        sheet: What user, files and format say.
        model: The robot model.
        graph: The network.

    Raises:
        MissingFieldsError: Fields that no source states, all at once.
        BadInput: A statement cannot be right; the message names it.
    """
    names = _joint_names(sheet, model)
    output = choose_output(graph, sheet.get("network.output"))
    _state_model(sheet, model, names)
    _state_usual(sheet, model, graph, output)
    joints = _joints(sheet, names)
    filled = Filled()
    defaults = [joint["default_pos"] for joint in joints]
    action = fill_actions(sheet, filled, names, defaults, model, graph.outputs[output])
    observation, wanted = fill_observation(
        sheet, filled, list(graph.inputs), clipped=_clips(action)
    )
    _ask_gains(sheet, joints, action)
    timing = _timing(sheet, model)
    if not observation:
        # Commands, clock and IMU depend on the terms: their questions come with the next try.
        sheet.settle()
    plain: dict[str, Any] = {
        "schema": SCHEMA,
        "name": sheet.get("name"),
        "robot": _record(sheet, "robot", ("name", "model_sha256", "base_body")),
        "joints": joints,
        "timing": timing,
        "actuator": _record(sheet, "actuator", ("form", "damping", "delay", "target_filter")),
        "observation": observation,
        "action": action,
        "commands": fill_commands(sheet, filled, observation),
        "phase": _phase(sheet, observation),
        "imu": _imu(sheet, model, observation),
        "network": {
            "output": output,
            "normalizer": sheet.get("network.normalizer"),
            "states": [
                {"input": s.input, "output": s.output, "shape": list(s.shape)} for s in graph.states
            ],
        },
    }
    sheet.settle()
    sheet.contradictions()
    check_commands(sheet, plain["commands"])
    if plain["phase"] is None and sheet.below("phase"):
        raise BadInput("phase: no observation term uses the gait clock")
    try:
        contract = PolicyContract.from_json(json.dumps(plain))
    except (ValueError, TypeError) as error:
        raise BadInput(f"the contract cannot be written: {one_line(error)}") from None
    _check_inputs(contract, graph, wanted)
    graph, observer = select(graph, contract, wanted)
    for note in describe(contract, wanted):
        sheet.note(note)
    fields = field_sources(contract, sheet, filled)
    return Assembled(contract=contract, fields=fields, graph=graph, observer=observer)


def _joint_names(sheet: Sheet, model: ModelFacts) -> list[str]:
    meaning = "names of the policy's joints, in its order"
    value = sheet.require("joints.names", meaning, f"[{', '.join(model.driven)}]")
    ok = is_list(value) and all(isinstance(name, str) for name in value)
    if not ok or not value or len(set(value)) != len(value):
        raise BadInput(f"joints.names: expected different names, found {show(value)}")
    for name in value:
        model.joint(name)
    return value


def _state_model(sheet: Sheet, model: ModelFacts, names: list[str]) -> None:
    """What the model says of the joints."""
    found = [model.joint(name) for name in names]
    where = model.path.name
    sheet.state("joints.axis", [list(j.axis) for j in found], "model", f"{where} joint axes")
    sheet.state("joints.lower", [j.lower for j in found], "model", f"{where} joint ranges")
    sheet.state("joints.upper", [j.upper for j in found], "model", f"{where} joint ranges")
    efforts = [j.effort_limit for j in found]
    if any(effort is not None for effort in efforts):
        sheet.state("joints.effort_limit", efforts, "model", f"{where} force ranges")
    motors = [model.actuators.index(n) if n in model.actuators else None for n in names]
    sheet.state("joints.motor", motors, "inferred", f"order of the actuators of {where}")
    sheet.state("robot.base_body", model.base_body, "model", where)
    sheet.state("robot.model_sha256", model.sha256, "model", where)
    sheet.state("robot.name", model.name.removesuffix(" scene") or "robot", "model", where)


def _state_usual(sheet: Sheet, model: ModelFacts, graph: Graph, output: str) -> None:
    """What counts where nobody says anything, field by field."""
    none = "nothing states one"
    for name in ("effort_limit", "velocity_limit", "stall_effort", "no_load_speed"):
        sheet.state(f"joints.{name}", None, "default", none)
    sheet.state("actuator.form", "explicit_pd", "default", "a PD law, evaluated every pd_dt")
    sheet.state("actuator.damping", "actuator", "default", "kd inside the effort limit")
    sheet.state("actuator.delay", 0.0, "default", none)
    sheet.state("actuator.target_filter", 1.0, "default", none)
    if not sheet.asked("action.filter"):
        sheet.state("action.filter", 1.0, "default", none)
    sheet.state("schema", SCHEMA, "default", "this version's")
    sheet.state("name", graph.name.rsplit(".", 1)[0], "inferred", "name of the network's file")
    sheet.state("network.output", output, "file", graph.name)
    known = ("output", "normalizer", "states", *graph.settings)
    for field in sheet.below("network"):
        if field not in known:
            raise BadInput(f"network.{field}: no such field here; known: {', '.join(known)}")
    kind = "in_graph" if graph.normalized else "none"
    sheet.state("network.normalizer", kind, "inferred", f"first operations of {graph.name}")
    sheet.state("network.states", [], "file", graph.name)
    wanted = sheet.get("network.normalizer")
    if wanted != kind:
        raise BadInput(
            f"network.normalizer: said to be '{wanted}', but {graph.name} begins "
            f"{'with' if graph.normalized else 'without'} a shift or scale of its input: a lost "
            "normalizer walks for a moment and falls"
        )


def _timing(sheet: Sheet, model: ModelFacts) -> dict[str, Any]:
    sheet.ask("timing.control_dt", "period of the policy, [s]", "0.02")
    likely = dict.fromkeys((f"{model.timestep:g}", "0.005", "0.002"))
    sheet.ask("timing.pd_dt", "period of the PD in training, [s]", *likely)
    if "timing.pd_dt" in sheet:
        sheet.state("timing.physics_dt", sheet.get("timing.pd_dt"), "inferred", "equal to pd_dt")
    return _record(sheet, "timing", ("control_dt", "pd_dt", "physics_dt"))


def _joints(sheet: Sheet, names: list[str]) -> list[dict[str, Any]]:
    for field in sorted(_NEEDED):
        sheet.ask(f"joints.{field}", COLUMNS[field] + ", one for all, a list or a map by name")
    columns = {field: _column(sheet, field, names) for field in COLUMNS}
    for path in sheet.below("joints"):
        name, _, field = path.rpartition(".")
        if name and (name not in names or field not in COLUMNS):
            raise BadInput(
                f"joints.{path}: no such field; joints are {', '.join(names)}, fields "
                f"{', '.join(COLUMNS)}"
            )
        if not name and field not in (*COLUMNS, "names", "others"):
            known = ", ".join(("names", "others", *COLUMNS))
            raise BadInput(f"joints.{field}: no such field; known: {known}")
    return [
        {"name": name, **{field: columns[field][i] for field in COLUMNS}}
        for i, name in enumerate(names)
    ]


def _column(sheet: Sheet, field: str, names: list[str]) -> list[Any]:
    """One number per joint, from any way to write them."""
    where = f"joints.{field}"
    value = sheet.get(where)
    if is_dict(value):
        column = [matching(value, name, where) for name in names]
    elif is_list(value) and not (field == "axis" and len(names) != len(value)):
        if len(value) != len(names):
            raise BadInput(f"{where}: has {len(value)} numbers for {len(names)} joints")
        column = list(value)
    else:
        column = [value] * len(names)
    column = [sheet.get(f"joints.{n}.{field}", v) for n, v in zip(names, column, strict=True)]
    if field == "axis":
        return column
    checked = [None if v is None else as_number(v, where) for v in column]
    if field == "motor":
        return [None if v is None else int(v) for v in checked]
    return checked


def _ask_gains(sheet: Sheet, joints: list[dict[str, Any]], action: dict[str, Any]) -> None:
    """A joint that shall follow a target needs gains; a zero is believed only of the user."""
    kinds = {name: term["kind"] for term in action["terms"] for name in term["joints"]}
    for joint in joints:
        kind = kinds.get(joint["name"], "position")
        needed = {"position": ("kp", "kd"), "velocity": ("kd",), "effort": ()}[kind]
        for field in needed:
            said = sheet.origin(f"joints.{field}")
            if joint[field] == 0.0 and (said is None or said[0] != "user"):
                path = f"joints.{joint['name']}.{field}"
                sheet.ask(path, f"{said[1] if said else 'a source'} says 0 for a {kind} target")


def _phase(sheet: Sheet, observation: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The gait clock, asked for where a term needs it."""
    if not any(t["source"] in PHASE_SOURCES for b in observation for t in b["terms"]):
        sheet.state("phase", None, "inferred", "no term uses a gait clock")
        return None
    sheet.ask("phase.period", "length of a gait cycle, [s]", "0.8", "1.0", "0.64")
    sheet.ask("phase.start", "phase at the first observation, [cycles]", "0.0", "control_dt/period")
    sheet.ask("phase.stand", "what the clock does while standing", "run", "zero", "fixed")
    sheet.state("phase.offsets", [0.0], "default", "one clock for all feet")
    sheet.state("phase.stand_channels", None, "default", "all channels")
    sheet.state("phase.stand_norm", "euclidean", "default", "the norm of the command")
    stand = sheet.get("phase.stand")
    if stand in ("zero", "fixed"):
        sheet.ask("phase.stand_threshold", "norm of the command below which it stands", "0.1")
    if stand == "fixed":
        sheet.ask("phase.stand_phase", "phase while standing, [cycles]", "0.0", "0.5")
    sheet.state("phase.stand_threshold", 0.0, "default", "the clock never stands")
    sheet.state("phase.stand_phase", 0.0, "default", "the clock never stands")
    sheet.state("phase.restart", None, "default", "standing does not restart the clock")
    return _record(
        sheet,
        "phase",
        (
            "period",
            "offsets",
            "start",
            "stand",
            "stand_channels",
            "stand_norm",
            "stand_threshold",
            "stand_phase",
            "restart",
        ),
    )


def _imu(sheet: Sheet, model: ModelFacts, observation: list[dict[str, Any]]) -> dict[str, Any]:
    """Where the base is measured: the model's gyro, else its site called imu."""
    terms = [t for b in observation for t in b["terms"]]
    guess = model.gyro_site or next((n for n in ("imu", "imu_in_base") if n in model.sites), "")
    if guess:
        sheet.state("imu.site", guess, "model", f"{model.path.name} gyro")
    elif any(t["sensor"] == "imu" for t in terms):
        sheet.ask("imu.site", "site of the IMU in the model", *list(model.sites)[:4])
    sheet.state("imu.site", "", "default", "the model has no gyro")
    name = sheet.get("imu.site")
    if name and name not in model.sites:
        raise BadInput(f"imu.site: the model has no site '{name}'; it has {list(model.sites)}")
    site = model.sites.get(name)
    if site is not None and site.on_base:
        sheet.state("imu.position", list(site.position), "model", f"{model.path.name} site {name}")
        sheet.state("imu.quat", list(site.quat), "model", f"{model.path.name} site {name}")
    elif site is not None and any(t["sensor"] == "imu" for t in terms):
        raise BadInput(
            f"imu.site: '{name}' is on '{site.body}', which moves against the base "
            f"'{model.base_body}': a term with sensor 'imu' cannot be computed from the base"
        )
    sheet.state("imu.position", [0.0, 0.0, 0.0], "default", "at the base")
    sheet.state("imu.quat", [1.0, 0.0, 0.0, 0.0], "default", "as the base")
    if any(t["source"] == "base_quat" for t in terms):
        sheet.ask("imu.quaternion_order", "order of a quaternion term", "wxyz", "xyzw")
    else:
        sheet.state("imu.quaternion_order", "wxyz", "default", "no term gives a quaternion")
    return _record(sheet, "imu", ("site", "position", "quat", "quaternion_order"))


def _record(sheet: Sheet, section: str, fields: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a section; whatever else is said in it is refused."""
    for field in sheet.below(section):
        if field not in fields:
            raise BadInput(f"{section}.{field}: no such field; known: {', '.join(fields)}")
    return {field: sheet.get(f"{section}.{field}") for field in fields}


def _clips(action: dict[str, Any]) -> bool:
    """Whether the action that takes effect can differ from the network's output."""
    return action["filter"] != 1.0 or any(t["raw_lower"] is not None for t in action["terms"])


def _check_inputs(contract: PolicyContract, graph: Graph, wanted: list[BlockWanted | None]) -> None:
    """Refuse terms that do not make up the graph's inputs, with a table of both."""
    given = taken(contract, wanted)
    for name, dim in graph.inputs.items():
        found = given.get(name)
        if found == dim:
            continue
        if found is None:
            raise BadInput(
                f"{graph.name} has an input '{name}' of {dim} that no observation block feeds; "
                f"blocks feed {', '.join(given)}"
            )
        parts = [
            f"{term.name} {contract.term_dim(term)}"
            + (f" x {block.length_of(term)}" if block.length_of(term) > 1 else "")
            for block in contract.observation
            if block.input == name
            for term in block.terms
        ]
        hint = f": {dim} is {dim // found} x {found}, a history?" if dim % found == 0 else ""
        raise BadInput(
            f"{graph.name}: input '{name}' takes {dim} numbers, the terms give {found} "
            f"({', '.join(parts)}){hint}"
        )
