"""The golden trace: a recorded run that proves a policy is still the same policy.

`proof.py` records and replays it.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from robot_runtime.errors import BadInput
from robot_runtime.policy.state import RobotState

TRACE_VERSION = 1
MAX_ROWS = 20_000
"""Longest trace, [policy steps]: every loading robot replays all of it."""

_MAX_BYTES = 256 * 2**20
_FLOAT32 = np.dtype(np.float32)


OUTPUTS = (
    "observation",
    "network_action",
    "target_pos",
    "target_vel",
    "target_effort",
    "joint_effort",
)
"""Names of the arrays that a run computes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceInputs:
    """What went into a run, row by row: one row per policy step.

    Attributes:
        start: Where an episode begins and everything is forgotten, bool, shape ``(rows,)``.
        elapsed: Time since the policy began, [s], float64, shape ``(rows,)``.
        base_quat: w, x, y, z, body to world, float32, shape ``(rows, 4)``.
        base_ang_vel_b: Body frame, [rad/s], float32, shape ``(rows, 3)``.
        base_lin_vel_b: Body frame, [m/s], float32, shape ``(rows, 3)``; NaN where not measured.
        joint_pos: [rad], float32, shape ``(rows, num_joints)``, contract order.
        joint_vel: [rad/s], float32, shape ``(rows, num_joints)``, contract order.
        asked: What the operator asked for, float32, shape ``(rows, num_commands)``.
        raw_action: The action that was taken, float32, shape ``(rows, num_actions)``; NaN in rows
            where the network's own output was taken.
    """

    start: NDArray[np.bool_]
    elapsed: NDArray[np.float64]
    base_quat: NDArray[np.float32]
    base_ang_vel_b: NDArray[np.float32]
    base_lin_vel_b: NDArray[np.float32]
    joint_pos: NDArray[np.float32]
    joint_vel: NDArray[np.float32]
    asked: NDArray[np.float32]
    raw_action: NDArray[np.float32]

    def state(self, row: int) -> RobotState:
        """The robot's state of one row."""
        lin_vel = self.base_lin_vel_b[row]
        return RobotState(
            time=float(self.elapsed[row]),
            base_quat=self.base_quat[row],
            base_ang_vel_b=self.base_ang_vel_b[row],
            base_lin_vel_b=None if np.isnan(lin_vel).any() else lin_vel,
            joint_pos=self.joint_pos[row],
            joint_vel=self.joint_vel[row],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldenTrace:
    """A run with everything that was computed on the way.

    Attributes:
        origin: ``recorded`` in the simulator the policy was trained in (or on a robot), or
            ``synthesized`` from the contract, which proves consistency and not origin.
        joint_names: Joints of every joint column, in order.
        command_names: Command channels, in order.
        inputs: What went in, with the action taken in every row (no NaN in ``raw_action``).
        observation: float32, shape ``(rows, observation_dim)``.
        network_action: The network's output, float32, shape ``(rows, num_actions)``.
        target_pos: [rad], float32, shape ``(rows, num_joints)``.
        target_vel: [rad/s], float32, shape ``(rows, num_joints)``.
        target_effort: [Nm], float32, shape ``(rows, num_joints)``.
        joint_effort: Efforts of every PD step of the row with the joints held where they were,
            [Nm], float32, shape ``(rows, decimation, num_joints)``.
    """

    origin: Literal["recorded", "synthesized"]
    joint_names: tuple[str, ...]
    command_names: tuple[str, ...]
    inputs: TraceInputs
    observation: NDArray[np.float32]
    network_action: NDArray[np.float32]
    target_pos: NDArray[np.float32]
    target_vel: NDArray[np.float32]
    target_effort: NDArray[np.float32]
    joint_effort: NDArray[np.float32]

    @property
    def rows(self) -> int:
        """Number of policy steps."""
        return int(self.inputs.start.shape[0])

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The trace as numeric arrays; the names travel as UTF-8 bytes under ``meta``."""
        meta = {
            "version": TRACE_VERSION,
            "origin": self.origin,
            "joints": list(self.joint_names),
            "commands": list(self.command_names),
        }
        text = json.dumps(meta, sort_keys=True).encode()
        arrays: dict[str, NDArray[Any]] = {"meta": np.array(list(text), dtype=np.uint8)}
        for field in fields(TraceInputs):
            arrays[field.name] = getattr(self.inputs, field.name)
        return arrays | {name: getattr(self, name) for name in OUTPUTS}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> GoldenTrace:
        """The trace that `to_arrays` gave.

        Raises:
            BadInput: An array is missing, of another type or length, or not finite.
        """
        names = ["meta", *(f.name for f in fields(TraceInputs)), *OUTPUTS]
        for name in names:
            if name not in arrays:
                raise BadInput(f"golden trace: {name} is missing; found {', '.join(arrays)}")
        meta = _read_meta(arrays["meta"])
        rows = len(arrays["start"]) if arrays["start"].ndim else 0
        if rows > MAX_ROWS:
            raise BadInput(f"golden trace: {rows} rows, at most {MAX_ROWS} are replayed")
        for name in names[1:]:
            _check_array(name, arrays[name], rows)
        return cls(
            origin=meta["origin"],
            joint_names=tuple(meta["joints"]),
            command_names=tuple(meta["commands"]),
            inputs=TraceInputs(**{f.name: arrays[f.name] for f in fields(TraceInputs)}),
            **{name: arrays[name] for name in OUTPUTS},
        )

    def to_bytes(self) -> bytes:
        """The trace as one compressed ``.npz``; equal traces give equal bytes."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **cast("dict[str, Any]", self.to_arrays()))
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> GoldenTrace:
        """The trace that `to_bytes` gave.

        Raises:
            BadInput: Not such an archive, too large, or see `from_arrays`.
        """
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                if sum(member.file_size for member in archive.infolist()) > _MAX_BYTES:
                    raise BadInput(f"golden trace: larger than {_MAX_BYTES >> 20} MiB unpacked")
            with np.load(io.BytesIO(data), allow_pickle=False) as npz:
                arrays = {name: npz[name] for name in npz.files}
        except BadInput:
            raise
        except Exception as error:
            # NumPy and zipfile raise a dozen kinds for what a stranger may write.
            text = " ".join(str(error).split())[:200] or type(error).__name__
            raise BadInput(f"golden trace: not a readable .npz ({text})") from None
        return cls.from_arrays(arrays)


def _read_meta(data: NDArray[Any]) -> dict[str, Any]:
    if data.dtype != np.uint8 or data.ndim != 1:
        raise BadInput(f"golden trace: meta is {data.dtype} of shape {data.shape}, expected bytes")
    try:
        meta = json.loads(bytes(data).decode())
        version, origin = meta["version"], meta["origin"]
        names = [*meta["joints"], *meta["commands"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadInput("golden trace: its names cannot be read") from None
    if version != TRACE_VERSION:
        raise BadInput(f"golden trace: version {version!r}, this reads {TRACE_VERSION}")
    if origin not in ("recorded", "synthesized") or not all(isinstance(n, str) for n in names):
        raise BadInput(f"golden trace: origin {origin!r} or a name is not one")
    return cast("dict[str, Any]", meta)


def _check_array(name: str, array: NDArray[Any], rows: int) -> None:
    expected = {"start": np.dtype(np.bool_), "elapsed": np.dtype(np.float64)}.get(name, _FLOAT32)
    flat = array.ndim == 1 or (array.ndim > 1 and expected is _FLOAT32)
    if array.dtype != expected or not flat or len(array) != rows or rows == 0:
        raise BadInput(
            f"golden trace: {name} is {array.dtype} of shape {array.shape}, expected {expected} "
            f"with {rows} rows"
        )
    if name not in ("start", "base_lin_vel_b") and not np.isfinite(array).all():
        raise BadInput(f"golden trace: {name} is not finite everywhere")
