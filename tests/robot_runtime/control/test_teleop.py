"""Command sources: what they ask for and when, and what a user may type."""

import os
import pty
import termios
from collections.abc import Iterator

import numpy as np
import pytest

from robot_runtime.control.modes import Event
from robot_runtime.control.teleop import (
    Asked,
    Constant,
    Keyboard,
    Schedule,
    command_array,
    demo_schedule,
    parse_command,
    parse_source,
)
from robot_runtime.errors import BadInput
from robot_runtime.policy.spec import CommandChannel
from tests.helpers.contracts import make_block, make_term, quadruped_contract

CONTRACT = quadruped_contract()
BACKWARDS = quadruped_contract(
    observation=(make_block(make_term("command", "command")),),
    commands=(
        CommandChannel(name="ang_vel_z", lower=-1.0, upper=1.0, max_rate=None),
        CommandChannel(name="base_height", lower=0.2, upper=0.4, max_rate=None),
        CommandChannel(name="lin_vel_x", lower=-1.0, upper=1.0, max_rate=None),
        CommandChannel(name="lin_vel_y", lower=-1.0, upper=1.0, max_rate=None),
    ),
)


def test_three_numbers_go_to_their_channels_by_name() -> None:
    np.testing.assert_array_equal(parse_command(CONTRACT, "0.5,-0.1,0.2"), [0.5, -0.1, 0.2])
    np.testing.assert_array_equal(parse_command(BACKWARDS, " 0.5 , -0.1, 0.2"), [0.2, 0, 0.5, -0.1])


def test_channels_can_be_named() -> None:
    np.testing.assert_array_equal(
        parse_command(BACKWARDS, "base_height=0.3, lin_vel_x=-1e-1"), [0, 0.3, -0.1, 0]
    )


@pytest.mark.parametrize(
    "text", ["", "1", "1,2", "1,2,3,4", "a,b,c", "lin_vel_x=", "lin_vel_x=1,2"]
)
def test_commands_that_are_none(text: str) -> None:
    with pytest.raises(BadInput, match="expected three numbers"):
        parse_command(CONTRACT, text)


def test_a_channel_that_is_given_twice_is_refused() -> None:
    with pytest.raises(BadInput, match="a channel is given twice"):
        parse_command(CONTRACT, "lin_vel_x=0.1, lin_vel_x=0.2")


def test_a_channel_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(BadInput, match=r"no channel 'jump'; it has lin_vel_x, lin_vel_y"):
        parse_command(CONTRACT, "jump=1")
    with pytest.raises(BadInput, match="lin_vel_x = nan is not a finite number"):
        parse_command(CONTRACT, "nan,0,0")
    with pytest.raises(BadInput, match="inf is not"):
        command_array(CONTRACT, {"ang_vel_z": float("inf")})


def test_a_schedule_changes_exactly_at_its_ticks() -> None:
    source = parse_source(CONTRACT, "2: 0,0,0; 4: 0.5,0,0; 0.02: lin_vel_y=0.3;")
    assert isinstance(source, Schedule)
    assert source.duration == pytest.approx(6.02)
    # Elapsed times as they come out of adding up 20 ms.
    elapsed = np.cumsum(np.full(400, 0.02)) - 0.02
    asked = np.array([source.poll(0.0, t).values for t in elapsed])
    np.testing.assert_array_equal(asked[:100], np.zeros((100, 3)))
    np.testing.assert_array_equal(asked[100:300], np.tile([0.5, 0, 0], (200, 1)))
    np.testing.assert_array_equal(asked[300:], np.tile([0, 0.3, 0], (100, 1)))
    assert source.poll(0.0, 1e9).age == 0.0


@pytest.mark.parametrize("text", [":", "0: 0,0,0", "-1: 0,0,0", "x: 0,0,0", "inf: 0,0,0", ";:"])
def test_schedules_that_are_none(text: str) -> None:
    with pytest.raises(BadInput):
        parse_source(CONTRACT, text)


@pytest.mark.parametrize("bad", ["4:", "x: 0,0,0", "-1: 0,0,0", "3: jump=1", "3", "nan: 0,0,0"])
def test_the_part_of_a_schedule_that_is_wrong_is_named(bad: str) -> None:
    with pytest.raises(BadInput, match=f"^schedule '{bad}': "):
        parse_source(CONTRACT, f"2: 0,0,0; {bad}; 1: 0,0,0")


