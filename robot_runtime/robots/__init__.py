"""Robot models as data: one folder per robot with `robot.xml` (MuJoCo) and `profile.json`.

The profile says what a controller has to know about the hardware (joints, limits, gains, IMU); the
XML says how it moves. Their common hash goes into every contract made for the model, so a policy
can tell that it meets the robot it was trained on. Nothing here imports MuJoCo.

A package adds robots through the entry-point group `surefoot.models`: each entry point is a
function without arguments that returns a `RobotModel`, usually made by `read_model`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, cast

from robot_runtime.entries import load_entry
from robot_runtime.errors import BadInput

ENTRY_POINT_GROUP = "surefoot.models"
PROFILE_SCHEMA = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class JointProfile:
    """One actuated joint as its maker specifies it, in SI units.

    Attributes:
        name: Name of the joint in `robot.xml`.
        lower: Lower end of the range, [rad].
        upper: Upper end of the range, [rad].
        effort_limit: Largest torque the drive gives, [Nm].
        velocity_limit: No-load speed, [rad/s].
        default_pos: Position in the robot's home pose, [rad].
        kp: Recommended position gain, [Nm/rad].
        kd: Recommended damping gain, [Nm s/rad].
        armature: Rotor inertia reflected to the joint, [kg m^2].
    """

    name: str
    lower: float
    upper: float
    effort_limit: float
    velocity_limit: float
    default_pos: float
    kp: float
    kd: float
    armature: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RobotProfile:
    """What `profile.json` declares.

    Attributes:
        name: Name of the model, equal to its folder's.
        description: One line for people.
        base_body: Body that carries the free joint.
        imu_site: Site at the inertial sensor; its frame is the frame of gyro and gravity.
        base_height: Height of the base body above flat ground in the home pose, [m].
        foot_geoms: Geoms that are meant to touch the ground.
        keyframe: Keyframe of `robot.xml` that holds the home pose.
        joints: Actuated joints, in the order of the profile.
    """

    name: str
    description: str
    base_body: str
    imu_site: str
    base_height: float
    foot_geoms: tuple[str, ...]
    keyframe: str
    joints: tuple[JointProfile, ...]

    def joint(self, name: str) -> JointProfile:
        """Return the joint called `name`.

        Raises:
            BadInput: No such joint; the message lists those there are.
        """
        for joint in self.joints:
            if joint.name == name:
                return joint
        names = ", ".join(joint.name for joint in self.joints)
        raise BadInput(f"robot '{self.name}' has no joint '{name}'; it has {names}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RobotModel:
    """A robot model found on disk.

    Attributes:
        name: Name it was asked for by.
        xml_path: Its MuJoCo model, with a flat floor.
        profile: Its profile.
        hash: SHA-256 over both files, 64 hex digits.
    """

    name: str
    xml_path: Path
    profile: RobotProfile
    hash: str


def quadruped() -> RobotModel:
    """Return the built-in 12-joint quadruped."""
    return read_model(Path(__file__).parent / "quadruped")


def biped() -> RobotModel:
    """Return the built-in 10-joint biped."""
    return read_model(Path(__file__).parent / "biped")


_BUILT_IN: dict[str, Callable[[], RobotModel]] = {"quadruped": quadruped, "biped": biped}


def model_names() -> tuple[str, ...]:
    """Return the names of all robot models that can be loaded, sorted."""
    return tuple(sorted({*_BUILT_IN, *_installed()}))


def load_model(name: str) -> RobotModel:
    """Find a robot model by name: built-in ones first, then installed entry points.

    Raises:
        BadInput: No model has this name (the message lists those known), or its files are bad.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    installed = _installed()
    if name not in installed:
        raise BadInput(f"unknown robot model '{name}'; known are {', '.join(model_names())}")
    model: object = load_entry(installed[name])()
    if not isinstance(model, RobotModel):
        raise BadInput(
            f"entry point '{name}' of group '{ENTRY_POINT_GROUP}' must return a RobotModel, "
            f"got {type(model).__name__}"
        )
    return model


def read_model(folder: Path) -> RobotModel:
    """Read a model from its folder.

    Args:
        folder: Holds `robot.xml` and `profile.json`; its name is the model's.

    Raises:
        BadInput: A file is missing or the profile is not as declared; the message names the field.
    """
    xml_path, profile_path = folder / "robot.xml", folder / "profile.json"
    contents = [_read_bytes(path) for path in (xml_path, profile_path)]
    profile = _parse_profile(contents[1], profile_path)
    if profile.name != folder.name:
        raise BadInput(f"{profile_path}: name is '{profile.name}', its folder is '{folder.name}'")
    return RobotModel(
        name=folder.name, xml_path=xml_path, profile=profile, hash=_hash_files(contents)
    )


