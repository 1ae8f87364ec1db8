"""A run recorded elsewhere, as the inputs and outputs of our own path.

The record is an ``.npz`` with a row per policy call: ``obs`` (network input), ``act`` (raw output),
``qpos`` and ``qvel`` (MuJoCo's state, base first, quaternion w, x, y, z, base angular velocity in
the body frame), ``cmd``, optionally ``target`` and ``dtarget`` (position and velocity targets
applied after the call), ``kp`` and ``kd``; ``joints`` names the columns of targets and gains,
``all_joints`` those of ``qpos``, ``cmd_names`` those of ``cmd`` where they are not vx, vy and the
yaw rate.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.importers.graph import Reference
from export.importers.reading import one_line, read_bytes, shorten
from robot_runtime.errors import BadInput, Refused
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.inference import OnnxNetwork
from robot_runtime.policy.proof import ReplayReport, Tolerances, TraceMismatch, replay, roll
from robot_runtime.policy.rotation import rotate_inverse
from robot_runtime.policy.trace import GoldenTrace, TraceInputs

_MAX_UNPACKED = 2**28
_NEEDED = ("obs", "act", "qpos", "qvel", "cmd")
_VELOCITY = ("lin_vel_x", "lin_vel_y", "ang_vel_z")


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A recorded run.

    Attributes:
        name: The file, for messages.
        sha256: Its hash.
        arrays: Its arrays by name.
        rows: Policy calls that have everything.
    """

    name: str
    sha256: str
    arrays: dict[str, NDArray[Any]]
    rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """A record that the imported policy reproduces.

    Attributes:
        trace: What of it goes into the policy file.
        report: The largest differences over all its rows.
        notes: What the user should know.
    """

    trace: GoldenTrace
    report: ReplayReport
    notes: tuple[str, ...]


def read_record(path: Path) -> Record:
    """Read a recorded run.

    Raises:
        BadInput: Not such a file, or an array is missing or of another shape.
    """
    data = read_bytes(path)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(member.file_size for member in archive.infolist()) > _MAX_UNPACKED:
                raise BadInput(f"'{path}' is larger than {_MAX_UNPACKED >> 20} MiB unpacked")
        with np.load(io.BytesIO(data), allow_pickle=False) as npz:
            arrays = {name: npz[name] for name in npz.files}
    except (zipfile.BadZipFile, ValueError, OSError, KeyError, EOFError, zlib.error) as error:
        raise BadInput(f"'{path}' is not a readable .npz: {one_line(error)}") from None
    for name in _NEEDED:
        if name not in arrays:
            raise BadInput(f"'{path}': '{name}' is missing; there are {shorten(list(arrays))}")
        array = arrays[name]
        if array.dtype.kind not in "fiu" or array.ndim != 2 or len(array) != len(arrays["obs"]):
            raise BadInput(f"'{path}': '{name}' is {array.dtype} of shape {array.shape}")
    rows = _complete_rows(arrays)
    if rows == 0:
        raise BadInput(f"'{path}': has no complete row")
    return Record(name=path.name, sha256=hashlib.sha256(data).hexdigest(), arrays=arrays, rows=rows)


def replay_record(
    record: Record,
    contract: PolicyContract,
    network: OnnxNetwork,
    observer: Reference | None = None,
) -> Replayed:
    """Rebuild a record with the imported policy, and compare at every boundary.

    Args:
        record: The run.
        contract: The imported contract.
        network: The imported network.
        observer: Gives the observation of the foreign network from the contract's, where they are
            two things; the record's is compared with what it gives.

    Raises:
        TraceMismatch: The first boundary, term or joint, and row that differs.
        BadInput: The record is of another robot.
        Refused: It was made with other gains.
    """
    _check_gains(record, contract)
    inputs = _inputs(record, contract)
    wide = _widened(contract, inputs)
    trace = _as_trace(record, wide, inputs, network, observer)
    inner = 0.0 if observer is None else _check_observed(record, trace, observer)
    report = replay(wide, trace, network, reset=network.reset)
    report = dataclasses.replace(report, observation=max(report.observation, inner))
    notes: list[str] = []
    kept = trace.rows
    if wide != contract:
        kept = _rows_within(contract, inputs)
        notes.append(
            f"{record.name}: all {trace.rows} rows replayed; its commands leave the ranges from "
            f"row {kept} on, so the policy file keeps the rows before it"
        )
    if kept == 0:
        raise Refused(f"{record.name}: its first command is outside of the policy's ranges already")
    return Replayed(trace=_first_rows(trace, kept), report=report, notes=tuple(notes))


