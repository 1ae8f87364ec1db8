"""Foreign policies for tests: a robot as MJCF, small networks, and runs recorded by slow loops.

A `Vendor` is what another project's runtime does with its own policy: it builds observations from
random states its own way, in plain Python, and writes down what it saw. An import that reproduces
the record has understood the files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from export.importers.pipeline import Imported, Request, import_policy
from tests.helpers.reference import rotation_matrix

Vector = NDArray[Any]

LEGS = ("left_hip", "left_knee", "right_hip", "right_knee")
"""The joints of the test robot, in the order of its file."""

MOTORS = ("right_hip", "right_knee", "left_hip", "left_knee")
"""Its motors: another order, so that a mix-up shows."""

NUMBERED = f"motors=[{', '.join(MOTORS)}]"
"""The same as an answer: no file of a robot that is nobody's tells its motors' numbers."""

VELOCITY = "commands={lin_vel_x: [-1, 1], lin_vel_y: [-1, 1], ang_vel_z: [-1, 1]}"
"""Ranges of a velocity command, as a user states them."""


def robot_xml(
    joints: Sequence[str] = LEGS,
    motors: Sequence[str] | None = MOTORS,
    *,
    name: str = "biped2 scene",
    servo: tuple[float, float, float] | None = None,
    limit: float = 30.0,
    waist: str | None = None,
    extra: str = "",
) -> str:
    """A floating box with one hinge per joint.

    Args:
        joints: Hinges in the order of the file.
        motors: Joints behind the motors, in order; None for a model without actuators.
        name: Name of the model.
        servo: Stiffness, damping and joint damping of position actuators instead of motors.
        limit: Their force limit, [Nm].
        waist: Name of one more hinge that carries a torso; it comes first.
        extra: More elements of ``<mujoco>``.
    """
    damping = f'damping="{servo[2]}"' if servo else ""
    bodies = [
        f'<body name="{joint}_link" pos="0 {0.1 * i} -0.1" quat="0.9 0 {0.1 * i} 0">'
        f'<joint name="{joint}" axis="0 1 0" range="-2 2" {damping}/>'
        '<geom type="capsule" size="0.02" fromto="0 0 0 0 0 -0.1"/></body>'
        for i, joint in enumerate(joints)
    ]
    if waist:
        bodies.insert(
            0,
            '<body name="hips_to_waist" pos="0 0 .1" quat="0.8 0 0.6 0">'
            f'<joint name="{waist}" axis="0 0 1" range="-2 2"/>'
            '<geom type="box" size=".1 .1 .1"/>'
            '<body name="torso" quat="0.6 0.8 0 0"><geom type="box" size=".1 .1 .1"/></body>'
            "</body>",
        )
    every = [*([waist] if waist else []), *(motors or ())]
    kind = (
        f'position kp="{servo[0]}" kv="{servo[1]}" forcerange="-{limit} {limit}"'
        if servo
        else f'motor ctrlrange="-{limit} {limit}"'
    )
    actuators = "".join(f'<{kind} name="{j}_motor" joint="{j}"/>' for j in every)
    return f"""
    <mujoco model="{name}">
      <compiler angle="radian" autolimits="true"/>
      <option timestep="0.002"/>
      <worldbody>
        <body name="base" pos="0 0 1">
          <freejoint/>
          <site name="imu" pos=".01 .02 .03"/>
          <geom type="box" size=".2 .1 .05"/>
          {"".join(bodies)}
        </body>
      </worldbody>
      <actuator>{actuators if motors is not None else ""}</actuator>
      <sensor><gyro name="gyro" site="imu"/></sensor>
      {extra}
    </mujoco>
    """


@dataclass(kw_only=True)
class Network:
    """A random tanh network in NumPy and as ONNX."""

    inputs: dict[str, int]
    actions: int
    seed: int = 0
    output: str = "actions"
    metadata: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        width = sum(self.inputs.values())
        self.matrix = (rng.normal(size=(width, self.actions)) / np.sqrt(width)).astype(np.float32)
        self.bias = (0.3 * rng.normal(size=self.actions)).astype(np.float32)

    def __call__(self, obs: Vector) -> Vector:
        """One observation to an action."""
        return np.tanh(obs.astype(np.float32) @ self.matrix + self.bias)

    def proto(self) -> onnx.ModelProto:
        """The same as ONNX, opset 11 as most foreign files."""
        names = list(self.inputs)
        nodes = [
            helper.make_node("Concat", names, ["x"], axis=1),
            helper.make_node("Gemm", ["x", "w", "b"], ["y"]),
            helper.make_node("Tanh", ["y"], [self.output]),
        ]
        graph = helper.make_graph(
            nodes,
            "policy",
            [tensor(name, [1, dim]) for name, dim in self.inputs.items()],
            [tensor(self.output, [1, self.actions])],
            [numpy_helper.from_array(self.matrix, "w"), numpy_helper.from_array(self.bias, "b")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6)
        for key, value in self.metadata.items():
            entry = model.metadata_props.add()
            entry.key, entry.value = key, value
        return model

    def save(self, path: Path) -> Path:
        """Write the ONNX file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.proto().SerializeToString())
        return path


