"""`surefoot run`: a policy file in real time on a robot."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import signal
import sys
import threading
from collections.abc import Generator
from types import FrameType
from typing import Any

from robot_runtime.cli import Parser
from robot_runtime.control.clock import MonotonicClock
from robot_runtime.control.flightlog import make_header
from robot_runtime.control.gamepad import DEVICE, GAMEPAD_HELP, Gamepad
from robot_runtime.control.loop import ControlLoop
from robot_runtime.control.realtime import PRIORITY, quiet_memory, realtime
from robot_runtime.control.record import Recorder
from robot_runtime.control.recorder import FlightRecorder
from robot_runtime.control.robot import Robot
from robot_runtime.control.summary import RunSummary
from robot_runtime.control.teleop import (
    KEYBOARD_HELP,
    CommandSource,
    Keyboard,
    Schedule,
    demo_schedule,
    parse_source,
)
from robot_runtime.control.timing import Spread
from robot_runtime.drivers import driver_names, load_driver
from robot_runtime.drivers.options import describe
from robot_runtime.errors import BadInput, ExitCode
from robot_runtime.files import check_output
from robot_runtime.policy.command import clip_command
from robot_runtime.policy.file import PolicyFile, open_policy

_SIMULATED = frozenset({"mock", "sim"})
_CONSTANT_DURATION = 10.0
_LOWEST_RATE = 0.99
_HELP: dict[type[CommandSource], str] = {Keyboard: KEYBOARD_HELP, Gamepad: GAMEPAD_HELP}
"""What to press, by the sources that somebody holds in hand."""

_EPILOG = """\
The robot is passive, stands up from its measured pose, gives its joints to the policy for
--duration, and ends in damping. Ctrl-C, Ctrl-\\, Ctrl-Z, SIGTERM or SIGHUP end it early in the same
way; a second Ctrl-C lets the motors go limp.

Exit codes: 0 ended as planned or when asked to, 1 a fault, a lost log or a rate that is too low,
2 bad input or refused, 130 interrupted before the robot moved or while the log was finished.

examples:
  surefoot run policy.onnx --robot sim
  surefoot run policy.onnx --robot sim --command "2: 0,0,0; 4: 0.5,0,0; 2: 0,0,0.8"
  surefoot run policy.onnx --robot mock --command 0.5,0,0 --duration 10 --log flight.npz
  surefoot run policy.onnx --robot sim --command gamepad
  surefoot run policy.onnx --robot mock --option fail=stale --option at=3
  surefoot run --robot mock --help
