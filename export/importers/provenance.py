"""Where each field of an imported contract comes from."""

from __future__ import annotations

import re
from typing import Any

from export.importers.reading import is_dict, is_list
from export.importers.sheet import Sheet
from robot_runtime.policy.contract import PolicyContract

_JOINT = re.compile(r"joints\.(\d+)\.(\w+)")
_TERM = re.compile(r"observation\.(\d+)\.terms\.(\d+)\.(\w+)")
_BLOCK = re.compile(r"observation\.(\d+)\.(.+)")
_ACTION = re.compile(r"action\.terms\.(\d+)\.(\w+)")


def field_sources(contract: PolicyContract, sheet: Sheet, filled: dict[str, str]) -> dict[str, str]:
    """The source of every field of a contract.

    Args:
        contract: The contract.
        sheet: The statements it was made from.
        filled: Sources by contract path that are known already.

    Returns:
        ``"KIND: PLACE"`` by contract path, a list of numbers counting as one field, and the joints'
        columns as ``joints.*.kp`` where all joints have one source.
    """
    found = {
        path: _source(path, contract, sheet, filled) for path in field_paths(contract.to_dict())
    }
    columns: dict[str, set[str]] = {}
    for path, source in found.items():
        match = _JOINT.fullmatch(path)
        if match:
            columns.setdefault(match[2], set()).add(source)
    merged: dict[str, str] = {}
    for path, source in found.items():
        match = _JOINT.fullmatch(path)
        single = match is not None and len(columns[match[2]]) == 1
        merged[f"joints.*.{match[2]}" if match and single else path] = source
    return merged


def field_paths(plain: Any, path: str = "") -> list[str]:
    """The paths of a contract's fields; lists of numbers or names count as one."""
    if is_dict(plain):
        return [p for k, v in plain.items() for p in field_paths(v, f"{path}.{k}" if path else k)]
    if is_list(plain) and any(is_dict(item) for item in plain):
        return [p for i, item in enumerate(plain) for p in field_paths(item, f"{path}.{i}")]
    return [path]


def _source(path: str, contract: PolicyContract, sheet: Sheet, filled: dict[str, str]) -> str:
    for candidate in _candidates(path, contract):
        if candidate in filled:
            return filled[candidate]
        said = sheet.origin(candidate)
        if said is not None:
            return f"{said[0]}: {said[1]}"
    return "default: nothing states it"


def _candidates(path: str, contract: PolicyContract) -> list[str]:
    """The paths of a sheet that can speak for a field, the most telling first."""
    joint, term = _JOINT.fullmatch(path), _TERM.fullmatch(path)
    block, action = _BLOCK.fullmatch(path), _ACTION.fullmatch(path)
    own: list[str] = []
    if joint:
        name = contract.joints[int(joint[1])].name
        own = [f"joints.{name}.{joint[2]}", "joints.names" if joint[2] == "name" else ""]
        own.append(f"joints.{joint[2]}")
    elif term:
        i, j, field = int(term[1]), int(term[2]), term[3]
        name = contract.observation[i].terms[j].name
        own = [f"observation.{i}.{name}.{field}", f"observation.{name}.{field}", path]
        own += [f"observation.{name}"]
    elif block:
        own = [path, f"observation.{block[2]}"]
    elif action:
        name, field = contract.action.terms[int(action[1])].name, action[2]
        short = field.replace("_lower", "_clip").replace("_upper", "_clip")
        own = [f"action.{name}.{short}", f"action.{short}", path, "action.terms"]
    elif path.startswith("commands."):
        own = [path, f"commands.{contract.commands[int(path.split('.')[1])].name}"]
    parts = path.split(".")
    return own + [".".join(parts[: n + 1]) for n in reversed(range(len(parts)))]
