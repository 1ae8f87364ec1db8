"""A complete driver: a quadruped that sends its state as UDP packets and takes commands so."""

import socket
from collections.abc import Mapping

import numpy as np

from robot_runtime.drivers.options import Option, read_options, takes
from robot_runtime.errors import BadInput, Refused
from robot_runtime.policy.file import PolicyFile
from robot_runtime.policy.state import JointCommand, RobotState

PARTS = ("hip", "thigh", "calf")
MOTORS = tuple(f"{leg}_{part}_joint" for leg in ("FR", "FL", "RR", "RL") for part in PARTS)
"""The robot's motors in the order of its packets."""
STATE = np.dtype(
    [("time", "<f8"), ("quat", "<f8", 4), ("gyro", "<f8", 3), ("q", "<f8", 12), ("dq", "<f8", 12)]
)
COMMAND = np.dtype([(field, "<f8", 12) for field in ("q", "dq", "tau", "kp", "kd")])


class UdpRobot:
    """Finds the policy's joints among the motors by name, whatever the order of either."""

    measures: frozenset[str] = frozenset()

    def __init__(self, joint_names: tuple[str, ...], listen: int, robot: tuple[str, int]) -> None:
        """Wait for the first packet; nothing is sent before `write`."""
        for name in joint_names:
            if name not in MOTORS:
                raise Refused(f"this robot has no joint {name!r}; it has {', '.join(MOTORS)}")
        self.joint_names = joint_names
        self._motor = [MOTORS.index(name) for name in joint_names]
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.bind(("", listen))
            self._socket.connect(robot)  # packets from anybody else are dropped
            self._socket.settimeout(1.0)
            self._newest = self._socket.recv(4096)
        except OSError as error:
            self.close()
            raise Refused(f"no packet from {robot} on port {listen}: {error}") from None
        self._socket.setblocking(False)

    def read(self) -> RobotState:
        """The newest packet; its time stands still where none has come, and the loop notices."""
        try:
            while True:
                self._newest = self._socket.recv(4096)
        except BlockingIOError:
            state = np.frombuffer(self._newest, STATE)[0]
        return RobotState(
            time=float(state["time"]),
            base_quat=state["quat"],
            base_ang_vel_b=state["gyro"],
            base_lin_vel_b=None,
            joint_pos=state["q"][self._motor],
            joint_vel=state["dq"][self._motor],
        )

    def write(self, command: JointCommand) -> JointCommand:
        """Send targets and gains; motors that the policy does not have get zeros."""
        packet = np.zeros((), COMMAND)
        packet["q"][self._motor] = command.position
        packet["dq"][self._motor] = command.velocity
        packet["tau"][self._motor] = command.effort
        packet["kp"][self._motor] = command.kp
        packet["kd"][self._motor] = command.kd
        self._socket.send(packet.tobytes())
        return command

    def close(self) -> None:
        """Let go of the port."""
        self._socket.close()


OPTIONS = (
    Option(name="listen", help="our port", needed=True),
    Option(name="robot", help="the robot's host:port", needed=True),
)


@takes(OPTIONS)
def make(policy: PolicyFile, options: Mapping[str, str]) -> UdpRobot:
    """The entry point; `surefoot run --robot udp-quadruped --help` lists the options."""
    read_options("udp-quadruped", OPTIONS, options)
    host, _, port = options["robot"].rpartition(":")
    if not (options["listen"].isdigit() and port.isdigit()):
        raise BadInput(f"udp-quadruped: {options} is not listen=PORT and robot=HOST:PORT")
    return UdpRobot(policy.contract.joint_names, int(options["listen"]), (host, int(port)))
