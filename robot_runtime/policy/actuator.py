"""The actuator law: from joint targets to efforts. The one definition of it."""

from __future__ import annotations

import math

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from robot_runtime.errors import Refused
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.state import Array, AsArray, JointTargets, as_float32


class Actuator:
    """PD with effort limit, optional torque-speed line, delay and target filter.

    `set_target` is called once per policy step, `step` once per PD step. The law is that of an
    ideal PD motor with saturation; with a torque-speed line the limits are those of a DC motor in
    four quadrants, effort <= stall * (1 - speed / no_load_speed), as in Isaac Lab's ``DCMotor``.
    A native contract's law is the same; MuJoCo integrates its damping implicitly, and with
    ``damping: joint`` the damping acts outside the effort limit.
    """

    def __init__(self, contract: PolicyContract, asarray: AsArray = as_float32) -> None:
        """Prepare the joints of a contract.

        Args:
            contract: The contract.
            asarray: Makes constants of the array library, dtype and device to compute with.
        """
        self.kp: Array = asarray(contract.joint_array("kp"))
        self.kd: Array = asarray(contract.joint_array("kd"))
        self._limit: Array = asarray(contract.joint_array("effort_limit"))
        self._outside = contract.actuator.damping == "joint"
        self._line = _speed_line(contract, asarray)
        self._filter = contract.actuator.target_filter
        self._delay = contract.delay_steps
        self._queue: list[JointTargets] = []
        self._filtered: JointTargets | None = None

    def reset(self) -> None:
        """Forget earlier targets: the next one has always been there."""
        self._queue = []
        self._filtered = None

    def set_target(self, targets: JointTargets) -> None:
        """Give the targets of a policy step; they take effect after the contract's delay.

        Args:
            targets: Position [rad], velocity [rad/s] and effort [Nm], shape ``(..., num_joints)``.
        """
        if not self._queue:
            self._queue = [targets] * (self._delay + 1)
        self._queue[-1] = targets

    def step(self, joint_pos: Array, joint_vel: Array) -> Array:
        """The efforts of one PD step.

        Args:
            joint_pos: Positions, [rad], shape ``(..., num_joints)``.
            joint_vel: Velocities, [rad/s], shape ``(..., num_joints)``.

        Returns:
            Efforts at the joints, [Nm], shape ``(..., num_joints)``.
        """
        return self.effort(joint_pos, joint_vel, self.next_targets())

    def next_targets(self) -> JointTargets:
        """The targets in force during the next PD step, after delay and filter.

        `step` takes them itself; this is for whoever realizes the law in another form, or with
        other gains, and calls `effort` with them.
        """
        targets = self._queue[0]
        self._queue = [*self._queue[1:], self._queue[-1]]
        return self._smooth(targets) if self._filter < 1.0 else targets

    def effort(
        self,
        joint_pos: Array,
        joint_vel: Array,
        targets: JointTargets,
        kp: Array = None,
        kd: Array = None,
    ) -> Array:
        """The law itself: kp (q* - q) + kd (dq* - dq) + effort*, within the motor's limits.

        Args:
            joint_pos: Positions, [rad], shape ``(..., num_joints)``.
            joint_vel: Velocities, [rad/s], shape ``(..., num_joints)``.
            targets: Position, velocity and effort targets, shape ``(..., num_joints)``.
            kp: Stiffness in force, [Nm/rad]; None for the contract's.
            kd: Damping in force, [Nm s/rad]; None for the contract's.

        Returns:
            Efforts at the joints, [Nm], shape ``(..., num_joints)``.
        """
        kp = self.kp if kp is None else kp
        kd = self.kd if kd is None else kd
        spring = kp * (targets.position - joint_pos) + targets.effort
        damping = kd * (targets.velocity - joint_vel)
        if self._outside:
            return self.saturate(spring, joint_vel) + damping
        return self.saturate(spring + damping, joint_vel)

    def saturate(self, effort: Array, joint_vel: Array) -> Array:
        """Limit efforts to what the motors give.

        Args:
            effort: Wanted efforts, [Nm], shape ``(..., num_joints)``.
            joint_vel: Velocities, [rad/s], shape ``(..., num_joints)``.

        Returns:
            Efforts within the limits, [Nm], shape ``(..., num_joints)``.
        """
        xp = array_namespace(effort, joint_vel)
        upper, lower = self._limit, -self._limit
        if self._line is not None:
            stall, no_load, fastest = self._line
            speed = xp.minimum(xp.maximum(joint_vel, -fastest), fastest)
            upper = xp.minimum(stall * (1.0 - speed / no_load), upper)
            lower = xp.maximum(stall * (-1.0 - speed / no_load), lower)
        return xp.minimum(xp.maximum(effort, lower), upper)

    def _smooth(self, targets: JointTargets) -> JointTargets:
        old, c = self._filtered or targets, self._filter
        self._filtered = JointTargets(
            position=c * targets.position + (1.0 - c) * old.position,
            velocity=c * targets.velocity + (1.0 - c) * old.velocity,
            effort=c * targets.effort + (1.0 - c) * old.effort,
        )
        return self._filtered


def stability_audit(contract: PolicyContract, inertia: NDArray[np.float64]) -> None:
    """Refuse gains that an explicit PD at this period cannot integrate.

    A damper evaluated explicitly, dq' = dq - kd dt / I dq, rings from kd dt / I = 1 and diverges
    from 2; the spring adds kp dt^2 / I, and semi-implicit Euler is stable below
    kp dt^2 / I + 2 kd dt / I = 4 (Jury criterion of the single hinge).

    Args:
        contract: The contract; only an explicit PD can be unstable in this way.
        inertia: Effective inertia seen by each joint, armature included, [kg m^2],
            shape ``(num_joints,)``.

    Raises:
        Refused: A joint diverges; the message has its name and both numbers.
    """
    if contract.actuator.form != "explicit_pd":
        return
    dt = contract.timing.pd_dt
    for joint, own in zip(contract.joints, inertia, strict=True):
        damping, spring = joint.kd * dt / own, joint.kp * dt * dt / own
        if spring + 2.0 * damping >= 4.0:
            raise Refused(
                f"joint {joint.name!r}: explicit PD diverges: kd*dt/I = {damping:.3g} (below 2 "
                f"needed), kp*dt^2/I = {spring:.3g}, with I = {own:.3g} kg m^2 and dt = {dt} s; "
                "lower the gains or the PD period, or give the joint its armature"
            )


def _speed_line(contract: PolicyContract, asarray: AsArray) -> tuple[Array, Array, Array] | None:
    """Stall effort, no-load speed and the speed beyond which the line is cut, or None."""
    stall = contract.joint_array("stall_effort")
    if not np.any(np.isfinite(stall)):
        return None
    limit = contract.joint_array("effort_limit")
    no_load = contract.joint_array("no_load_speed")
    flat = ~np.isfinite(stall)
    stall[flat], no_load[flat] = 1e30, 1.0
    fastest = np.where(np.isfinite(limit), no_load * (1.0 + np.minimum(limit / stall, 1e6)), 1e30)
    fastest[flat] = 0.0
    largest = float(np.finfo(np.float32).max)
    return asarray(stall), asarray(no_load), asarray(np.minimum(fastest, math.sqrt(largest)))