def tensor(name: str, shape: Sequence[int | str], kind: int = TensorProto.FLOAT) -> Any:
    """The declaration of a tensor."""
    return helper.make_tensor_value_info(name, kind, list(shape))


@dataclass(kw_only=True)
class Step:
    """What a vendor's runtime knows at one call, in the order of the model's joints.

    Attributes:
        k: Number of the call, from 0.
        quat: w, x, y, z.
        gyro: Base angular velocity, body frame.
        gravity: R^T (0, 0, -1).
        speed: Base velocity, body frame.
        cmd: vx, vy, yaw rate.
        q: Joint positions by name.
        dq: Joint velocities by name.
        last: Raw action of the call before.
    """

    k: int
    quat: Vector
    gyro: Vector
    gravity: Vector
    speed: Vector
    cmd: Vector
    q: dict[str, float]
    dq: dict[str, float]
    last: Vector

    def pos(self, names: Sequence[str]) -> Vector:
        """Positions of joints in the given order."""
        return np.array([self.q[name] for name in names])

    def vel(self, names: Sequence[str]) -> Vector:
        """Velocities of joints in the given order."""
        return np.array([self.dq[name] for name in names])


Observe = Callable[[Step], Vector]
"""One call of a vendor's observation code; it may remember what it likes."""


