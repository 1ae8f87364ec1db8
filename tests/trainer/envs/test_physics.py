"""The simulated motors obey the declared law, and every randomized field changes the physics."""

import dataclasses
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from robot_runtime.errors import BadInput, Refused
from robot_runtime.policy.actuator import Actuator
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.spec import Timing
from robot_runtime.policy.state import JointTargets
from tests.helpers.tiny_robot import tiny_contract, tiny_xml
from trainer.envs.model import SolverOptions, build_model, effective_inertia
from trainer.envs.physics import BatchedPhysics, PhysicsParams
from trainer.tasks.quadruped_flat import env_config

FINE_DT = 1e-4
"""Step of the reference, a hundredth of the training's: its own error is far below tolerance."""


@pytest.fixture(name="tiny_path")
def _tiny_path(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.xml"
    path.write_text(tiny_xml())
    return path


def _targets(values: torch.Tensor) -> JointTargets:
    zeros = torch.zeros_like(values)
    return JointTargets(position=values, velocity=zeros, effort=zeros)


def _reference(
    xml_path: Path, contract: PolicyContract, target: NDArray[np.float64], steps: int
) -> NDArray[np.float64]:
    """Joint positions after every PD step: plain MuJoCo with motors, the law in float64.

    The law is evaluated in every fine step for native actuators, which are continuous, and every
    ``pd_dt`` for an explicit PD, which holds its effort in between.
    """
    spec = mujoco.MjSpec.from_file(str(xml_path))
    spec.option.timestep = FINE_DT
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_EULER
    for joint in contract.joints:
        spec.add_actuator(name=joint.name, target=joint.name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    model = spec.compile()
    data = mujoco.MjData(model)
    if model.nkey:
        mujoco.mj_resetDataKeyframe(model, data, 0)
    if contract.actuator.damping == "joint":
        # The contract's damping takes the place of the file's.
        model.dof_damping[:] = 0.0
    law = Actuator(contract, lambda x: np.asarray(x, dtype=np.float64))
    zeros = np.zeros_like(target)
    targets = JointTargets(position=target, velocity=zeros, effort=zeros)
    qpos = [model.joint(name).qposadr[0] for name in contract.joint_names]
    dofs = [model.joint(name).dofadr[0] for name in contract.joint_names]
    fine = round(contract.timing.pd_dt / FINE_DT)
    held = contract.actuator.form == "explicit_pd"
    path = []
    for _ in range(steps):
        for k in range(fine):
            if k == 0 or not held:
                data.ctrl = law.effort(data.qpos[qpos], data.qvel[dofs], targets)
            mujoco.mj_step(model, data)
        path.append(data.qpos[qpos].copy())
    return np.array(path)


def _simulated(
    xml_path: Path, contract: PolicyContract, target: NDArray[np.float64], steps: int
) -> NDArray[np.float64]:
    model = build_model(xml_path, contract, SolverOptions(iterations=50, ls_iterations=50))
    physics = BatchedPhysics(model, contract, 2, 1)
    if model.nkey:
        home = torch.from_numpy(model.key_qpos[0]).float()
        state = physics.read()
        physics.place_rows(
            np.arange(2),
            dataclasses.replace(
                state,
                base_pos_w=home[None, :3].repeat(2, 1),
                base_quat=home[None, 3:7].repeat(2, 1),
                joint_pos=home[None, 7:].repeat(2, 1),
            ),
        )
    targets = _targets(torch.from_numpy(target).float().repeat(2, 1))
    path = []
    for _ in range(steps):
        physics.step_pd(targets)
        path.append(physics.read().joint_pos[1].double().numpy())
    assert not physics.take_faults()
    return np.array(path)


@pytest.mark.parametrize(
    ("form", "damping"),
    [("native", "actuator"), ("native", "joint"), ("explicit_pd", "actuator")],
)
def test_motors_follow_a_finely_stepped_law(tiny_path: Path, form: str, damping: str) -> None:
    contract = dataclasses.replace(
        tiny_contract(form=form, damping=damping),
        timing=Timing(control_dt=0.02, pd_dt=0.005, physics_dt=0.001),
    )
    # A first-order integrator is half a step of 1 ms ahead, at 10 rad/s at most; a limit or a gain
    # left out shows as more than three times this.
    tolerance = 0.01
    # Far enough that every motor first runs into its effort limit.
    target = np.array([0.9, -0.8, 1.2])
    steps = 40
    want = _reference(tiny_path, contract, target, steps)
    got = _simulated(tiny_path, contract, target, steps)
    assert np.abs(want - want[0]).max() > 0.7, "the reference must move"
    assert np.abs(got - want).max() < tolerance
    # The effort limits matter in this test: without them the path is another one.
    free = dataclasses.replace(
        contract,
        joints=tuple(dataclasses.replace(j, effort_limit=None) for j in contract.joints),
    )
    assert np.abs(_reference(tiny_path, free, target, steps) - want).max() > 3.0 * tolerance


@pytest.mark.parametrize(("form", "physics_dt"), [("native", 0.01), ("explicit_pd", 0.0025)])
def test_quadruped_follows_a_finely_stepped_law(form: str, physics_dt: float) -> None:
    """The legs fold and stretch on the ground, at the training's own step for native motors."""
    config = env_config()
    pd_dt = 0.01 if form == "native" else 0.005
    contract = dataclasses.replace(
        config.contract,
        timing=Timing(control_dt=0.02, pd_dt=pd_dt, physics_dt=physics_dt),
        actuator=dataclasses.replace(config.contract.actuator, form=form),
    )
    target = contract.joint_array("default_pos") + np.tile([0.05, 0.25, -0.35], 4)
    steps = round(0.3 / pd_dt)
    want = _reference(config.robot.xml_path, contract, target, steps)
    got = _simulated(config.robot.xml_path, contract, target, steps)
    error = got - want
    assert np.abs(want - want[0]).max() > 0.2, "the reference must move"
    # Root mean square; contacts at 10 ms are softer than at 0.1 ms.
    assert np.sqrt(np.mean(error**2)) < 0.02


def test_explicit_pd_that_would_diverge_is_refused_before_it_runs(tmp_path: Path) -> None:
    def hinge(armature: float) -> Path:
        path = tmp_path / "hinge.xml"
        path.write_text(
            f"""
            <mujoco>
              <option gravity="0 0 0"/>
              <worldbody><body name="base"><freejoint/>
                <geom type="box" size="1 1 1" mass="1e7"/>
                <body><joint name="hinge" axis="0 0 1" armature="{armature}"/>
                  <inertial pos="0 0 0" mass="1" diaginertia=".002 .002 .002"/></body>
              </body></worldbody>
            </mujoco>"""
        )
        return path

    joint = dataclasses.replace(
        tiny_contract().joints[0], name="hinge", kp=40.0, kd=2.0, effort_limit=None, default_pos=0.0
    )
    base = tiny_contract(form="explicit_pd", pd_dt=0.005)
    term = dataclasses.replace(base.action.terms[0], joints=("hinge",), scale=(1.0,), offset=(0.0,))
    contract = dataclasses.replace(
        base, joints=(joint,), action=dataclasses.replace(base.action, terms=(term,))
    )
    with pytest.raises(Refused, match=r"hinge.*kd\*dt/I = 5"):
        build_model(hinge(0.0), contract, SolverOptions())
    # The same gains as a native actuator are integrated implicitly, and do not diverge.
    native = dataclasses.replace(
        contract, actuator=dataclasses.replace(contract.actuator, form="native")
    )
    build_model(hinge(0.0), native, SolverOptions())
    path = _simulated(hinge(0.01), contract, np.array([0.5]), 200)
    # kd*dt/I = 0.83 settles: at the target within 1 % after one second.
    np.testing.assert_allclose(path[-1], 0.5, atol=0.005)


def test_effective_inertia_is_effort_over_acceleration(tiny_path: Path) -> None:
    contract = tiny_contract(form="explicit_pd")
    model = build_model(tiny_path, contract, SolverOptions())
    inertia = effective_inertia(model, contract)
    for i, joint in enumerate(contract.joints):
        data = mujoco.MjData(model)
        for other in contract.joints:
            data.joint(other.name).qpos[0] = other.default_pos
        data.actuator(joint.name).ctrl[0] = 1e-3
        mujoco.mj_forward(model, data)
        # Exact up to rounding: no gravity, no velocity, no contact.
        assert inertia[i] == pytest.approx(1e-3 / data.joint(joint.name).qacc[0], rel=1e-6)


def test_missing_names_are_refused(tiny_path: Path) -> None:
    contract = tiny_contract()
    renamed = dataclasses.replace(contract.joints[0], name="flipper")
    term = dataclasses.replace(
        contract.action.terms[0], joints=("flipper", *contract.action.terms[0].joints[1:])
    )
    other = dataclasses.replace(
        contract,
        joints=(renamed, *contract.joints[1:]),
        action=dataclasses.replace(contract.action, terms=(term,)),
    )
    with pytest.raises(BadInput, match=r"'flipper'.*left"):
        build_model(tiny_path, other, SolverOptions())
    with pytest.raises(BadInput, match="'sole'"):
        build_model(tiny_path, contract, SolverOptions(colliding_geoms=("sole",)))
    with pytest.raises(BadInput, match="nowhere"):
        build_model(tiny_path.with_name("nowhere.xml"), contract, SolverOptions())
    tiny_path.write_text(tiny_xml(extra='<sensor><jointpos joint="wing"/></sensor>'))
    with pytest.raises(BadInput, match=r"tiny\.xml.*wing"):
        build_model(tiny_path, contract, SolverOptions())


def test_native_actuators_refuse_what_they_cannot_do(tiny_path: Path) -> None:
    contract = tiny_contract()
    line = dataclasses.replace(contract.joints[1], stall_effort=5.0, no_load_speed=20.0)
    with pytest.raises(Refused, match=r"'right'.*torque-speed"):
        build_model(
            tiny_path,
            dataclasses.replace(contract, joints=(contract.joints[0], line, contract.joints[2])),
            SolverOptions(),
        )
    term = dataclasses.replace(contract.action.terms[0], kind="velocity")
    with pytest.raises(Refused, match="velocity"):
        build_model(
            tiny_path,
            dataclasses.replace(
                contract, action=dataclasses.replace(contract.action, terms=(term,))
            ),
            SolverOptions(),
        )


def _with(params: PhysicsParams, **rows: list[float]) -> PhysicsParams:
    """Parameters with a column set row by row."""
    changed = {name: getattr(params, name).clone() for name in rows}
    for name, values in rows.items():
        column = torch.tensor(values)
        changed[name] = (
            column if changed[name].ndim == 1 else column[:, None].expand_as(changed[name]).clone()
        )
    return dataclasses.replace(params, **changed)


@pytest.mark.parametrize("form", ["native", "explicit_pd"])
def test_gains_and_strength_scale_the_law(tiny_path: Path, form: str) -> None:
    """The effort of the first step is that of the law with the drawn gains, row by row."""
    contract = tiny_contract(form=form, pd_dt=1e-4)
    model = build_model(tiny_path, contract, SolverOptions())
    physics = BatchedPhysics(model, contract, 4, 1)
    params = _with(
        physics.params,
        kp_scale=[1.0, 1.3, 1.0, 1.0],
        kd_scale=[1.0, 1.0, 0.6, 1.0],
        strength=[1.0, 1.0, 1.0, 0.7],
    )
    physics.set_params(np.arange(4), params)
    velocity = torch.tensor([[0.5, -1.0, 2.0]])
    state = physics.read()
    physics.place_rows(np.arange(4), dataclasses.replace(state, joint_vel=velocity.repeat(4, 1)))
    position = torch.tensor([[0.1, -0.05, 0.9]])
    physics.step_pd(_targets(position.repeat(4, 1)))
    law = Actuator(contract, lambda x: torch.as_tensor(x, dtype=torch.float32))
    efforts = physics.joint_effort()
    for row in range(4):
        want = params.strength[row] * law.effort(
            torch.zeros(3),
            velocity[0],
            _targets(position[0]),
            law.kp * params.kp_scale[row],
            law.kd * params.kd_scale[row],
        )
        # float32 of numbers up to 15 Nm.
        torch.testing.assert_close(efforts[row], want, rtol=1e-5, atol=1e-5)
    assert len({tuple(row) for row in efforts.tolist()}) == 4, "each draw must matter"


def test_friction_and_mass_change_the_motion() -> None:
    config = env_config()
    model = build_model(config.robot.xml_path, config.contract, config.solver)
    physics = BatchedPhysics(model, config.contract, 4, 1)
    heavy = float(physics.params.base_mass[0]) + 5.0
    usual = heavy - 5.0
    physics.set_params(
        np.arange(4),
        _with(
            physics.params, friction=[0.1, 1.0, 0.8, 0.8], base_mass=[usual, usual, heavy, usual]
        ),
    )
    home = torch.from_numpy(model.key_qpos[0]).float()
    state = physics.read()
    speed = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    physics.place_rows(
        np.arange(4),
        dataclasses.replace(
            state,
            base_pos_w=home[None, :3].repeat(4, 1),
            base_quat=home[None, 3:7].repeat(4, 1),
            base_lin_vel_w=speed,
            joint_pos=home[None, 7:].repeat(4, 1),
        ),
    )
    for _ in range(30):
        physics.step_pd(_targets(home[None, 7:].repeat(4, 1)))
    after = physics.read()
    assert after.base_pos_w[0, 0] > after.base_pos_w[1, 0] + 0.03, "ice is slippery"
    assert after.base_pos_w[2, 2] < after.base_pos_w[3, 2] - 0.005, "a load presses down"
    # The model that one row runs on has the drawn values and what follows from them.
    own, _ = physics.data(2)
    assert own.body_mass.sum() == pytest.approx(model.body_mass.sum() + 5.0)
    assert own.body_subtreemass[1] == pytest.approx(model.body_subtreemass[1] + 5.0)
    base = model.body(config.contract.robot.base_body).id
    np.testing.assert_allclose(
        own.body_inertia[base], model.body_inertia[base] * heavy / usual, rtol=1e-6
    )


def test_faults_are_named_row_by_row() -> None:
    config = env_config()
    model = build_model(config.robot.xml_path, config.contract, config.solver)
    physics = BatchedPhysics(model, config.contract, 4, 2)
    home = torch.from_numpy(model.key_qpos[0]).float()
    targets = _targets(home[None, 7:].repeat(4, 1))
    state = dataclasses.replace(physics.read(), base_pos_w=home[None, :3].repeat(4, 1))
    physics.place_rows(np.arange(4), state)
    physics.step_pd(targets)
    assert physics.take_faults() == {}
    speed = torch.zeros(1, 3)
    speed[0, 2] = 1e3
    physics.push_rows(np.array([1]), speed)
    broken = dataclasses.replace(state, joint_pos=state.joint_pos.clone())
    broken.joint_pos[2] = torch.nan
    physics.place_rows(np.array([2]), _take(broken, 2))  # pyright: ignore[reportArgumentType]
    physics.step_pd(targets)
    faults = physics.take_faults()
    assert faults["state"].tolist() == [False, True, False, False]
    assert faults["unstable"].tolist() == [False, False, True, False]
    # MuJoCo has put row 2 back to its zero pose; nothing is reported twice.
    both = np.array([1, 2])
    physics.place_rows(both, _take(state, [1, 2]))  # pyright: ignore[reportArgumentType]
    physics.step_pd(targets)
    assert physics.take_faults() == {}


def _take(state: object, rows: int | list[int]) -> object:
    index = [rows] if isinstance(rows, int) else rows
    return dataclasses.replace(
        state,  # type: ignore[type-var]
        **{
            f.name: getattr(state, f.name)[index]
            for f in dataclasses.fields(state)  # type: ignore[arg-type]
        },
    )


def test_contact_overflow_is_a_fault_within_the_step(tmp_path: Path) -> None:
    """Memory for a contact or two, and a box with eight (four corners in two floors)."""
    path = tmp_path / "crowded.xml"
    path.write_text(
        """
        <mujoco>
          <size memory="3500"/>
          <worldbody>
            <geom name="floor" type="plane" size="0 0 1"/>
            <geom name="floor2" type="plane" size="0 0 1" pos="0 0 -.001"/>
            <body name="base" pos="0 0 .05"><freejoint/><geom type="box" size=".1 .1 .06" mass="1"/>
              <body><joint name="left" axis="1 0 0"/><geom size=".01" mass=".1"/></body>
            </body>
          </worldbody>
        </mujoco>"""
    )
    base = tiny_contract()
    term = dataclasses.replace(base.action.terms[0], joints=("left",), scale=(1.0,), offset=(0.0,))
    contract = dataclasses.replace(
        base, joints=base.joints[:1], action=dataclasses.replace(base.action, terms=(term,))
    )
    physics = BatchedPhysics(build_model(path, contract, SolverOptions()), contract, 2, 1)
    state = physics.read()
    high = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.05]])
    physics.place_rows(np.arange(2), dataclasses.replace(state, base_pos_w=high))
    physics.step_pd(_targets(torch.zeros(2, 1)))
    assert physics.take_faults()["contact_overflow"].tolist() == [False, True]


def test_state_continues_bit_for_bit_on_any_number_of_threads() -> None:
    config = env_config()
    model = build_model(config.robot.xml_path, config.contract, config.solver)
    home = torch.from_numpy(model.key_qpos[0]).float()
    target = _targets(home[None, 7:].repeat(6, 1) + 0.1)
    first = BatchedPhysics(model, config.contract, 6, 1)
    start = dataclasses.replace(
        first.read(),
        base_pos_w=home[None, :3].repeat(6, 1),
        joint_pos=home[None, 7:].repeat(6, 1),
        joint_vel=torch.rand(6, 12, generator=torch.Generator().manual_seed(0)),
    )
    first.place_rows(np.arange(6), start)
    masses = torch.linspace(5.0, 8.0, 6)
    first.set_params(np.arange(6), dataclasses.replace(first.params, base_mass=masses))
    for _ in range(10):
        first.step_pd(target)
    second = BatchedPhysics(model, config.contract, 6, 2)
    second.load_state_dict(first.state_dict())
    for _ in range(10):
        first.step_pd(target)
        second.step_pd(target)
    a, b = first.state_dict(), second.state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)
    with pytest.raises(ValueError, match="rows"):
        BatchedPhysics(model, config.contract, 2, 1).load_state_dict(a)
