"""Robots by name. A package adds one through the entry-point group `surefoot.drivers`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Protocol

from robot_runtime.control.robot import Robot
from robot_runtime.entries import load_entry
from robot_runtime.errors import BadInput
from robot_runtime.policy.file import PolicyFile

ENTRY_POINT_GROUP = "surefoot.drivers"


class Driver(Protocol):
    """What an entry point is: a function that binds a robot to a policy.

    `robot_runtime.drivers.options.takes` lets it say which options it has.
    """

    def __call__(self, policy: PolicyFile, options: Mapping[str, str], /) -> Robot:
        """Find the robot, bind it to the policy's joints by name, and check it.

        Args:
            policy: The policy that will run.
            options: What the user gave with ``--option name=value``.

        Raises:
            SurefootError: An option is unknown, or the robot is not there or does not fit.
        """
        ...


def driver_names() -> tuple[str, ...]:
    """Names of all drivers that are installed, sorted."""
    return tuple(sorted({point.name for point in entry_points(group=ENTRY_POINT_GROUP)}))


def load_driver(name: str) -> Driver:
    """Find a driver, importing no other.

    Raises:
        BadInput: There is none of this name; the message lists those there are.
        ImportError: Its packages are not installed.
    """
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.name == name:
            driver: Driver = load_entry(point)
            return driver
    known = ", ".join(driver_names()) or "none"
    raise BadInput(f"no driver for a robot called {name!r}; there are: {known}")
