"""Whatever goes wrong, the robot is damped, and nothing on the way there can raise."""

import dataclasses
import math
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from robot_runtime.control.faults import REACTIONS, Fault, Reaction
from robot_runtime.control.modes import Event, Mode
from robot_runtime.control.safety import SafetyLimits
from robot_runtime.control.summary import RunSummary
from robot_runtime.control.teleop import Asked, Constant
from robot_runtime.policy.state import JointCommand, RobotState
from tests.helpers.loops import Bench, Policy

AT = 120
"""The read from which on something is wrong: the policy has run for more than a second."""


class Source:
    """A command source that can be told to misbehave."""

    def __init__(self) -> None:
        self.poll_again: Callable[[], Asked] | None = None
        self.values = np.array([0.5, 0.0, 0.0])

    def poll(self, now: float, elapsed: float) -> Asked:
        return self.poll_again() if self.poll_again else Asked(values=self.values)

    def close(self) -> None:
        pass


def changing(**changes: Callable[[RobotState], Any]) -> Callable[[Bench], None]:
    """Measured numbers change from `AT` on."""

    def install(bench: Bench) -> None:
        def change(read: int, state: RobotState) -> RobotState:
            if read < AT:
                return state
            return dataclasses.replace(state, **{k: f(state) for k, f in changes.items()})

        bench.robot.change = change

    return install


def at_read(action: Callable[[Bench], Any], once: bool = False) -> Callable[[Bench], None]:
    """Something happens in the read `AT`, and in those after it."""

    def install(bench: Bench) -> None:
        def change(read: int, state: RobotState) -> RobotState:
            if read == AT or (read > AT and not once):
                action(bench)
            return state

        bench.robot.change = change

    return install


def fail(*_: Any) -> Any:
    raise OSError("gone")


def acting(value: float) -> Callable[[Bench], None]:
    return at_read(
        lambda bench: setattr(bench.policy.network(), "function", lambda _: [value] * 12)
    )


def asking(asked: Callable[[], Asked]) -> Callable[[Bench], None]:
    return at_read(lambda bench: setattr(bench.loop._source, "poll_again", asked))


def hurt(target: str, method: str) -> Callable[[Bench], None]:
    """A method of robot, clock or recorder raises from `AT` on."""
    return at_read(lambda bench: setattr(getattr(bench, target), method, fail))


def nan_pipeline(bench: Bench) -> None:
    pipeline: Any = bench.loop._pipeline
    step = pipeline.step

    def broken(*args: Any) -> Any:
        done = step(*args)
        return dataclasses.replace(done, observation=np.full_like(done.observation, np.nan))

    pipeline.step = broken


SCENARIOS: dict[Fault, Callable[[Bench], None]] = {
    Fault.STATE_NONFINITE: changing(joint_vel=lambda s: np.full(12, math.nan)),
    Fault.ATTITUDE_INVALID: changing(base_quat=lambda s: np.zeros(4)),
    Fault.JOINT_POSITION: changing(joint_pos=lambda s: s.joint_pos + 10.0),
    Fault.JOINT_VELOCITY: changing(joint_vel=lambda s: np.full(12, 50.0)),
    Fault.TILT: changing(base_quat=lambda s: np.array([0.7071, 0.7071, 0.0, 0.0])),
    # A gap that is short and over again; with a longer one the state is lost.
    Fault.STATE_STALE: lambda bench: stale(bench, 4),
    Fault.STATE_LOST: lambda bench: stale(bench, 1000),
    Fault.TIME_BACKWARDS: changing(time=lambda s: s.time - 50.0),
    Fault.OBSERVATION_NONFINITE: at_read(nan_pipeline, once=True),
    Fault.ACTION_NONFINITE: acting(math.nan),
    Fault.TARGET_NONFINITE: at_read(lambda b: setattr(b.loop, "_kp", np.full(12, math.inf))),
    Fault.TARGET_LIMITED: acting(100.0),
    Fault.EFFORT: lambda bench: blocked(bench),
    Fault.OPERATOR_SILENT: asking(lambda: Asked(values=np.ones(3), age=0.6)),
    Fault.OPERATOR_INVALID: asking(lambda: Asked(values=np.full(3, math.nan))),
    Fault.OPERATOR_LOST: asking(lambda: Asked(values=np.zeros(3), lost=True)),
    Fault.OVERRUN: at_read(lambda bench: bench.time.sleep(0.03), once=True),
    Fault.LOOP_STALLED: at_read(lambda bench: bench.time.sleep(0.7), once=True),
    Fault.READ_FAILED: at_read(fail),
    Fault.POLICY_FAILED: at_read(lambda bench: setattr(bench.policy.network(), "function", fail)),
    Fault.WRITE_FAILED: hurt("robot", "write"),
    Fault.CLOCK_FAILED: hurt("clock", "wait"),
    Fault.RECORDER_FAILED: hurt("memory", "write"),
    Fault.INTERNAL: at_read(lambda bench: setattr(bench.loop._guards, "limit", fail)),
}


