"""A model is bound by name, and refused or reported before anything moves."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import mujoco
import numpy as np
import pytest

from robot_runtime.errors import BadInput, Refused
from robot_runtime.policy.spec import ImuSpec, RobotRef, Timing
from robot_runtime.policy.state import JointCommand
from robot_runtime.robots import load_model
from sim2sim.doctor import grouped
from sim2sim.model import SimModel, build_model, choose_step, effective_inertia, find_model
from sim2sim.mujoco_robot import MujocoRobot
from tests.helpers.contracts import quadruped_contract
from tests.helpers.tiny_robot import tiny_contract, tiny_sim, tiny_xml

FORMS = [("explicit_pd", "actuator"), ("native", "actuator"), ("native", "joint")]


def _said(sim: SimModel) -> str:
    return "\n".join(f"{s}: {f.text} [{f.differs}]" for s, f in grouped(sim.findings))


def _efforts_by_name(sim: SimModel, seed: int = 0) -> dict[str, float]:
    """Efforts of a robot whose joints, and what they are told, depend on their names alone."""
    robot, rng = MujocoRobot(sim), np.random.default_rng(seed)
    draws = {name: rng.normal(size=5) for name in sorted(sim.contract.joint_names)}
    drawn = np.array([draws[name] for name in sim.contract.joint_names])
    robot.data.qpos[sim.qpos], robot.data.qvel[sim.dof] = 0.5 * drawn[:, 0], drawn[:, 1]
    robot.reset()
    robot.write(
        JointCommand(
            position=drawn[:, 2],
            velocity=drawn[:, 3],
            effort=drawn[:, 4],
            kp=sim.contract.joint_array("kp"),
            kd=sim.contract.joint_array("kd"),
        )
    )
    robot.advance(1)
    efforts = robot.drive.efforts()
    return dict(zip(sim.contract.joint_names, efforts.tolist(), strict=True))


@pytest.mark.parametrize(("form", "damping"), FORMS)
def test_shuffled_robot_gets_the_same_efforts_by_name(
    tmp_path: Path, form: str, damping: str
) -> None:
    contract = tiny_contract(form=form, damping=damping)
    # One physics step per PD step: efforts are those of the state that was set.
    plain = tiny_sim(tmp_path, contract, tiny_xml(), physics_dt=0.005)
    shuffled_xml = tiny_xml(order=("tail", "left", "right"), passive=("ear", "nose"))
    shuffled = tiny_sim(tmp_path, contract, shuffled_xml, physics_dt=0.005)
    names = [shuffled.mj.joint(i).name for i in range(shuffled.mj.njnt)]
    assert names[1:] == ["ear", "tail", "nose", "left", "right"]
    assert "ear, nose: joint that the contract does not have: moves freely" in _said(shuffled)
    efforts, expected = _efforts_by_name(shuffled), _efforts_by_name(plain)
    assert max(abs(value) for value in expected.values()) > 1.0
    for name, value in expected.items():
        # The same numbers in another place: equal but for the order of additions.
        assert efforts[name] == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    ("xml", "culprit"),
    [
        (tiny_xml(names={"right": "rght"}), r"'right'.*not in the model.*left, rght, tail"),
        (tiny_xml(order=("left", "tail")), r"'right'.*not in the model.*left, tail"),
        (tiny_xml(axes={"right": "0 -1 0"}), r"'right'.*flipped.*\(0, -1, 0\).*\(0, 1, 0\)"),
        (tiny_xml(axes={"tail": "1 0 0"}), r"'tail'.*another one.*\(1, 0, 0\).*\(0, 0, 1\)"),
        (tiny_xml().replace('joint name="tail"', 'joint name="tail" type="slide"'), "no hinge"),
        (tiny_xml().replace('name="base"', 'name="trunk"'), "'base'.*not in the model.*trunk"),
        (tiny_xml().replace("<freejoint/>", ""), "'base'.*no free joint.*none"),
        (tiny_xml().replace('"tail" axis="0 0 1" range="-3 3"', '"tail" axis="0 0 1" range="-3 0"'),
         r"'tail'.*default position 0\.2 rad.*-3\.\.0"),
    ],
)  # fmt: skip
def test_unfit_model_is_refused_by_name(tmp_path: Path, xml: str, culprit: str) -> None:
    with pytest.raises(Refused, match=culprit):
        tiny_sim(tmp_path, tiny_contract(), xml)


def test_axis_is_that_of_the_base_frame(tmp_path: Path) -> None:
    """A mounting that turns the joint's body turns the axis written in the file."""
    turned = tiny_xml(axes={"left": "0 0 -1"}).replace(
        '<body name="left_rod"', '<body name="left_rod" xyaxes="0 0 1 0 1 0"'
    )
    sim = tiny_sim(tmp_path, tiny_contract(), turned)
    assert "axis" not in _said(sim)


