"""The seam to a robot: five members that a driver, a mock and MuJoCo all have."""

from __future__ import annotations

from typing import Protocol

from robot_runtime.errors import Refused
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.state import JointCommand, RobotState
from robot_runtime.policy.terms import required_measurements


class Robot(Protocol):
    """A robot that is bound to a contract: every joint vector is in the contract's joint order.

    Whoever makes a robot finds the joints by name and refuses what does not fit. Nothing moves
    before the first `write`. Calls come from one thread, `read` before `write`, once per period.
    """

    @property
    def joint_names(self) -> tuple[str, ...]:
        """Names of the joints, in the order of every joint vector in and out."""
        ...

    @property
    def measures(self) -> frozenset[str]:
        """Fields of `RobotState` that are measured here although not every robot has them.

        So far ``base_lin_vel_b`` is the only such field.
        """
        ...

    def read(self) -> RobotState:
        """The newest measured state, float64; does not wait for a new one.

        Its time is the robot's own and stands still where no new measurement has come.
        """
        ...

    def write(self, command: JointCommand) -> JointCommand:
        """Send targets and gains to the motors; they stay in force until the next call.

        Args:
            command: What to send. The arrays are not kept: the caller may change them afterwards.

        Returns:
            What was sent indeed, after the limits of driver and motors.
        """
        ...

    def close(self) -> None:
        """Let go of the robot; nothing is called afterwards."""
        ...


def check_robot(contract: PolicyContract, robot: Robot) -> None:
    """Refuse a robot on which this policy cannot run, before anything moves.

    Args:
        contract: The contract of the policy.
        robot: The robot.

    Raises:
        Refused: The joints are others than the contract's or in another order, or a term needs a
            measurement that the robot lacks; the message names the first joint or term.
    """
    ours, theirs = contract.joint_names, robot.joint_names
    if ours != theirs:
        wrong = [f"{b!r} where {a!r} belongs" for a, b in zip(ours, theirs, strict=False) if a != b]
        found = wrong[0] if wrong else f"{len(theirs)} joints where {len(ours)} belong"
        raise Refused(
            f"the robot is not bound to this policy's joints: {found}; it has {', '.join(theirs)}"
        )
    for field, term in required_measurements(contract).items():
        if field not in robot.measures:
            known = ", ".join(sorted(robot.measures)) or "nothing beyond attitude, rates and joints"
            raise Refused(
                f"observation term {term!r} needs {field}, which this robot does not measure; "
                f"it measures {known}"
            )