def blocked(bench: Bench) -> None:
    bench.robot.follow = False
    acting(6.0)(bench)


def stale(bench: Bench, reads: int) -> None:
    frozen: list[float] = []

    def change(read: int, state: RobotState) -> RobotState:
        if not AT <= read < AT + reads:
            return state
        frozen.append(state.time)
        return dataclasses.replace(state, time=frozen[0])

    bench.robot.change = change


def fly(install: Callable[[Bench], None]) -> tuple[Bench, RunSummary, list[JointCommand]]:
    """A run of three seconds in which something goes wrong; what was sent from then on."""
    bench = Bench(source=Source())
    bench.robot.follow = True
    install(bench)
    change = bench.robot.change
    attempts: list[JointCommand] = []
    at: list[int] = []

    def watch(read: int, state: RobotState) -> RobotState:
        if read == AT:
            at.append(len(attempts))
        return change(read, state)

    class Noting:
        """Notes what is sent before the write can fail."""

        def __getattr__(self, name: str) -> Any:
            return getattr(bench.robot, name)

        def write(self, command: JointCommand) -> JointCommand:
            attempts.append(command)
            return bench.robot.write(command)

    bench.robot.change = watch
    loop: Any = bench.loop
    loop._robot = Noting()
    summary = bench.loop.run(3.0)
    return bench, summary, attempts[at[0] :]


def is_damping(bench: Bench, command: JointCommand) -> bool:
    kd = bench.contract.joint_array("kd")
    return not command.kp.any() and not command.effort.any() and bool((command.kd == kd).all())


def test_there_is_a_scenario_for_every_fault() -> None:
    assert set(SCENARIOS) == set(REACTIONS)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name)
