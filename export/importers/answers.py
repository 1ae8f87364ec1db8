"""What the user says: YAML files and single settings, as paths of a contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from export.importers.assemble import COLUMNS
from export.importers.reading import as_number, is_dict, is_list, parse_yaml_value, read_yaml, show
from robot_runtime.errors import BadInput

_NESTED = (
    "robot",
    "joints",
    "timing",
    "actuator",
    "action",
    "commands",
    "phase",
    "imu",
    "network",
    "motion",
)


_SECTIONS = (*_NESTED, "name", "observation", "motors", "keyframe", "actuators")


_NAMES = ("joints.names", "motors", "commands.names")
"""Answers that importers take for lists of names before the contract is checked."""

_TEXTS = ("name", "keyframe", "actuators", "network.output", "robot.name")
"""Answers that they take for texts."""

_TIMES = ("timing.control_dt", "phase.period")
"""Answers that they divide by."""


def read_answers(files: tuple[Path, ...], settings: tuple[str, ...]) -> dict[str, tuple[Any, str]]:
    """What the user says, by path, with the place where it is said.

    Args:
        files: YAML files; a section's fields may be nested or written with dots.
        settings: ``PATH=VALUE`` texts, values as YAML; they win over files.

    Raises:
        BadInput: Not readable, a setting without ``=``, or a section that does not exist.
    """
    answers: dict[str, tuple[Any, str]] = {}
    for path in files:
        for key, value in read_yaml(path).data.items():
            answers.update(_flat(key, value, path.name))
    for setting in settings:
        key, sign, text = setting.partition("=")
        if not sign or not key.strip():
            raise BadInput(f"--set {setting}: expected PATH=VALUE")
        value = parse_yaml_value(text.encode(), f"--set {key}")
        answers.update(_flat(key.strip(), value, "--set"))
    for key in answers:
        if key.partition(".")[0] not in _SECTIONS:
            raise BadInput(f"{key}: no such field; sections are {', '.join(_SECTIONS)}")
    _check_kinds({key: value for key, (value, _) in answers.items()})
    return answers


def _check_kinds(answers: dict[str, Any]) -> None:
    """Refuse answers of another kind than what reads them first expects."""
    for key in (key for key in _NAMES if key in answers):
        value = answers[key]
        if not is_list(value) or not value or not all(isinstance(name, str) for name in value):
            raise BadInput(f"{key}: expected different names, found {show(value)}")
    for key in (key for key in _TEXTS if key in answers):
        if not isinstance(answers[key], str):
            raise BadInput(f"{key}: expected a text, found {show(answers[key])}")
    for key in (key for key in _TIMES if key in answers):
        if as_number(answers[key], key) <= 0.0:
            raise BadInput(f"{key}: {show(answers[key])} is not positive")


def _flat(key: str, value: Any, where: str) -> dict[str, tuple[Any, str]]:
    """A section's fields as paths; a list of joints or of action terms may stand directly."""
    if key == "joints" and is_list(value):
        return {"joints.names": (value, where)}
    if key == "action" and is_list(value):
        return {"action.terms": (value, where)}
    if key == "joints" and is_dict(value):
        fields: dict[str, tuple[Any, str]] = {}
        for name, inner in value.items():
            fields |= _flat(f"joints.{name}", inner, where)
        return fields
    if key.startswith("joints.") and is_dict(value) and set(value) <= set(COLUMNS):
        return {f"{key}.{field}": (number, where) for field, number in value.items()}
    if key in _NESTED and is_dict(value):
        return {f"{key}.{name}": (inner, where) for name, inner in value.items()}
    if key in _NESTED:
        raise BadInput(f"{where}: {key}: expected fields, found {show(value)}")
    return {key: (value, where)}