def test_slight_differences_are_reported(tmp_path: Path) -> None:
    xml = tiny_xml(axes={"left": "1 .02 0"}).replace('"right" axis="0 1 0" range="-3 3"', '"right" axis="0 1 0" range="-2 2.5"')  # fmt: skip # noqa: E501
    said = _said(tiny_sim(tmp_path, tiny_contract(), xml))
    assert "left: axis is 0.02 rad off" in said
    assert "right: range is -2..2.5 rad, the contract's -3..3 [True]" in said


def test_actuators_of_the_file_are_replaced(tmp_path: Path) -> None:
    actuators = """
        <position name="servo" joint="left" kp="500" kv="3" forcerange="-9 9"/>
        <motor name="right_motor" joint="right" ctrlrange="-6 6"/>
        <general name="rotor" joint="tail" armature=".03" gear="2"/>
        <motor name="ear_motor" joint="ear"/>"""
    extra = """
        <sensor><actuatorfrc actuator="servo"/><jointpos name="kept" joint="left"/></sensor>
        <default><general dyntype="filter" dynprm="1" delay=".1" nsample="3"/></default>
        <keyframe><key name="home" ctrl="1 2 3 4"/></keyframe>"""
    xml = tiny_xml(passive=("ear",), actuators=actuators, extra=extra)
    sim = tiny_sim(tmp_path, tiny_contract(), xml)
    said = _said(sim)
    assert "left: position servo with kp 500, kd 3, joint damping 0.1 and ±9 Nm replaced" in said
    assert (
        "right: motor with ±6 Nm replaced by the contract's kp 20, kd 0.8 and ±6 Nm [False]" in said
    )
    assert "ear: joint that the contract does not have: its actuator 'ear_motor' gets zero" in said
    assert [sim.mj.actuator(i).name for i in range(sim.mj.nu)] == [
        "ear_motor",
        "contract/left",
        "contract/right",
        "contract/tail",
    ]
    assert sim.mj.na == 0, "a default of the file must not filter the contract's actuators"
    assert sim.mj.sensor(0).name == "kept"
    # The rotor of the replaced actuator, gear^2 * 0.03, stays at the joint with its own 0.02.
    assert sim.mj.dof_armature[sim.dof] == pytest.approx([0.02, 0.02, 0.14])


def test_joint_effort_range_gives_way_to_the_contract(tmp_path: Path) -> None:
    xml = tiny_xml(joint='armature=".02" actuatorfrcrange="-1 1"')
    sim = tiny_sim(tmp_path, tiny_contract(), xml)
    assert "left: effort limit 1 Nm replaced by ±4 Nm [True]" in _said(sim)
    efforts = _efforts_by_name(sim)
    assert max(abs(value) for value in efforts.values()) > 2.0


@pytest.mark.parametrize(
    ("imu", "text"),
    [
        ({"site": "gone"}, "gone: IMU site of the contract is not in the model"),
        ({"position": (0.01, 0.0, 0.05)}, "imu: IMU site is 30 mm and 0 rad off"),
        ({"quat": (np.cos(0.1), 0.0, np.sin(0.1), 0.0)}, "imu: IMU site is 0 mm and 0.2 rad off"),
    ],
)
def test_imu_is_compared(tmp_path: Path, imu: dict[str, object], text: str) -> None:
    contract = tiny_contract()
    assert "imu" not in _said(tiny_sim(tmp_path, contract, tiny_xml()))
    moved = dataclasses.replace(contract, imu=dataclasses.replace(contract.imu, **imu))  # type: ignore[arg-type]
    assert text in _said(tiny_sim(tmp_path, moved, tiny_xml()))


def test_imu_on_another_body_is_reported(tmp_path: Path) -> None:
    xml = tiny_xml().replace('<site name="imu" pos=".01 0 .02"/>', "")
    xml = xml.replace('<geom type="capsule"', '<site name="imu"/><geom type="capsule"', 1)
    assert "imu: IMU site sits on 'left_rod'" in _said(tiny_sim(tmp_path, tiny_contract(), xml))


def test_another_model_than_the_one_trained_on_is_said() -> None:
    robot = load_model("quadruped")
    for sha256, text in ((robot.hash, None), ("ab" * 32, "another model"), ("", "does not say")):
        ref = RobotRef(name="quadruped", model_sha256=sha256, base_body="trunk")
        contract = quadruped_contract(robot=ref)
        said = _said(build_model(contract, find_model(contract, None)))
        assert text is None or text in said
        assert ("robot.xml" in said) == (text is not None)


def test_model_of_a_robot_folder_is_the_robot() -> None:
    contract = quadruped_contract()
    named, given, asked = (
        find_model(contract, None),
        find_model(contract, load_model("quadruped").xml_path),
        find_model(contract, Path("quadruped")),
    )
    assert named == given == asked
    assert named.keyframe == "home"


