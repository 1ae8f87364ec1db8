"""Standing up from the measured pose, and handing over to the policy without a jerk."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.state import JointCommand


@dataclass(frozen=True, kw_only=True, slots=True)
class SoftStart:
    """How fast targets and gains may change outside the policy.

    Attributes:
        stand_speed: Highest speed of a target while standing up, [rad/s].
        gain_time: Time in which the gains grow from nothing to the contract's, [s].
        settle_time: How long the robot stands before the policy may have it, [s].
        blend_time: Time in which the policy takes over from the stand, [s]; 0 is at once.
        blend_speed: Highest speed of a target while it does, [rad/s].
    """

    stand_speed: float = 1.0
    gain_time: float = 0.5
    settle_time: float = 0.5
    blend_time: float = 0.3
    blend_speed: float = 5.0

    def __post_init__(self) -> None:
        """Refuse speeds and times that never end or jump."""
        for field in ("stand_speed", "gain_time", "blend_speed"):
            if not getattr(self, field) > 0.0:
                raise ValueError(f"{field} = {getattr(self, field)} is not positive")
        for field in ("settle_time", "blend_time"):
            if not getattr(self, field) >= 0.0:
                raise ValueError(f"{field} = {getattr(self, field)} is negative")


class StandUp:
    """Moves targets from where the joints are to the pose the policy starts from.

    The path of every joint is the cubic 3 s^2 - 2 s^3, whose peak speed is 1.5 times its mean, so
    the joint that has to go farthest decides how long it takes.
    """

    def __init__(self, contract: PolicyContract, soft: SoftStart) -> None:
        """Prepare the pose to reach: the default pose, and hold targets where there are any."""
        self.pose = contract.joint_array("default_pos")
        for target in contract.action.hold:
            self.pose[contract.joint_names.index(target.joint)] = target.position
        self._soft = soft
        self._kp, self._kd = contract.joint_array("kp"), contract.joint_array("kd")
        self._zero = np.zeros(len(contract.joints))
        self.begin(0.0, self.pose, stiff=False)

    def begin(self, now: float, position: NDArray[np.float64], *, stiff: bool) -> None:
        """Start.

        Args:
            now: Time, [s].
            position: Where the targets are now: the measured pose where nothing held the joints,
                [rad], shape ``(num_joints,)``.
            stiff: Whether the joints are held already, so that the gains stay as they are.
        """
        self._start = now
        self._from = np.array(position, dtype=np.float64)
        self._stiff = stiff
        farthest = float(np.abs(self.pose - self._from).max())
        self._duration = max(self._soft.gain_time, 1.5 * farthest / self._soft.stand_speed)

    def command(self, now: float) -> JointCommand:
        """Targets and gains at a time, [s]."""
        path = smooth((now - self._start) / self._duration)
        gain = min(1.0, max(0.0, (now - self._start) / self._soft.gain_time))
        if self._stiff:
            gain = 1.0
        return JointCommand(
            position=self._from + path * (self.pose - self._from),
            velocity=self._zero,
            effort=self._zero,
            kp=gain * self._kp,
            kd=gain * self._kd,
        )

    def done(self, now: float) -> bool:
        """Whether the robot has stood for long enough at a time, [s]."""
        return now - self._start >= self._duration + self._soft.settle_time


class Handover:
    """Blends from the last command to the policy's, and bounds the speed of the targets.

    It ends for a joint when the time is over and its target was not held back.
    """

    def __init__(self, soft: SoftStart, period: float) -> None:
        """Prepare.

        Args:
            soft: Times and speeds.
            period: Period of the loop, [s].
        """
        self._soft = soft
        self._step = soft.blend_speed * period
        self._from: JointCommand | None = None

    def begin(self, now: float, last: JointCommand | None) -> None:
        """Start from what was sent last; with None, or no blend time, there is no blend."""
        self._start = now
        self._from = last if self._soft.blend_time > 0.0 else None
        if self._from is not None:
            self._position = self._from.position
            self._held = np.ones(len(self._position), dtype=np.bool_)

    def apply(self, command: JointCommand, now: float) -> JointCommand:
        """The command to send instead of the policy's at a time, [s]."""
        old = self._from
        if old is None:
            return command
        share = smooth((now - self._start) / self._soft.blend_time)
        wanted = old.position + share * (command.position - old.position)
        move = wanted - self._position
        slow = np.minimum(np.maximum(move, -self._step), self._step)
        if share >= 1.0:
            self._held &= slow != move
            if not self._held.any():
                self._from = None
                return command
        self._position = np.where(self._held, self._position + slow, wanted)
        return JointCommand(
            position=self._position,
            velocity=old.velocity + share * (command.velocity - old.velocity),
            effort=old.effort + share * (command.effort - old.effort),
            kp=old.kp + share * (command.kp - old.kp),
            kd=old.kd + share * (command.kd - old.kd),
        )


def smooth(share: float) -> float:
    """The cubic from 0 to 1 with zero slope at both ends, of a share that is clipped to [0, 1]."""
    s = min(1.0, max(0.0, share))
    return s * s * (3.0 - 2.0 * s)
