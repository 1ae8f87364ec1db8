"""LEAPP: a pipeline YAML and the ONNX model of its node.

Observation processing, scales, histories and gains are inside the graph; the YAML says what each
tensor is. So the contract's terms are the raw measurements, its action is the joint target itself,
and what the graph hands back to itself (last action, history, hidden state) is recurrent state.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from export.importers.foreign import Foreign
from export.importers.graph import Graph, OnnxReference, make_graph, original_of, read_onnx
from export.importers.reading import (
    Table,
    is_dict,
    is_list,
    one_line,
    parse_json,
    read_bytes,
    shorten,
    show,
)
from export.importers.sheet import Sheet
from export.importers.shorthand import term
from robot_runtime.errors import BadInput, Refused
from robot_runtime.policy.spec import RecurrentState

_TEMPORAL = "__temporal_axis__"
_TARGETS = {
    "target/joint/position": "position",
    "target/joint/velocity": "velocity",
    "target/joint/effort": "effort",
    "target/joint/torques": "effort",
}
_STATES = {
    "state/joint/position": "joint_pos",
    "state/joint/velocity": "joint_vel",
    "state/body/angular_velocity": "base_ang_vel",
    "state/body/linear_velocity": "base_lin_vel",
    "state/body/rotation": "base_quat",
    "command/body/velocity": "command",
}
_CHANNELS = {
    "lin_vel_x": ("lin_vel_x", "lin_x", "linear_x"),
    "lin_vel_y": ("lin_vel_y", "lin_y", "linear_y"),
    "ang_vel_z": ("ang_vel_z", "ang_z", "angular_z"),
}
_ACTION = "joint_targets"


def read(foreign: Foreign, sheet: Sheet) -> Graph:
    """State what the pipeline says; see the head of this module.

    Raises:
        BadInput: Not such a pipeline, or a tensor of a kind that a robot does not have.
        Refused: The model is not the one that the pipeline was written with.
    """
    table = foreign.the_table("pipeline", "pipeline")
    path = next(p for p, found in foreign.tables().items() if found.name == table.name)
    node, entry = _node(table)
    pipeline = table.table("pipeline")
    file = _model_path(foreign, entry, path)
    model, original = read_onnx(file), original_of(file)
    states = _states(pipeline, node, model, path)
    inputs = _descriptions(entry, "inputs")
    outputs = _descriptions(entry, "outputs")
    _state_timing(sheet, pipeline)
    carried = {state.input for state in states}
    targets = {n: t for n, t in outputs.items() if str(t.data.get("kind")) in _TARGETS}
    if not targets:
        kinds = [str(t.data.get("kind")) for t in outputs.values()]
        raise BadInput(f"{entry.name}: no joint target among the outputs' kinds {shorten(kinds)}")
    for target in targets.values():
        axes = target.data.get("element_names")
        if is_list(axes) and _TEMPORAL in axes:
            raise BadInput(
                f"{target.name}: gives the targets of several steps at once: only one per step can "
                "be imported"
            )
    joints = _joints(sheet, inputs, targets, foreign)
    _state_gains(sheet, model, outputs, joints)
    _state_action(sheet, targets)
    blocks = [
        _block(sheet, name, inputs[name])
        for name in (tensor.name for tensor in model.graph.input)
        if name in inputs and name not in carried
    ]
    sheet.state("observation", blocks, "file", f"{table.name} kinds of the inputs")
    model = _one_output(model, list(targets), states)
    graph = make_graph(model, path.name, {})
    return Graph(
        model=graph.model,
        name=graph.name,
        inputs={n: d for n, d in _lengths(model).items() if n not in carried},
        outputs={_ACTION: sum(_size(t) for t in targets.values())},
        states=states,
        normalized=graph.normalized,
        metadata={},
        reference=lambda _: OnnxReference(original, list(targets), states),
    )


def _node(table: Table) -> tuple[str, Table]:
    models = table.table("models")
    if len(models.data) != 1:
        raise BadInput(
            f"{models.name}: {len(models.data)} nodes ({shorten(list(models))}): only pipelines of "
            "one node can be imported; of networks that run one after the other make one first, "
            "onnx.compose.merge_models joins two"
        )
    (node,) = models
    return node, models.table(node)


def _model_path(foreign: Foreign, entry: Table, pipeline: Path) -> Path:
    parameters = entry.table("parameters")
    backend = parameters.text("backend")
    if backend != "onnx":
        raise BadInput(
            f"{parameters.where('backend')}: '{backend}': only ONNX nodes can be imported; export "
            "the pipeline with the onnx backend"
        )
    path = foreign.network(parameters.text("model_path"), pipeline)
    if "sha256sum" in parameters:
        digest = hashlib.sha256(read_bytes(path)).hexdigest()
        if digest != parameters.text("sha256sum"):
            raise Refused(f"'{path}' is not the model that {pipeline.name} was written for")
    return path


def _descriptions(entry: Table, key: str) -> dict[str, Table]:
    """Tensor descriptions by name."""
    items = entry.get(key)
    if not is_list(items) or not all(is_dict(item) for item in items):
        raise BadInput(f"{entry.where(key)}: expected tensor descriptions, found {show(items)}")
    tables = [Table(f"{entry.where(key)}[{i}]", item) for i, item in enumerate(items)]
    return {table.text("name"): table for table in tables}


def _states(
    pipeline: Table, node: str, model: onnx.ModelProto, path: Path
) -> tuple[RecurrentState, ...]:
    """Feedback edges from the node to itself, all of them zero at first."""
    flow: Any = pipeline.data.get("feedback_flow") or {}
    if not is_dict(flow):
        raise BadInput(f"{pipeline.where('feedback_flow')}: expected edges, found {show(flow)}")
    lengths = {
        t.name: tuple(d.dim_value or 1 for d in t.type.tensor_type.shape.dim)
        for t in model.graph.input
    }
    found: list[RecurrentState] = []
    for source, targets in flow.items():
        for target in targets if is_list(targets) else [targets]:
            output, name = str(source).rpartition("/")[2], str(target).rpartition("/")[2]
            if name not in lengths:
                raise BadInput(f"{pipeline.name}: no input '{name}' of a feedback edge")
            found.append(RecurrentState(input=name, output=output, shape=lengths[name]))
    initial = pipeline.data.get("initial_values")
    if initial is not None:
        _check_zero(path.parent / Path(str(initial)).name, node)
    return tuple(found)


def _check_zero(path: Path, node: str) -> None:
    """Read a safetensors file: length of its header, the header as JSON, then plain numbers."""
    data = read_bytes(path)
    try:
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        entries = {k: v["data_offsets"] for k, v in header.items() if k != "__metadata__"}
        parts = {k: data[8 + length + a : 8 + length + b] for k, (a, b) in entries.items()}
    except (ValueError, KeyError, TypeError, struct.error, RecursionError) as error:
        raise BadInput(f"'{path}' is not a safetensors file: {one_line(error)}") from None
    started = [name for name, part in parts.items() if part.strip(b"\0")]
    if started:
        raise Refused(
            f"'{path.name}': state '{started[0]}' of node '{node}' does not begin at zero, as a "
            "state of a policy file does"
        )


def _state_timing(sheet: Sheet, pipeline: Table) -> None:
    configs = pipeline.table("configs") if "configs" in pipeline else Table("configs", {})
    if "frequency" in configs:
        rate = configs.number("frequency")
        if rate <= 0.0:
            raise BadInput(f"{configs.where('frequency')}: {rate} is not positive")
        sheet.state("timing.control_dt", 1.0 / rate, "file", configs.where("frequency"))


def _elements(table: Table) -> list[str]:
    """Names of a tensor's elements: those of its last named axis."""
    value = table.data.get("element_names")
    axes = value if is_list(value) else []
    named = [axis for axis in axes if is_list(axis)]
    if not named and axes and all(isinstance(item, str) for item in axes):
        named = [axes]
    if not named or not all(isinstance(item, str) for item in named[-1]):
        raise BadInput(f"{table.where('element_names')}: expected names, found {show(value)}")
    return list(named[-1])


