"""The table of modes, entry by entry, and what the loop sends in each mode."""

import itertools

import numpy as np
import pytest

from robot_runtime.control.modes import TRANSITIONS, Event, Mode
from tests.helpers.loops import Bench

# One row per mode: what STAND, ENGAGE, DAMP and ESTOP lead to.
EXPECTED = {
    "PASSIVE": "STAND PASSIVE DAMPING ESTOP",
    "STAND": "STAND POLICY DAMPING ESTOP",
    "POLICY": "STAND POLICY DAMPING ESTOP",
    "DAMPING": "DAMPING DAMPING DAMPING ESTOP",
    "ESTOP": "ESTOP ESTOP ESTOP ESTOP",
}
EVENTS = ("STAND", "ENGAGE", "DAMP", "ESTOP")


def test_every_mode_and_event_has_its_entry() -> None:
    table = {
        (Mode[mode], Event[event]): Mode[target]
        for mode, row in EXPECTED.items()
        for event, target in zip(EVENTS, row.split(), strict=True)
    }
    assert set(table) == set(itertools.product(Mode, Event))
    assert dict(TRANSITIONS) == table


def reach(mode: Mode) -> Bench:
    """A loop that has just made a tick in a mode."""
    bench = Bench()
    path = {
        Mode.PASSIVE: [],
        Mode.STAND: [Event.STAND],
        Mode.POLICY: [Event.STAND, Event.ENGAGE],
        Mode.DAMPING: [Event.DAMP],
        Mode.ESTOP: [Event.ESTOP],
    }
    for event in path[mode]:
        bench.loop.request(event)
        bench.loop.step()
    bench.loop.step()
    assert bench.loop.mode is mode
    return bench


@pytest.mark.parametrize(("mode", "event"), list(itertools.product(Mode, Event)))
def test_the_loop_obeys_the_table(mode: Mode, event: Event) -> None:
    bench = reach(mode)
    bench.loop.request(event)
    bench.loop.step()
    assert bench.loop.mode is TRANSITIONS[mode, event]
    assert Mode(int(bench.rows["mode"][-1])) is bench.loop.mode


@pytest.mark.parametrize("mode", Mode)
def test_gains_of_every_mode(mode: Mode) -> None:
    bench = reach(mode)
    for _ in range(60):
        bench.loop.step()
    sent = bench.robot.sent[-1]
    stiff = mode in (Mode.STAND, Mode.POLICY)
    damped = stiff or mode is Mode.DAMPING
    contract = bench.contract
    np.testing.assert_array_equal(sent.kp, contract.joint_array("kp") if stiff else np.zeros(12))
    np.testing.assert_array_equal(sent.kd, contract.joint_array("kd") if damped else np.zeros(12))
    np.testing.assert_array_equal(sent.effort, np.zeros(12))
