"""The flight log: what is in it, what a crash leaves of it, and that it never holds the loop up."""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from robot_runtime.control import log_writer
from robot_runtime.control.flightlog import LogHeader, make_header, read_log, write_log
from robot_runtime.control.record import MemoryRecorder, record_dtype
from robot_runtime.control.recorder import FlightRecorder
from robot_runtime.control.replay import replay_log
from robot_runtime.errors import BadInput, LogLost
from robot_runtime.policy.contract import PolicyContract
from tests.helpers.contracts import edited, quadruped_contract, rich_contract
from tests.helpers.loops import Bench, Policy
from tests.helpers.processes import Start

CONTRACT = quadruped_contract()


def header(contract: PolicyContract = CONTRACT) -> LogHeader:
    return make_header(contract, policy="p.onnx", policy_sha256="ab" * 32, robot="mock")


def random_rows(count: int, contract: PolicyContract = CONTRACT) -> np.ndarray:
    dtype = record_dtype(contract)
    data = np.random.default_rng(0).integers(0, 256, size=count * dtype.itemsize, dtype=np.uint8)
    rows = np.frombuffer(data.tobytes(), dtype=dtype).copy()
    rows["tick"] = np.arange(count)
    return rows


class Both:
    """Two recorders at once."""

    def __init__(self, first: MemoryRecorder, second: FlightRecorder) -> None:
        self.first, self.second = first, second

    def write(self, record: np.ndarray) -> None:
        self.first.write(record)
        self.second.write(record)


