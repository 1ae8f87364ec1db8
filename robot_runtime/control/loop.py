"""The control loop: the only code that runs a policy, on the robot and in sim2sim."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from robot_runtime.control.clock import Clock
from robot_runtime.control.faults import (
    DAMP_FAULTS,
    HOLD_FAULTS,
    NO_FAULT,
    ZERO_COMMAND_FAULTS,
    Fault,
)
from robot_runtime.control.modes import TRANSITIONS, Event, Mode
from robot_runtime.control.record import Recorder, Row
from robot_runtime.control.robot import Robot, check_robot
from robot_runtime.control.safety import (
    Guards,
    SafetyLimits,
    Watchdog,
    damping_command,
    finite,
    limp_command,
)
from robot_runtime.control.signals import StopSignals
from robot_runtime.control.softstart import Handover, SoftStart, StandUp
from robot_runtime.control.summary import FaultLog, RunSummary
from robot_runtime.control.teleop import CommandSource, Constant
from robot_runtime.control.timing import TimingLog
from robot_runtime.errors import Refused
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.pipeline import PolicyPipeline, PolicyStep
from robot_runtime.policy.state import JointCommand, RobotState

_LOG = logging.getLogger(__name__)

_MIN_DAMPING_TICKS = 5


class StatefulNetwork(Protocol):
    """A policy's network with its recurrent state, if it has any."""

    def __call__(self, obs: NDArray[np.float32], /) -> NDArray[np.float32]:
        """Observation, shape ``(observation_dim,)``, to raw action, shape ``(num_actions,)``."""
        ...

    def reset(self) -> None:
        """Forget everything, as before the first step."""
        ...


class Policy(Protocol):
    """What the loop needs of a policy; a `PolicyFile` is one."""

    @property
    def contract(self) -> PolicyContract:
        """What the policy expects of the world."""
        ...

    def network(self) -> StatefulNetwork:
        """A network of its own for the caller."""
        ...


