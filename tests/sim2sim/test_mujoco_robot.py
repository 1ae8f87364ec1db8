"""MuJoCo behind the robot seam: frames, time, and faults that nobody may overlook."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from numpy.typing import NDArray

from robot_runtime.control.loop import ControlLoop
from robot_runtime.control.modes import Mode
from robot_runtime.control.safety import SafetyLimits
from robot_runtime.errors import ExitCode
from robot_runtime.policy.rotation import heading, projected_gravity
from robot_runtime.policy.state import JointCommand
from sim2sim.mujoco_robot import MujocoRobot, PhysicsFault
from sim2sim.sim_clock import SimClock
from tests.helpers.tiny_robot import crowded_xml, tiny_contract, tiny_sim, tiny_xml
from tests.sim2sim.conftest import hold_command

HALF = math.sqrt(0.5)

SENSORS = """
    <sensor>
      <gyro name="gyro" site="origin"/><velocimeter name="velocimeter" site="origin"/>
      <framequat name="quat" objtype="body" objname="base"/>
    </sensor>"""


@pytest.fixture
def robot(tmp_path: Path) -> MujocoRobot:
    xml = tiny_xml(extra=SENSORS).replace("<freejoint/>", '<freejoint/><site name="origin"/>')
    return MujocoRobot(tiny_sim(tmp_path, tiny_contract(), xml))


def _set_base(robot: MujocoRobot, quat: Any, lin_vel_w: Any = (0, 0, 0)) -> None:
    robot.data.qpos[3:7] = quat
    robot.data.qvel[0:3] = lin_vel_w
    robot.reset()


@pytest.mark.parametrize(
    ("quat", "gravity"),
    [
        ((HALF, 0.0, HALF, 0.0), (1.0, 0.0, 0.0)),  # +90 degrees of pitch: nose down
        ((HALF, HALF, 0.0, 0.0), (0.0, -1.0, 0.0)),  # +90 degrees of roll: right side down
        ((HALF, 0.0, 0.0, HALF), (0.0, 0.0, -1.0)),  # +90 degrees of yaw
        ((0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0)),  # on its back
    ],
)
def test_gravity_in_the_body_frame(robot: MujocoRobot, quat: Any, gravity: Any) -> None:
    _set_base(robot, quat)
    seen = projected_gravity(robot.read().base_quat)
    np.testing.assert_allclose(seen, gravity, atol=1e-12)


def test_world_velocity_in_the_body_frame(robot: MujocoRobot) -> None:
    _set_base(robot, (HALF, 0.0, 0.0, HALF), (1.0, 0.0, 0.0))
    lin_vel_b = robot.read().base_lin_vel_b
    assert lin_vel_b is not None
    np.testing.assert_allclose(lin_vel_b, (0.0, -1.0, 0.0), atol=1e-12)


def test_wrong_quaternion_order_shows_in_the_heading_alone(robot: MujocoRobot) -> None:
    """x, y, z, w of a level robot read as w, x, y, z is a yaw of 180 degrees: gravity is blind."""
    _set_base(robot, (1.0, 0.0, 0.0, 0.0))
    right = robot.read().base_quat
    wrong = np.roll(right, -1)
    np.testing.assert_array_equal(projected_gravity(wrong), projected_gravity(right))
    assert float(heading(right)) == 0.0
    assert abs(float(heading(wrong))) == pytest.approx(math.pi)
    for yaw in (-2.5, -0.3, 0.7, 3.0):
        _set_base(robot, (math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2)))
        assert float(heading(robot.read().base_quat)) == pytest.approx(yaw, abs=1e-12)


def test_state_is_what_sensors_measure(robot: MujocoRobot) -> None:
    """Oracle: MuJoCo's own gyro, velocimeter and joint sensors, for random states."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        quat = rng.normal(size=4)
        robot.data.qpos[3:7] = quat / np.linalg.norm(quat)
        robot.data.qpos[7:] = rng.uniform(-1.0, 1.0, size=3)
        robot.data.qvel[:] = rng.normal(size=9)
        robot.reset()
        state, data = robot.read(), robot.data
        assert state.base_lin_vel_b is not None
        np.testing.assert_allclose(state.base_ang_vel_b, data.sensor("gyro").data, atol=1e-12)
        np.testing.assert_allclose(
            state.base_lin_vel_b, data.sensor("velocimeter").data, atol=1e-12
        )
        np.testing.assert_allclose(state.base_quat, data.sensor("quat").data, atol=1e-12)
        for i, name in enumerate(robot.joint_names):
            assert state.joint_pos[i] == data.joint(name).qpos[0]
            assert state.joint_vel[i] == data.joint(name).qvel[0]


