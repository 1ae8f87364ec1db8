"""The flight log as a file: while it is written, finished, and after a crash."""

from __future__ import annotations

import json
import platform
import stat
import struct
import zipfile
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from robot_runtime.control.record import record_dtype
from robot_runtime.errors import BadInput
from robot_runtime.files import atomic_write
from robot_runtime.policy.codec import canonical, parse_json
from robot_runtime.policy.contract import PolicyContract

LOG_VERSION = 1
"""Version of header and records. A newer log is refused."""

_MAGIC = b"surefoot flight log\n"
_LENGTH = struct.Struct("<Q")
_MAX_HEADER = 64 * 2**20
# What is small and says that it is large was made to fill the memory; a real log packs to a tenth.
_MAX_UNPACKED = 256 * 2**20
_MAX_RATIO = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class LogHeader:
    """What a log says about itself.

    Attributes:
        version: See `LOG_VERSION`.
        contract: The contract of the policy, canonical JSON.
        policy: Path of the policy file, as it was given.
        policy_sha256: Hash of the policy file; empty where there was no file.
        robot: Name of the driver.
        started: When it began, ISO 8601, UTC.
        versions: Versions of the packages that ran, by name.
    """

    version: int
    contract: str
    policy: str
    policy_sha256: str
    robot: str
    started: str
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class FlightLog:
    """A log that was read.

    Attributes:
        path: The file.
        header: Its header.
        contract: The contract in it.
        rows: The records, see `record_dtype`, shape ``(rows,)``.
        finished: Whether it was closed; False for what a crash left.
    """

    path: Path
    header: LogHeader
    contract: PolicyContract
    rows: NDArray[np.void]
    finished: bool


def make_header(
    contract: PolicyContract, *, policy: str = "", policy_sha256: str = "", robot: str = ""
) -> LogHeader:
    """The header of a log that begins now."""
    return LogHeader(
        version=LOG_VERSION,
        contract=contract.to_json(),
        policy=policy,
        policy_sha256=policy_sha256,
        robot=robot,
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        versions={
            "python": platform.python_version(),
            "machine": platform.machine(),
            **{name: _version(name) for name in ("surefoot", "numpy", "onnxruntime")},
        },
    )


def raw_preamble(header: LogHeader) -> bytes:
    """What a log begins with while it is written; the records follow as they are in memory."""
    text = canonical(header).encode()
    return _MAGIC + _LENGTH.pack(len(text)) + text


def write_log(path: Path, header: LogHeader, rows: NDArray[np.void]) -> None:
    """Write a finished log: one ``.npz`` with a column per field and the header as UTF-8 bytes.

    Raises:
        BadInput: It cannot be written.
    """
    columns = {name: rows[name] for name in rows.dtype.names or ()}
    text = np.frombuffer(canonical(header).encode(), dtype=np.uint8)
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, header=text, **cast("dict[str, Any]", columns))


def read_log(path: Path) -> FlightLog:
    """Read a log, finished or left by a crash.

    Args:
        path: A ``.npz`` of `write_log`, or the ``.part`` file beside it.

    Raises:
        BadInput: It cannot be read, is no flight log, or is of a newer version.
    """
    try:
        # A pipe that nobody writes into would be waited for.
        if stat.S_ISFIFO(path.stat().st_mode):
            raise BadInput(f"cannot read '{path}': it is not a plain file")
        with path.open("rb") as file:
            begin = file.read(len(_MAGIC))
        return _read_raw(path) if begin == _MAGIC else _read_finished(path)
    except OSError as error:
        raise BadInput(f"cannot read '{path}': {error.strerror or error}") from None


def _read_raw(path: Path) -> FlightLog:
    data = path.read_bytes()
    start = len(_MAGIC) + _LENGTH.size
    if len(data) < start:
        raise BadInput(f"'{path}': cut off inside its header")
    (length,) = _LENGTH.unpack_from(data, len(_MAGIC))
    if length > _MAX_HEADER or len(data) < start + length:
        raise BadInput(f"'{path}': cut off inside its header")
    header = _parse_header(path, data[start : start + length])
    contract = PolicyContract.from_json(header.contract)
    dtype = record_dtype(contract)
    # The last record may be half written.
    count = (len(data) - start - length) // dtype.itemsize
    rows = np.frombuffer(data, dtype=dtype, count=count, offset=start + length)
    return FlightLog(path=path, header=header, contract=contract, rows=rows, finished=False)


def _read_finished(path: Path) -> FlightLog:
    try:
        # Opened here: numpy leaves the file open when it is no archive.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as npz:
            packed = path.stat().st_size
            unpacked = sum(member.file_size for member in npz.zip.infolist())
            if unpacked > max(_MAX_UNPACKED, _MAX_RATIO * packed):
                raise BadInput(f"'{path}': claims to unpack to {unpacked >> 20} MiB")
            arrays = {name: np.asarray(npz[name]) for name in npz.files}
    except BadInput:
        raise
    except Exception as error:
        # NumPy and zipfile raise a dozen kinds for what a stranger may write; of what is no archive
        # at all NumPy only says how to unpickle it.
        if not zipfile.is_zipfile(path):
            raise BadInput(f"'{path}': not a flight log, which is an .npz archive") from None
        text = " ".join(str(error).split())[:200] or type(error).__name__
        raise BadInput(f"'{path}': not a flight log ({text})") from None
    if "header" not in arrays or arrays["header"].dtype != np.uint8:
        raise BadInput(f"'{path}': an archive without the header of a flight log")
    header = _parse_header(path, arrays["header"].tobytes())
    contract = PolicyContract.from_json(header.contract)
    dtype = record_dtype(contract)
    names = dtype.names or ()
    count = len(arrays["tick"]) if arrays.get("tick", np.zeros(())).ndim == 1 else -1
    for name in names:
        column, wanted = arrays.get(name), dtype[name]
        shape = (max(count, 0), *wanted.shape)
        if column is None or column.shape != shape or column.dtype != wanted.base:
            found = "missing" if column is None else f"{column.dtype} of shape {column.shape}"
            raise BadInput(f"'{path}': {name} is {found}, expected {wanted.base} of shape {shape}")
    # Only now: a few bytes of one column must not ask for memory for all of them.
    rows = np.empty(max(count, 0), dtype=dtype)
    for name in names:
        rows[name] = arrays[name]
    return FlightLog(path=path, header=header, contract=contract, rows=rows, finished=True)


def _parse_header(path: Path, text: bytes) -> LogHeader:
    try:
        plain = parse_json(text.decode(), f"'{path}': header")
    except UnicodeDecodeError:
        raise BadInput(f"'{path}': its header is not UTF-8") from None
    if not isinstance(plain, dict):
        raise BadInput(f"'{path}': its header is no JSON object")
    values = cast("dict[str, Any]", plain)
    found = values.get("version")
    if found != LOG_VERSION:
        raise BadInput(f"'{path}': log version {found!r}, this version reads {LOG_VERSION}")
    for name in LogHeader.__slots__:
        wanted = {"version": int, "versions": dict}.get(name, str)
        if not isinstance(values.get(name), wanted):
            raise BadInput(f"'{path}': header.{name} is {json.dumps(values.get(name))}")
    return LogHeader(**{name: values[name] for name in LogHeader.__slots__})


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
