"""A motion-tracking network run as its own runtime runs it, with the motion terms in NumPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from export.importers.model import ModelBody
from export.importers.motion_graph import MotionLayout
from export.importers.reading import one_line
from robot_runtime.errors import BadInput


class MotionReference:
    """The foreign graph run as its own runtime runs it, with the terms computed in NumPy."""

    def __init__(self, model: bytes | str, obs: str, output: str, layout: MotionLayout) -> None:
        """Load the foreign graph."""
        options = ort.SessionOptions()
        options.log_severity_level = 4
        try:
            self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise BadInput(f"onnxruntime cannot load the graph: {one_line(error)}") from None
        self._obs, self._output, self._layout = obs, output, layout
        width = next(a.shape[-1] for a in self._session.get_inputs() if a.name == obs)
        self._width = width if isinstance(width, int) else 1
        self.reset()

    def reset(self) -> None:
        """Back to the first frame, without a heading."""
        self._step = 0
        self._turn: NDArray[np.float64] | None = None

    def step(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Run one step on measurements, shape ``(measured,)``."""
        layout = self._layout
        frame = layout.start + max(0, self._step - layout.delay)
        time = np.array([[frame]], np.float32)
        # The motion of a frame does not depend on the observation: any will do to ask for it.
        wanted = [layout.joint_pos, layout.joint_vel, layout.body_quat]
        blank = np.zeros((1, self._width), np.float32)
        pos, vel, quats = self._session.run(wanted, {self._obs: blank, "time_step": time})
        quat = np.reshape(quats, (-1, 4))[layout.anchor].astype(np.float64)
        motion = _matrix(np.roll(quat, 1) if layout.quat_last else quat)
        robot = anchor_rotation(layout.chain, layout.hinges, obs.astype(np.float64))
        if self._turn is None:
            self._turn = _turn(robot, motion) if layout.align else np.eye(3)
        relative: NDArray[np.float64] = np.transpose(robot) @ self._turn @ motion
        rest = obs[4 + len(layout.hinges) :]
        parts: list[NDArray[Any]] = []
        start = 0
        for part in layout.parts:
            if part == "command":
                parts.append(np.concatenate([np.ravel(pos), np.ravel(vel)]))
            elif part == "anchor_ori":
                parts.append(np.ravel(relative[:, :2]))
            else:
                parts.append(rest[start : start + int(part)])
                start += int(part)
        whole = np.concatenate(parts).astype(np.float32)[None]
        self._step += 1
        (action,) = self._session.run([self._output], {self._obs: whole, "time_step": time})
        return np.ravel(np.asarray(action, np.float32))


def anchor_rotation(
    chain: Sequence[ModelBody], hinges: Sequence[str], obs: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Rotation matrix of a body in the world, from the base's attitude and the joints between.

    Args:
        chain: The bodies from below the base to that body.
        hinges: Joints between them.
        obs: Quaternion of the base w, x, y, z and the joints' angles, [rad], and whatever follows.
    """
    turn = _matrix(obs[:4])
    angles = dict(zip(hinges, obs[4:], strict=False))
    for body in chain:
        turn = turn @ _matrix(np.array(body.quat))
        for name, axis, zero in body.hinges:
            turn = turn @ _about(np.array(axis), angles[name] - zero)
    return turn


def _matrix(quat: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotation matrix of a quaternion w, x, y, z, as in any textbook."""
    w, x, y, z = quat / np.linalg.norm(quat)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def _about(axis: NDArray[np.float64], angle: float) -> NDArray[np.float64]:
    return _matrix(np.array([math.cos(angle / 2), *(math.sin(angle / 2) * axis)]))


def _turn(robot: NDArray[np.float64], motion: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotation about the vertical from the motion's x axis to the robot's."""
    angle = math.atan2(robot[1, 0], robot[0, 0]) - math.atan2(motion[1, 0], motion[0, 0])
    return _about(np.array([0.0, 0.0, 1.0]), angle)
