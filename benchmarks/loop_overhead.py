"""What a tick of the control loop costs besides the network, in CPU time, on this machine.

Runs the real loop on a robot and a clock that cost nothing, without and with a flight log, in
turns, and the policy's path alone beside it. A processor that wakes up for every tick is slower
than this (cold caches); `surefoot run --robot mock` shows by how much, as "compute".

    python benchmarks/loop_overhead.py [policy.onnx] [--ticks 2000]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from robot_runtime.control.clock import Tick
from robot_runtime.control.flightlog import make_header
from robot_runtime.control.loop import ControlLoop, Policy
from robot_runtime.control.modes import Mode
from robot_runtime.control.recorder import FlightRecorder
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.file import open_policy
from robot_runtime.policy.pipeline import PolicyPipeline
from robot_runtime.policy.state import JointCommand, RobotState
from tests.helpers.contracts import quadruped_contract

TARGET = 200e-6
"""Most that the loop may take per tick besides the network, [s]."""

ROUNDS = 7


class Constant:
    """A network that costs nothing."""

    def __init__(self, count: int) -> None:
        self._action = np.zeros(count, dtype=np.float32)

    def __call__(self, obs: NDArray[np.float32], /) -> NDArray[np.float32]:
        """The constant."""
        return self._action

    def reset(self) -> None:
        """Nothing to forget."""


class Free:
    """A policy with a network that costs nothing."""

    def __init__(self, contract: PolicyContract) -> None:
        self._contract = contract

    @property
    def contract(self) -> PolicyContract:
        """The contract it was given."""
        return self._contract

    def network(self) -> Constant:
        """A constant action."""
        return Constant(self._contract.num_actions)


class Still:
    """A robot and a clock that cost nothing: it stands, and time jumps to the next tick."""

    def __init__(self, contract: PolicyContract) -> None:
        self.joint_names = contract.joint_names
        self.measures = frozenset({"base_lin_vel_b"})
        self.period = contract.timing.control_dt
        self._time = 0.0
        self._zero, self._three = np.zeros(len(contract.joints)), np.zeros(3)
        self._pose = contract.joint_array("default_pos")
        self._quat = np.array([1.0, 0.0, 0.0, 0.0])

    def read(self) -> RobotState:
        """The same pose at a new time."""
        return RobotState(
            time=self._time,
            base_quat=self._quat,
            base_ang_vel_b=self._three,
            base_lin_vel_b=self._three,
            joint_pos=self._pose,
            joint_vel=self._zero,
        )

    def write(self, command: JointCommand) -> JointCommand:
        """Sent as it is."""
        return command

    def close(self) -> None:
        """Nothing to let go of."""

    def now(self) -> float:
        """Time that passes in `wait` alone, [s]."""
        return self._time

    def start(self) -> None:
        """Nothing to start."""

    def wait(self) -> Tick:
        """Jump to the next tick."""
        self._time += self.period
        return Tick(lateness=0.0, skipped=0, overrun=False)


def cpu_per_call(function: Callable[[], object], calls: int) -> float:
    """CPU time of this process per call, [s]."""
    begin = time.process_time()
    for _ in range(calls):
        function()
    return (time.process_time() - begin) / calls


def measure(policy: Policy, ticks: int, folder: Path) -> dict[str, float]:
    """Median CPU time per tick, [s], by what ran."""
    contract = policy.contract
    recorder = FlightRecorder(folder / "flight.npz", make_header(contract))
    # A robot for each: its time must not jump for one loop while the other runs.
    robot, other = Still(contract), Still(contract)
    plain = ControlLoop(policy, robot, robot, initial=Mode.POLICY)
    logged = ControlLoop(policy, other, other, initial=Mode.POLICY, recorder=recorder)
    pipeline, state = PolicyPipeline(contract, policy.network()), robot.read()
    asked = np.zeros(len(contract.commands))
    network, obs = policy.network(), np.zeros(contract.observation_dim, dtype=np.float32)
    runs: dict[str, Callable[[], object]] = {
        "network alone": lambda: network(obs),
        "policy path (observation, network, targets)": lambda: pipeline.step(state, asked, 0.0),
        "loop": plain.step,
        "loop with flight log": logged.step,
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        cpu_per_call(run, 50)
    for _ in range(ROUNDS):
        for name, run in runs.items():
            # In small bites, so that the process that writes the log keeps up.
            times[name].append(cpu_per_call(run, ticks // ROUNDS))
            time.sleep(0.1)
    recorder.close()
    if plain.mode is not Mode.POLICY or logged.mode is not Mode.POLICY:
        raise SystemExit("the loop left the policy: what was measured is damping")
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> int:
    """Measure, print, and fail above the target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("policy", nargs="?", help="a policy file; default: a network for nothing")
    parser.add_argument("--ticks", type=int, default=2000)
    args = parser.parse_args()
    policy: Policy = open_policy(args.policy) if args.policy else Free(quadruped_contract())
    with tempfile.TemporaryDirectory() as folder:
        times = measure(policy, args.ticks, Path(folder))
    for name, seconds in times.items():
        print(f"{name:<44} {1e6 * seconds:7.1f} us")
    own = times["loop with flight log"] - times["network alone"]
    print(f"{'loop and log without the network':<44} {1e6 * own:7.1f} us, target {1e6 * TARGET:g}")
    return int(own > TARGET)


if __name__ == "__main__":
    sys.exit(main())
