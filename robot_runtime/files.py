"""Writing files whole or not at all."""

import contextlib
import errno
import os
import secrets
from collections.abc import Generator
from pathlib import Path

from robot_runtime.errors import BadInput

_DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})


def check_output(path: str | os.PathLike[str], what: str, *suffixes: str) -> None:
    """Refuse a file that cannot be written, or whose name would lie, before anything is done.

    Args:
        path: Where a verb shall write.
        what: What it would write, to say so: "a report".
        suffixes: What its name may end in, in lower case.

    Raises:
        BadInput: The name ends in something else, there is something else than a plain file, or
            the folder cannot be written. The message names the file.
    """
    target = Path(path)
    if target.suffix.lower() not in suffixes:
        raise BadInput(
            f"cannot write {what} to '{target}': its name must end in {' or '.join(suffixes)}"
        )
    _require_plain(target)
    folder = next((one for one in target.absolute().parents if one.exists()), target.parent)
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise BadInput(f"cannot write into folder '{target.parent}'")


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Generator[Path]:
    """Yield a temporary file beside `path` that takes its place when the block ends well.

    The temporary file exists, is empty, keeps the suffix of `path` (some writers append their own
    otherwise) and lies in the same folder, so that the final `os.replace` is atomic. Content and
    folder entry are synced to the disk, so a power cut leaves the old file or the new one. When the
    block raises, the old file is untouched and the temporary one is gone. Missing folders are made.

        with atomic_write("out/policy.onnx") as temporary:
            temporary.write_bytes(model)

    Args:
        path: Where the finished file shall be.

    Yields:
        The temporary file, to be written by name.

    Raises:
        BadInput: The folder cannot be made or written, `path` is something else than a plain file,
            or the disk is full. The message names the folder or file.
    """
    target = Path(path)
    temporary = _create_beside(target)
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, target)
        # Some file systems cannot sync a folder; the content is safe by then.
        with contextlib.suppress(OSError):
            _sync(target.parent)
    except OSError as error:
        if error.errno in _DISK_ERRNOS:
            raise BadInput(f"cannot write '{target}': {error.strerror}") from error
        raise
    finally:
        # After os.replace there is nothing left under this name.
        temporary.unlink(missing_ok=True)


def _create_beside(target: Path) -> Path:
    """Create the empty temporary file for `target`, with the permissions the umask gives."""
    try:
        _require_plain(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.stem}.{secrets.token_hex(4)}.tmp{target.suffix}")
        temporary.touch(exist_ok=False)
    except OSError as error:
        raise BadInput(f"cannot write into folder '{target.parent}': {error.strerror}") from error
    return temporary


def _require_plain(target: Path) -> None:
    """Also refuses devices: replacing /dev/null by a file breaks the machine for everybody."""
    if target.exists() and not target.is_file():
        kind = "a folder" if target.is_dir() else "not a plain file"
        raise BadInput(f"cannot write '{target}': it is {kind}")


def _sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