def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def _hash_files(contents: list[bytes]) -> str:
    """SHA-256 over the files, each preceded by its length so that no byte can change sides."""
    digest = hashlib.sha256()
    for content in contents:
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read robot model file {path}: {error.strerror}") from error


def _parse_profile(content: bytes, path: Path) -> RobotProfile:
    try:
        data: object = json.loads(content)
    except ValueError as error:
        raise BadInput(f"{path}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise BadInput(f"{path}: expected a JSON object, got {type(data).__name__}")
    entries = dict(cast("dict[str, Any]", data))
    version = entries.pop("schema_version", None)
    if version != PROFILE_SCHEMA:
        raise BadInput(
            f"{path}: schema_version is {version!r}, this version reads {PROFILE_SCHEMA}"
        )
    _check_keys(entries, {field.name for field in fields(RobotProfile)}, str(path))
    profile = RobotProfile(
        name=_string(entries, "name", path),
        description=_string(entries, "description", path),
        base_body=_string(entries, "base_body", path),
        imu_site=_string(entries, "imu_site", path),
        base_height=_number(entries, "base_height", str(path)),
        foot_geoms=_strings(entries["foot_geoms"], f"{path}: foot_geoms"),
        keyframe=_string(entries, "keyframe", path),
        joints=_parse_joints(entries["joints"], path),
    )
    return profile


def _parse_joints(value: object, path: Path) -> tuple[JointProfile, ...]:
    if not isinstance(value, list) or not value:
        raise BadInput(f"{path}: joints must be a list with at least one joint")
    joints = tuple(_parse_joint(item, path) for item in cast("list[object]", value))
    names = [joint.name for joint in joints]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadInput(f"{path}: joint '{twice[0]}' is declared {names.count(twice[0])} times")
    return joints


def _parse_joint(item: object, path: Path) -> JointProfile:
    if not isinstance(item, dict):
        raise BadInput(f"{path}: a joint must be a JSON object, got {item!r}")
    entries = cast("dict[str, Any]", item)
    where = f"{path}: joint '{entries.get('name', '?')}'"
    _check_keys(entries, {field.name for field in fields(JointProfile)}, where)
    numbers = {key: _number(entries, key, where) for key in entries if key != "name"}
    joint = JointProfile(name=_string(entries, "name", path), **numbers)
    for key in ("effort_limit", "velocity_limit"):
        if numbers[key] <= 0.0:
            raise BadInput(f"{where}: {key} must be above 0, got {numbers[key]}")
    for key in ("kp", "kd", "armature"):
        if numbers[key] < 0.0:
            raise BadInput(f"{where}: {key} must not be negative, got {numbers[key]}")
    if not joint.lower <= joint.default_pos <= joint.upper:
        raise BadInput(
            f"{where}: default_pos {joint.default_pos} lies outside {joint.lower}..{joint.upper}"
        )
    return joint


def _check_keys(entries: dict[str, Any], expected: set[str], where: str) -> None:
    missing, unknown = (
        sorted(expected - entries.keys()),
        sorted(entries.keys() - expected),
    )
    if missing:
        raise BadInput(f"{where}: field '{missing[0]}' is missing")
    if unknown:
        raise BadInput(f"{where}: unknown field '{unknown[0]}'; known are {sorted(expected)}")


def _string(entries: dict[str, Any], key: str, path: Path) -> str:
    value: object = entries[key]
    if not isinstance(value, str) or not value:
        raise BadInput(f"{path}: {key} must be a non-empty string, got {value!r}")
    return value


def _strings(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise BadInput(f"{where} must be a list of strings, got {value!r}")
    items = cast("list[object]", value)
    if not all(isinstance(item, str) for item in items):
        raise BadInput(f"{where} must be a list of strings, got {value!r}")
    return tuple(str(item) for item in items)


def _number(entries: dict[str, Any], key: str, where: str) -> float:
    value: object = entries[key]
    # bool is an int in Python, and `true` is no number in a profile.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise BadInput(f"{where}: {key} must be a finite number, got {value!r}")
    return float(value)
