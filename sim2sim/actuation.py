"""From joint commands to what MuJoCo simulates, in the form that the contract declares.

Both forms obey the gains of every command, and both take their targets through the contract's
delay and filter at every PD step. Motors of another strength give a factor of the effort that the
law gives, its limits included, as `trainer.envs.physics` has it: stiffness, damping, feed-forward
effort and effort limit alike. Where damping is the joint's own, it is the motor's all the same.
"""

from __future__ import annotations

from typing import Protocol

import mujoco
import numpy as np
from numpy.typing import NDArray

from robot_runtime.policy.actuator import Actuator
from robot_runtime.policy.state import JointCommand, JointTargets
from sim2sim.model import SimModel


class Drive(Protocol):
    """The motors of a simulated robot, written anew at every PD step."""

    def reset(self) -> None:
        """Forget earlier commands: the next one has always been there."""
        ...

    def command(self, command: JointCommand) -> None:
        """Take targets, which pass delay and filter, and gains, which do not."""
        ...

    def pd_step(self) -> None:
        """Begin a PD step: evaluate what is evaluated at the PD rate."""
        ...

    def physics_step(self) -> None:
        """Begin a physics step: evaluate what the form evaluates in every one."""
        ...

    def efforts(self) -> NDArray[np.float64]:
        """Efforts at the joints in the physics step simulated last, [Nm], ``(num_joints,)``."""
        ...


def make_drive(
    sim: SimModel, model: mujoco.MjModel, data: mujoco.MjData, strength: NDArray[np.float64]
) -> Drive:
    """The drive of the form that the contract declares.

    Args:
        sim: The bound model.
        model: The run's own copy of it, whose gains the drive may set.
        data: The run's state.
        strength: Factor on each joint's effort after its limit, shape ``(num_joints,)``.
    """
    native = sim.contract.actuator.form == "native"
    if native:
        return NativeDrive(sim, model, data, strength)
    return ExplicitDrive(sim, data, strength)


class ExplicitDrive:
    """The law of `actuator.py` evaluated every ``pd_dt`` and held in between."""

    def __init__(self, sim: SimModel, data: mujoco.MjData, strength: NDArray[np.float64]) -> None:
        """Drive the motors of ``data``; see `make_drive`."""
        self._sim, self._data, self._strength = sim, data, strength
        self._law = Actuator(sim.contract, _float64)
        self._kp, self._kd = self._law.kp, self._law.kd

    def reset(self) -> None:
        """Forget earlier commands."""
        self._law.reset()

    def command(self, command: JointCommand) -> None:
        """Take targets and gains."""
        self._law.set_target(_targets(command))
        self._kp, self._kd = command.kp.copy(), command.kd.copy()

    def pd_step(self) -> None:
        """Evaluate the law with fresh positions and velocities."""
        joint_pos = self._data.qpos[self._sim.qpos]
        joint_vel = self._data.qvel[self._sim.dof]
        targets = self._law.next_targets()
        efforts = self._law.effort(joint_pos, joint_vel, targets, self._kp, self._kd)
        self._data.ctrl[self._sim.ctrl] = self._strength * efforts

    def physics_step(self) -> None:
        """Nothing: efforts are held."""

    def efforts(self) -> NDArray[np.float64]:
        """What the motors gave."""
        return self._data.actuator_force[self._sim.ctrl]


class NativeDrive:
    """MuJoCo's affine actuators: gain kp on the target, bias -kp q - kd dq, a force range.

    MuJoCo evaluates them in every physics step and implicitfast integrates their damping
    implicitly. Feed-forward effort and velocity target go into the constant of the bias. With
    ``damping: joint`` kd is the joint's own damping, outside the force range; the model's damping
    of that joint is replaced by it.
    """

    def __init__(
        self,
        sim: SimModel,
        model: mujoco.MjModel,
        data: mujoco.MjData,
        strength: NDArray[np.float64],
    ) -> None:
        """Drive the actuators of ``model`` and ``data``; see `make_drive`."""
        self._sim, self._model, self._data, self._strength = sim, model, data, strength
        self._law = Actuator(sim.contract, _float64)
        self._kp, self._kd = self._law.kp, self._law.kd
        self._outside = sim.contract.actuator.damping == "joint"
        self._has_line = bool(np.isfinite(sim.contract.joint_array("stall_effort")).any())
        if self._outside:
            model.dof_dampingpoly[sim.dof] = 0.0
        self.reset()
        self._limit(np.zeros(len(sim.dof)))

    def reset(self) -> None:
        """Forget earlier commands."""
        self._law.reset()
        self._data.qfrc_applied[self._sim.dof] = 0.0
        # Limp until the next command: the actuators would hold zero with the gains of the last.
        ctrl = self._sim.ctrl
        self._model.actuator_gainprm[ctrl, 0] = 0.0
        self._model.actuator_biasprm[ctrl, :3] = 0.0
        if self._outside:
            self._model.dof_damping[self._sim.dof] = 0.0

    def command(self, command: JointCommand) -> None:
        """Take targets and gains."""
        self._law.set_target(_targets(command))
        self._kp, self._kd = command.kp.copy(), command.kd.copy()

    def pd_step(self) -> None:
        """Set targets and gains."""
        targets = self._law.next_targets()
        model, ctrl, dof = self._model, self._sim.ctrl, self._sim.dof
        kp, kd = self._strength * self._kp, self._strength * self._kd
        effort, pull = self._strength * targets.effort, kd * targets.velocity
        self._data.ctrl[ctrl] = targets.position
        model.actuator_gainprm[ctrl, 0] = kp
        model.actuator_biasprm[ctrl, 1] = -kp
        if self._outside:
            model.actuator_biasprm[ctrl, 0] = effort
            model.dof_damping[dof] = kd
            self._data.qfrc_applied[dof] = pull
        else:
            model.actuator_biasprm[ctrl, 0] = effort + pull
            model.actuator_biasprm[ctrl, 2] = -kd

    def physics_step(self) -> None:
        """Move the force range along the torque-speed line, where there is one."""
        if self._has_line:
            self._limit(self._data.qvel[self._sim.dof])

    def efforts(self) -> NDArray[np.float64]:
        """What the actuators, and the joints' damping where it is theirs, gave."""
        force = self._data.actuator_force[self._sim.ctrl]
        if not self._outside:
            return force
        dof = self._sim.dof
        return force + self._data.qfrc_damper[dof] + self._data.qfrc_applied[dof]

    def _limit(self, joint_vel: NDArray[np.float64]) -> None:
        huge = np.full(len(joint_vel), np.inf)
        upper = self._strength * self._law.saturate(huge, joint_vel)
        lower = self._strength * self._law.saturate(-huge, joint_vel)
        finite = np.isfinite(upper) & np.isfinite(lower)
        self._model.actuator_forcelimited[self._sim.ctrl] = finite
        self._model.actuator_forcerange[self._sim.ctrl, 0] = np.where(finite, lower, 0.0)
        self._model.actuator_forcerange[self._sim.ctrl, 1] = np.where(finite, upper, 0.0)


def _targets(command: JointCommand) -> JointTargets:
    return JointTargets(
        position=command.position.copy(),
        velocity=command.velocity.copy(),
        effort=command.effort.copy(),
    )


def _float64(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)
