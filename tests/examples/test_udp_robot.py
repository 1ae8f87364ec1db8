"""The driver of examples/driver: bound by name, found by its entry point, damped when it is silent.

The test is the robot: it answers every command with a state, in the same thread, through a socket.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from robot_runtime import cli
from robot_runtime.control.loop import ControlLoop
from robot_runtime.control.modes import Mode
from robot_runtime.control.safety import SafetyLimits
from robot_runtime.control.softstart import SoftStart
from robot_runtime.drivers import driver_names, load_driver
from robot_runtime.errors import Refused
from robot_runtime.policy.contract import PolicyContract
from tests.helpers.contracts import quadruped_contract
from tests.helpers.loops import FakeTime, Policy
from tests.helpers.policies import write_random_policy

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "driver"


@pytest.fixture(scope="module")
def contract() -> PolicyContract:
    return quadruped_contract()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The example, installed as pip does: its module and its entry points are on the path."""
    tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11")
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        f"{name} = {value}" for name, value in project["entry-points"]["surefoot.drivers"].items()
    ]
    (info / "entry_points.txt").write_text("[surefoot.drivers]\n" + "\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(FOLDER))
    make: Any = load_driver("udp-quadruped")
    return sys.modules[make.__module__]


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Vendor:
    """The robot's own side: motors in the order of its packets, each at its target at once."""

    def __init__(self, driver: ModuleType) -> None:
        self.driver = driver
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        # Against a hang: the command that is taken was sent before, in the same thread.
        self.socket.settimeout(60.0)
        self.listen = free_port()
        self.state: Any = np.zeros((), driver.STATE)
        self.state["quat"] = (1.0, 0.0, 0.0, 0.0)

    @property
    def address(self) -> tuple[str, int]:
        return self.socket.getsockname()

    def connect(self, names: tuple[str, ...]) -> Any:
        """Make the driver's robot, while packets come.

        On a busy machine none may come within the driver's second, or another process may have
        taken the port: then again.
        """
        for _ in range(20):
            with contextlib.suppress(Refused):
                return self._connect(names)
            self.listen = free_port()
        return self._connect(names)

    def _connect(self, names: tuple[str, ...]) -> Any:
        made = threading.Event()

        def call() -> None:
            while not made.wait(0.02):
                self.send()

        caller = threading.Thread(target=call)
        caller.start()
        try:
            return self.driver.UdpRobot(names, self.listen, self.address)
        finally:
            made.set()
            caller.join()

    def send(self) -> None:
        self.socket.sendto(self.state.tobytes(), ("127.0.0.1", self.listen))

    def take(self) -> Any:
        """The next command; the motors go where it says, and a new state is sent."""
        command = np.frombuffer(self.socket.recv(4096), self.driver.COMMAND)[0]
        self.state["q"] = np.where(command["kp"] > 0.0, command["q"], self.state["q"])
        return command

    def by_name(self, values: Any) -> dict[str, float]:
        return dict(zip(self.driver.MOTORS, values.tolist(), strict=True))


@pytest.fixture
def vendor(driver: ModuleType) -> Iterator[Vendor]:
    vendor = Vendor(driver)
    yield vendor
    vendor.socket.close()


class Ticks:
    """A clock that lets the robot answer; after `silent` ticks it says nothing any more."""

    def __init__(self, vendor: Vendor, time: FakeTime, silent: int = 10_000) -> None:
        self.clock, self.vendor, self.time, self.silent = time.clock(), vendor, time, silent
        self.period, self.now, self.start = self.clock.period, self.clock.now, self.clock.start
        self.commands: list[Any] = []

    def wait(self) -> Any:
        tick = self.clock.wait()
        self.commands.append(self.vendor.take())
        if len(self.commands) < self.silent:
            self.vendor.state["time"] = self.time.time
            self.vendor.send()
        return tick


def test_joints_are_bound_by_name(vendor: Vendor, contract: PolicyContract) -> None:
    assert contract.joint_names != vendor.driver.MOTORS
    vendor.state["q"], vendor.state["dq"] = np.arange(12.0), -np.arange(12.0)
    robot = vendor.connect(contract.joint_names)
    expected = vendor.by_name(vendor.state["q"])
    state = robot.read()
    assert dict(zip(robot.joint_names, state.joint_pos.tolist(), strict=True)) == expected
    assert state.joint_vel.tolist() == [-v for v in state.joint_pos.tolist()]
    robot.close()


def test_it_stands_up_and_every_motor_gets_its_own_target(
    vendor: Vendor, contract: PolicyContract
) -> None:
    vendor.state["q"] = [
        contract.joint_array("default_pos")[contract.joint_names.index(n)]
        for n in vendor.driver.MOTORS
    ]
    actions = np.linspace(-0.5, 0.5, 12)
    robot, time = vendor.connect(contract.joint_names), FakeTime()
    ticks = Ticks(vendor, time)
    soft = SoftStart(gain_time=0.1, settle_time=0.1, blend_time=0.0)
    policy = Policy(contract, lambda _: actions)
    summary = ControlLoop(policy, robot, ticks, soft_start=soft).run(0.2)
    robot.close()
    assert (summary.ended, summary.faults) == ("done", {})
    walking = next(c for c in reversed(ticks.commands) if c["kp"].any())
    targets = contract.joint_array("default_pos") + 0.25 * actions
    wanted = dict(zip(contract.joint_names, targets.tolist(), strict=True))
    # The policy computes in float32.
    assert vendor.by_name(walking["q"]) == pytest.approx(wanted, abs=1e-6)
    last = ticks.commands[-1]
    assert not last["kp"].any()
    assert set(vendor.by_name(last["kd"]).values()) == {0.5}


def test_a_silent_robot_is_damped(vendor: Vendor, contract: PolicyContract) -> None:
    robot, time = vendor.connect(contract.joint_names), FakeTime()
    ticks = Ticks(vendor, time, silent=20)
    summary = ControlLoop(
        Policy(contract), robot, ticks, limits=SafetyLimits(position_margin=10.0)
    ).run(5.0)
    robot.close()
    assert summary.cause.startswith("STATE_LOST")
    assert summary.mode is Mode.DAMPING
    assert not ticks.commands[-1]["kp"].any()


def test_an_unknown_joint_is_refused_by_name(driver: ModuleType) -> None:
    with pytest.raises(Refused, match=r"no joint 'tail'; it has FR_hip_joint"):
        driver.UdpRobot(("tail",), 0, ("127.0.0.1", 9))


def test_nobody_there_is_refused(vendor: Vendor) -> None:
    with pytest.raises(Refused, match="no packet from"):
        vendor.driver.UdpRobot(("FR_hip_joint",), vendor.listen, vendor.address)


def test_it_is_found_by_name_and_asks_for_its_options(
    driver: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "udp-quadruped" in driver_names()
    policy = write_random_policy(tmp_path / "p.onnx", quadruped_contract())
    assert cli.main(["run", str(policy), "--robot", "udp-quadruped"]) == 2
    assert "give --option listen=TEXT (our port) --option robot=TEXT" in capsys.readouterr().err