def _complete_rows(arrays: dict[str, NDArray[Any]]) -> int:
    """Rows until the first that is not finite: a run may end between call and target."""
    rows = len(arrays["obs"])
    for name in (*_NEEDED, "target"):
        if name in arrays and arrays[name].ndim == 2 and len(arrays[name]) == rows:
            good = np.isfinite(arrays[name]).all(axis=1)
            rows = min(rows, int(np.argmin(good)) if not good.all() else rows)
    return rows


def _names(record: Record, key: str, absent: tuple[str, ...]) -> list[str]:
    if key not in record.arrays:
        return list(absent)
    return [str(name) for name in record.arrays[key].ravel()]


def _columns(record: Record, contract: PolicyContract) -> list[int]:
    """Where the contract's joints stand among those of ``qpos``."""
    found = _names(record, "all_joints", contract.joint_names)
    missing = [name for name in contract.joint_names if name not in found]
    if missing:
        raise BadInput(
            f"{record.name}: the columns of qpos have no joint '{missing[0]}' of the policy; they "
            f"have {shorten(found)}"
        )
    return [found.index(name) for name in contract.joint_names]


def _shared(record: Record, contract: PolicyContract, what: str) -> dict[int, int]:
    """Column of the record's targets and gains by the contract's joint, of those it has."""
    found = _names(record, "joints", contract.joint_names)
    shared = {i: found.index(name) for i, name in enumerate(contract.joint_names) if name in found}
    if not shared:
        raise BadInput(
            f"{record.name}: {what} have no joint of the policy; they have {shorten(found)}"
        )
    return shared


def _check_gains(record: Record, contract: PolicyContract) -> None:
    for field in ("kp", "kd"):
        if field not in record.arrays or record.arrays[field].dtype.kind not in "fiu":
            continue
        recorded = record.arrays[field].astype(np.float64).ravel()
        ours = contract.joint_array(field)
        for i, column in _shared(record, contract, "its gains").items():
            if column >= len(recorded) or abs(recorded[column] - ours[i]) > 1e-6 * max(1, ours[i]):
                said = f"{recorded[column]:g}" if column < len(recorded) else "nothing"
                raise Refused(
                    f"{record.name} was recorded with {field} = {said} of joint "
                    f"'{contract.joint_names[i]}', the policy's is {ours[i]:g}"
                )


def _inputs(record: Record, contract: PolicyContract) -> TraceInputs:
    rows = record.rows
    columns = _columns(record, contract)
    qpos = record.arrays["qpos"][:rows].astype(np.float64)
    qvel = record.arrays["qvel"][:rows].astype(np.float64)
    width = len(_names(record, "all_joints", contract.joint_names))
    if qpos.shape[1] != 7 + width or qvel.shape[1] != 6 + width:
        raise BadInput(
            f"{record.name}: qpos has {qpos.shape[1]} and qvel {qvel.shape[1]} columns, expected "
            f"{7 + width} and {6 + width}"
        )
    base_lin_vel_b = rotate_inverse(qpos[:, 3:7], qvel[:, :3])
    return TraceInputs(
        start=np.arange(rows) == 0,
        elapsed=contract.timing.control_dt * np.arange(rows, dtype=np.float64),
        base_quat=qpos[:, 3:7].astype(np.float32),
        base_ang_vel_b=qvel[:, 3:6].astype(np.float32),
        base_lin_vel_b=np.asarray(base_lin_vel_b, dtype=np.float32),
        joint_pos=qpos[:, 7:][:, columns].astype(np.float32),
        joint_vel=qvel[:, 6:][:, columns].astype(np.float32),
        asked=_asked(record, contract),
        raw_action=record.arrays["act"][:rows].astype(np.float32),
    )


