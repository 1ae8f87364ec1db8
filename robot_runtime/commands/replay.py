"""`surefoot replay`: a flight log back through its policy, bit for bit."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from robot_runtime.cli import Parser
from robot_runtime.control.flightlog import FlightLog, read_log
from robot_runtime.control.replay import LogReplay, check_policy, replay_log
from robot_runtime.errors import BadInput, ExitCode
from robot_runtime.policy.file import open_policy

_EPILOG = """\
On the machine that recorded the log, observations, actions and targets must be equal bit for bit.
A log that a crash left unfinished (.part) is replayed as far as it goes.

example:
  surefoot replay flight.npz
"""


def main(argv: list[str]) -> int:
    """Replay a log.

    Returns:
        0 if every policy step gave the same bits, 1 if one did not or could not be replayed.
    """
    parser = Parser(
        "surefoot replay",
        description="Replay a flight log through its policy, bit for bit.",
        epilog=_EPILOG,
    )
    parser.add_argument("log", help="the flight log")
    parser.add_argument("--policy", metavar="FILE", help="the policy file, if it has moved since")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    args = parser.parse_args(argv)
    log = read_log(Path(args.log))
    name = args.policy or _recorded_policy(log)
    policy = open_policy(name)
    check_policy(log, policy.sha256, name)
    result = replay_log(log, policy)
    if args.json:
        plain = {"good": result.good, "finished": log.finished, **dataclasses.asdict(result)}
        print(json.dumps(plain))
    else:
        print("\n".join(_lines(log, result)))
    return ExitCode.GOOD if result.good else ExitCode.FAILED


def _recorded_policy(log: FlightLog) -> str:
    recorded = log.header.policy
    if not recorded or not Path(recorded).exists():
        raise BadInput(
            f"the policy '{recorded}' that '{log.path}' was recorded with is not there; "
            "say where it is with --policy FILE"
        )
    return recorded


def _lines(log: FlightLog, result: LogReplay) -> list[str]:
    end = "" if log.finished else ", left unfinished by a crash"
    lines = [f"{log.path}: {len(log.rows)} records, {result.steps} policy steps{end}"]
    if result.gap is not None:
        lines.append(
            f"records are missing after tick {result.gap}: only {result.compared} steps can be "
            "replayed"
        )
    if result.difference is not None:
        lines.append(f"first difference at {result.difference}")
    elif result.compared:
        lines.append(f"{result.compared} steps equal, bit for bit")
    return lines