def _joints(
    sheet: Sheet, inputs: dict[str, Table], targets: dict[str, Table], foreign: Foreign
) -> list[str]:
    """Joints in the order of the targets, then those that are only measured."""
    names: dict[str, None] = {}
    for table in targets.values():
        names.update(dict.fromkeys(_elements(table)))
    for table in inputs.values():
        if str(table.data.get("kind")).startswith("state/joint/"):
            names.update(dict.fromkeys(_elements(table)))
    sheet.state("joints.names", list(names), "file", "element_names of joint tensors")
    for name in names:
        foreign.model.joint(name)
    keyframes = tuple(f"(or keyframe: {name})" for name in foreign.model.keyframes)[:2]
    sheet.ask("joints.default_pos", "pose to stand in, [rad]; it is inside the graph", *keyframes)
    return list(names)


def _state_gains(
    sheet: Sheet, model: onnx.ModelProto, outputs: dict[str, Table], joints: list[str]
) -> None:
    """Gains that the graph gives as constants."""
    for kind in ("kp", "kd"):
        tables = {n: t for n, t in outputs.items() if t.data.get("kind") == kind}
        if not tables:
            continue
        gains: dict[str, float] = {}
        for name, table in tables.items():
            values = _constant(model, name)
            elements = _elements(table)
            if len(values) != len(elements):
                raise BadInput(f"{table.name}: {len(values)} gains for {len(elements)} joints")
            gains.update(zip(elements, values, strict=True))
        missing = [joint for joint in joints if joint not in gains]
        if not missing:
            where = f"output '{next(iter(tables))}' of the graph"
            sheet.state(f"joints.{kind}", [gains[joint] for joint in joints], "file", where)


