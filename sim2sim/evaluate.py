"""Runs the shipped loop with the shipped file through scenarios, and judges what came out."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robot_runtime.control.loop import ControlLoop, Policy
from robot_runtime.control.modes import Event, Mode
from robot_runtime.control.record import MemoryRecorder
from robot_runtime.control.robot import Robot
from robot_runtime.control.safety import SafetyLimits
from robot_runtime.control.summary import RunSummary
from robot_runtime.control.teleop import Asked, CommandSource, Schedule
from robot_runtime.policy.file import open_policy
from sim2sim.metrics import (
    RunMetrics,
    SegmentSummary,
    Thresholds,
    fallen,
    run_metrics,
    summarize_segments,
)
from sim2sim.model import SimModel, build_model, find_model, strongest
from sim2sim.mujoco_robot import MujocoRobot
from sim2sim.placement import disturb, place
from sim2sim.pool import Workshop, run_tasks
from sim2sim.probe import Probe, Truth
from sim2sim.scenarios import Scenario, schedule_arrays
from sim2sim.sim_clock import SimClock
from sim2sim.wrappers import Latency


@dataclass(frozen=True, kw_only=True, slots=True)
class Trajectory:
    """A run in full, for plots.

    Attributes:
        truth: The true motion while the policy ran.
        command: Velocity command that the policy saw, shape ``(ticks, num_commands)``.
        action: Applied actions, shape ``(ticks, num_actions)``.
    """

    truth: Truth
    command: NDArray[np.float32]
    action: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """What became of one scenario.

    Attributes:
        scenario: What was run.
        metrics: Its figures.
        failure: Why the run did not reach its end on its feet; empty where it did.
        faults: Ticks in which the loop saw each fault, by name.
        trajectory: The run in full, or None where it was not asked for.
    """

    scenario: Scenario
    metrics: RunMetrics
    failure: str
    faults: dict[str, int]
    trajectory: Trajectory | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One line of a verdict.

    Attributes:
        name: What is judged.
        value: The figure.
        limit: The largest that passes.
        unit: Unit of both.
    """

    name: str
    value: float
    limit: float
    unit: str

    @property
    def passed(self) -> bool:
        """Whether the figure is within its limit; a missing one is not."""
        return self.value <= self.limit


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Pass or fail, line by line.

    Attributes:
        checks: What was judged.
        segments: The segments of all nominal runs, or of the constant command.
    """

    checks: tuple[Check, ...]
    segments: tuple[SegmentSummary, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """All that a process needs to run scenarios.

    Attributes:
        policy: The policy file.
        scene: The model asked for, or None for the contract's robot.
        physics_dt: The physics step asked for, [s], or None.
    """

    policy: Path
    scene: Path | None
    physics_dt: float | None


def run_scenario(
    policy: Policy, sim: SimModel, scenario: Scenario, *, keep: bool = False
) -> RunResult:
    """Run the control loop through one scenario.

    Args:
        policy: The opened policy file.
        sim: The bound model.
        scenario: What to run.
        keep: Whether to keep the trajectory.

    Raises:
        KeyboardInterrupt: A signal stopped the loop.
        Refused: The robot has no floor, or does not fit the policy.
    """
    robot = MujocoRobot(sim, _strength(scenario, sim))
    if scenario.disturbance is not None:
        disturb(robot, scenario.disturbance)
    place(robot, scenario.start)
    probe = Probe(robot)
    recorder = MemoryRecorder(sim.contract)
    loop = ControlLoop(
        policy,
        _late(robot, scenario),
        SimClock(robot),
        source=_UntilFallen(Schedule(schedule_arrays(scenario.segments)), probe),
        recorder=recorder,
        # Only as much damping at the end as there must be: nobody looks at it.
        limits=SafetyLimits(damping_time=sim.contract.timing.control_dt),
        initial=Mode.POLICY,
    )
    summary = loop.run(scenario.duration)
    loop.close()
    if summary.interrupted:
        raise KeyboardInterrupt
    return _result(scenario, sim, summary, recorder, probe, keep)


class _UntilFallen:
    """Passes a command source on, and ends the run once the robot has fallen."""

    def __init__(self, source: CommandSource, probe: Probe) -> None:
        self._source, self._probe = source, probe

    def poll(self, now: float, elapsed: float) -> Asked:
        asked = self._source.poll(now, elapsed)
        probe = self._probe
        if fallen(probe.tilt, probe.com_height, probe.start_height):
            return dataclasses.replace(asked, event=Event.DAMP)
        return asked

    def close(self) -> None:
        self._source.close()


def _strength(scenario: Scenario, sim: SimModel) -> NDArray[np.float64] | None:
    """The motors that the scenario draws."""
    if scenario.disturbance is None:
        return None
    return np.minimum(scenario.disturbance.strength, strongest(sim))


def _late(robot: MujocoRobot, scenario: Scenario) -> Robot:
    """The robot behind the latency that the scenario draws."""
    if scenario.disturbance is None:
        return robot
    late = Latency(robot, scenario.disturbance.latency, lambda: robot.time)
    robot.before_pd.append(late.deliver)
    return late


def _result(
    scenario: Scenario,
    sim: SimModel,
    summary: RunSummary,
    recorder: MemoryRecorder,
    probe: Probe,
    keep: bool,
) -> RunResult:
    rows = recorder.rows[recorder.rows["step"] > 0]
    truth = cut(probe.truth(), len(rows) + 1)
    contract = sim.contract
    actions = np.array(rows["applied_action"])
    metrics = run_metrics(scenario, contract.command_names, contract.joint_names, truth, actions)
    failure = f"fell: {metrics.fell}" if metrics.fell else summary.cause
    if not failure and metrics.duration < scenario.duration - contract.timing.control_dt:
        failure = f"ended after {metrics.duration:.2f} s"
    command = np.array(rows["command"])
    trajectory = Trajectory(truth=truth, command=command, action=actions) if keep else None
    return RunResult(
        scenario=scenario,
        metrics=metrics,
        failure=failure,
        faults=summary.faults,
        trajectory=trajectory,
    )


def cut(truth: Truth, rows: int) -> Truth:
    """The first rows of what a probe saw."""
    columns = {f.name: getattr(truth, f.name) for f in dataclasses.fields(truth)}
    return Truth(**{n: v if n == "bodies" else v[:rows] for n, v in columns.items()})


def run_scenarios(
    job: Job,
    scenarios: Sequence[Scenario],
    *,
    workers: int = 1,
    keep: Callable[[Scenario], bool] = lambda _: False,
    done: Callable[[RunResult], None] = lambda _: None,
) -> list[RunResult]:
    """Run scenarios, in as many processes as wanted; the results do not depend on how many.

    Args:
        job: Policy and model.
        scenarios: What to run.
        workers: How many processes; 1 runs everything in this one.
        keep: Which trajectories to keep.
        done: Called with every result, in order.

    Returns:
        The results, in the order of the scenarios.
    """
    results: list[RunResult] = []
    # Closed here and now: an interrupt may come while `done` runs, when the generator, which has
    # the processes to end, would not know of it.
    with closing(_results(job, scenarios, workers, [keep(s) for s in scenarios])) as running:
        for result in running:
            done(result)
            results.append(result)
    return results


def _results(
    job: Job, scenarios: Sequence[Scenario], workers: int, kept: list[bool]
) -> Generator[RunResult]:
    workshop = Workshop(functools.partial(_load, job), _run)
    tasks = list(zip(scenarios, kept, strict=True))
    if workers <= 1 or len(tasks) <= 1:
        loaded = workshop.prepare()
        yield from (workshop.run(loaded, task) for task in tasks)
    else:
        with closing(run_tasks(workshop, tasks, workers)) as running:
            yield from running


_Loaded = tuple[Policy, SimModel]
"""What a process opens once."""


def _load(job: Job) -> _Loaded:
    policy = open_policy(job.policy, replay=False)
    return policy, build_model(
        policy.contract, find_model(policy.contract, job.scene), job.physics_dt
    )


def _run(loaded: _Loaded, task: tuple[Scenario, bool]) -> RunResult:
    scenario, keep = task
    return run_scenario(*loaded, scenario, keep=keep)


def judge(results: Sequence[RunResult], thresholds: Thresholds) -> Verdict:
    """Compare results with the thresholds.

    Args:
        results: Results of one policy.
        thresholds: What must be kept.
    """
    checks: list[Check] = []
    calm = [r for r in results if r.scenario.kind != "disturbed"]
    segments = summarize_segments([r.metrics for r in calm])
    for segment in segments:
        checks += [
            Check(
                name=f"{segment.name}: velocity error",
                value=segment.lin_vel_error,
                limit=thresholds.lin_vel_error,
                unit="m/s",
            ),
            Check(
                name=f"{segment.name}: turning error",
                value=segment.ang_vel_error,
                limit=thresholds.ang_vel_error,
                unit="rad/s",
            ),
        ]
    for title, kinds, limit in (
        ("nominal runs that did not reach their end", ("nominal",), thresholds.nominal_falls),
        ("disturbed runs that did not reach their end", ("disturbed",), thresholds.disturbed_falls),
        ("runs that did not reach their end", ("command",), thresholds.nominal_falls),
    ):
        group = [r for r in results if r.scenario.kind in kinds]
        if group:
            share = sum(bool(r.failure) for r in group) / len(group)
            checks.append(Check(name=title, value=share, limit=limit, unit="of all"))
    return Verdict(checks=tuple(checks), segments=segments)
