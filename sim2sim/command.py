"""The verb `surefoot sim2sim`: the file that ships, in the loop that ships, judged in MuJoCo."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import mujoco
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from robot_runtime.cli import Parser
from robot_runtime.control.teleop import parse_command
from robot_runtime.errors import BadInput, ExitCode
from robot_runtime.files import atomic_write, check_output
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.file import open_policy
from sim2sim.evaluate import Job, judge, run_scenarios
from sim2sim.metrics import Thresholds
from sim2sim.model import build_model, find_model
from sim2sim.report import Report, render
from sim2sim.scenarios import (
    Scenario,
    command_scenario,
    disturbed_scenario,
    drawn_command_scenario,
    nominal_scenario,
    nominal_schedule,
)
from sim2sim.summary import as_json, text_lines
from sim2sim.viewer import check_film, draw, film

_PROG = "surefoot sim2sim"

_EPILOG = """\
What is run:
  the nominal schedule (stand 2 s, 0.5 m/s forward 4 s, 0.3 m/s sideways 4 s, turn at 0.8 rad/s 4 s,
  stop 2 s) from drawn starts, the same with drawn disturbances, or one constant command, from the
  model's own pose or, with --scenarios, from as many drawn starts.

Exit codes: 0 passed, 1 failed a check, 2 bad input or refused, 130 interrupted by Ctrl-C, SIGTERM
or SIGHUP; then nothing is written.

examples:
  surefoot sim2sim policy.onnx --report page.html
  surefoot sim2sim policy.onnx --scenarios 20 --disturbed 200 --seed 7 --json
  surefoot sim2sim policy.onnx --model scene.xml --command 0.5,0,0 --duration 20
  surefoot sim2sim policy.onnx --command 0.5,0,0 --scenarios 10