def _constant(model: onnx.ModelProto, output: str) -> list[float]:
    """The value of an output that does not depend on any input."""
    tainted = {tensor.name for tensor in model.graph.input}
    for node in model.graph.node:
        if tainted & set(node.input):
            tainted |= set(node.output)
    if output in tainted:
        raise BadInput(f"output '{output}' changes with the observation: gains must be constant")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        feed = {
            arg.name: np.zeros([s if isinstance(s, int) else 1 for s in arg.shape], np.float32)
            for arg in session.get_inputs()
        }
        (value,) = session.run([output], feed)
    except Exception as error:
        raise BadInput(f"the graph does not give '{output}': {one_line(error)}") from None
    return [float(v) for v in np.ravel(value)]


def _state_action(sheet: Sheet, targets: dict[str, Table]) -> None:
    terms = [
        {
            "name": name,
            "kind": _TARGETS[str(table.data["kind"])],
            "joints": _elements(table),
            "scale": 1.0,
            "offset": 0.0,
        }
        for name, table in targets.items()
    ]
    sheet.state("action.terms", terms, "file", "kinds of the outputs; the graph gives targets")


def _block(sheet: Sheet, name: str, table: Table) -> dict[str, Any]:
    kind, connection = table.data.get("kind"), str(table.data.get("isaaclab_connection", ""))
    source = _STATES.get(str(kind))
    if kind == "state/vector3d" and connection.endswith("projected_gravity_b"):
        source = "projected_gravity"
    if source is None:
        sheet.ask(f"observation.{name}.source", f"what tensor '{name}' of kind {kind} is")
        source = sheet.get(f"observation.{name}.source", "constant")
    found = term(name, source)
    if source in ("joint_pos", "joint_pos_rel", "joint_vel"):
        found["joints"] = _elements(table)
    if source == "command":
        found["channels"] = [_channel(element, table) for element in _elements(table)]
    if source == "base_quat":
        _state_quat(sheet, table)
    if source in ("base_ang_vel", "base_lin_vel"):
        _state_frame(sheet, name, connection)
    block: dict[str, Any] = {"input": name, "terms": [found]}
    axes = table.data.get("element_names")
    if is_list(axes) and _TEMPORAL in axes:
        block["history"] = _history(sheet, table)
    return block


