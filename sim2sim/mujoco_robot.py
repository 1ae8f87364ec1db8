"""MuJoCo behind the `Robot` seam: the loop cannot tell it from a robot."""

from __future__ import annotations

import copy
from collections.abc import Callable

import mujoco
import numpy as np
from numpy.typing import NDArray

from robot_runtime.errors import GateFailed
from robot_runtime.policy.rotation import rotate_inverse
from robot_runtime.policy.state import JointCommand, RobotState
from sim2sim.actuation import make_drive
from sim2sim.model import SimModel


class PhysicsFault(GateFailed):
    """MuJoCo warned or gave up: what it simulates from here on is not the robot."""


class MujocoRobot:
    """A robot that exists in MuJoCo. Its time passes in `advance` alone.

    Attributes:
        sim: The bound model.
        model: This robot's own copy of it; disturbances may change masses and friction.
        data: The state of the simulation.
        drive: The motors.
        before_pd: Called before every PD step, e.g. to deliver what was late.
        after_pd: Called after every PD step, e.g. to measure efforts.
    """

    def __init__(self, sim: SimModel, strength: NDArray[np.float64] | None = None) -> None:
        """Make a robot in the pose of the model's zero configuration.

        Args:
            sim: The bound model.
            strength: Factor on each motor's effort after its limit, positive, shape
                ``(num_joints,)``, contract order; None: 1.
        """
        self.sim = sim
        self.model = copy.copy(sim.mj)
        self.data = mujoco.MjData(self.model)
        ones = np.ones(len(sim.contract.joints))
        self.drive = make_drive(sim, self.model, self.data, ones if strength is None else strength)
        self.before_pd: list[Callable[[], None]] = []
        self.after_pd: list[Callable[[], None]] = []
        self._commanded = False
        self._pd_steps = 0

    @property
    def joint_names(self) -> tuple[str, ...]:
        """Names of the joints, contract order."""
        return self.sim.contract.joint_names

    @property
    def measures(self) -> frozenset[str]:
        """A simulator measures everything."""
        return frozenset({"base_lin_vel_b"})

    @property
    def time(self) -> float:
        """Simulated time since the last `reset`, [s]."""
        return self._pd_steps * self.sim.contract.timing.pd_dt

    def reset(self) -> None:
        """Begin again from the current positions and velocities, which a caller may have set.

        Time, warm starts, forces and the memory of the motors are those of a fresh robot.

        Raises:
            PhysicsFault: MuJoCo has no memory for this pose.
        """
        qpos, qvel = self.data.qpos.copy(), self.data.qvel.copy()
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:], self.data.qvel[:] = qpos, qvel
        try:
            mujoco.mj_forward(self.model, self.data)
        except mujoco.FatalError as error:
            raise PhysicsFault(f"MuJoCo cannot begin: {error}") from error
        self.drive.reset()
        self._commanded = False
        self._pd_steps = 0

    def read(self) -> RobotState:
        """The state of this moment, float64."""
        sim, data = self.sim, self.data
        quat = data.qpos[sim.base_qpos + 3 : sim.base_qpos + 7]
        quat = quat / np.linalg.norm(quat)
        # A free joint's velocities: linear in the world frame, angular in the body frame.
        lin_vel_w = data.qvel[sim.base_dof : sim.base_dof + 3]
        return RobotState(
            time=self.time,
            base_quat=quat,
            base_ang_vel_b=data.qvel[sim.base_dof + 3 : sim.base_dof + 6].copy(),
            base_lin_vel_b=rotate_inverse(quat, lin_vel_w),
            joint_pos=data.qpos[sim.qpos],
            joint_vel=data.qvel[sim.dof],
        )

    def write(self, command: JointCommand) -> JointCommand:
        """Take a command; it acts from the next PD step on, after the contract's delay."""
        self.drive.command(command)
        self._commanded = True
        return command

    def close(self) -> None:
        """Nothing to let go of."""

    def advance(self, pd_steps: int) -> None:
        """Let time pass.

        Before the first command the motors are limp.

        Args:
            pd_steps: How many PD periods.

        Raises:
            PhysicsFault: MuJoCo ran out of memory for contacts, diverged or stopped.
        """
        for _ in range(pd_steps):
            for call in self.before_pd:
                call()
            if self._commanded:
                self.drive.pd_step()
            self._step_physics()
            self._pd_steps += 1
            for call in self.after_pd:
                call()

    def _step_physics(self) -> None:
        try:
            for _ in range(self.sim.substeps):
                self.drive.physics_step()
                mujoco.mj_step(self.model, self.data)
        except mujoco.FatalError as error:
            raise PhysicsFault(f"MuJoCo stopped at {self.time:.3f} s: {error}") from error
        numbers = self.data.warning.number
        if numbers.any():
            names = [
                w.name for w in mujoco.mjtWarning.__members__.values() if w.name != "mjNWARNING"
            ]
            raised = [n for n, count in zip(names, numbers, strict=True) if count]
            raise PhysicsFault(f"MuJoCo warned at {self.time:.3f} s: {', '.join(raised)}")