def test_state_is_a_copy_and_time_is_counted(robot: MujocoRobot) -> None:
    robot.reset()
    before = robot.read()
    robot.data.qvel[:] = 1.0
    robot.advance(7)
    assert before.time == 0.0
    assert (before.joint_vel == 0.0).all()
    assert robot.read().time == pytest.approx(7 * robot.sim.contract.timing.pd_dt, abs=1e-12)
    assert robot.data.time == pytest.approx(robot.time, abs=1e-9)
    clock = SimClock(robot)
    clock.start()
    tick = clock.wait()
    assert (tick.skipped, tick.lateness, tick.overrun) == (0, 0.0, False)
    assert clock.now() == pytest.approx(0.055, abs=1e-12)


def test_written_arrays_may_change_afterwards(robot: MujocoRobot) -> None:
    robot.reset()
    command = hold_command(robot)
    robot.write(command)
    for array in (command.position, command.effort, command.kp):
        array += 1.0
    robot.advance(2)
    np.testing.assert_allclose(robot.drive.efforts(), np.zeros(3), atol=1e-12)


def test_reset_begins_anew_bit_for_bit(robot: MujocoRobot) -> None:
    def run() -> NDArray[np.float64]:
        robot.data.qpos[:], robot.data.qvel[:] = robot.model.qpos0, 0.1
        robot.data.qpos[2] = 0.2
        robot.reset()
        command = hold_command(robot)
        robot.write(JointCommand(**{n: getattr(command, n) for n in command.__slots__}))
        robot.advance(100)
        return np.concatenate([robot.data.qpos, robot.data.qvel])

    first = run()
    robot.advance(13)
    np.testing.assert_array_equal(run(), first)


def test_contact_overflow_is_a_fault_within_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    contract = tiny_contract()
    MujocoRobot(tiny_sim(tmp_path, contract, crowded_xml("1M"))).advance(1)
    robot = MujocoRobot(tiny_sim(tmp_path, contract, crowded_xml("40K")))
    with pytest.raises(PhysicsFault, match=r"warned at 0\.000 s: mjWARN_(CONTACT|CNSTR)FULL") as e:
        robot.advance(1)
    assert e.value.exit_code is ExitCode.FAILED
    assert not (tmp_path / "MUJOCO_LOG.TXT").exists()
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("address", [9, 0])
def test_divergence_is_a_fault(robot: MujocoRobot, address: int) -> None:
    """MuJoCo would otherwise put the robot back to its start and go on."""
    robot.reset()
    (robot.data.qpos if address == 9 else robot.data.qvel)[address] = math.nan
    with pytest.raises(PhysicsFault, match="mjWARN_BADQ"):
        robot.advance(1)


class _Policy:
    """A policy that wants what it is given."""

    def __init__(self, robot: MujocoRobot) -> None:
        self.contract = robot.sim.contract

    def network(self) -> Any:
        class Still:
            def __call__(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
                return np.zeros(3, dtype=np.float32)

            def reset(self) -> None: ...

        return Still()


def test_the_loop_counts_a_physics_fault_and_damps(tmp_path: Path) -> None:
    robot = MujocoRobot(tiny_sim(tmp_path, tiny_contract(), crowded_xml("40K")))
    robot.reset()
    limits = SafetyLimits(damping_time=0.02)
    loop = ControlLoop(_Policy(robot), robot, SimClock(robot), limits=limits, initial=Mode.POLICY)
    summary = loop.run(1.0)
    assert summary.ended == "fault"
    assert "PhysicsFault: MuJoCo warned" in summary.cause
    assert summary.faults["CLOCK_FAILED"] == 1
    assert summary.mode is Mode.DAMPING


def test_mujoco_would_not_have_raised(tmp_path: Path) -> None:
    """What the fault is for: plain MuJoCo carries on after an overflow."""
    sim = tiny_sim(tmp_path, tiny_contract(), crowded_xml("40K"))
    data = mujoco.MjData(sim.mj)
    mujoco.mj_step(sim.mj, data)
    assert data.warning.number.any()
