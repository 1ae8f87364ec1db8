"""The errors a user can cause, and the exit codes of the command line.

Everything a user can get wrong derives from `SurefootError`: the dispatcher (`robot_runtime.cli`)
turns it into one line on stderr and its exit code. Whatever else escapes from a verb is a bug of
ours and is reported as an internal error.
"""

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """What `surefoot` tells the shell."""

    GOOD = 0
    FAILED = 1
    """The verb ran, and what it judged failed its gate."""
    BAD_INPUT = 2
    """Bad input, or refused."""
    INTERNAL = 70
    """A bug of ours (EX_SOFTWARE of sysexits.h)."""
    INTERRUPTED = 130
    """Ctrl-C (128 + SIGINT); SIGTERM and SIGHUP are taken as one."""
    BROKEN_PIPE = 141
    """The reader of our output went away (128 + SIGPIPE)."""


class SurefootError(Exception):
    """Base of every error that a user can cause.

    The message is one sentence that names the culprit, what was expected and what exists.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.BAD_INPUT


class BadInput(SurefootError):
    """A file, folder, name or value given by the user cannot be used."""


class Refused(SurefootError):
    """The input is readable, and running it would not be safe or not be the same policy."""


class MissingExtra(SurefootError):
    """A verb needs packages of an extra that is not installed."""


class LogLost(SurefootError):
    """The verb ran to its end, and the log of it could not be kept."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED


class GateFailed(SurefootError):
    """The verb ran to its end, and what it judged failed its gate."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED
