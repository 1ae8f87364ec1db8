"""The flight recorder: from the loop to the disk without the loop ever waiting for the disk."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robot_runtime.control.flightlog import LogHeader, raw_preamble, read_log, write_log
from robot_runtime.errors import BadInput, LogLost

_BUFFER = 4 * 2**20
_PATIENCE = 20.0
"""How long the writing process may take to finish, [s]."""


class FlightRecorder:
    """Hands every record to a process that appends it to a file beside the final one.

    Handing over is one non-blocking call that copies a record into a socket (a few microseconds).
    If the writer falls behind so far that the socket is full, or dies, records are lost and `write`
    says so. If the loop dies, the writer still finishes what it was given: `read_log` reads the
    ``.part`` file. `close` turns it into the final ``.npz``.
    """

    def __init__(self, path: str | os.PathLike[str], header: LogHeader) -> None:
        """Open the file and start the writer; do so before the loop takes real-time priority.

        Args:
            path: Where the finished log shall be.
            header: What the log says about itself.

        Raises:
            BadInput: The folder cannot be written, or `path` is not a plain file.
        """
        self._path, self._header = Path(path), header
        self._raw, file = _create(self._path)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # As much as the system grants; the default holds about two seconds.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        ours.setblocking(False)
        self._socket = ours
        self._empty = True
        try:
            # Whole before the first record follows, or not at all: see `_write_whole`.
            _write_whole(file, raw_preamble(header))
            self._writer = _start_writer(theirs.fileno(), file)
        except BaseException as error:
            ours.close()
            self._raw.unlink(missing_ok=True)
            if not isinstance(error, OSError):
                raise
            raise BadInput(f"cannot write '{self._raw}': {error.strerror}") from error
        finally:
            theirs.close()
            os.close(file)

    @property
    def raw_path(self) -> Path:
        """The file that grows while the loop runs."""
        return self._raw

    def write(self, record: NDArray[np.void]) -> None:
        """Hand over one record.

        Raises:
            OSError: The record is lost: the writer is too far behind, or gone.
        """
        self._socket.send(record.tobytes())
        self._empty = False

    def close(self) -> None:
        """Wait for the writer and make the final file; if nothing was recorded there is none.

        Raises:
            LogLost: The writer failed or the final file cannot be written; the message names the
                ``.part`` file, which then stays, unless the writer failed before the first record.
            KeyboardInterrupt: Ctrl-C came meanwhile; the message names the ``.part`` file.
        """
        # Also where a process that a driver has forked still holds this end.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self._socket.close()
        try:
            self._finish(self._wait_for_writer())
        except KeyboardInterrupt:
            if self._empty:
                self._raw.unlink(missing_ok=True)
            # The writer ends by itself, now that nobody sends: what stays is whole.
            raise KeyboardInterrupt(self._kept if self._raw.exists() else "") from None

    @property
    def _kept(self) -> str:
        return f"'{self._raw}' has what was recorded"

    def _wait_for_writer(self) -> int:
        try:
            return self._writer.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._writer.kill()
            return self._writer.wait()

    def _finish(self, code: int) -> None:
        if self._empty:
            self._raw.unlink(missing_ok=True)
            if code:
                raise LogLost(
                    f"there is no flight log '{self._path}': the process that writes it ended "
                    "before the first record"
                )
            return
        if code:
            raise LogLost(f"the flight log could not be written to its end; {self._kept}")
        try:
            write_log(self._path, self._header, read_log(self._raw).rows)
        except (BadInput, OSError) as error:
            raise LogLost(f"cannot finish the flight log: {error}; {self._kept}") from error
        with contextlib.suppress(OSError):
            self._raw.unlink()


def _write_whole(file: int, data: bytes) -> None:
    """Write all bytes: one call may take fewer, as it does where a disk is nearly full."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def _create(path: Path) -> tuple[Path, int]:
    """The growing file beside `path`, new under a name of its own, and its descriptor."""
    if path.exists() and not path.is_file():
        raise BadInput(f"cannot write '{path}': it is not a plain file")
    raw = path.with_name(f"{path.name}.{secrets.token_hex(3)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return raw, os.open(raw, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o666)
    except OSError as error:
        raise BadInput(f"cannot write into folder '{path.parent}': {error.strerror}") from error


def _start_writer(incoming: int, outgoing: int) -> subprocess.Popen[bytes]:
    """Run `log_writer.py` in its own session, out of reach of the terminal's Ctrl-C."""
    script = str(Path(__file__).with_name("log_writer.py"))
    return subprocess.Popen(
        [sys.executable, "-I", "-S", script, str(incoming), str(outgoing)],
        pass_fds=(incoming, outgoing),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
