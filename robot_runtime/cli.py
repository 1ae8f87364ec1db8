"""The `surefoot` command: finds its verbs as entry points and turns their errors into one line.

A verb is an entry point of the group `surefoot.commands`: a function `main(argv: list[str]) -> int`
that gets the arguments after its name and returns an `ExitCode`. Only the verb that is called is
imported, so `surefoot --help` is quick and works on a robot where no extra is installed.

    0    good
    1    ran, and what it judged failed its gate
    2    bad input, or refused
    70   internal error
    130  interrupted: Ctrl-C (SIGINT), SIGTERM or SIGHUP
"""

import argparse
import contextlib
import errno
import logging
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from types import FrameType
from typing import Any, NoReturn

from robot_runtime.entries import load_entry
from robot_runtime.errors import BadInput, ExitCode, MissingExtra, SurefootError

COMMANDS = "surefoot.commands"
"""The entry-point group of the verbs."""

Main = Callable[[list[str]], int]

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the system says of a write where there is no room."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verb:
    """What the dispatcher knows about a verb of ours without importing it."""

    summary: str
    """One line for `surefoot --help`."""
    extra: str | None = None
    """The extra that brings its packages; None: the base install."""


VERBS = {
    "demo": Verb(summary="train, export, validate and run a quadruped, end to end", extra="all"),
    "train": Verb(summary="train a policy with PPO", extra="train"),
    "eval": Verb(
        summary="run episodes of a checkpoint's policy and tell how they went", extra="train"
    ),
    "plot": Verb(summary="draw the learning curves of runs", extra="train"),
    "export": Verb(
        summary="turn a checkpoint into a policy file that proves itself", extra="export"
    ),
    "import": Verb(summary="turn a policy of another stack into a policy file", extra="export,sim"),
    "sim2sim": Verb(summary="validate a policy file in MuJoCo", extra="sim"),
    "run": Verb(summary="run a policy file in real time on a robot, a mock or MuJoCo"),
    "inspect": Verb(
        summary="explain a policy file, ours or foreign, and check that it proves itself"
    ),
    "diff": Verb(summary="say what differs between two policy files"),
    "replay": Verb(summary="replay a flight log through its policy, bit for bit"),
}

_EXTRA_OF_MODULE = {
    "torch": "train",
    "gymnasium": "train",
    "tyro": "train",
    "tensorboard": "train",
    "rich": "train",
    "mujoco": "sim",
    "matplotlib": "sim",
    "onnx": "export",
    "onnxscript": "export",
    "yaml": "export",
}


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and whose epilog keeps its line breaks.

    A verb makes it with its full name (`Parser("surefoot inspect", ...)`) and an `epilog` that
    shows an example.
    """

    def __init__(self, prog: str | None = None, **kwargs: Any) -> None:
        """Take what `argparse.ArgumentParser` takes, with other defaults."""
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        # An abbreviation that is unique today breaks a script when an option is added.
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(prog, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Print the message as one line and exit with code 2.

        Raises:
            SystemExit: Always.
        """
        line = f"{self.prog}: error: {_one_line(message)} (see '{self.prog} --help')\n"
        self.exit(ExitCode.BAD_INPUT, line)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb.

    Args:
        argv: The arguments after the program name; None: those of the process.

    Returns:
        The exit code, see the head of this module. Nothing but KeyboardInterrupt during the very
        first lines can escape.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Before numpy, onnxruntime or torch start their thread pools: their spinning threads cost more
    # than they bring for networks of this size, and would steal time from the control loop.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    logging.basicConfig(
        level=logging.INFO if _debug() else logging.WARNING,
        format="surefoot: %(levelname)s: %(message)s",
    )
    verbs = {entry.name: entry for entry in entry_points(group=COMMANDS)}
    who = f"surefoot {arguments[0]}" if arguments and arguments[0] in verbs else "surefoot"
    try:
        with _one_kind_of_stop():
            _open_what_is_closed()
            code = _dispatch(arguments, verbs)
            sys.stdout.flush()
    except SystemExit as leave:
        return _code_of(leave, who)
    except BrokenPipeError:
        _settle_output()
        return ExitCode.BROKEN_PIPE
    except KeyboardInterrupt as interrupt:
        why = f": {_one_line(str(interrupt))}" if str(interrupt) else ""
        return _fail(who, f"interrupted{why}", ExitCode.INTERRUPTED)
    except SurefootError as error:
        return _fail(who, f"error: {_one_line(str(error))}", error.exit_code)
    except MemoryError as error:
        what = f": {_one_line(str(error))}" if str(error) else ""
        return _fail(who, f"error: not enough memory{what}", ExitCode.BAD_INPUT)
    except OSError as error:
        return _fail_of_system(who, error)
    except Exception as error:
        return _fail_of_ours(who, error)
    return code


def _fail_of_system(who: str, error: OSError) -> int:
    """Say what the system refuses: it is found wherever something is used first."""
    if error.filename is not None and error.strerror:
        # A name too long, a folder that may not be entered.
        text = f"error: cannot use '{error.filename}': {error.strerror}"
        return _fail(who, _one_line(text), ExitCode.BAD_INPUT)
    if error.errno in _FULL:
        _settle_output()
        return _fail(who, f"error: cannot write: {error.strerror}", ExitCode.BAD_INPUT)
    return _fail_of_ours(who, error)