"""

_LONGEST = 3600.0
"""Longest run with a constant command, [s]: every tick of it is kept in memory."""

_KEPT_RUNS = 20
"""Most runs whose trajectories are kept for the plots."""


def main(argv: list[str]) -> int:
    """Run the verb.

    Args:
        argv: The arguments after the verb's name.

    Returns:
        `ExitCode.GOOD` when every check passed, `ExitCode.FAILED` otherwise.

    Raises:
        SurefootError: The policy, the model or an argument cannot be used.
    """
    args = _parse(argv)
    thresholds = _thresholds(args)
    if args.report is not None:
        check_output(args.report, "a report", ".html")
    if args.film is not None:
        check_film(args.film)
    policy = open_policy(args.policy)
    # Everything that can be refused is refused here, before the first of many runs.
    sim = build_model(policy.contract, find_model(policy.contract, args.model), args.physics_dt)
    scenarios, notes = _scenarios(policy.contract, args)
    if args.film is not None:
        _check_scene(args.film, scenarios, sim.mj)
    job = Job(policy=args.policy, scene=args.model, physics_dt=args.physics_dt)
    with _progress(len(scenarios)) as advance:
        results = run_scenarios(
            job,
            scenarios,
            workers=_workers(args.workers, len(scenarios)),
            keep=_is_kept,
            done=lambda _: advance(),
        )
    verdict = judge(results, thresholds)
    report = Report(
        policy=policy,
        sim=sim,
        results=results,
        verdict=verdict,
        thresholds=thresholds,
        notes=notes,
        command=f"{_PROG} {shlex.join(argv)}",
    )
    # All that takes long comes before anything is written, so that an interrupt leaves nothing.
    page = "" if args.report is None else render(report)
    if args.film is not None:
        _film(report, args.film)
    if args.report is not None:
        with atomic_write(args.report) as temporary:
            temporary.write_text(page, encoding="utf-8")
    if args.json:
        print(json.dumps(as_json(report), indent=2, allow_nan=False))
    else:
        print("\n".join(text_lines(report)))
        for name in ("report", "film"):
            if getattr(args, name) is not None:
                print(f"{name}: {getattr(args, name)}")
    return ExitCode.GOOD if verdict.passed else ExitCode.FAILED


def _parse(argv: list[str]) -> Namespace:
    defaults = Thresholds()
    parser = Parser(
        _PROG,
        description="Validate a policy file in MuJoCo with the control loop that ships.",
        epilog=_EPILOG,
    )
    parser.add_argument("policy", type=Path, help="the policy file")
    parser.add_argument(
        "--model",
        type=Path,
        metavar="SCENE.XML",
        help="a MuJoCo scene, or the name of an installed robot model, instead of the contract's",
    )
    parser.add_argument("--scenarios", type=int, metavar="N", help="nominal runs (default 5)")
    parser.add_argument(
        "--disturbed", type=int, default=0, metavar="N", help="disturbed runs (default 0)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of all draws (default 0)")
    parser.add_argument(
        "--command",
        metavar="VX,VY,WZ",
        help="this constant command instead, once or --scenarios times; also channel=number,...",
    )
    parser.add_argument(
        "--duration", type=float, default=20.0, metavar="S", help="its length (default 20 s)"
    )
    parser.add_argument(
        "--physics-dt",
        type=float,
        metavar="S",
        help="physics step (default: the training's, at most 0.005 s)",
    )
    parser.add_argument(
        "--max-lin-vel-error",
        type=float,
        default=defaults.lin_vel_error,
        metavar="X",
        help=f"passes up to this, m/s (default {defaults.lin_vel_error:g})",
    )
    parser.add_argument(
        "--max-ang-vel-error",
        type=float,
        default=defaults.ang_vel_error,
        metavar="X",
        help=f"passes up to this, rad/s (default {defaults.ang_vel_error:g})",
    )
    parser.add_argument(
        "--max-disturbed-falls",
        type=float,
        default=defaults.disturbed_falls,
        metavar="SHARE",
        help=f"passes up to this (default {defaults.disturbed_falls:g})",
    )
    parser.add_argument(
        "--workers", type=int, default=0, metavar="N", help="processes (default: by the work)"
    )
    parser.add_argument("--report", type=Path, metavar="PAGE.HTML", help="write a page with plots")
    parser.add_argument(
        "--film",
        type=Path,
        metavar="GAIT.GIF",
        help="draw the first run: .gif, or .png for a sheet of its first steps",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    return parser.parse_args(argv)


def _thresholds(args: Namespace) -> Thresholds:
    for name in ("max_lin_vel_error", "max_ang_vel_error", "max_disturbed_falls"):
        value = getattr(args, name)
        if not (math.isfinite(value) and value >= 0.0):
            option = "--" + name.replace("_", "-")
            raise BadInput(f"{option} {value}: expected a number of at least 0")
    return Thresholds(
        lin_vel_error=args.max_lin_vel_error,
        ang_vel_error=args.max_ang_vel_error,
        disturbed_falls=args.max_disturbed_falls,
    )


def _scenarios(contract: PolicyContract, args: Namespace) -> tuple[list[Scenario], list[str]]:
    """What to run, and what had to be left out or clipped."""
    for name in ("scenarios", "disturbed", "seed", "workers"):
        if (getattr(args, name) or 0) < 0:
            raise BadInput(f"--{name} {getattr(args, name)}: expected a number of at least 0")
    if args.command is not None:
        return _command_scenarios(contract, args)
    count = 5 if args.scenarios is None else args.scenarios
    if count + args.disturbed == 0:
        raise BadInput("nothing to run: --scenarios and --disturbed are both 0")
    segments, notes = nominal_schedule(contract)
    if not segments:
        raise BadInput(f"the nominal schedule is empty for this policy: {'; '.join(notes)}")
    nominal = [nominal_scenario(contract, args.seed, i) for i in range(count)]
    disturbed = [disturbed_scenario(contract, args.seed, i) for i in range(args.disturbed)]
    return nominal + disturbed, notes


def _command_scenarios(
    contract: PolicyContract, args: Namespace
) -> tuple[list[Scenario], list[str]]:
    if not 2.0 <= args.duration <= _LONGEST:
        raise BadInput(f"--duration {args.duration}: expected 2 ... {_LONGEST:g} s")
    if args.disturbed:
        raise BadInput("--disturbed: with --command nothing but the start is drawn")
    if args.scenarios == 0:
        raise BadInput("nothing to run: --scenarios is 0")
    command = parse_command(contract, args.command)
    scenario, notes = command_scenario(contract, command, args.duration)
    if args.scenarios is None:
        return [scenario], notes
    draw = partial(drawn_command_scenario, contract, command, args.duration, args.seed)
    return [draw(i) for i in range(args.scenarios)], notes


def _workers(asked: int, runs: int) -> int:
    """One process per core where there is enough to do for each to pay for its start."""
    if asked:
        return asked
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return max(1, min(cores, runs // 10))


def _is_kept(scenario: Scenario) -> bool:
    """Tell whether the trajectory of a run is kept, for plots and film."""
    return scenario.kind != "disturbed" and scenario.index < _KEPT_RUNS


def _check_scene(path: Path, scenarios: list[Scenario], model: mujoco.MjModel) -> None:
    """Refuse a film of runs that are not kept, and one that no OpenGL can draw."""
    if not any(map(_is_kept, scenarios)):
        raise BadInput(f"film '{path}': only nominal runs and constant commands are drawn")
    draw(model, model.qpos0[None])


def _film(report: Report, path: Path) -> None:
    """Draw the first run whose trajectory was kept, from where it begins to move."""
    segments, truth = next(
        (r.scenario.segments, r.trajectory.truth) for r in report.results if r.trajectory
    )
    begin = 0.0
    for segment in segments:
        if any(segment.command):
            break
        begin += segment.duration
    sheet = path.suffix.lower() == ".png"
    film(report.sim.mj, truth, path, min(begin + 1.0, float(truth.time[-1])) if sheet else 0.0)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr where somebody looks at it; gives what moves it on."""
    console = Console(stderr=True)
    columns = (
        TextColumn("simulating"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    shown = sys.stderr.isatty() and total > 1
    with Progress(*columns, console=console, disable=not shown, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)