def test_one_command_is_a_constant() -> None:
    source = parse_source(CONTRACT, "0.1,0.2,0.3")
    assert isinstance(source, Constant)
    np.testing.assert_array_equal(source.poll(5.0, 7.0).values, [0.1, 0.2, 0.3])


def test_the_demo_is_the_nominal_schedule() -> None:
    source = demo_schedule(CONTRACT)
    assert source.duration == 16.0
    expected = {
        1.0: (0, 0, 0),
        4.0: (0.5, 0, 0),
        8.0: (0, 0.3, 0),
        12.0: (0, 0, 0.8),
        15.0: (0,) * 3,
    }
    for elapsed, values in expected.items():
        np.testing.assert_array_equal(source.poll(0.0, elapsed).values, values)
    np.testing.assert_array_equal(demo_schedule(BACKWARDS).poll(0, 12.0).values, [0.8, 0, 0, 0])


Terminal = tuple[int, int]


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """Both ends of a terminal: where keys are pressed, and where they are read."""
    keys, device = pty.openpty()
    yield keys, device
    os.close(device)
    os.close(keys)


def press(terminal: Terminal, keyboard: Keyboard, text: str) -> Asked:
    os.write(terminal[0], text.encode())
    return keyboard.poll(0.0, 0.0)


def test_keys_change_the_velocity_and_it_stays(terminal: Terminal) -> None:
    keyboard = Keyboard(CONTRACT, terminal[1])
    assert not keyboard.poll(0.0, 0.0).values.any()
    np.testing.assert_allclose(press(terminal, keyboard, "wwa").values, [0.2, 0.1, 0], atol=1e-12)
    np.testing.assert_allclose(press(terminal, keyboard, "eD").values, [0.2, 0, -0.2], atol=1e-12)
    np.testing.assert_allclose(keyboard.poll(9.0, 9.0).values, [0.2, 0, -0.2], atol=1e-12)
    assert keyboard.poll(9.0, 9.0).age == 0.0
    # Never beyond the ranges of the contract.
    np.testing.assert_allclose(press(terminal, keyboard, "s" * 40).values[0], -1.0)
    assert not press(terminal, keyboard, " ").values.any()
    keyboard.close()


@pytest.mark.parametrize(
    ("keys", "event"), [("z", Event.DAMP), ("x", Event.ESTOP), ("zx", Event.ESTOP), ("u\x1b", None)]
)
def test_keys_that_stop(keys: str, event: Event | None, terminal: Terminal) -> None:
    keyboard = Keyboard(CONTRACT, terminal[1])
    assert press(terminal, keyboard, keys).event is event
    assert keyboard.poll(0.0, 0.0).event is None
    keyboard.close()


@pytest.mark.parametrize(
    "sequence", ["\x1b[A", "\x1b[D", "\x1bOD", "\x1b[1;5D", "\x1b[3~", "\x1bOS"]
)
def test_arrows_and_function_keys_are_no_letters(sequence: str, terminal: Terminal) -> None:
    """They send an escape with letters behind it, which would walk the robot sideways."""
    keyboard = Keyboard(CONTRACT, terminal[1])
    for cut in range(len(sequence) + 1):
        assert not press(terminal, keyboard, sequence[:cut]).values.any()
        assert not press(terminal, keyboard, sequence[cut:]).values.any()
    # What is pressed before and after counts, also after an escape of its own.
    np.testing.assert_allclose(press(terminal, keyboard, f"w{sequence}w").values[0], 0.2)
    assert press(terminal, keyboard, "\x1bx").event is Event.ESTOP
    keyboard.close()


def test_a_terminal_that_goes_away_grows_old() -> None:
    keys, device = pty.openpty()
    keyboard = Keyboard(CONTRACT, device)
    os.close(keys)
    assert keyboard.poll(10.0, 0.0).age == 0.0
    assert keyboard.poll(10.7, 0.0).age == pytest.approx(0.7)
    keyboard.close()
    os.close(device)


def test_the_terminal_is_given_back_as_it_was(terminal: Terminal) -> None:
    before = termios.tcgetattr(terminal[1])
    keyboard = Keyboard(CONTRACT, terminal[1])
    assert termios.tcgetattr(terminal[1]) != before
    keyboard.close()
    assert termios.tcgetattr(terminal[1]) == before


def test_a_keyboard_needs_a_terminal() -> None:
    reading, writing = os.pipe()
    with pytest.raises(BadInput, match="needs a terminal"):
        Keyboard(CONTRACT, reading)
    os.close(reading)
    os.close(writing)
