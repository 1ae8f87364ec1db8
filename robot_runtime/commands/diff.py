"""`surefoot diff`: what differs between two policy files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robot_runtime.cli import Parser
from robot_runtime.errors import ExitCode
from robot_runtime.policy.diff import Change, PolicyDiff, WeightChange, diff_policies
from robot_runtime.policy.file import PolicyFile, open_policy

_EPILOG = """\
exit code: 0 the policies are equal, 1 they differ, 2 one of them cannot be read.

example:
  surefoot diff old.onnx new.onnx
"""


def main(argv: list[str]) -> int:
    """Run the verb.

    Args:
        argv: The arguments after its name.

    Returns:
        0 where nothing differs, 1 where something does.
    """
    parser = Parser(
        "surefoot diff",
        description="Compare two policy files: contracts field by field, weights, provenance and "
        "golden traces.",
        epilog=_EPILOG,
    )
    parser.add_argument("a", type=Path, metavar="A", help="a policy file")
    parser.add_argument("b", type=Path, metavar="B", help="another one")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    arguments = parser.parse_args(argv)
    # The replay would refuse what is to be compared.
    a, b = (open_policy(path, replay=False) for path in (arguments.a, arguments.b))
    diff = diff_policies(a, b)
    if arguments.json:
        print(json.dumps(plain(a, b, diff), indent=2))
    else:
        print(describe(a, b, diff))
    return ExitCode.GOOD if diff.equal else ExitCode.FAILED


def plain(a: PolicyFile, b: PolicyFile, diff: PolicyDiff) -> dict[str, Any]:
    """The result as plain JSON values."""
    files = [{"path": str(file.path), "sha256": file.sha256} for file in (a, b)]
    return {"equal": diff.equal, "files": files, **dataclasses.asdict(diff)}


def describe(a: PolicyFile, b: PolicyFile, diff: PolicyDiff) -> str:
    """The result as text: a section for everything that differs, a line for what is equal."""
    sections = {
        "contract": _changes(diff.contract),
        "weights": [_weight(change) for change in diff.weights],
        "network": _changes(diff.network),
        "provenance": _changes(diff.provenance),
        "golden trace": _changes(diff.trace),
    }
    equal = ", ".join(name for name, lines in sections.items() if not lines)
    head = f"{a.path} and {b.path} {'are equal' if diff.equal else 'differ'}"
    text = [head]
    for name, lines in sections.items():
        if lines:
            count = "1 difference" if len(lines) == 1 else f"{len(lines)} differences"
            text += ["", f"{name}, {count}", *lines]
    if equal:
        text += ["", f"equal: {equal}"]
    return "\n".join(line.rstrip() for line in text)


def _changes(changes: Sequence[Change]) -> list[str]:
    width = max((len(change.path) for change in changes), default=0)
    return [
        f"  {change.path:<{width}}  {' -> '.join(_pair(change))} {change.unit}"
        for change in changes
    ]


def _weight(change: WeightChange) -> str:
    shape = " x ".join(map(str, change.shape)) or "one number"
    return (
        f"  {change.name} ({shape}): {change.count} differ, by at most {change.largest:.3g} at "
        f"{list(change.place)}"
    )


def _pair(change: Change) -> tuple[str, str]:
    """Both values, short where that still tells them apart."""
    a, b = _show(change.a), _show(change.b)
    return (a, b) if a != b else (repr(change.a), repr(change.b))


def _show(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