def _channel(element: str, table: Table) -> str:
    for channel, words in _CHANNELS.items():
        if element in words:
            return channel
    raise BadInput(f"{table.where('element_names')}: '{element}' is no command of a walking robot")


def _state_quat(sheet: Sheet, table: Table) -> None:
    elements = [element.removeprefix("q") for element in _elements(table)]
    orders = {"wxyz": ["w", "x", "y", "z"], "xyzw": ["x", "y", "z", "w"]}
    order = next((name for name, letters in orders.items() if letters == elements), None)
    if order is None:
        raise BadInput(f"{table.where('element_names')}: no quaternion in {elements}")
    sheet.state("imu.quaternion_order", order, "file", table.where("element_names"))


def _state_frame(sheet: Sheet, name: str, connection: str) -> None:
    path = f"observation.{name}.frame"
    if connection.endswith("_b"):
        sheet.state(path, "body", "file", connection)
    elif connection.endswith("_w"):
        sheet.state(path, "world", "file", connection)
    else:
        sheet.ask(path, f"frame of '{name}'", "body", "world")


def _history(sheet: Sheet, table: Table) -> dict[str, Any]:
    shape = table.get("shape")
    if isinstance(shape, str):
        shape = parse_json(shape[:100], table.where("shape"))
    axes = table.get("element_names")
    place = axes.index(_TEMPORAL)
    if not is_list(shape) or place >= len(shape) or type(shape[place]) is not int:
        raise BadInput(f"{table.where('shape')}: expected sizes, found {show(shape)}")
    stride = 1
    control_dt = sheet.get("timing.control_dt")
    if "temporal_period_ms" in table and isinstance(control_dt, float):
        stride = max(1, round(table.number("temporal_period_ms") / 1e3 / control_dt))
    return {"length": shape[place], "layout": "frame_major", "stride": stride}


def _size(table: Table) -> int:
    return len(_elements(table))


def _lengths(model: onnx.ModelProto) -> dict[str, int]:
    weights = {tensor.name for tensor in model.graph.initializer}
    return {
        t.name: math.prod(d.dim_value or 1 for d in t.type.tensor_type.shape.dim)
        for t in model.graph.input
        if t.name not in weights
    }


def _one_output(
    model: onnx.ModelProto, targets: list[str], states: tuple[RecurrentState, ...]
) -> onnx.ModelProto:
    """All targets side by side in one tensor; other outputs are left out."""
    flat: list[str] = []
    for i, name in enumerate(targets):
        shape = helper.make_tensor(f"{_ACTION}_shape_{i}", onnx.TensorProto.INT64, [2], [1, -1])
        model.graph.initializer.append(shape)
        node = helper.make_node("Reshape", [name, shape.name], [f"{_ACTION}_{i}"])
        model.graph.node.append(node)
        flat.append(node.output[0])
    model.graph.node.append(helper.make_node("Concat", flat, [_ACTION], axis=1))
    kept = {state.output for state in states}
    outputs = [tensor for tensor in model.graph.output if tensor.name in kept]
    sizes = {
        t.name: [d.dim_value or 1 for d in t.type.tensor_type.shape.dim] for t in model.graph.output
    }
    total = sum(math.prod(sizes[name]) for name in targets if name in sizes)
    del model.graph.output[:]
    model.graph.output.append(
        helper.make_tensor_value_info(_ACTION, onnx.TensorProto.FLOAT, [1, total])
    )
    model.graph.output.extend(outputs)
    return model
