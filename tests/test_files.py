"""Files are written whole or not at all."""

import errno
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from robot_runtime.errors import BadInput, ExitCode
from robot_runtime.files import atomic_write


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_new_file_appears_with_its_content_only_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "policy.onnx"
    with atomic_write(target) as temporary:
        temporary.write_bytes(b"model")
        assert temporary.parent == tmp_path
        assert not target.exists()
    assert target.read_bytes() == b"model"
    assert names(tmp_path) == ["policy.onnx"]


def test_old_content_stays_readable_until_the_end(tmp_path: Path) -> None:
    target = tmp_path / "checkpoint.pt"
    target.write_bytes(b"old")
    with atomic_write(target) as temporary:
        temporary.write_bytes(b"new and longer")
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new and longer"


def write_half(target: Path, failure: BaseException) -> None:
    with atomic_write(target) as temporary:
        temporary.write_bytes(b"half")
        raise failure


@pytest.mark.parametrize("failure", [ValueError("no"), KeyboardInterrupt(), SystemExit(1)])
def test_failing_writer_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, failure: BaseException
) -> None:
    target = tmp_path / "checkpoint.pt"
    target.write_bytes(b"old")
    with pytest.raises(type(failure)):
        write_half(target, failure)
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["checkpoint.pt"]


def test_failing_writer_of_a_new_file_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"):
        write_half(tmp_path / "new.json", ValueError("no"))
    assert names(tmp_path) == []


def test_suffix_is_kept_for_writers_that_append_their_own(tmp_path: Path) -> None:
    target = tmp_path / "flight.npz"
    with atomic_write(target) as temporary:
        np.savez(temporary, joint_pos=np.arange(3.0))
    assert names(tmp_path) == ["flight.npz"]
    with np.load(target, allow_pickle=False) as archive:
        assert archive["joint_pos"].tolist() == [0.0, 1.0, 2.0]


def test_missing_folders_are_made(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "a" / "b" / "report.html") as temporary:
        temporary.write_text("page")
    assert (tmp_path / "a" / "b" / "report.html").read_text() == "page"


def test_permissions_are_those_of_an_ordinary_new_file(tmp_path: Path) -> None:
    (tmp_path / "ordinary").touch()
    with atomic_write(tmp_path / "ours") as temporary:
        temporary.write_text("x")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ordinary", "ours")}
    assert len(modes) == 1


def test_unusable_folder_is_named_in_one_line(tmp_path: Path) -> None:
    blocker = tmp_path / "occupied"
    blocker.write_text("a file where a folder is needed")
    with (
        pytest.raises(BadInput, match="cannot write") as caught,
        atomic_write(blocker / "policy.onnx"),
    ):
        pytest.fail("the block must not run")
    assert str(blocker) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == ExitCode.BAD_INPUT


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_folder_is_named(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    with (
        pytest.raises(BadInput, match=r"folder '.*locked': Permission denied"),
        atomic_write(locked / "policy.onnx"),
    ):
        pytest.fail("the block must not run")


def test_folder_and_device_are_refused_as_targets(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="it is a folder"), atomic_write(tmp_path):
        pytest.fail("the block must not run")
    with pytest.raises(BadInput, match="not a plain file"), atomic_write("/dev/null"):
        pytest.fail("the block must not run")
    assert names(tmp_path) == []


def test_full_disk_is_bad_input_that_names_the_file(tmp_path: Path) -> None:
    target = tmp_path / "log.npz"
    with pytest.raises(BadInput, match=r"log\.npz.*No space left"):
        write_half(target, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert names(tmp_path) == []


def test_other_os_errors_of_the_writer_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "out.json"):
        (tmp_path / "missing.json").read_text()
    assert names(tmp_path) == []
