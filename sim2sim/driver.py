"""The driver ``sim``: MuJoCo in real time behind ``surefoot run --robot sim``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from robot_runtime.control.loop import Policy
from robot_runtime.drivers.options import Option, read_options, takes
from robot_runtime.policy.state import JointCommand, RobotState
from sim2sim.model import build_model, find_model
from sim2sim.mujoco_robot import MujocoRobot
from sim2sim.placement import place
from sim2sim.wrappers import Wrapper

_LOG = logging.getLogger(__name__)

OPTIONS = (
    Option(name="model", help="a MuJoCo scene (.xml); without it the contract's robot"),
    Option(
        name="physics_dt", kind=float,
        help="physics step, [s], which divides the PD step; without it the training's or less",
    ),
    Option(
        name="gantry", choices=("on", "off"), default="on",
        help="hold the base where it was placed until the joints have been stiff for a while",
    ),
)  # fmt: skip
"""Options of the driver ``sim``."""

LONGEST_CATCH_UP = 0.1
"""Most simulated time that one `read` makes up for, [s]."""

RELEASE_AFTER = 0.3
"""Time with stiff joints after which the gantry lets go, [s]."""


class RealTimeRobot(Wrapper):
    """A simulated robot whose time follows the wall clock, stepped when it is read.

    Time begins with the first command: nothing moves before. A computer that is too slow makes
    the simulation late, which is logged once.
    """

    def __init__(
        self,
        robot: MujocoRobot,
        gantry: Gantry | None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Let a placed robot run.

        Args:
            robot: The robot.
            gantry: What holds it until it stands by itself, or None.
            now: Gives wall time, [s].
        """
        super().__init__(robot)
        self.robot = robot
        self._gantry = gantry
        self._now = now
        self._start: float | None = None
        self._warned = False

    def read(self) -> RobotState:
        """Simulate up to this moment and measure.

        Raises:
            PhysicsFault: See `MujocoRobot.advance`.
        """
        if self._start is not None:
            self._advance(self._start)
        return self.robot.read()

    def write(self, command: JointCommand) -> JointCommand:
        """Send a command; the first one starts time."""
        if self._start is None:
            self._start = self._now()
        if self._gantry is not None:
            self._gantry.feel(command)
        return self.robot.write(command)

    def _advance(self, start: float) -> None:
        period = self.robot.sim.contract.timing.pd_dt
        behind = self._now() - start - self.robot.time
        steps = int(behind / period + 1e-6)
        most = max(1, int(LONGEST_CATCH_UP / period))
        if steps > most:
            # What cannot be made up for is lost: physics must not eat the loop's own time.
            self._start = start + (steps - most) * period
            if not self._warned:
                self._warned = True
                _LOG.warning("the simulation is %.2f s late and goes on from there", behind)
        self.robot.advance(min(steps, most))


class Gantry:
    """Holds the base where it was placed until the joints were as stiff as they get for a while.

    As on a real robot, whose joints are limp before they are asked for anything: a biped would
    lie on the floor before its gains have grown.
    """

    def __init__(self, robot: MujocoRobot) -> None:
        """Hold a placed robot."""
        sim, data = robot.sim, robot.data
        self._robot = robot
        self._pose = data.qpos[sim.base_qpos : sim.base_qpos + 7].copy()
        self._kp = sim.contract.joint_array("kp")
        self._stiff_since = np.inf
        self._holds = True
        robot.before_pd.append(self._hold)
        robot.after_pd.append(self._hold)

    def feel(self, command: JointCommand) -> None:
        """Notice whether the joints are stiff, and let go for good when they are."""
        # Some policies command efforts alone, and their joints never have any stiffness.
        driven = command.kp.any() or command.kd.any() or command.effort.any()
        if not bool(driven and (command.kp >= 0.999 * self._kp).all()):
            self._stiff_since = np.inf
            return
        self._stiff_since = min(self._stiff_since, self._robot.time)
        if self._robot.time - self._stiff_since >= RELEASE_AFTER:
            self._holds = False

    def _hold(self) -> None:
        if self._holds:
            sim, data = self._robot.sim, self._robot.data
            data.qpos[sim.base_qpos : sim.base_qpos + 7] = self._pose
            data.qvel[sim.base_dof : sim.base_dof + 6] = 0.0


@takes(OPTIONS)
def make(policy: Policy, options: Mapping[str, str]) -> RealTimeRobot:
    """The driver ``sim``.

    Args:
        policy: The policy that will run.
        options: See `OPTIONS`.

    Raises:
        BadInput: An option does not exist or has a bad value, or there is no such model.
        Refused: The model does not fit the contract.
    """
    values: dict[str, Any] = dict(read_options("sim robot", OPTIONS, options))
    scene = None if values["model"] is None else Path(values["model"])
    file = find_model(policy.contract, scene)
    robot = MujocoRobot(build_model(policy.contract, file, values["physics_dt"]))
    place(robot, None)
    return RealTimeRobot(robot, Gantry(robot) if values["gantry"] == "on" else None)
