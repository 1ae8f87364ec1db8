"""A motion-tracking network that computes its own motion terms.

Such files hold the motion inside the graph: a ``time_step`` goes in, the reference joints and body
poses come out, and the runtime turns them into observations for the next call. Here that turning
becomes part of the graph. What goes in is only what a robot measures, and two states are handed
through: the frame of the motion, and the turn about the vertical that lays the motion's heading
onto the robot's at the first step.

The anchor's orientation follows from the base's by the joints between them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from export.importers.graph import graph_inputs
from export.importers.model import ModelBody
from robot_runtime.errors import BadInput
from robot_runtime.policy.spec import RecurrentState

STATES = (
    RecurrentState(input="motion_frame_in", output="motion_frame_out", shape=(1, 1)),
    RecurrentState(input="motion_heading_in", output="motion_heading_out", shape=(1, 3)),
)
"""Frame of the motion; and whether its heading is laid, with cosine and sine of the turn."""

OBSERVATION = "observation_of_the_network"
"""Output with the observation that the foreign network itself takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MotionLayout:
    """How the foreign observation is made from measurements and the motion.

    Attributes:
        parts: Foreign terms in order: ``command``, ``anchor_ori``, or a length of measurements.
        hinges: Joints between base and anchor, in the order in which their angles come in.
        chain: The bodies from below the base to the anchor.
        anchor: Index of the anchor among the motion's bodies.
        quat_last: Whether the motion's quaternions are x, y, z, w.
        align: Whether the motion's heading is laid onto the robot's at the first step.
        start: First frame of the motion.
        delay: Steps by which the motion that is observed is behind the step, 0 or 1.
        joint_pos: Output with the motion's joint positions.
        joint_vel: Output with the motion's joint velocities.
        body_quat: Output with the motion's body orientations.
    """

    parts: tuple[str | int, ...]
    hinges: tuple[str, ...]
    chain: tuple[ModelBody, ...]
    anchor: int
    quat_last: bool
    align: bool
    start: int
    delay: int
    joint_pos: str
    joint_vel: str
    body_quat: str

    @property
    def measured(self) -> int:
        """Length of what goes in: the base's quaternion, the hinges, the plain terms."""
        return 4 + len(self.hinges) + sum(p for p in self.parts if isinstance(p, int))


def compose(model: onnx.ModelProto, obs: str, layout: MotionLayout) -> onnx.ModelProto:
    """Give a motion-tracking graph the measurements as its input.

    Args:
        model: The foreign graph with the inputs ``obs`` and ``time_step``.
        obs: Name of its observation input.
        layout: How that observation is made.

    Returns:
        A graph with the input ``obs``, the states `STATES`, the foreign outputs, and `OBSERVATION`.

    Raises:
        BadInput: The motion depends on the observation, or a name is taken.
    """
    before, after = _split(model, obs, layout)
    nodes = _Nodes()
    behind = nodes.add("Sub", STATES[0].input, nodes.constant([[float(layout.delay)]]))
    passed = nodes.add("Relu", behind)
    frame = nodes.add("Add", passed, nodes.constant([[float(layout.start)]]))
    _rename(model, {"time_step": frame, obs: OBSERVATION})
    _observe(nodes, layout)
    nodes.add("Add", STATES[0].input, nodes.constant([[1.0]]), output=STATES[0].output)
    names = {name for node in model.graph.node for name in node.output}
    if names & {"obs", OBSERVATION, *nodes.names}:
        raise BadInput("the graph uses names that the motion terms need")
    early = {behind, passed, frame}
    first = [node for node in nodes.nodes if node.output[0] in early]
    rest = [node for node in nodes.nodes if node.output[0] not in early]
    del model.graph.node[:]
    model.graph.node.extend([*first, *before, *rest, *after])
    model.graph.initializer.extend(nodes.constants)
    weights = {tensor.name for tensor in model.graph.initializer}
    kept = [tensor for tensor in model.graph.input if tensor.name in weights]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.input.append(_float("obs", [1, layout.measured]))
    length = sum(_length(part, model, layout) for part in layout.parts)
    model.graph.output.append(_float(OBSERVATION, [1, length]))
    for state in STATES:
        model.graph.input.append(_float(state.input, list(state.shape)))
        model.graph.output.append(_float(state.output, list(state.shape)))
    return model


