"""Both actuator forms are the one law, obey the gains of every command, and delay by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from numpy.typing import NDArray

from robot_runtime.policy.actuator import Actuator
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.state import JointCommand, JointTargets
from sim2sim.model import SimModel
from sim2sim.mujoco_robot import MujocoRobot
from tests.helpers.tiny_robot import tiny_contract, tiny_sim, tiny_xml

FORMS = [("explicit_pd", "actuator"), ("native", "actuator"), ("native", "joint")]
LINE = {"stall_effort": 7.0, "no_load_speed": 12.0, "effort_limit": 5.0}


def _float64(values: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)


def _command(contract: PolicyContract, position: NDArray[Any], **changes: Any) -> JointCommand:
    zero = np.zeros(len(contract.joints))
    fields: dict[str, Any] = {
        "position": position,
        "velocity": zero,
        "effort": zero,
        "kp": contract.joint_array("kp"),
        "kd": contract.joint_array("kd"),
    }
    return JointCommand(**{**fields, **changes})


def _efforts(robot: MujocoRobot, q: NDArray[Any], dq: NDArray[Any], command: JointCommand) -> Any:
    """Efforts that the simulator applies in the first physics step from a state."""
    sim = robot.sim
    robot.data.qpos[:] = robot.model.qpos0
    robot.data.qvel[:] = 0.0
    robot.data.qpos[sim.qpos], robot.data.qvel[sim.dof] = q, dq
    robot.reset()
    robot.write(command)
    robot.advance(1)
    return robot.drive.efforts().copy()


@pytest.mark.parametrize("line", [{}, LINE], ids=["flat", "torque-speed line"])
@pytest.mark.parametrize(("form", "damping"), FORMS)
def test_efforts_are_those_of_the_law(
    tmp_path: Path, form: str, damping: str, line: dict[str, float]
) -> None:
    """200 states per joint, beyond the limits and around the no-load speed."""
    contract = tiny_contract(form=form, damping=damping, joint=line)
    sim = tiny_sim(tmp_path, contract, tiny_xml(), physics_dt=0.005)
    robot, law = MujocoRobot(sim), Actuator(contract, _float64)
    rng, limit = np.random.default_rng(1), contract.joint_array("effort_limit")
    saturated = 0
    for i in range(200):
        q, target = rng.uniform(-1.0, 1.0, size=(2, 3))
        dq = rng.uniform(-2.0, 2.0, size=3) if i % 2 else 12.0 * rng.normal(1.0, 0.2, size=3)
        command = _command(
            contract,
            target,
            velocity=rng.normal(size=3),
            effort=rng.normal(size=3),
            kp=contract.joint_array("kp") * rng.uniform(0.0, 1.5, size=3),
            kd=contract.joint_array("kd") * rng.uniform(0.0, 1.5, size=3),
        )
        targets = JointTargets(
            position=command.position, velocity=command.velocity, effort=command.effort
        )
        expected = law.effort(q, dq, targets, command.kp, command.kd)
        scale = np.maximum(limit, command.kp * np.abs(target - q))
        error = np.abs(_efforts(robot, q, dq, command) - expected)
        assert (error <= 2e-6 * scale).all()
        saturated += int((np.abs(expected) >= 0.999 * limit).sum())
    assert 50 < saturated < 550, "the draws must lie on both sides of the limits"


@pytest.mark.parametrize(("form", "damping"), FORMS)
def test_gains_of_the_command_are_obeyed(tmp_path: Path, form: str, damping: str) -> None:
    contract = tiny_contract(form=form, damping=damping)
    robot = MujocoRobot(tiny_sim(tmp_path, contract, tiny_xml(), physics_dt=0.005))
    q, dq, zero = np.array([0.5, -0.3, 0.2]), np.array([1.0, -2.0, 0.5]), np.zeros(3)
    kd = contract.joint_array("kd")
    damped = _efforts(robot, q, dq, _command(contract, zero, kp=zero))
    np.testing.assert_allclose(damped, -kd * dq, rtol=1e-12)
    limp = _efforts(robot, q, dq, _command(contract, zero, kp=zero, kd=zero))
    np.testing.assert_array_equal(limp, zero)


@pytest.mark.parametrize(("form", "damping"), FORMS)
def test_nothing_pushes_before_the_first_command(tmp_path: Path, form: str, damping: str) -> None:
    contract = tiny_contract(form=form, damping=damping)
    robot = MujocoRobot(tiny_sim(tmp_path, contract, tiny_xml(joint='armature=".02"')))
    robot.data.qpos[robot.sim.qpos] = 1.0
    robot.reset()
    robot.advance(3)
    np.testing.assert_array_equal(robot.drive.efforts(), np.zeros(3))
    np.testing.assert_array_equal(robot.read().joint_vel, np.zeros(3))


@pytest.mark.parametrize(("form", "damping"), FORMS)
def test_after_a_reset_the_motors_are_limp_again(tmp_path: Path, form: str, damping: str) -> None:
    contract = tiny_contract(form=form, damping=damping)
    robot = MujocoRobot(tiny_sim(tmp_path, contract, tiny_xml()))
    _efforts(robot, np.full(3, 0.5), np.ones(3), _command(contract, np.full(3, -0.5)))
    robot.data.qpos[robot.sim.qpos], robot.data.qvel[:] = 1.0, 0.0
    robot.data.qvel[robot.sim.dof] = 2.0
    robot.reset()
    robot.advance(1)
    np.testing.assert_array_equal(robot.drive.efforts(), np.zeros(3))


@pytest.mark.parametrize(("form", "damping"), FORMS)
def test_delay_is_exact(tmp_path: Path, form: str, damping: str) -> None:
    contract = tiny_contract(form=form, damping=damping, delay=0.015)
    robot = MujocoRobot(tiny_sim(tmp_path, contract, tiny_xml(), physics_dt=0.005))
    robot.reset()
    # The first target has always been there; the second one is 15 ms, 3 PD steps, late.
    robot.write(_command(contract, np.zeros(3)))
    robot.advance(4)
    np.testing.assert_allclose(robot.drive.efforts(), np.zeros(3), atol=1e-12)
    robot.write(_command(contract, np.full(3, 0.1)))
    seen = []
    for _ in range(4):
        robot.advance(1)
        seen.append(float(np.abs(robot.drive.efforts()).min()) > 1e-3)
    assert seen == [False, False, False, True]


def _reference(
    sim: SimModel, schedule: list[NDArray[np.float64]], evaluate_every: float
) -> NDArray[np.float64]:
    """The same robot in steps of 0.05 ms with plain motors and the law from outside.

    Args:
        sim: The robot.
        schedule: Position targets, one per control period.
        evaluate_every: How often the law is evaluated, [s]; held in between.

    Returns:
        Joint positions at the end of every control period.
    """
    contract, step = sim.contract, 0.05e-3
    model = mujoco.MjModel.from_xml_path(str(sim.file.path))
    model.opt.timestep, model.opt.integrator = step, mujoco.mjtIntegrator.mjINT_EULER
    model.opt.iterations = 100
    law, data = Actuator(contract, _float64), mujoco.MjData(model)
    joints = [model.joint(name) for name in contract.joint_names]
    qpos = np.array([joint.qposadr[0] for joint in joints])
    dof = np.array([joint.dofadr[0] for joint in joints])
    if contract.actuator.damping == "joint":
        model.dof_damping[dof] = 0.0
    zero, positions = np.zeros(len(dof)), []
    for position in schedule:
        targets = JointTargets(position=position, velocity=zero, effort=zero)
        for i in range(round(contract.timing.control_dt / step)):
            if i % round(evaluate_every / step) == 0:
                effort = law.effort(data.qpos[qpos], data.qvel[dof], targets)
                data.qfrc_applied[dof] = effort
            mujoco.mj_step(model, data)
        positions.append(data.qpos[qpos].copy())
    return np.array(positions)


def _simulated(sim: SimModel, schedule: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    robot = MujocoRobot(sim)
    robot.reset()
    positions = []
    for position in schedule:
        robot.write(_command(sim.contract, position))
        robot.advance(sim.contract.decimation)
        positions.append(robot.read().joint_pos)
    return np.array(positions)


def _schedule() -> list[NDArray[np.float64]]:
    """Five random targets, 0.1 s each."""
    rng = np.random.default_rng(3)
    return list(np.repeat(rng.uniform(-0.6, 0.6, size=(5, 3)), 5, axis=0))


@pytest.mark.parametrize(
    ("form", "damping", "physics_dt"),
    [
        ("native", "actuator", 0.005),
        ("native", "actuator", 0.0025),
        ("native", "joint", 0.005),
        ("native", "joint", 0.0025),
        ("explicit_pd", "actuator", 0.005),
        ("explicit_pd", "actuator", 0.001),
    ],
)
def test_motion_is_that_of_a_fine_stepped_reference(
    tmp_path: Path, form: str, damping: str, physics_dt: float
) -> None:
    """The error is of first order in the step; measured at most 6.5 rad/s times the step."""
    contract = tiny_contract(form=form, damping=damping)
    sim = tiny_sim(tmp_path, contract, tiny_xml(), physics_dt=physics_dt)
    every = 0.05e-3 if form == "native" else contract.timing.pd_dt
    expected = _reference(sim, _schedule(), every)
    assert np.ptp(expected, axis=0).min() > 0.3, "the joints must move"
    error = np.abs(_simulated(sim, _schedule()) - expected).max()
    assert error < 8.0 * physics_dt


def test_explicit_efforts_are_held_for_the_whole_pd_period(tmp_path: Path) -> None:
    contract = tiny_contract(form="explicit_pd", pd_dt=0.02)
    sim = tiny_sim(tmp_path, contract, tiny_xml(), physics_dt=0.001)
    motion = _simulated(sim, _schedule())
    held = np.abs(motion - _reference(sim, _schedule(), 0.02)).max()
    fresh = np.abs(motion - _reference(sim, _schedule(), 0.001)).max()
    assert held < 8e-3
    assert fresh > 5.0 * held
