"""Run a policy on the mock robot from Python: a schedule, a flight log, limits of your own.

python examples/docs/run_loop.py POLICY.onnx FLIGHT.npz
"""

import sys

from robot_runtime.control.clock import MonotonicClock
from robot_runtime.control.flightlog import make_header
from robot_runtime.control.loop import ControlLoop
from robot_runtime.control.recorder import FlightRecorder
from robot_runtime.control.safety import SafetyLimits
from robot_runtime.control.teleop import Schedule, command_array
from robot_runtime.drivers.mock import MockRobot
from robot_runtime.policy.file import open_policy

policy = open_policy(sys.argv[1])
contract = policy.contract
header = make_header(contract, policy=sys.argv[1], policy_sha256=policy.sha256, robot="mock")
recorder = FlightRecorder(sys.argv[2], header)
loop = ControlLoop(
    policy,
    MockRobot(contract),
    MonotonicClock(contract.timing.control_dt),
    source=Schedule(
        [
            (0.3, command_array(contract, {})),
            (0.3, command_array(contract, {"lin_vel_x": 0.5})),
        ]
    ),
    recorder=recorder,
    limits=SafetyLimits(tilt=0.7, damping_time=0.2),
)
summary = loop.run(duration=0.6)
loop.close()
recorder.close()
print(summary.ended, summary.mode.name, summary.faults or "no faults")