def record(
    path: Path,
    observe: Observe,
    act: Callable[[Vector], Vector],
    target: Callable[[Vector], Vector],
    *,
    actions: int,
    order: Sequence[str],
    joints: Sequence[str] = LEGS,
    rows: int = 12,
    seed: int = 0,
    commands: Vector | None = None,
    small: bool = True,
    **extra: Any,
) -> Path:
    """Record a vendor's runtime over random states.

    Args:
        path: The ``.npz`` to write.
        observe: Its observation code.
        act: Its network.
        target: Raw action to position targets in the order of ``order``.
        actions: Length of an action.
        order: Names of the columns of targets.
        joints: Hinges of the model in the order of ``qpos``.
        rows: Number of calls.
        seed: Seed of the states.
        commands: Commands to use, shape ``(rows, n)``; None for random ones within +-0.5.
        small: Whether joints stay within a radian.
        extra: More arrays of the record.
    """
    rng = np.random.default_rng(seed)
    quat = rng.normal(size=(rows, 4))
    quat = (quat / np.linalg.norm(quat, axis=1, keepdims=True)).astype(np.float32)
    count = len(joints)
    pose = rng.uniform(-1.0, 1.0, size=(rows, count)).astype(np.float32)
    qpos = np.concatenate([np.zeros((rows, 3), np.float32), quat, pose], axis=1)
    qvel = rng.normal(size=(rows, 6 + count)).astype(np.float32)
    cmd = rng.uniform(-0.5, 0.5, size=(rows, 3)) if commands is None else commands
    cmd = cmd.astype(np.float32).astype(np.float64)
    last = np.zeros(actions)
    seen, acted, targets = [], [], []
    for k in range(rows):
        matrix = rotation_matrix(qpos[k, 3:7].astype(np.float64))
        step = Step(
            k=k,
            quat=qpos[k, 3:7].astype(np.float64),
            gyro=qvel[k, 3:6].astype(np.float64),
            gravity=matrix.T @ np.array([0.0, 0.0, -1.0]),
            speed=matrix.T @ qvel[k, :3].astype(np.float64),
            cmd=cmd[k],
            q=dict(zip(joints, qpos[k, 7:].astype(float), strict=True)),
            dq=dict(zip(joints, qvel[k, 6:].astype(float), strict=True)),
            last=last,
        )
        obs = np.asarray(observe(step), np.float32)
        action = np.asarray(act(obs), np.float64)
        seen.append(obs)
        acted.append(action)
        targets.append(np.asarray(target(action)))
        last = action
    arrays: dict[str, Any] = {
        "obs": np.array(seen, np.float32),
        "act": np.array(acted, np.float32),
        "qpos": qpos,
        "qvel": qvel,
        "cmd": cmd,
        "target": np.array(targets, np.float32),
        "joints": np.array(list(order)),
        "all_joints": np.array(list(joints)),
    }
    np.savez(path, **{**arrays, **extra})
    return path


@dataclass(kw_only=True)
class Case:
    """A folder with a foreign policy, ready to be imported."""

    format: str
    folder: Path
    files: list[Path] = field(default_factory=list)
    model: str = ""
    settings: list[str] = field(default_factory=list)
    golden: Path | None = None

    def write(self, name: str, content: str | bytes) -> Path:
        """Write one of its files."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        if path not in self.files and path.suffix != ".xml":
            self.files.append(path)
        return path

    def robot(self, xml: str | None = None) -> None:
        """Write its robot model."""
        self.model = str(self.write("scene.xml", xml if xml is not None else robot_xml()))

    def request(self, **changes: Any) -> Request:
        """What is asked of its import."""
        fields: dict[str, Any] = {
            "format": self.format,
            "files": tuple(self.files),
            "model": self.model,
            "output": self.folder / "out.onnx",
            "settings": tuple(self.settings),
            "golden": self.golden,
            "run_torchscript": True,
        }
        return Request(**{**fields, **changes})

    def run(self, **changes: Any) -> Imported:
        """Import it."""
        return import_policy(self.request(**changes))

    def argv(self, *more: str) -> list[str]:
        """The same on the command line, without what `more` gives."""
        settings = [part for setting in self.settings for part in ("--set", setting)]
        golden = ["--golden", str(self.golden)] if self.golden else []
        files = [str(path) for path in self.files]
        output = ["--model", self.model, "-o", str(self.folder / "out.onnx")]
        return ["import", self.format, *files, *output, *settings, *golden, *more]


def nested_xml(motors: Sequence[str]) -> str:
    """The joints of `LEGS` with knees on thighs, behind motors in any order."""
    legs = "".join(
        f'<body name="{side}_thigh"><joint name="{side}_hip"/><geom size=".1"/>'
        f'<body name="{side}_shank"><joint name="{side}_knee"/><geom size=".1"/></body></body>'
        for side in ("left", "right")
    )
    actuators = "".join(f'<motor joint="{name}"/>' for name in motors)
    base = f'<body name="base"><freejoint/><geom size=".1"/>{legs}</body>'
    return f"""
    <mujoco model="biped2 nested"><worldbody>{base}</worldbody>
    <actuator>{actuators}</actuator></mujoco>"""


def run_onnx(path: Path, feeds: dict[str, Vector]) -> list[Vector]:
    """All outputs of an ONNX file for given inputs."""
    session = ort.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))