def test_every_fault_has_the_reaction_of_the_table(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The fallback of a dead clock really sleeps; a second of that is long for a test.
    monkeypatch.setattr("robot_runtime.control.loop.time.sleep", lambda _: None)
    bench, summary, sent = fly(SCENARIOS[fault])
    name = str(fault.name)
    assert summary.faults[name] >= 1
    if REACTIONS[fault] is Reaction.DAMP:
        assert summary.ended == "fault"
        assert not summary.good
        assert name in summary.cause
        assert summary.mode is Mode.DAMPING
        # Latched: once damped, nothing else is sent, for a second and at least five times.
        first = next(i for i, command in enumerate(sent) if is_damping(bench, command))
        assert all(is_damping(bench, command) for command in sent[first:])
        assert len(sent) - first >= 50
        # What needs no confirmation is damped in the tick that shows it, or the one after.
        slow = {Fault.STATE_LOST: 6, Fault.JOINT_VELOCITY: 2, Fault.EFFORT: 70}
        assert first <= slow.get(fault, 1)
    else:
        assert summary.ended == "done", summary.cause
        assert summary.walked == pytest.approx(3.0, abs=0.05)
        assert not any(is_damping(bench, command) for command in sent[:50])


def test_a_stale_state_holds_the_last_command_and_the_policy() -> None:
    bench = Bench(Policy(function=lambda obs: np.tanh(obs[:12]) + 0.3), source=Source())
    stale(bench, 4)
    bench.loop.run(3.0)
    rows = bench.rows
    held = rows[(rows["faults"] & Fault.STATE_STALE) > 0]
    # Four measurements in a row are the same: new, one period old, and two that are too old.
    assert len(held) == 2
    assert not held["step"].any()
    last = rows[rows["tick"] == held["tick"][0] - 1]
    np.testing.assert_array_equal(held["sent_position"], np.tile(last["sent_position"], (2, 1)))
    np.testing.assert_array_equal(held["sent_kp"], np.tile(last["sent_kp"], (2, 1)))


@pytest.mark.parametrize("fault", [Fault.OPERATOR_SILENT, Fault.OPERATOR_INVALID])
def test_a_silent_operator_means_zero_velocity(fault: Fault) -> None:
    bench, _, _ = fly(SCENARIOS[fault])
    rows = bench.rows[bench.rows["step"] > 0]
    silent = (rows["faults"] & fault) > 0
    assert silent.sum() > 50
    assert (rows["asked"][silent] == 0.0).all()
    assert (rows["command"][silent] == 0.0).all()
    assert (rows["asked"][~silent][:, 0] == 0.5).all()


def test_an_operator_who_raises_is_a_silent_one() -> None:
    bench, summary, _ = fly(asking(fail))
    assert summary.ended == "done"
    assert summary.faults["OPERATOR_INVALID"] > 50
    assert (bench.rows["asked"][bench.rows["faults"] > 0] == 0.0).all()


def test_a_limited_target_is_the_limit() -> None:
    bench, _, _ = fly(acting(100.0))
    limited = bench.rows[(bench.rows["faults"] & Fault.TARGET_LIMITED) > 0]
    # 100 times 0.25 rad is far beyond the 4 rad of every joint.
    assert (limited["sent_position"] <= 4.0).all()
    assert limited["sent_position"].max() == 4.0


def test_a_failing_recorder_is_counted_and_the_robot_walks_on() -> None:
    _, summary, sent = fly(hurt("memory", "write"))
    assert summary.records_dropped == len(sent)
    assert summary.good


class Loud(Exception):
    """An exception that cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


ERRORS = [OSError("x"), KeyboardInterrupt(), SystemExit(3), MemoryError(), Loud(), RecursionError()]
METHODS = [
    ("robot", "read"),
    ("robot", "write"),
    ("robot", "close"),
    ("clock", "now"),
    ("clock", "wait"),
    ("clock", "start"),
    ("memory", "write"),
    ("source", "poll"),
    ("source", "close"),
    ("network", "function"),
]


class Breaking:
    """A function that raises at one call, or from one call on."""

    def __init__(self, function: Callable[..., Any], moment: int, once: bool) -> None:
        self.function, self.moment, self.once = function, moment, once
        self.error = ERRORS[moment % len(ERRORS)]
        self.calls = 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        if self.calls == self.moment + 1 or (self.calls > self.moment and not self.once):
            raise self.error
        return self.function(*args)


def fly_breaking(target: str, method: str, moment: int, once: bool) -> bool:
    """A short run in which a call raises; says whether the moment ever came."""
    limits = SafetyLimits(damping_time=0.02)
    bench = Bench(source=Source(), limits=limits, initial=Mode.POLICY)
    attempts: list[JointCommand] = []
    parts = {
        "robot": bench.robot,
        "clock": bench.clock,
        "memory": bench.memory,
        "source": bench.loop._source,
        "network": bench.policy.network(),
    }
    breaking = Breaking(getattr(parts[target], method), moment, once)
    setattr(parts[target], method, breaking)
    write = bench.robot.write

    def note(command: JointCommand) -> JointCommand:
        attempts.append(command)
        return write(command)

    bench.robot.write = note
    summary = bench.loop.run(0.2)
    bench.loop.close()
    assert isinstance(summary, RunSummary)
    assert len(attempts) >= 5
    assert all(is_damping(bench, command) for command in attempts[-5:])
    return breaking.calls > moment


@pytest.mark.parametrize("once", [False, True], ids=["for good", "once"])
@pytest.mark.parametrize(("target", "method"), METHODS, ids=".".join)
def test_nothing_that_raises_keeps_the_robot_from_being_damped(
    target: str, method: str, once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call, first to last, of everything around the loop raises in its turn."""
    monkeypatch.setattr("robot_runtime.control.loop.time.sleep", lambda _: None)
    moment = 0
    while fly_breaking(target, method, moment, once):
        moment += 1
    assert moment >= 1
    if method in ("read", "write", "now", "wait"):
        # Ten ticks of the policy and five of damping.
        assert moment >= 15


def test_a_dead_clock_does_not_turn_damping_into_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr("robot_runtime.control.loop.time.sleep", naps.append)
    _, summary, _ = fly(hurt("clock", "wait"))
    assert naps == [0.02] * 50
    assert summary.stop_errors == 50


def test_close_lets_go_of_everything_whatever_it_says() -> None:
    bench = Bench(source=Source())
    bench.robot.close = fail
    closed: list[bool] = []
    bench.loop._source.close = lambda: closed.append(True)
    bench.loop.close()
    assert closed == [True]


def test_an_interrupt_while_closing_is_not_lost() -> None:
    bench = Bench(source=Source())

    def interrupted() -> None:
        raise KeyboardInterrupt

    bench.robot.close = interrupted
    closed: list[bool] = []
    bench.loop._source.close = lambda: closed.append(True)
    with pytest.raises(KeyboardInterrupt):
        bench.loop.close()
    assert closed == [True]


def press(*numbers: int) -> Callable[[Bench], None]:
    return at_read(lambda _: [os.kill(os.getpid(), number) for number in numbers], once=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_in_damping_and_get_their_handlers_back(number: int) -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    bench, summary, sent = fly(press(number))
    assert summary.ended == "stopped"
    assert summary.good
    # The tick in which it came is finished; then damping, and nothing else.
    assert [is_damping(bench, command) for command in sent] == [False] + [True] * 50
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_a_signal_in_the_tick_of_a_fault_is_still_told() -> None:
    """Whoever runs one thing after another must not go on to the next."""

    def leaning(signalled: bool) -> Callable[[RobotState], Any]:
        def quat(_: RobotState) -> Any:
            if signalled:
                os.kill(os.getpid(), signal.SIGINT)
            return np.array([0.7071, 0.7071, 0.0, 0.0])

        return quat

    for signalled in (True, False):
        _, summary, _ = fly(changing(base_quat=leaning(signalled)))
        assert (summary.ended, summary.interrupted) == ("fault", signalled)


def test_a_second_ctrl_c_lets_the_motors_go_limp() -> None:
    _, summary, sent = fly(press(signal.SIGINT, signal.SIGINT))
    assert summary.mode is Mode.ESTOP
    assert len(sent) == 51
    for command in sent[1:]:
        assert not command.kp.any()
        assert not command.kd.any()


def test_a_shell_that_also_sends_sigterm_does_not() -> None:
    _, summary, _ = fly(press(signal.SIGINT, signal.SIGTERM, signal.SIGTERM))
    assert summary.mode is Mode.DAMPING


def test_a_loop_outside_the_main_thread_leaves_signals_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    summaries: list[RunSummary] = []
    thread = threading.Thread(target=lambda: summaries.append(Bench().loop.run(0.1)))
    thread.start()
    thread.join()
    assert summaries[0].ended == "done"
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(("event", "mode"), [(Event.DAMP, Mode.DAMPING), (Event.ESTOP, Mode.ESTOP)])
def test_the_operator_ends_the_run(event: Event, mode: Mode) -> None:
    _, summary, sent = fly(asking(lambda: Asked(values=np.zeros(3), event=event)))
    assert summary.ended == "operator"
    assert summary.mode is mode
    assert not any(command.kp.any() for command in sent)


def test_a_fault_before_standing_up_never_stiffens_a_joint() -> None:
    bench = Bench(source=Constant(np.zeros(3)))
    bench.robot.change = lambda read, state: dataclasses.replace(
        state, base_quat=np.array([0.0, 1.0, 0.0, 0.0])
    )
    summary = bench.loop.run(1.0)
    assert summary.cause.startswith("TILT: base leans 3.14 rad")
    assert not any(command.kp.any() for command in bench.robot.sent)


def test_a_run_after_a_fault_needs_a_reset() -> None:
    bench = Bench()
    bench.robot.change = lambda read, state: fail() if read == 30 else state
    assert bench.loop.run(1.0).ended == "fault"
    bench.loop.run(1.0)
    assert bench.loop.mode is Mode.DAMPING
    assert all(not c.kp.any() for c in bench.robot.sent[31:])
    bench.loop.reset()
    assert bench.loop.run(1.0).ended == "done"