@pytest.mark.parametrize("contract", [quadruped_contract(), rich_contract()], ids=["plain", "rich"])
def test_the_log_has_every_bit_of_every_record(contract: PolicyContract, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "flight.npz"
    recorder = FlightRecorder(path, header(contract))
    policy = Policy(contract, lambda obs: np.sin(obs[: contract.num_actions]))
    memory = MemoryRecorder(contract)
    bench = Bench(policy, recorder=Both(memory, recorder))
    summary = bench.loop.run(0.5)
    recorder.close()
    log = read_log(path)
    assert summary.records_dropped == 0
    assert log.finished
    assert log.contract == contract
    assert (log.header.robot, log.header.policy) == ("mock", "p.onnx")
    assert log.header.versions["numpy"] == np.__version__
    assert len(log.rows) == summary.timing.ticks
    assert log.rows.tobytes() == memory.rows.tobytes()
    # Nothing else is left in the folder.
    assert os.listdir(path.parent) == ["flight.npz"]


def test_memory_grows_with_the_run() -> None:
    memory = MemoryRecorder(CONTRACT)
    rows = random_rows(3000)
    for row in rows:
        memory.write(row[None])
    assert memory.rows.tobytes() == rows.tobytes()


def test_handing_over_a_record_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    """The writer is stopped, as by a disk that hangs: the loop loses records and no time."""
    recorder = FlightRecorder(tmp_path / "flight.npz", header())
    # The smallest buffer there is, so that a few seconds fill it.
    recorder._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    os.kill(recorder._writer.pid, signal.SIGSTOP)
    try:
        # A blocking write would never come back.
        summary = Bench(recorder=recorder).loop.run(3.0)
    finally:
        os.kill(recorder._writer.pid, signal.SIGCONT)
    recorder.close()
    assert summary.ended == "done"
    assert summary.records_dropped > 0
    assert summary.faults["RECORDER_FAILED"] > 0
    log = read_log(tmp_path / "flight.npz")
    assert len(log.rows) == summary.timing.ticks - summary.records_dropped
    assert (np.diff(log.rows["tick"]) > 0).all()


@pytest.mark.parametrize("how", ["killed", "disk full"])
def test_a_dead_writer_is_counted_and_the_robot_walks_on(how: str, tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path / "flight.npz", header())
    if how == "killed":
        recorder.write(random_rows(1))
        recorder._writer.kill()
        recorder._writer.wait()
    else:
        # A file that must not grow, as on a full disk.
        size = recorder.raw_path.stat().st_size
        resource.prlimit(recorder._writer.pid, resource.RLIMIT_FSIZE, (size, size))
        recorder.write(random_rows(1))
        recorder._writer.wait(20)
    bench = Bench(recorder=recorder)
    summary = bench.loop.run(0.5)
    assert summary.ended == "done"
    assert summary.records_dropped == summary.timing.ticks
    with pytest.raises(LogLost, match=r"'.*\.part' has what was recorded"):
        recorder.close()
    assert recorder.raw_path.exists()
    assert not (tmp_path / "flight.npz").exists()


@pytest.mark.parametrize("room", [0, 1, 1000])
def test_a_disk_that_is_nearly_full_keeps_no_half_of_a_header(room: int, tmp_path: Path) -> None:
    """A real limit: the system takes what fits, as one short write, and refuses the rest."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Without it the system ends the process, as no full disk does.
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(BadInput, match=r"cannot write '.*\.part': File too large"):
            FlightRecorder(tmp_path / "flight.npz", header())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert os.listdir(tmp_path) == []


def test_short_writes_of_the_header_are_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:1000]))
    recorder = FlightRecorder(tmp_path / "flight.npz", header())
    recorder.write(random_rows(1))
    recorder.close()
    assert read_log(tmp_path / "flight.npz").contract == CONTRACT


def test_a_writer_that_died_before_the_first_record_leaves_no_log_and_says_so(
    tmp_path: Path,
) -> None:
    path = tmp_path / "flight.npz"
    path.write_text("older")
    recorder = FlightRecorder(path, header())
    recorder._writer.kill()
    recorder._writer.wait()
    assert Bench(recorder=recorder).loop.run(0.1).ended == "done"
    with pytest.raises(LogLost, match=r"there is no flight log '.*flight\.npz'"):
        recorder.close()
    assert os.listdir(tmp_path) == ["flight.npz"]
    assert path.read_text() == "older"


@pytest.mark.parametrize("where", ["reading", "packing", "replacing", "removing", "waiting"])
def test_ctrl_c_while_the_log_is_finished_keeps_all_records(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = FlightRecorder(tmp_path / "flight.npz", header())
    rows = random_rows(5)
    for row in rows:
        recorder.write(row[None])
    unlink = Path.unlink

    def interrupted(*args: object, **options: bool) -> None:
        # Of all files that are removed, only the growing one.
        if where == "removing" and args != (recorder.raw_path,):
            unlink(*args, **options)  # type: ignore[arg-type]
        else:
            raise KeyboardInterrupt

    target = {
        "waiting": "subprocess.Popen.wait",
        "reading": "robot_runtime.control.recorder.read_log",
        "packing": "numpy.savez_compressed",
        "replacing": "os.replace",
        "removing": "pathlib.Path.unlink",
    }[where]
    with monkeypatch.context() as patch:
        patch.setattr(target, interrupted)
        with pytest.raises(KeyboardInterrupt, match=r"'.*\.part' has what was recorded"):
            recorder.close()
    recorder._writer.wait(20)
    finished = ["flight.npz"] if where == "removing" else []
    assert sorted(os.listdir(tmp_path)) == [*finished, recorder.raw_path.name]
    assert read_log(recorder.raw_path).rows.tobytes() == rows.tobytes()


def test_ctrl_c_before_the_first_record_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = FlightRecorder(tmp_path / "flight.npz", header())
    with monkeypatch.context() as patch:
        patch.setattr("subprocess.Popen.wait", interrupt)
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            recorder.close()
    recorder._writer.wait(20)
    assert os.listdir(tmp_path) == []


def interrupt(*args: object) -> None:
    raise KeyboardInterrupt


VICTIM = """
import sys
from pathlib import Path
import numpy as np
from robot_runtime.control.flightlog import make_header
from robot_runtime.control.loop import ControlLoop
from robot_runtime.control.recorder import FlightRecorder
from robot_runtime.control.clock import MonotonicClock
from robot_runtime.control.safety import SafetyLimits
from robot_runtime.drivers.mock import MockRobot
from tests.helpers.contracts import quadruped_contract
from tests.helpers.loops import Policy

contract = quadruped_contract()
policy = Policy(contract, lambda obs: np.sin(3.0 * obs[:12]) + 0.2)
recorder = FlightRecorder(sys.argv[1], make_header(contract))
# A machine that is busy may leave it without a processor for long.
limits = SafetyLimits(stall=60.0)
robot, clock = MockRobot(contract), MonotonicClock(0.02)
ControlLoop(policy, robot, clock, recorder=recorder, limits=limits).run(None)
"""


def test_what_kill_9_leaves_is_read_and_replayed(tmp_path: Path, start: Start) -> None:
    victim = start(
        [sys.executable, "-c", VICTIM, str(tmp_path / "flight.npz")],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    raw, seen = None, 0
    while seen < 120 * record_dtype(CONTRACT).itemsize:
        assert victim.poll() is None
        time.sleep(0.05)
        raw = next(tmp_path.glob("flight.npz.*.part"), None)
        seen = raw.stat().st_size if raw else 0
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert raw is not None
    log = read_log(raw)
    assert not log.finished
    # Nothing that the loop had handed over is missing, and nothing is torn.
    assert len(log.rows) >= 100
    np.testing.assert_array_equal(log.rows["tick"], np.arange(len(log.rows)))
    policy = Policy(CONTRACT, lambda obs: np.sin(3.0 * obs[:12]) + 0.2)
    result = replay_log(log, policy)
    assert result.good
    assert result.compared > 20


@pytest.mark.parametrize("cut", [1, 500, 1265, 1266, 1267, 4000])
def test_a_torn_record_is_left_out(cut: int, tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path / "flight.npz", header())
    rows = random_rows(10)
    for row in rows:
        recorder.write(row[None])
    raw = recorder.raw_path
    recorder._socket.close()
    recorder._writer.wait(20)
    whole = raw.read_bytes()
    raw.write_bytes(whole[:-cut])
    left = 10 - -(-cut // rows.dtype.itemsize)
    assert read_log(raw).rows.tobytes() == rows[:left].tobytes()


def test_a_log_is_not_written_over_one_that_a_crash_left(tmp_path: Path) -> None:
    first = FlightRecorder(tmp_path / "flight.npz", header())
    second = FlightRecorder(tmp_path / "flight.npz", header())
    assert first.raw_path != second.raw_path
    for recorder in (first, second):
        recorder.write(random_rows(1))
        recorder.close()
    assert len(read_log(tmp_path / "flight.npz").rows) == 1


def test_without_a_record_there_is_no_log_and_an_older_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "flight.npz"
    path.write_text("older")
    FlightRecorder(path, header()).close()
    assert os.listdir(tmp_path) == ["flight.npz"]
    assert path.read_text() == "older"


def test_a_log_is_finished_although_another_process_holds_its_socket(tmp_path: Path) -> None:
    """A driver may have forked one, which has a copy of every descriptor."""
    recorder = FlightRecorder(tmp_path / "flight.npz", header())
    recorder.write(random_rows(1))
    copy = os.dup(recorder._socket.fileno())
    recorder.close()
    os.close(copy)
    assert os.listdir(tmp_path) == ["flight.npz"]


def test_a_writer_that_fails_to_read_ends(tmp_path: Path) -> None:
    """A file where its socket should be: an error at once, and no thread that it waits for."""
    with (tmp_path / "flight").open("wb") as file:
        done = subprocess.run(
            [sys.executable, log_writer.__file__, str(file.fileno()), str(file.fileno())],
            pass_fds=[file.fileno()], stderr=subprocess.DEVNULL, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 1


def test_names_without_the_usual_ending_are_kept(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path / "flight", header())
    recorder.write(random_rows(1))
    recorder.close()
    assert os.listdir(tmp_path) == ["flight"]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadInput, match="not a plain file"):
        FlightRecorder(tmp_path, header())
    with pytest.raises(BadInput, match="file"):
        FlightRecorder(tmp_path / "file" / "flight.npz", header())


def test_files_that_are_no_logs(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with pytest.raises(BadInput, match="No such file"):
        read_log(path)
    with pytest.raises(BadInput, match="directory"):
        read_log(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="not a plain file"):
        read_log(tmp_path / "pipe")
    for content in (b"", b"hello", b"PK\x03\x04", b"surefoot flight log\n", b"\x80\x04K\x01."):
        path.write_bytes(content)
        with pytest.raises(BadInput, match=r"x\.npz"):
            read_log(path)
    with path.open("wb") as file:
        np.savez(file, tick=np.zeros(3))
    with pytest.raises(BadInput, match="without the header"):
        read_log(path)


def test_a_log_with_a_column_of_another_size_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    other = edited(CONTRACT, {"name": "other"})
    rows = random_rows(3)
    write_log(path, header(other), rows)
    assert read_log(path).contract == other
    with np.load(path) as npz:
        arrays = {name: npz[name] for name in npz.files}
    arrays["joint_pos"] = arrays["joint_pos"][:, :5]
    with path.open("wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(BadInput, match="joint_pos is float64 of shape"):
        read_log(path)
    del arrays["joint_pos"]
    with path.open("wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(BadInput, match="joint_pos is missing"):
        read_log(path)


def test_a_newer_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    write_log(path, LogHeader(**{**_fields(header()), "version": 2}), random_rows(1))
    with pytest.raises(BadInput, match="log version 2, this version reads 1"):
        read_log(path)


def _fields(value: LogHeader) -> dict[str, object]:
    return {name: getattr(value, name) for name in LogHeader.__slots__}
