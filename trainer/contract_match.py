"""Whether what another run has learned under its contract means the same under this one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from robot_runtime.errors import BadInput
from robot_runtime.policy.diff import diff_values


def stated(contract: str) -> dict[str, Any]:
    """Return what a contract as JSON states, but for the noise of its sensors."""
    return json.loads(contract, object_hook=_noiseless)


def demand_same(one: Mapping[str, Any], other: Mapping[str, Any], said: str) -> None:
    """Refuse parts of two contracts that differ.

    Args:
        one: Parts of the other run's contract, from `stated`.
        other: The same parts of this task's.
        said: How the message begins: who has another contract.

    Raises:
        BadInput: They differ; the message names the first place and both values.
    """
    for change in diff_values(dict(one), dict(other)):
        there, here = json.dumps(change.a), json.dumps(change.b)
        raise BadInput(f"{said}: {change.path} is {there} there and {here} in the task")


def _noiseless(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "noise"}