"""


def main(argv: list[str]) -> int:
    """Run a policy and say what happened.

    Returns:
        0 if it ended as planned or was asked to, 1 if a fault ended it, the rate was too low for
        ``--rate-check`` or records of the log were lost.

    Raises:
        LogLost: The robot ran, and its flight log could not be finished.
    """
    args = _parse(argv)
    options = _options(args.option)
    if args.log is not None:
        check_output(args.log, "a flight log", ".npz")
    load_driver(args.robot)
    policy = open_policy(args.policy)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_no_way_past_damping())
        source, duration = _commands(policy, args)
        stack.callback(source.close)
        recorder = None
        if args.log is not None:
            header = make_header(
                policy.contract, policy=args.policy, policy_sha256=policy.sha256, robot=args.robot
            )
            recorder = FlightRecorder(args.log, header)
            stack.callback(recorder.close)
        if _on_robot(args.realtime, args.robot):
            for line in stack.enter_context(realtime(args.priority or PRIORITY, args.cpu)):
                print(f"surefoot run: {line}", file=sys.stderr)
        else:
            stack.enter_context(quiet_memory())
        loop = _prepare(policy, load_driver(args.robot)(policy, options), source, recorder)
        try:
            if not args.json:
                _announce(policy, args.robot, duration, _HELP.get(type(source)))
            summary = loop.run(duration)
        finally:
            loop.close()
        # Said before the log is finished, so that a log that cannot be does not hide it.
        code = _report(args, policy, summary)
    if args.log is not None and not args.json:
        print(f"flight log     {args.log}")
    return code


@contextlib.contextmanager
def _no_way_past_damping() -> Generator[None]:
    r"""Take what else a terminal sends for Ctrl-C.

    Ctrl-\ would end the process at once and Ctrl-Z would stop it: the robot would be left to its
    last command.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    ours = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGQUIT, signal.SIGTSTP) if ours else ()
    before = [(number, signal.signal(number, interrupt)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _prepare(
    policy: PolicyFile, robot: Robot, source: CommandSource, recorder: Recorder | None
) -> ControlLoop:
    clock = MonotonicClock(policy.contract.timing.control_dt)
    try:
        return ControlLoop(policy, robot, clock, source=source, recorder=recorder)
    except BaseException:
        robot.close()
        raise


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        "surefoot run",
        description="Run a policy file in real time on a robot.",
        epilog=_driver_help(argv) + _EPILOG,
    )
    parser.add_argument("policy", help="the policy file")
    parser.add_argument(
        "--robot", required=True, help=f"driver of the robot: {', '.join(driver_names())}"
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the driver; may be given several times; --robot ROBOT --help lists them",
    )
    parser.add_argument(
        "--command",
        help="vx,vy,wz [m/s, rad/s], channel=number,..., a schedule 'seconds: command; ...', "
        f"'keyboard', or 'gamepad' ('gamepad:DEVICE' for another than {DEVICE}); without it: "
        "stand, walk, step sideways, turn, stop",
    )
    parser.add_argument(
        "--duration",
        type=float,
        metavar="S",
        help="how long the policy runs, 'inf' until Ctrl-C; default: the length of the schedule, "
        f"{_CONSTANT_DURATION:g} s for one command, until stopped with keyboard or gamepad",
    )
    parser.add_argument("--log", metavar="F", help="write a flight log (.npz)")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument(
        "--rate-check",
        action=argparse.BooleanOptionalAction,
        default=None,
        help=f"fail if fewer than {100 * _LOWEST_RATE:g} %% of the ticks ran; "
        "default: on a real robot",
    )
    parser.add_argument(
        "--realtime",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="real-time priority and locked memory; default: on a real robot",
    )
    parser.add_argument(
        "--priority", type=int, help=f"SCHED_FIFO priority, 1 to 99 (default {PRIORITY})"
    )
    parser.add_argument("--cpu", type=int, help="processor to stay on, with --realtime")
    args = parser.parse_args(argv)
    if args.duration is not None and not args.duration > 0.0:
        parser.error(f"argument --duration: {args.duration:g} s is not positive")
    if args.priority is not None and not 1 <= args.priority <= 99:
        parser.error(f"argument --priority: {args.priority} is not in 1 ... 99")
    chosen = [name for name in ("priority", "cpu") if getattr(args, name) is not None]
    if chosen and not _on_robot(args.realtime, args.robot):
        parser.error(f"argument --{chosen[0]}: it is a part of --realtime, which is off")
    return args


def _driver_help(argv: list[str]) -> str:
    """Return the options of the driver that help is asked about; empty where it is not."""
    asked = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    asked.add_argument("--robot")
    asked.add_argument("-h", "--help", action="store_true")
    try:
        args, _ = asked.parse_known_args(argv)
    except argparse.ArgumentError:
        # The parser proper says what is wrong.
        return ""
    if not args.help or args.robot is None:
        return ""
    return f"{describe(args.robot, load_driver(args.robot))}\n"


def _options(given: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise BadInput(
                f"--option {text!r}: expected name=value; --robot ROBOT --help lists the options"
            )
        if name in options:
            raise BadInput(f"--option {name}: given twice")
        options[name] = value
    return options


def _commands(policy: PolicyFile, args: argparse.Namespace) -> tuple[CommandSource, float | None]:
    contract, text, duration = policy.contract, args.command, args.duration
    if text is None:
        source: CommandSource = demo_schedule(contract)
    elif text == "keyboard":
        source = Keyboard(contract)
    elif text.partition(":")[0] == "gamepad":
        source = Gamepad(contract, text.partition(":")[2] or DEVICE)
    else:
        source = parse_source(contract, text)
        notes = [note for asked in source.commands for note in clip_command(contract, asked)[1]]
        for note in dict.fromkeys(notes):
            print(f"surefoot run: {note}", file=sys.stderr)
    if duration is not None:
        return source, None if math.isinf(duration) else duration
    if isinstance(source, Schedule):
        return source, source.duration
    return source, None if type(source) in _HELP else _CONSTANT_DURATION


def _on_robot(asked: bool | None, robot: str) -> bool:
    """What was asked for; where nothing was, whether this is a real robot."""
    return robot not in _SIMULATED if asked is None else asked


def _announce(policy: PolicyFile, robot: str, duration: float | None, keys: str | None) -> None:
    rate = 1.0 / policy.contract.timing.control_dt
    until = "until Ctrl-C" if duration is None else f"for {duration:g} s"
    print(f"Running {policy.contract.name} on {robot} at {rate:g} Hz {until}")
    if keys is not None:
        print(keys)
    sys.stdout.flush()


def _report(args: argparse.Namespace, policy: PolicyFile, summary: RunSummary) -> int:
    timing = summary.timing
    share = timing.ticks / max(1, timing.ticks + timing.skipped)
    slow = share < _LOWEST_RATE
    good = summary.good and not summary.records_dropped
    good = good and not (slow and _on_robot(args.rate_check, args.robot))
    if args.json:
        print(json.dumps(_plain(args, policy, summary, good), allow_nan=False))
    else:
        print("\n".join(_table(summary)))
        if slow:
            print(f"too slow: {share:.1%} of the ticks ran, {_LOWEST_RATE:.0%} are needed")
    return ExitCode.GOOD if good else ExitCode.FAILED


def _plain(
    args: argparse.Namespace, policy: PolicyFile, summary: RunSummary, good: bool
) -> dict[str, Any]:
    return {
        "good": good,
        "policy": args.policy,
        "policy_sha256": policy.sha256,
        "robot": args.robot,
        "log": args.log,
        **dataclasses.asdict(summary),
        "mode": summary.mode.name,
    }


def _table(summary: RunSummary) -> list[str]:
    timing = summary.timing
    lines = [
        f"ended          {summary.ended}" + (f": {summary.cause}" if summary.cause else ""),
        f"mode           {summary.mode.name}",
        f"policy ran     {summary.walked:.2f} s",
        f"rate           {timing.rate:.2f} Hz of {1.0 / timing.period:g} Hz over "
        f"{timing.elapsed:.2f} s",
        f"ticks          {timing.ticks}, skipped {timing.skipped}, overruns {timing.overruns}",
        f"compute        {_spread(timing.compute)}",
        f"lateness       {_spread(timing.lateness)}",
    ]
    if summary.faults:
        seen = ", ".join(f"{name} {count}" for name, count in summary.faults.items())
        lines.append(f"faults [ticks] {seen}")
    if summary.records_dropped:
        lines.append(f"log records    {summary.records_dropped} lost")
    return lines


def _spread(spread: Spread) -> str:
    p50, p99, largest = (1e3 * value for value in (spread.p50, spread.p99, spread.max))
    return f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, max {largest:.2f} ms"
