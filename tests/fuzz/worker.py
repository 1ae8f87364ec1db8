"""A process that is given hostile files, one a line, and says what became of it.

Reads lines of JSON, ``{"kind": ..., "path": ...}``, and answers each with one line: exit code,
lines on stderr, CPU seconds and the largest memory so far. Its own memory is limited, so that a
file that asks for all of it hurts nobody else.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import sys
import time
from pathlib import Path

LIMIT = 8 * 2**30
"""Address space of the process, [bytes]: libraries map several gigabytes that they never touch."""


def run(kind: str, path: str) -> int:
    """Do with a file what a user would do; returns the exit code."""
    from robot_runtime import cli

    if kind == "inspect":
        return cli.main(["inspect", path])
    if kind == "run":
        return cli.main(["run", path, "--robot", "mock", "--duration", "0.02"])
    if kind == "replay":
        return cli.main(["replay", path])
    assert kind == "checkpoint", kind
    from export.graph import read_source
    from robot_runtime.errors import SurefootError

    try:
        read_source(Path(path))
    except SurefootError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return error.exit_code
    except Exception as error:
        print(f"internal error: {type(error).__name__}: {error}", file=sys.stderr)
        return 70
    return 0


def main() -> None:
    """Answer until stdin ends."""
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Libraries may print what they like: only this end of the pipe speaks to the parent.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for line in sys.stdin:
        case = json.loads(line)
        shown, begin = io.StringIO(), time.process_time()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(shown):
            code = run(case["kind"], case["path"])
        answer = {
            "code": int(code),
            "stderr": shown.getvalue().splitlines(),
            "seconds": time.process_time() - begin,
            "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        }
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
