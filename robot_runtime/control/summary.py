"""What happened in a run, collected while it runs and said at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from robot_runtime.control.faults import REACTIONS, Fault
from robot_runtime.control.modes import Mode
from robot_runtime.control.safety import Guards
from robot_runtime.control.timing import LoopTiming
from robot_runtime.policy.state import JointCommand, RobotState


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """What happened in a run.

    Attributes:
        ended: Why it ended: its time was ``done``, a signal ``stopped`` it, the ``operator`` asked
            for damping or E-stop, or a ``fault`` did it.
        interrupted: Whether a signal asked for the end, even if something else was faster.
        cause: The fault that ended it and its numbers, in one line; empty without one.
        error: The exception that ended it; empty without one.
        mode: Mode at the end.
        faults: Ticks in which each fault was seen, by name.
        walked: How long the policy ran, [s].
        timing: How well the rate was kept.
        records_dropped: Records that the flight log lost.
        stop_errors: Calls to robot, clock or recorder that raised while damping was sent.
    """

    ended: Literal["done", "stopped", "operator", "fault"]
    interrupted: bool
    cause: str
    error: str
    mode: Mode
    faults: dict[str, int]
    walked: float
    timing: LoopTiming
    records_dropped: int
    stop_errors: int

    @property
    def good(self) -> bool:
        """Whether no fault ended the run."""
        return self.ended != "fault"


class FaultLog:
    """Counts faults, and keeps the one that ended the run."""

    def __init__(self, guards: Guards) -> None:
        """Start without faults.

        Args:
            guards: Describes faults to people.
        """
        self._guards = guards
        self._counts: dict[Fault, int] = {}
        self._ended = False
        self._cause = ""
        self._operator = False

    def add(self, faults: Fault) -> None:
        """Count the faults of a tick."""
        for fault in REACTIONS:
            if faults & fault:
                self._counts[fault] = self._counts.get(fault, 0) + 1

    def ending(self, faults: Fault, state: RobotState | None, command: JointCommand | None) -> None:
        """Note the faults that end the run; only the first call counts."""
        if self._ended:
            return
        self._ended = True
        lines: list[str] = []
        for fault in REACTIONS:
            if faults & fault:
                detail = self._guards.describe(fault, state, command)
                lines.append(f"{fault.name}: {detail}" if detail else str(fault.name))
        self._cause = "; ".join(lines)

    def operator(self) -> None:
        """Note that the operator ended the run."""
        self._operator = True

    def raised(self, phase: Fault, error: BaseException) -> None:
        """Note the exception that ends the run."""
        if not self._ended:
            self._ended = True
            self._cause = f"{phase.name}: {_text(error)}"

    def summary(
        self,
        *,
        mode: Mode,
        stopped: bool,
        error: BaseException | None,
        walked: float,
        timing: LoopTiming,
        records_dropped: int,
        stop_errors: int,
    ) -> RunSummary:
        """Everything together; see `RunSummary`."""
        ended: Literal["done", "stopped", "operator", "fault"] = "done"
        if self._ended:
            ended = "fault"
        elif stopped:
            ended = "stopped"
        elif self._operator:
            ended = "operator"
        return RunSummary(
            ended=ended,
            interrupted=stopped,
            cause=self._cause,
            error="" if error is None else _text(error),
            mode=mode,
            faults={str(fault.name): n for fault, n in self._counts.items()},
            walked=walked,
            timing=timing,
            records_dropped=records_dropped,
            stop_errors=stop_errors,
        )


def _text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        # An exception whose own text raises must not stop the stopping.
        return type(error).__name__