def _asked(record: Record, contract: PolicyContract) -> NDArray[np.float32]:
    """Commands by name: ``cmd_names`` where the record has them, else vx, vy and the yaw rate."""
    names = _names(record, "cmd_names", _VELOCITY)
    values = record.arrays["cmd"][: record.rows].astype(np.float32)
    missing = [name for name in contract.command_names if name not in names]
    if missing or values.shape[1] != len(names):
        raise BadInput(
            f"{record.name}: 'cmd' has {values.shape[1]} columns for {shorten(names)}; the "
            f"policy's commands are {', '.join(contract.command_names) or 'none'}"
        )
    return values[:, [names.index(name) for name in contract.command_names]]


def _widened(contract: PolicyContract, inputs: TraceInputs) -> PolicyContract:
    """The contract with command ranges that hold the record: it says what the policy saw."""
    if not contract.commands:
        return contract
    lowest, highest = inputs.asked.min(axis=0), inputs.asked.max(axis=0)
    channels = tuple(
        dataclasses.replace(c, lower=min(c.lower, float(low)), upper=max(c.upper, float(high)))
        for c, low, high in zip(contract.commands, lowest, highest, strict=True)
    )
    return dataclasses.replace(contract, commands=channels)


def _rows_within(contract: PolicyContract, inputs: TraceInputs) -> int:
    lower = np.array([c.lower for c in contract.commands], np.float32)
    upper = np.array([c.upper for c in contract.commands], np.float32)
    good = np.all((inputs.asked >= lower) & (inputs.asked <= upper), axis=1)
    return len(inputs.asked) if good.all() else int(np.argmin(good))


def _as_trace(
    record: Record,
    contract: PolicyContract,
    inputs: TraceInputs,
    network: OnnxNetwork,
    observer: Reference | None,
) -> GoldenTrace:
    """The record's own observations, actions and targets; efforts are the law's."""
    rows, arrays = record.rows, record.arrays
    for name, width in (("obs", contract.observation_dim), ("act", contract.num_actions)):
        if (name == "act" or observer is None) and arrays[name].shape[1] != width:
            raise BadInput(
                f"{record.name}: '{name}' has {arrays[name].shape[1]} columns, the policy {width}"
            )
    given = roll(contract, inputs, network, origin="recorded", reset=network.reset)
    changes: dict[str, Any] = {"network_action": arrays["act"][:rows].astype(np.float32)}
    if observer is None:
        changes["observation"] = arrays["obs"][:rows].astype(np.float32)
    for key, field in (("target", "target_pos"), ("dtarget", "target_vel")):
        values = arrays.get(key)
        if values is not None and values.ndim == 2 and len(values) >= rows:
            shared = _shared(record, contract, "its targets")
            if max(shared.values()) >= values.shape[1]:
                raise BadInput(f"{record.name}: '{key}' has {values.shape[1]} columns")
            merged = getattr(given, field).copy()
            merged[:, list(shared)] = values[:rows, list(shared.values())]
            if np.isfinite(merged).all():
                changes[field] = merged
    return dataclasses.replace(given, **changes)


def _check_observed(record: Record, trace: GoldenTrace, observer: Reference) -> float:
    """Compare the observation that the foreign network takes with the record's."""
    observer.reset()
    ours = np.stack([observer.step(row) for row in trace.observation])
    theirs = record.arrays["obs"][: record.rows].astype(np.float64)
    if ours.shape != theirs.shape:
        raise BadInput(
            f"{record.name}: 'obs' has {theirs.shape[1]} columns, the network takes {ours.shape[1]}"
        )
    error = np.abs(ours - theirs) / np.maximum(1.0, np.abs(theirs))
    if not error.max() <= Tolerances().observation:
        row, column = (int(i) for i in np.argwhere(~(error <= Tolerances().observation))[0])
        raise TraceMismatch(
            f"{record.name} differs at boundary A (states -> observation): element {column}, row "
            f"{row}: recorded {theirs[row, column]:.7g}, replayed {ours[row, column]:.7g}"
        )
    return float(error.max())


def _first_rows(trace: GoldenTrace, rows: int) -> GoldenTrace:
    cut = {f.name: getattr(trace.inputs, f.name)[:rows] for f in dataclasses.fields(TraceInputs)}
    outputs = {
        f.name: getattr(trace, f.name)[:rows]
        for f in dataclasses.fields(trace)
        if isinstance(getattr(trace, f.name), np.ndarray)
    }
    return dataclasses.replace(trace, inputs=TraceInputs(**cut), **outputs)