class _Nodes:
    """Nodes and constants of a graph in the making, in operators that every opset has."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.names: set[str] = set()

    def add(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        name = output or f"motion_{len(self.nodes)}_{kind.lower()}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        self.names.add(name)
        return name

    def constant(self, values: Any, kind: Any = np.float32) -> str:
        name = f"motion_constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, kind), name))
        self.names.add(name)
        return name

    def columns(self, value: str, start: int, stop: int) -> str:
        return self.add("Gather", value, self.constant(range(start, stop), np.int64), axis=1)

    def shaped(self, value: str, *shape: int) -> str:
        return self.add("Reshape", value, self.constant(shape, np.int64))

    def product(self, left: str, right: str) -> str:
        return self.add("MatMul", left, right)


def _observe(nodes: _Nodes, layout: MotionLayout) -> None:
    """Build the foreign observation from measurements, motion and states."""
    robot = _rotation(nodes, _anchor_quat(nodes, layout))
    quats = nodes.shaped(layout.body_quat, 1, -1, 4)
    picked = nodes.add("Gather", quats, nodes.constant([layout.anchor], np.int64), axis=1)
    quat = nodes.shaped(picked, 1, 4)
    if layout.quat_last:
        quat = nodes.add("Gather", quat, nodes.constant([3, 0, 1, 2], np.int64), axis=1)
    motion = _rotation(nodes, quat)
    turned = nodes.product(_heading(nodes, robot, motion, layout), nodes.shaped(motion, 3, 3))
    back = nodes.add("Transpose", nodes.shaped(robot, 3, 3), perm=[1, 0])
    relative = nodes.shaped(nodes.product(back, turned), 1, 9)
    two = nodes.add("Gather", relative, nodes.constant([0, 1, 3, 4, 6, 7], np.int64), axis=1)
    parts: list[str] = []
    start = 4 + len(layout.hinges)
    for part in layout.parts:
        if part == "command":
            parts += [nodes.shaped(layout.joint_pos, 1, -1), nodes.shaped(layout.joint_vel, 1, -1)]
        elif part == "anchor_ori":
            parts.append(two)
        else:
            parts.append(nodes.columns("obs", start, start + int(part)))
            start += int(part)
    nodes.add("Concat", *parts, output=OBSERVATION, axis=1)


def _anchor_quat(nodes: _Nodes, layout: MotionLayout) -> str:
    """The anchor's quaternion: the base's, times fixed turns and hinges."""
    quat = nodes.columns("obs", 0, 4)
    for body in layout.chain:
        quat = nodes.product(quat, nodes.constant(_right(np.array(body.quat))))
        for name, axis, zero in body.hinges:
            i = 4 + layout.hinges.index(name)
            half = nodes.add("Sub", nodes.columns("obs", i, i + 1), nodes.constant([[zero]]))
            half = nodes.add("Mul", half, nodes.constant([[0.5]]))
            spun = nodes.product(quat, nodes.constant(_right(np.array([0.0, *axis]))))
            kept = nodes.add("Mul", quat, nodes.add("Cos", half))
            quat = nodes.add("Add", kept, nodes.add("Mul", spun, nodes.add("Sin", half)))
    return quat


def _rotation(nodes: _Nodes, quat: str) -> str:
    """Rotation matrix of a quaternion of any length but zero, row by row, shape ``(1, 9)``."""
    outer = nodes.product(nodes.shaped(quat, 4, 1), nodes.shaped(quat, 1, 4))
    flat = nodes.shaped(outer, 1, 16)
    square = np.zeros((16, 1), np.float32)
    square[::5] = 1.0
    length = nodes.product(flat, nodes.constant(square))
    return nodes.add("Div", nodes.product(flat, nodes.constant(_QUADRATIC)), length)


def _heading(nodes: _Nodes, robot: str, motion: str, layout: MotionLayout) -> str:
    """The turn that lays the motion's heading on the robot's, kept from the first step on."""
    if not layout.align:
        nodes.add("Identity", STATES[1].input, output=STATES[1].output)
        return nodes.constant(np.eye(3))
    r, m = nodes.columns(robot, 0, 1), nodes.columns(motion, 0, 1)
    s, n = nodes.columns(robot, 3, 4), nodes.columns(motion, 3, 4)
    cosine = nodes.add("Add", nodes.add("Mul", r, m), nodes.add("Mul", s, n))
    sine = nodes.add("Sub", nodes.add("Mul", s, m), nodes.add("Mul", r, n))
    both = nodes.add("Add", nodes.add("Mul", cosine, cosine), nodes.add("Mul", sine, sine))
    length = nodes.add("Sqrt", both)
    fresh = nodes.add(
        "Concat",
        nodes.constant([[1.0]]),
        nodes.add("Div", cosine, length),
        nodes.add("Div", sine, length),
        axis=1,
    )
    laid = nodes.add("Greater", nodes.columns(STATES[1].input, 0, 1), nodes.constant([[0.5]]))
    kept = nodes.add("Where", laid, STATES[1].input, fresh, output=STATES[1].output)
    turn = np.zeros((3, 9), np.float32)
    turn[0, 8] = turn[1, 0] = turn[1, 4] = turn[2, 3] = 1.0
    turn[2, 1] = -1.0
    return nodes.shaped(nodes.product(kept, nodes.constant(turn)), 3, 3)


def _split(
    model: onnx.ModelProto, obs: str, layout: MotionLayout
) -> tuple[list[onnx.NodeProto], list[onnx.NodeProto]]:
    """Nodes that do not need the observation, and those that do."""
    tainted = {obs}
    before: list[onnx.NodeProto] = []
    after: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if tainted & set(node.input):
            tainted |= set(node.output)
            after.append(node)
        else:
            before.append(node)
    for name in (layout.joint_pos, layout.joint_vel, layout.body_quat):
        if name in tainted:
            raise BadInput(f"output '{name}' of the graph depends on the observation: no motion")
    return before, after


def _rename(model: onnx.ModelProto, names: dict[str, str]) -> None:
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            if name in names:
                node.input[i] = names[name]


def _length(part: str | int, model: onnx.ModelProto, layout: MotionLayout) -> int:
    if part == "anchor_ori":
        return 6
    if part != "command":
        return int(part)
    shapes = {
        out.name: [d.dim_value for d in out.type.tensor_type.shape.dim]
        for out in model.graph.output
    }
    return sum(math.prod(shapes[name]) for name in (layout.joint_pos, layout.joint_vel))


def _float(name: str, shape: list[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)


def observation_input(model: onnx.ModelProto, name: str) -> tuple[str, int]:
    """Name and length of the input beside ``time_step``.

    Raises:
        BadInput: There is not exactly one.
    """
    others = [tensor for tensor in graph_inputs(model) if tensor.name != "time_step"]
    if len(others) != 1:
        found = ", ".join(tensor.name for tensor in graph_inputs(model))
        raise BadInput(f"{name}: expected one observation beside 'time_step', found {found}")
    sizes = [d.dim_value or 1 for d in others[0].type.tensor_type.shape.dim]
    return others[0].name, math.prod(sizes)


def _right(quat: NDArray[np.float64]) -> NDArray[np.float64]:
    """The matrix that multiplies a row quaternion by this one from the right."""
    w, x, y, z = quat
    return np.array([[w, x, y, z], [-x, w, -z, y], [-y, z, w, -x], [-z, -y, x, w]])


def _quadratic() -> NDArray[np.float32]:
    """Coefficients of a rotation matrix in the products of a quaternion's elements."""
    rows = {
        0: {(0, 0): 1, (1, 1): 1, (2, 2): -1, (3, 3): -1},
        1: {(1, 2): 2, (0, 3): -2},
        2: {(1, 3): 2, (0, 2): 2},
        3: {(1, 2): 2, (0, 3): 2},
        4: {(0, 0): 1, (1, 1): -1, (2, 2): 1, (3, 3): -1},
        5: {(2, 3): 2, (0, 1): -2},
        6: {(1, 3): 2, (0, 2): -2},
        7: {(2, 3): 2, (0, 1): 2},
        8: {(0, 0): 1, (1, 1): -1, (2, 2): -1, (3, 3): 1},
    }
    table = np.zeros((16, 9), np.float32)
    for column, products in rows.items():
        for (i, j), factor in products.items():
            table[4 * i + j, column] = factor
    return table


_QUADRATIC = _quadratic()
