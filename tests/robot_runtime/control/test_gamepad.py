"""The gamepad, played by a pipe that gives the events of a joystick device."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from robot_runtime.cli import main
from robot_runtime.control.gamepad import Gamepad
from robot_runtime.control.modes import Event, Mode
from robot_runtime.errors import BadInput
from robot_runtime.policy.spec import CommandChannel
from tests.helpers.contracts import quadruped_contract
from tests.helpers.loops import Bench
from tests.helpers.policies import write_random_policy

CONTRACT = quadruped_contract(
    commands=(
        CommandChannel(name="lin_vel_x", lower=-0.5, upper=1.0, max_rate=None),
        CommandChannel(name="lin_vel_y", lower=-0.4, upper=0.4, max_rate=None),
        CommandChannel(name="ang_vel_z", lower=-2.0, upper=2.0, max_rate=None),
    )
)
BUTTON, AXIS, INITIAL = 1, 2, 0x80


class Device:
    """The kernel's side."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        # For reading too, so that it does not wait for a reader.
        self.file = os.open(path, os.O_RDWR)

    def send(self, kind: int, number: int, value: int) -> None:
        os.write(self.file, struct.pack("<IhBB", 0, value, kind, number))

    def vanish(self) -> None:
        if self.file >= 0:
            os.close(self.file)
        self.file = -1


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    device = Device(tmp_path / "js0")
    yield device
    device.vanish()


@pytest.fixture
def pad(device: Device) -> Iterator[Gamepad]:
    pad = Gamepad(CONTRACT, device.path)
    yield pad
    pad.close()


@pytest.mark.parametrize(
    ("axis", "value", "expected"),
    [
        (1, -32767, (1.0, 0.0, 0.0)),
        (1, 32767, (-0.5, 0.0, 0.0)),
        # The kernel's least number lies one below minus full.
        (1, -32768, (1.0, 0.0, 0.0)),
        (0, -32767, (0.0, 0.4, 0.0)),
        (0, 32767, (0.0, -0.4, 0.0)),
        (3, 32767, (0.0, 0.0, -2.0)),
        # Half of the way between the dead zone's end, 0.1, and full, 1, is 0.55.
        (3, -18022, (0.0, 0.0, 1.0)),
        (1, -3276, (0.0, 0.0, 0.0)),
        (1, 3276, (0.0, 0.0, 0.0)),
        # Triggers and the cross.
        (2, 32767, (0.0, 0.0, 0.0)),
        (7, -32767, (0.0, 0.0, 0.0)),
    ],
)
def test_a_stick_asks_for_its_share_of_the_range(
    axis: int, value: int, expected: tuple[float, ...], pad: Gamepad, device: Device
) -> None:
    device.send(AXIS, axis, value)
    # The value has 15 bits.
    np.testing.assert_allclose(pad.poll(0.0, 0.0).values, expected, atol=1e-4)
    # And stays, because only changes are events.
    asked = pad.poll(9.0, 9.0)
    np.testing.assert_allclose(asked.values, expected, atol=1e-4)
    assert (asked.age, asked.event, asked.lost) == (0.0, None, False)


def test_what_is_held_when_it_is_opened_counts(pad: Gamepad, device: Device) -> None:
    device.send(AXIS | INITIAL, 1, -32767)
    device.send(BUTTON | INITIAL, 1, 1)
    asked = pad.poll(0.0, 0.0)
    assert asked.values[0] == 1.0
    assert asked.event is Event.DAMP


@pytest.mark.parametrize(
    ("buttons", "event"),
    [((1,), Event.DAMP), ((6,), Event.ESTOP), ((6, 1), Event.ESTOP), ((1, 6), Event.ESTOP),
     ((0, 2, 3, 4), None)],
)  # fmt: skip
def test_buttons_that_stop(
    buttons: tuple[int, ...], event: Event | None, pad: Gamepad, device: Device
) -> None:
    for button in buttons:
        device.send(BUTTON, button, 1)
    assert pad.poll(0.0, 0.0).event is event
    for button in buttons:
        device.send(BUTTON, button, 0)
    assert pad.poll(0.0, 0.0).event is None


def test_an_event_that_comes_in_two_parts(pad: Gamepad, device: Device) -> None:
    whole = struct.pack("<IhBB", 7, -32767, AXIS, 1)
    os.write(device.file, whole[:5])
    assert not pad.poll(0.0, 0.0).values.any()
    os.write(device.file, whole[5:])
    assert pad.poll(0.0, 0.0).values[0] == 1.0


def test_a_device_that_goes_away_is_damped(device: Device) -> None:
    pad = Gamepad(CONTRACT, device.path)
    bench = Bench(source=pad)
    bench.robot.follow = True
    device.send(AXIS, 1, -32767)
    change = bench.robot.change

    def pull_out(read: int, state: object) -> object:
        if read == 100:
            device.vanish()
        return change(read, state)  # type: ignore[arg-type]

    bench.robot.change = pull_out  # type: ignore[assignment]
    summary = bench.loop.run(None)
    bench.loop.close()
    assert summary.ended == "fault"
    assert summary.cause == "OPERATOR_LOST"
    assert summary.mode is Mode.DAMPING
    walking = bench.rows[bench.rows["step"] > 0]
    assert (walking["asked"][:-1, 0] == 1.0).all()
    # In the very tick that finds it gone.
    assert not bench.rows["sent_kp"][100:].any()
    assert bench.rows["sent_kp"][99].all()


def test_a_pad_that_is_gone_before_standing_up_stiffens_nothing(device: Device) -> None:
    pad = Gamepad(CONTRACT, device.path)
    device.vanish()
    bench = Bench(source=pad)
    assert bench.loop.run(None).cause == "OPERATOR_LOST"
    bench.loop.close()
    assert not any(command.kp.any() for command in bench.robot.sent)


@pytest.mark.parametrize("what", ["missing", "folder", "file", "/dev/null", "/dev/zero", "a\0b"])
def test_what_is_no_joystick(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / what if what[0] != "/" else Path(what)
    if what == "folder":
        path.mkdir()
    elif what == "file":
        path.write_bytes(bytes(64))
    with pytest.raises(BadInput, match="gamepad"):
        Gamepad(CONTRACT, str(path))


def test_the_verb_takes_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = str(write_random_policy(tmp_path / "p.onnx", CONTRACT))
    common = ["run", policy, "--robot", "mock"]
    assert main([*common, "--command", f"gamepad:{tmp_path / 'none'}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"surefoot run: error: gamepad '{tmp_path / 'none'}': No such file")
    device = Device(tmp_path / "js1")
    device.send(BUTTON, 1, 1)
    assert main([*common, "--command", f"gamepad:{device.path}"]) == 0
    device.vanish()
    out = capsys.readouterr().out
    assert "until Ctrl-C" in out
    assert "B damping" in out
    assert "ended          operator" in out