class ControlLoop:
    """Runs one policy on one robot, tick by tick.

    `run` goes through a whole life: passive, stand up, policy, damping. It does not raise,
    whatever the robot, the policy or the operator do: it ends in damping and says why.
    """

    def __init__(
        self,
        policy: Policy,
        robot: Robot,
        clock: Clock,
        *,
        source: CommandSource | None = None,
        recorder: Recorder | None = None,
        limits: SafetyLimits | None = None,
        soft_start: SoftStart | None = None,
        initial: Mode = Mode.PASSIVE,
    ) -> None:
        """Prepare; nothing moves.

        Args:
            policy: The policy.
            robot: The robot, bound to the policy's joints.
            clock: Real or simulated time, ticking at the policy's period.
            source: Where commands come from; None asks for nothing (zero velocity).
            recorder: Takes a record of every tick; None for no log.
            limits: Where the guards draw their lines.
            soft_start: How the robot stands up and the policy takes over.
            initial: Mode of the first tick: `Mode.POLICY` in a simulation that sets the robot on
                its feet.

        Raises:
            Refused: The robot or the clock does not fit the policy.
        """
        contract = policy.contract
        check_robot(contract, robot)
        period = contract.timing.control_dt
        if abs(clock.period - period) > 1e-6 * period:
            raise Refused(f"the clock ticks every {clock.period} s, the policy every {period} s")
        self.contract = contract
        limits, soft = limits or SafetyLimits(), soft_start or SoftStart()
        self._robot, self._clock, self._recorder = robot, clock, recorder
        self._source = source or Constant(np.zeros(len(contract.commands)))
        self._command_age = limits.command_age
        self._initial = initial
        self._network = policy.network()
        self._pipeline = PolicyPipeline(contract, self._network)
        self._guards = Guards(contract, limits)
        self._watchdog = Watchdog(self._guards, limits, period, len(contract.joints))
        self._stand, self._handover = StandUp(contract, soft), Handover(soft, period)
        self._damping, self._limp = damping_command(contract), limp_command(contract)
        self._damping_ticks = max(_MIN_DAMPING_TICKS, math.ceil(limits.damping_time / period))
        self._kp, self._kd = contract.joint_array("kp"), contract.joint_array("kd")
        self._zero = np.zeros(len(contract.commands))
        self._row = Row(contract)
        self._timing = TimingLog(period)
        self.reset()

    def reset(self) -> None:
        """Forget everything, as if the loop were new: for the next run on the same robot."""
        self._mode = self._initial
        self._entered = False
        self._tick = 0
        self._now = self._engaged = self._started = 0.0
        self._lateness, self._skipped = 0.0, 0
        self._phase = Fault.INTERNAL
        self._faults = self._pending = NO_FAULT
        self._fault_log = FaultLog(self._guards)
        self._requests: list[Event] = []
        self._asked = self._zero
        self._state: RobotState | None = None
        self._command: JointCommand | None = None
        self._policy_step: PolicyStep | None = None
        self._begun = False
        self._walked = 0.0
        self._stop_errors = 0
        self._dropped = 0
        self._row.clear()
        self._timing.reset()
        self._watchdog.reset()
        self._pipeline.reset()
        self._network.reset()

    @property
    def mode(self) -> Mode:
        """The mode of the tick before, or of the first one."""
        return self._mode

    @property
    def row(self) -> NDArray[np.void]:
        """The record of the tick before, shape ``(1,)``; the next tick overwrites it."""
        return self._row.array

    def request(self, event: Event) -> None:
        """Ask for a change of mode at the next tick."""
        self._requests.append(event)

    def step(self) -> None:
        """One tick: read -> observe -> act -> guard -> write -> record -> wait."""
        state = self._read()
        self._listen(state)
        wanted = self._observe_and_act(state)
        command = self._guard(state, wanted)
        sent = self._write(command)
        self._record(state, sent)
        self._wait()

    def run(self, duration: float | None = None) -> RunSummary:
        """Stand up, let the policy run, and end in damping.

        Args:
            duration: How long the policy runs, [s]; None until it is stopped.

        Returns:
            What happened. SIGINT, SIGTERM and SIGHUP end the run; a second SIGINT lets the motors
            go limp at once.
        """
        error: BaseException | None = None
        with StopSignals() as signals:
            try:
                self._clock.start()
                while not signals.count and not self._over(duration):
                    self._advance()
                    self.step()
            except BaseException as caught:
                error = caught
            self._stop(signals, error)
        if error is not None:
            _LOG.info("the loop ended with an exception", exc_info=error)
        return self._summary(signals.count > 0, error)

    def close(self) -> None:
        """Let go of robot and command source, whatever they say; the recorder is its owner's.

        Raises:
            KeyboardInterrupt: One came meanwhile. Both were closed all the same.
        """
        try:
            self._robot.close()
        except KeyboardInterrupt:
            self._quietly(self._source.close)
            raise
        except BaseException:
            self._stop_errors += 1
        try:
            self._source.close()
        except Exception:
            self._stop_errors += 1

    def _over(self, duration: float | None) -> bool:
        if self._mode in (Mode.DAMPING, Mode.ESTOP):
            return True
        if duration is None or self._mode is not Mode.POLICY:
            return False
        # The tick at which the time is over does not run; half a period for rounding.
        since = self._clock.now() - self._engaged
        return self._entered and since >= duration - 0.5 * self._clock.period

    def _advance(self) -> None:
        """The sequence of a run: stand up once the robot was read, engage once it stands."""
        if self._mode is Mode.PASSIVE and self._tick > 0:
            self.request(Event.STAND)
        elif self._mode is Mode.STAND and self._stand.done(self._clock.now()):
            self.request(Event.ENGAGE)

    def _read(self) -> RobotState:
        self._phase = Fault.CLOCK_FAILED
        self._now, self._started = self._clock.now(), time.perf_counter()
        self._faults, self._pending = self._pending, NO_FAULT
        self._add(self._watchdog.tick(self._now))
        self._phase = Fault.READ_FAILED
        state = self._robot.read()
        self._add(self._guards.check_state(state))
        self._add(self._watchdog.state(state, self._now))
        self._state = state
        self._damp_on_fault()
        return state

    def _listen(self, state: RobotState) -> None:
        """Take in what the operator asks for, and change the mode where it is asked."""
        self._phase = Fault.INTERNAL
        if not self._entered:
            self._entered = True
            self._enter(self._mode, state)
        elapsed = self._now - self._engaged if self._mode is Mode.POLICY else 0.0
        try:
            asked = self._source.poll(self._now, elapsed)
            self._asked = np.asarray(asked.values, dtype=np.float64)
            if self._asked.shape != self._zero.shape or not np.isfinite(self._asked).all():
                self._faults |= Fault.OPERATOR_INVALID
            elif not asked.age <= self._command_age:
                self._faults |= Fault.OPERATOR_SILENT
            if asked.lost:
                self._faults |= Fault.OPERATOR_LOST
            if asked.event is not None:
                self._requests.append(asked.event)
        except Exception:
            self._faults |= Fault.OPERATOR_INVALID
        if self._faults and self._faults & ZERO_COMMAND_FAULTS:
            self._asked = self._zero
        while self._requests:
            mode = TRANSITIONS[self._mode, self._requests.pop(0)]
            if mode is not self._mode:
                self._enter(mode, state)
                if mode in (Mode.DAMPING, Mode.ESTOP):
                    self._fault_log.operator()

    def _enter(self, mode: Mode, state: RobotState) -> None:
        last = self._command
        if mode is Mode.STAND:
            stiff = self._mode is Mode.POLICY and last is not None
            start = last.position if stiff and last is not None else state.joint_pos
            self._stand.begin(self._now, start, stiff=stiff)
        elif mode is Mode.POLICY:
            self._pipeline.reset()
            self._network.reset()
            self._engaged = self._now
            self._begun = True
            self._handover.begin(self._now, last)
        self._mode = mode

    def _observe_and_act(self, state: RobotState) -> JointCommand:
        self._phase = Fault.POLICY_FAILED
        self._policy_step = None
        if self._mode in (Mode.PASSIVE, Mode.ESTOP):
            return self._limp
        if self._mode is Mode.DAMPING:
            return self._damping
        if self._faults and self._faults & HOLD_FAULTS and self._command is not None:
            return self._command
        if self._mode is Mode.STAND:
            return self._stand.command(self._now)
        step = self._pipeline.step(state, self._asked, self._now - self._engaged)
        if not finite(step.observation):
            self._faults |= Fault.OBSERVATION_NONFINITE
        if not finite(step.raw_action):
            self._faults |= Fault.ACTION_NONFINITE
        self._policy_step = step
        self._walked = self._now - self._engaged + self._clock.period
        return self._handover.apply(self._to_command(step), self._now)

    def _to_command(self, step: PolicyStep) -> JointCommand:
        targets = step.targets
        return JointCommand(
            position=np.asarray(targets.position, dtype=np.float64),
            velocity=np.asarray(targets.velocity, dtype=np.float64),
            effort=np.asarray(targets.effort, dtype=np.float64),
            kp=self._kp,
            kd=self._kd,
        )

    def _guard(self, state: RobotState, wanted: JointCommand) -> JointCommand:
        self._phase = Fault.INTERNAL
        if self._mode not in (Mode.STAND, Mode.POLICY):
            return wanted
        command, fault = self._guards.limit(wanted)
        self._add(fault)
        if fault is not Fault.TARGET_NONFINITE:
            self._add(self._watchdog.command(state, command))
        self._command = command
        return self._damping if self._damp_on_fault() else command

    def _write(self, command: JointCommand) -> JointCommand:
        self._phase = Fault.WRITE_FAILED
        return self._robot.write(command)

    def _record(self, state: RobotState | None, sent: JointCommand | None) -> None:
        self._phase = Fault.INTERNAL
        compute = time.perf_counter() - self._started
        self._timing.tick(self._now, compute)
        if self._faults:
            self._fault_log.add(self._faults)
        if self._recorder is not None:
            self._fill_row(state, sent, compute)
            try:
                self._recorder.write(self._row.array)
            except Exception:
                self._dropped += 1
                self._pending |= Fault.RECORDER_FAILED
        self._faults = NO_FAULT
        # A policy that engages while the state is stale begins only at its first step.
        self._begun = self._begun and self._policy_step is None
        self._tick += 1

    def _fill_row(self, state: RobotState | None, sent: JointCommand | None, took: float) -> None:
        row, step = self._row, self._policy_step
        row.put("tick", self._tick)
        row.put("time", self._now)
        row.put("elapsed", self._now - self._engaged if step is not None else 0.0)
        row.put("mode", self._mode)
        row.put("step", 0 if step is None else 2 if self._begun else 1)
        row.put("faults", self._faults)
        row.put("compute", took)
        row.put("lateness", self._lateness)
        row.put("skipped", self._skipped)
        row.state(state)
        row.asked(self._asked)
        row.policy(step)
        row.sent(sent)

    def _wait(self) -> bool:
        self._phase = Fault.CLOCK_FAILED
        tick = self._clock.wait()
        self._timing.wait(tick)
        self._lateness, self._skipped = tick.lateness, tick.skipped
        if tick.overrun:
            self._pending |= Fault.OVERRUN
        return True

    def _add(self, fault: Fault) -> None:
        # Flags are slow to combine, and nearly always there are none.
        if fault:
            self._faults |= fault

    def _damp_on_fault(self) -> bool:
        """Latch damping if a fault of this tick asks for it; says whether one does."""
        if not self._faults or not self._faults & DAMP_FAULTS:
            return False
        self._fault_log.ending(self._faults & DAMP_FAULTS, self._state, self._command)
        self._mode = TRANSITIONS[self._mode, Event.DAMP]
        return True

    def _stop(self, signals: StopSignals, error: BaseException | None) -> None:
        """Send damping for a while. Nothing in here can raise, and nothing can end it early."""
        if error is not None:
            self._fault_log.raised(self._phase, error)
            self._faults |= self._phase
        self._mode = TRANSITIONS[self._mode, Event.DAMP]
        for _ in range(self._damping_ticks):
            if signals.insistent:
                self._mode = TRANSITIONS[self._mode, Event.ESTOP]
            command = self._limp if self._mode is Mode.ESTOP else self._damping
            self._quietly(self._begin_stop_tick)
            sent = self._quietly(self._robot.write, command)
            state = self._quietly(self._robot.read)
            self._quietly(self._record, state, sent)
            if not self._quietly(self._wait):
                # A dead clock must not turn damping into one burst.
                self._quietly(time.sleep, self.contract.timing.control_dt)

    def _begin_stop_tick(self) -> None:
        self._policy_step = None
        self._asked = self._zero
        self._faults |= self._pending
        self._pending = NO_FAULT
        self._started = time.perf_counter()
        self._now = self._clock.now()

    def _quietly(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except BaseException:
            self._stop_errors += 1
            return None

    def _summary(self, stopped: bool, error: BaseException | None) -> RunSummary:
        return self._fault_log.summary(
            mode=self._mode,
            stopped=stopped,
            error=error,
            walked=self._walked,
            timing=self._timing.summary(),
            records_dropped=self._dropped,
            stop_errors=self._stop_errors,
        )