def _fail_of_ours(who: str, error: Exception) -> int:
    """Say that something is a bug, and how to see more of it."""
    hint = "" if _debug() else " (set SUREFOOT_DEBUG=1 for the traceback)"
    text = f"internal error: {type(error).__name__}: {_one_line(str(error))}{hint}"
    return _fail(who, text, ExitCode.INTERNAL)


def _open_what_is_closed() -> None:
    """Give the process the standard streams that it was started without: the null device.

    Python has None in their place, and the next file that is opened gets the number: what a library
    prints would be written into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest number that is free, so that of the stream.
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _settle_output() -> None:
    """Let go of what cannot be written: the interpreter would try again at exit, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _one_kind_of_stop() -> Generator[None]:
    """Let SIGTERM and SIGHUP end a verb as Ctrl-C does.

    By default they kill at once: temporary files stay, and nothing is put back. And whatever comes
    of an interrupt is one: modules in C turn it into an ImportError while they are loaded.
    """
    before: dict[signal.Signals, Any] = {}
    seen: list[int] = []

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        seen.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Who ignores one (nohup) means it.
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, stop)
    try:
        yield
    except Exception as error:
        if seen:
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _dispatch(arguments: list[str], verbs: dict[str, EntryPoint]) -> int:
    """Answer `--help` and `--version`, or find the verb, import it and call it."""
    name = arguments[0] if arguments else "--help"
    if name in {"-h", "--help", "help"}:
        print(_help(verbs))
        return ExitCode.GOOD
    if name in {"-V", "--version"}:
        print(f"surefoot {_version()}")
        return ExitCode.GOOD
    if name not in verbs:
        raise BadInput(f"unknown verb '{name}'; there are: {', '.join(_ordered(verbs))}")
    try:
        run: Main = load_entry(verbs[name])
        return run(arguments[1:])
    except ImportError as error:
        raise _explained(name, error) from error
    except Exception as error:
        if _is_of_opengl(error):
            why = f"package 'mujoco' does not import with MUJOCO_GL={os.environ.get('MUJOCO_GL')!r}"
            raise BadInput(f"{why}: {error}; unset it, or try egl, osmesa or glfw") from error
        raise


def _is_of_opengl(error: Exception) -> bool:
    """Tell whether it comes from the module of MuJoCo that loads what MUJOCO_GL names."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = [frame.f_globals["__name__"] for frame in frames if frame.f_code.co_name[0] == "<"]
    return any(re.fullmatch(r"mujoco\..*gl_context", module) for module in modules)


def _explained(verb: str, error: ImportError) -> Exception:
    """Turn a missing optional package into advice; leave any other import error as it is."""
    module = (error.name or "").partition(".")[0]
    if module not in _EXTRA_OF_MODULE:
        return error
    if not isinstance(error, ModuleNotFoundError):
        return MissingExtra(f"package '{module}' is installed and does not import: {error}")
    if module == "mujoco" and sys.version_info < (3, 11):
        here = ".".join(map(str, sys.version_info[:2]))
        return MissingExtra(f"package 'mujoco' needs Python 3.11 or newer, and this is {here}")
    extra = (VERBS[verb].extra if verb in VERBS else None) or _EXTRA_OF_MODULE[module]
    return MissingExtra(
        f"package '{module}' is not installed; install it with: pip install 'surefoot[{extra}]'"
    )


def _help(verbs: dict[str, EntryPoint]) -> str:
    """Say what `surefoot` is and list the verbs, importing none of them."""
    lines = [
        "usage: surefoot VERB [arguments]",
        "",
        "Train a legged-robot policy, export it, validate it in MuJoCo and run it on the robot.",
        "",
        "verbs:",
    ]
    for name in _ordered(verbs):
        entry = verbs[name]
        theirs = f"from {entry.dist.name}" if entry.dist else entry.value
        lines.append(f"  {name:<10} {VERBS[name].summary if name in VERBS else theirs}")
    lines += [
        "",
        "options:",
        "  -h, --help     this page; 'surefoot VERB --help' for the one of a verb",
        "  -V, --version  print the version",
        "",
        "example:",
        "  surefoot demo --quick",
    ]
    return "\n".join(lines)


def _ordered(verbs: dict[str, EntryPoint]) -> list[str]:
    """Our verbs in the order of work, then those of other packages by name."""
    ours = [name for name in VERBS if name in verbs]
    return ours + sorted(set(verbs) - set(ours))


def _version() -> str:
    try:
        return version("surefoot")
    except PackageNotFoundError:
        return "(not installed)"


def _code_of(leave: SystemExit, who: str) -> int:
    """The exit code of a verb that left by `sys.exit`, with its message printed if it has one."""
    if leave.code is None:
        return ExitCode.GOOD
    if isinstance(leave.code, int):
        return leave.code
    return _fail(who, f"error: {_one_line(str(leave.code))}", ExitCode.BAD_INPUT)


def _fail(who: str, text: str, code: ExitCode) -> int:
    """Print one line on stderr (in debug mode after the traceback) and return the code."""
    if _debug():
        traceback.print_exc()
    print(f"{who}: {text}", file=sys.stderr)
    return code


def _debug() -> bool:
    return os.environ.get("SUREFOOT_DEBUG", "") not in {"", "0"}


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main())
