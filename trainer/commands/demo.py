"""`surefoot demo`: train, export, validate and run a quadruped, by the verbs a user calls."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from robot_runtime.cli import Parser
from robot_runtime.errors import BadInput, ExitCode
from robot_runtime.files import check_output

TASK = "quadruped-flat"

EPILOG = """examples:
  surefoot demo
  surefoot demo --quick --out runs/look
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How much of everything a demo does.

    Attributes:
        train: Arguments of `surefoot train`.
        sim2sim: Arguments of `surefoot sim2sim`.
        run: Arguments of `surefoot run`.
    """

    train: tuple[str, ...]
    sim2sim: tuple[str, ...]
    run: tuple[str, ...]


FULL = Pace(
    train=(),
    sim2sim=("--scenarios", "5", "--disturbed", "10"),
    run=("--duration", "10"),
)
QUICK = Pace(
    train=("--iterations", "170"),
    sim2sim=("--scenarios", "2", "--max-lin-vel-error", "1.0", "--max-ang-vel-error", "1.5"),
    run=("--duration", "4"),
)


def main(argv: list[str]) -> int:
    """Run the verb.

    Args:
        argv: The arguments after `demo`.

    Returns:
        The exit code: that of the first verb that does not end well, and says why itself.

    Raises:
        BadInput: The output folder is not empty or cannot be written.
    """
    parser = Parser(
        "surefoot demo",
        description="Train a quadruped, export it, validate it in MuJoCo and run it in real time.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "--quick", action="store_true", help="a policy that stands and steps, in two minutes"
    )
    parser.add_argument("--out", type=Path, help="folder to make; default: runs/demo-DATE")
    parser.add_argument("--seed", type=int, default=1, help="seed of the training (default: 1)")
    options = parser.parse_args(argv)
    folder = options.out or Path("runs") / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
    _check_folder(folder)
    begin = time.monotonic()
    for command in steps(folder, QUICK if options.quick else FULL, options.seed):
        code = _call(command)
        if code != ExitCode.GOOD:
            said = f"surefoot demo: error: 'surefoot {command[0]}' ended with exit code {code}"
            print(said, file=sys.stderr)
            return code
    _tell(folder, time.monotonic() - begin)
    return ExitCode.GOOD


def steps(folder: Path, pace: Pace, seed: int) -> list[list[str]]:
    """The commands of a demo, each without the leading ``surefoot``.

    Args:
        folder: Where everything is written.
        pace: How much of everything.
        seed: Seed of the training and of the evaluation.
    """
    train, policy = folder / "train", folder / "policy.onnx"
    return [
        ["train", TASK, "--seed", str(seed), "--out", str(train), *pace.train],
        ["export", str(train), "-o", str(policy), "--torchscript", str(folder / "policy.pt")],
        [
            "sim2sim",
            str(policy),
            "--seed",
            str(seed),
            "--report",
            str(folder / "report.html"),
            *pace.sim2sim,
        ],
        ["run", str(policy), "--robot", "sim", "--log", str(folder / "flight.npz"), *pace.run],
    ]


def _check_folder(folder: Path) -> None:
    """Refuse a folder that is used or cannot be; the verbs make it when they write."""
    check_output(folder / "policy.onnx", "the policy", ".onnx")
    try:
        used = folder.exists() and any(folder.iterdir())
    except OSError as error:
        raise BadInput(f"cannot use folder '{folder}': {error.strerror}") from error
    if used:
        raise BadInput(f"folder '{folder}' is not empty; name another with --out")


def _call(command: list[str]) -> int:
    """Run one verb as a user would, with its own output; return its exit code."""
    print(f"\n$ surefoot {shlex.join(command)}", flush=True)
    beside = Path(sys.executable).with_name("surefoot")
    program = str(beside) if beside.exists() else shutil.which("surefoot")
    start = [program] if program else [sys.executable, "-m", "robot_runtime.cli"]
    # A session of its own, so that it hears of Ctrl-C from here, and once.
    return _wait(subprocess.Popen([*start, *command], start_new_session=True))


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for a verb, and pass every interrupt on: the first lets training keep a checkpoint."""
    try:
        return process.wait()
    except KeyboardInterrupt:
        # A job in the background ignores Ctrl-C, and so do the verbs that it starts.
        deaf = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        process.send_signal(signal.SIGTERM if deaf else signal.SIGINT)
        _wait(process)
        raise


def _tell(folder: Path, seconds: float) -> None:
    print(f"\nDone in {seconds:.0f} s.")
    for name, what in (
        ("policy.onnx", "policy, one file that proves itself"),
        ("policy.pt", "the same as TorchScript"),
        ("report.html", "report page, open it in a browser"),
        ("flight.npz", "flight log, 'surefoot replay' takes it"),
        ("train", "training run, 'tensorboard --logdir' takes it"),
    ):
        print(f"  {folder / name!s:<40} {what}")
