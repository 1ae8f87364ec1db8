"""The short way to write observations and actions: names, and only what is not usual.

    observation:
      - base_ang_vel: {scale: 0.25}
      - projected_gravity
      - joint_pos_rel

is one block without history; the terms may stand as a mapping from names to fields, too. A block
with one, or several blocks, are written as

    observation:
      - terms: [base_ang_vel, {q: {source: joint_pos_rel}}]
        history: {length: 5, layout: frame_major, order: oldest_first, fill: zero}
        clip: 18.0
      - terms: [last_action]

What is left out here is filled in by `assemble.py`, which asks where there is no usual value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, get_args

from export.importers.reading import as_number, as_numbers, is_dict, is_list, shorten, show
from robot_runtime.errors import BadInput
from robot_runtime.policy.spec import Source

SOURCES: tuple[str, ...] = get_args(Source)
"""Everything a term can be computed from."""

JOINT_SOURCES = ("joint_pos", "joint_pos_rel", "joint_vel")
"""Those with one number per joint."""

_ELSEWHERE = {
    "velocity_commands": "command",
    "generated_commands": "command",
    "commands": "command",
    "actions": "last_action",
    "prev_actions": "last_action",
    "last_actions": "last_action",
    "last_act": "last_action",
    "dof_pos": "joint_pos_rel",
    "joint_angles": "joint_pos_rel",
    "dof_vel": "joint_vel",
    "joint_vel_rel": "joint_vel",
    "ang_vel": "base_ang_vel",
    "gyro": "base_ang_vel",
    "gravity": "projected_gravity",
    "gravity_vec": "projected_gravity",
    "lin_vel": "base_lin_vel",
    "linvel": "base_lin_vel",
    "euler": "euler_xyz",
    "gait_phase": "phase_sin_cos",
}
"""What other stacks call the sources, where they have one name for one thing."""

PLAIN_TERM: dict[str, Any] = {
    "clip": None,
    "noise": [0.0],
    "history_length": None,
    "joints": None,
    "channels": None,
    "frame": "body",
    "sensor": "base",
    "value": None,
}
"""The fields of a term that say nothing unless somebody says them."""

_TERM_FIELDS = (
    *("name", "source", "scale", "clip_first", "stage", "components", "lag"),
    *PLAIN_TERM,
)
_BLOCK_FIELDS = ("input", "terms", "history", "clip")
_HISTORY_FIELDS = ("length", "layout", "order", "fill", "includes_current", "stride")
_ACTION_FIELDS = (
    "name",
    "kind",
    "joints",
    "scale",
    "offset",
    "relative_to",
    "raw_clip",
    "target_clip",
)


def read_blocks(value: Any, where: str) -> list[dict[str, Any]]:
    """Blocks of observation terms from any of their short forms.

    Args:
        value: A list of terms, a block, or a list of blocks.
        where: Where it stands, for messages.

    Returns:
        Blocks with ``terms`` as mappings that have a ``name`` and a ``source``.

    Raises:
        BadInput: Not one of the forms; the message says which field.
    """
    if is_dict(value):
        value = [value] if "terms" in value else _listed(value)
    if not is_list(value) or not value:
        raise BadInput(f"{where}: expected a list of terms or blocks, found {show(value)}")
    if not any(is_dict(item) and "terms" in item for item in value):
        value = [{"terms": value}]
    return [_block(item, f"{where}.{i}") for i, item in enumerate(value)]


def read_actions(value: Any, where: str) -> list[dict[str, Any]]:
    """Action terms from a mapping or a list of mappings, each with known fields only.

    Raises:
        BadInput: Not one of the forms, or an unknown field.
    """
    items: list[Any] = value if is_list(value) else [value]
    terms: list[dict[str, Any]] = []
    for i, item in enumerate(items):
        if not is_dict(item):
            raise BadInput(f"{where}.{i}: expected an action term, found {show(item)}")
        _known(item, _ACTION_FIELDS, f"{where}.{i}")
        terms.append({"name": f"action_{i}" if len(items) > 1 else "joints", **item})
    if not terms:
        raise BadInput(f"{where}: a policy needs an action")
    return terms


def term(name: str, source: str, **fields: Any) -> dict[str, Any]:
    """A term for an importer: a name, a source, and what is stated beside them."""
    return {"name": name, "source": source, **fields}


def column(value: Any, names: list[str], where: str) -> list[float]:
    """One number for all joints, a list with one for each, or a map by name or pattern.

    Raises:
        BadInput: None of these.
    """
    if is_dict(value):
        return [as_number(matching(value, name, where), where) for name in names]
    if is_list(value):
        return as_numbers(value, where, len(names))
    return [as_number(value, where)] * len(names)


def matching(patterns: dict[Any, Any], name: str, where: str) -> Any:
    """The value of the pattern that fits a joint's name; its own name before any pattern.

    Raises:
        BadInput: None fits, or several.
    """
    if name in patterns:
        return patterns[name]
    try:
        fitting = [key for key in patterns if re.fullmatch(str(key), name)]
    except re.error as error:
        raise BadInput(f"{where}: not a pattern: {error}") from None
    if len(fitting) != 1:
        found = f"{len(fitting)} patterns fit" if fitting else "no name or pattern fits"
        raise BadInput(
            f"{where}: {found} joint '{name}'; there are {', '.join(map(str, patterns))}"
        )
    return patterns[fitting[0]]


def bounds(value: Any, count: int, where: str) -> tuple[list[float], list[float]] | None:
    """Lower and upper bounds per element from any way to write them.

    Args:
        value: None, one number for plus and minus, ``[lower, upper]`` for all, a pair of two lists,
            or a list of one pair per element.
        count: Number of elements.
        where: Where it stands, for messages.

    Raises:
        BadInput: None of these.
    """
    if value is None:
        return None
    if not is_list(value):
        reach = abs(as_number(value, where))
        return [-reach] * count, [reach] * count
    if len(value) == 2 and not any(is_list(item) for item in value):
        lower, upper = as_numbers(value, where)
        return [lower] * count, [upper] * count
    if len(value) == 2 and all(is_list(item) and len(item) == count for item in value):
        return as_numbers(value[0], where, count), as_numbers(value[1], where, count)
    if len(value) == count and all(is_list(item) for item in value):
        pairs = [as_numbers(item, f"{where}[{i}]", 2) for i, item in enumerate(value)]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    raise BadInput(f"{where}: expected bounds for {count} elements, found {show(value)}")


def _block(value: Any, where: str) -> dict[str, Any]:
    if not is_dict(value):
        raise BadInput(f"{where}: expected a block of terms, found {show(value)}")
    _known(value, _BLOCK_FIELDS, where)
    terms = _listed(value.get("terms"))
    if not is_list(terms) or not terms:
        raise BadInput(f"{where}.terms: expected a list of terms, found {show(terms)}")
    history: Any = value.get("history") or {}
    if not is_dict(history):
        raise BadInput(f"{where}.history: expected a mapping, found {show(history)}")
    _known(history, _HISTORY_FIELDS, f"{where}.history")
    return {
        **value,
        "terms": [_term(item, f"{where}.terms.{i}") for i, item in enumerate(terms)],
        "history": dict(history),
    }


def _listed(value: Any) -> Any:
    """Terms written as a mapping from names to fields, as a list; anything else as it is."""
    if is_dict(value) and all(isinstance(fields, dict | None) for fields in value.values()):
        return [{name: fields} for name, fields in value.items()]
    return value


def _term(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, str):
        found: dict[str, Any] = {"name": value, "source": value}
    elif is_dict(value) and "name" in value:
        found = {"source": value["name"], **value}
    elif is_dict(value) and len(value) == 1:
        ((name, fields),) = value.items()
        if not isinstance(fields, dict | None):
            raise BadInput(f"{where}: expected fields of '{name}', found {show(fields)}")
        found = {"name": name, "source": name, **(fields or {})}
    else:
        raise BadInput(f"{where}: expected a term, found {show(value)}")
    _known(found, _TERM_FIELDS, where)
    if found["source"] not in SOURCES:
        likely = _ELSEWHERE.get(str(found["source"]))
        hint = f" (likely {{name: {found['name']}, source: {likely}}})" if likely else ""
        raise BadInput(
            f"{where}: term '{found['name']}' has no source '{found['source']}'{hint}; known: "
            f"{', '.join(SOURCES)}"
        )
    return found


def _known(value: dict[Any, Any], fields: Iterable[str], where: str) -> None:
    unknown = [key for key in value if key not in fields]
    if unknown:
        raise BadInput(f"{where}: '{shorten(unknown)}' is not a field; known: {', '.join(fields)}")
