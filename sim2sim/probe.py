"""What the simulator knows and no robot measures: recorded beside the loop, for the judge alone."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from robot_runtime.policy.rotation import heading
from sim2sim.mujoco_robot import MujocoRobot

SATURATED = 0.999
"""Share of its limit from which an effort counts as saturated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Truth:
    """The true motion of a run, one row per control period, beginning with the start.

    Attributes:
        time: [s], shape ``(rows,)``.
        base_pos_w: Position of the base, world, [m], shape ``(rows, 3)``.
        velocity: Forward, sideways and turning velocity of the base in its heading frame, [m/s],
            [m/s], [rad/s], shape ``(rows, 3)``.
        tilt: Angle between the base's z axis and the vertical, [rad], shape ``(rows,)``.
        com_height: Height of the whole robot's centre of mass, [m], shape ``(rows,)``.
        qpos: All positions of the model, for pictures, shape ``(rows, nq)``.
        efforts: Efforts at the joints, [Nm], shape ``(rows, num_joints)``, contract order.
        saturation: Share of the period's PD steps in which a joint's effort was at its limit,
            shape ``(rows, num_joints)``.
        contacts: Whether a body touched something fixed, bool, shape ``(rows, bodies)``.
        bodies: Names of those bodies.
    """

    time: NDArray[np.float64]
    base_pos_w: NDArray[np.float64]
    velocity: NDArray[np.float64]
    tilt: NDArray[np.float64]
    com_height: NDArray[np.float64]
    qpos: NDArray[np.float64]
    efforts: NDArray[np.float64]
    saturation: NDArray[np.float64]
    contacts: NDArray[np.bool_]
    bodies: tuple[str, ...]


class Probe:
    """Takes a sample at every control period of a simulated robot."""

    def __init__(self, robot: MujocoRobot) -> None:
        """Watch a robot from now on.

        Args:
            robot: The robot, placed at its start.
        """
        self._robot = robot
        contract = robot.sim.contract
        self._every = contract.decimation
        self._limit = SATURATED * contract.joint_array("effort_limit")
        self._saturated = np.zeros(len(contract.joints))
        self._steps = 0
        self._columns: dict[str, list[NDArray[np.float64]]] = {}
        self._contacts: list[NDArray[np.bool_]] = []
        self.tilt = 0.0
        self.com_height = 0.0
        self._sample()
        self.start_height = self.com_height
        robot.after_pd.append(self._after_pd)

    def truth(self) -> Truth:
        """Everything sampled so far; of the bodies, those that ever touched something fixed."""
        columns = {name: np.stack(rows) for name, rows in self._columns.items()}
        contacts = np.stack(self._contacts)
        touched = np.flatnonzero(contacts.any(axis=0))
        model = self._robot.model
        return Truth(
            time=columns["time"],
            base_pos_w=columns["base_pos_w"],
            velocity=columns["velocity"],
            tilt=columns["tilt"],
            com_height=columns["com_height"],
            qpos=columns["qpos"],
            efforts=columns["efforts"],
            saturation=columns["saturation"],
            contacts=contacts[:, touched],
            bodies=tuple(model.body(int(i)).name or f"body {i}" for i in touched),
        )

    def _after_pd(self) -> None:
        self._saturated += np.abs(self._robot.drive.efforts()) >= self._limit
        self._steps += 1
        if self._steps % self._every == 0:
            self._sample()

    def _sample(self) -> None:
        robot = self._robot
        sim, model, data = robot.sim, robot.model, robot.data
        state = robot.read()
        # mj_step leaves positions new and everything derived from them old.
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        _, x, y, _ = state.base_quat
        upright = 1.0 - 2.0 * (x * x + y * y)
        self.tilt = float(np.arccos(np.clip(upright, -1.0, 1.0)))
        self.com_height = float(data.subtree_com[model.body_rootid[sim.base], 2])
        row = {
            "time": np.array(robot.time),
            "base_pos_w": data.qpos[sim.base_qpos : sim.base_qpos + 3].copy(),
            "velocity": _heading_velocity(robot, float(heading(state.base_quat))),
            "tilt": np.array(self.tilt),
            "com_height": np.array(self.com_height),
            "qpos": data.qpos.copy(),
            "efforts": robot.drive.efforts().copy(),
            "saturation": self._saturated / self._every,
        }
        for name, value in row.items():
            self._columns.setdefault(name, []).append(value)
        self._contacts.append(_touching(robot))
        self._saturated = np.zeros_like(self._saturated)


def _heading_velocity(robot: MujocoRobot, yaw: float) -> NDArray[np.float64]:
    """Velocity in the frame that has the base's heading and stays level."""
    sim, data = robot.sim, robot.data
    vx, vy, _ = data.qvel[sim.base_dof : sim.base_dof + 3]
    cos, sin = np.cos(yaw), np.sin(yaw)
    # The rotation matrix's last row turns the body rates into the rate about the vertical.
    spin = data.xmat[sim.base].reshape(3, 3)[2] @ data.qvel[sim.base_dof + 3 : sim.base_dof + 6]
    return np.array([cos * vx + sin * vy, cos * vy - sin * vx, spin])


def _touching(robot: MujocoRobot) -> NDArray[np.bool_]:
    """For every body, whether one of its geoms touched something fixed in the last step."""
    model, data = robot.model, robot.data
    touched = np.zeros(model.nbody, dtype=np.bool_)
    if not data.ncon:
        return touched
    bodies = model.geom_bodyid[data.contact.geom]
    fixed = model.body_weldid[bodies] == 0
    # Contacts that lie within the margin and carry no force have no row in the solver.
    active = data.contact.efc_address >= 0
    for own, other in ((0, 1), (1, 0)):
        touched[bodies[active & fixed[:, other] & ~fixed[:, own], own]] = True
    return touched