def test_models_that_cannot_be_found_or_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"'tiny'.*quadruped.*--model"):
        find_model(tiny_contract(), None)
    with pytest.raises(BadInput, match=r"no\.xml.*no such file.*biped, quadruped"):
        find_model(tiny_contract(), tmp_path / "no.xml")
    for text in ("", "<mujoco", "<mujoco><worldbody><nonsense/></worldbody></mujoco>"):
        with pytest.raises(BadInput, match=r"cannot (read|compile) model"):
            tiny_sim(tmp_path, tiny_contract(), text)


@pytest.mark.parametrize(
    ("pd_dt", "trained", "asked", "step"),
    [
        (0.005, 0.005, None, 0.005),
        (0.01, 0.01, None, 0.005),
        (0.006, 0.006, None, 0.003),
        (0.02, 0.0025, None, 0.0025),
        (0.002, 0.001, 0.002, 0.002),
        (0.01, 0.01, 0.0025, 0.0025),
    ],
)
def test_physics_step(pd_dt: float, trained: float, asked: float | None, step: float) -> None:
    timing = Timing(control_dt=0.06 if pd_dt == 0.006 else 0.02, pd_dt=pd_dt, physics_dt=trained)
    contract = quadruped_contract(timing=timing)
    assert choose_step(contract, asked) == pytest.approx(step, rel=1e-12)


@pytest.mark.parametrize("asked", [0.003, 0.01, 0.0, -0.005, float("nan")])
def test_physics_step_that_does_not_divide_is_refused(asked: float) -> None:
    with pytest.raises(BadInput, match=r"does not divide|is not in 1e-05"):
        choose_step(quadruped_contract(), asked)


def _hinge(armature: float) -> str:
    """A hinge of inertia 0.002 kg m^2 on a base so heavy that it does not give way."""
    return f"""
    <mujoco>
      <option gravity="0 0 0"/>
      <worldbody>
        <body name="base"><freejoint/>
          <inertial pos="0 0 0" mass="1e6" diaginertia="1e6 1e6 1e6"/>
          <body>
            <joint name="knee" axis="0 1 0" armature="{armature}"/>
            <inertial pos="0 0 0" mass="1" diaginertia=".002 .002 .002"/>
          </body>
        </body>
      </worldbody>
    </mujoco>"""


def _hinge_contract(form: str):  # noqa: ANN202
    base = tiny_contract(form=form)
    knee = dataclasses.replace(
        base.joints[1], name="knee", default_pos=0.0, kp=40.0, kd=2.0, effort_limit=None
    )
    action = dataclasses.replace(
        base.action.terms[0], joints=("knee",), scale=(1.0,), offset=(0.0,)
    )
    return dataclasses.replace(
        base,
        joints=(knee,),
        action=dataclasses.replace(base.action, terms=(action,)),
        observation=quadruped_contract().observation,
        imu=ImuSpec(site="", position=(0, 0, 0), quat=(1, 0, 0, 0), quaternion_order="wxyz"),
    )


def test_unstable_explicit_gains_are_refused_before_running(tmp_path: Path) -> None:
    contract = _hinge_contract("explicit_pd")
    with pytest.raises(Refused, match=r"'knee'.*kd\*dt/I = 5 "):
        tiny_sim(tmp_path, contract, _hinge(0.0))
    with pytest.raises(Refused, match="'knee'"):
        tiny_sim(tmp_path, contract, _hinge(0.0), physics_dt=0.001)
    # Implicit damping has no such limit.
    tiny_sim(tmp_path, _hinge_contract("native"), _hinge(0.0))


def test_stable_explicit_gains_run_and_settle(tmp_path: Path) -> None:
    contract = _hinge_contract("explicit_pd")
    sim = tiny_sim(tmp_path, contract, _hinge(0.01))
    # kd * dt / I = 2 * 0.005 / 0.012.
    assert effective_inertia(sim.mj, contract) == pytest.approx([0.012], rel=1e-6)
    robot = MujocoRobot(sim)
    robot.data.qpos[sim.qpos] = 0.3
    robot.reset()
    robot.write(
        JointCommand(
            position=np.zeros(1),
            velocity=np.zeros(1),
            effort=np.zeros(1),
            kp=contract.joint_array("kp"),
            kd=contract.joint_array("kd"),
        )
    )
    robot.advance(200)
    assert abs(robot.read().joint_pos[0]) < 1e-3


def test_effective_inertia_is_the_response_in_free_flight(tmp_path: Path) -> None:
    """Oracle: MuJoCo's own acceleration per unit of effort, one joint at a time."""
    contract = tiny_contract(form="explicit_pd")
    sim = tiny_sim(tmp_path, contract, tiny_xml())
    data = mujoco.MjData(sim.mj)
    data.qpos[sim.qpos] = contract.joint_array("default_pos")
    for i, inertia in enumerate(effective_inertia(sim.mj, contract)):
        data.qfrc_applied[:] = 0.0
        data.qfrc_applied[sim.dof[i]] = 1.0
        mujoco.mj_forward(sim.mj, data)
        assert 1.0 / data.qacc[sim.dof[i]] == pytest.approx(inertia, rel=1e-6)
