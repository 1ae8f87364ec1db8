"""Simulated time behind the `Clock` seam: waiting is stepping the physics."""

from __future__ import annotations

from robot_runtime.control.clock import Tick
from sim2sim.mujoco_robot import MujocoRobot


class SimClock:
    """The clock of a simulated robot. Never late: the loop's own work takes no simulated time."""

    def __init__(self, robot: MujocoRobot) -> None:
        """Drive the time of ``robot``."""
        self._robot = robot

    @property
    def period(self) -> float:
        """The contract's control period, [s]."""
        return self._robot.sim.contract.timing.control_dt

    def now(self) -> float:
        """Simulated time, [s]."""
        return self._robot.time

    def start(self) -> None:
        """Nothing to do: simulated time passes in `wait` alone."""

    def wait(self) -> Tick:
        """Simulate one control period.

        Raises:
            PhysicsFault: See `MujocoRobot.advance`.
        """
        self._robot.advance(self._robot.sim.contract.decimation)
        return Tick(lateness=0.0, skipped=0, overrun=False)
