"""The built-in robots are what their profiles say, and bad models are refused by name."""

import json
import shutil
from pathlib import Path

import mujoco
import numpy as np
import pytest

from robot_runtime.errors import BadInput
from robot_runtime.robots import RobotModel, load_model, model_names, read_model
from trainer.mirror_table import other_side

ROBOTS = {"quadruped": 12, "biped": 10}
"""Built-in robots and how many joints they have."""


@pytest.fixture(scope="module", params=ROBOTS)
def robot(request: pytest.FixtureRequest) -> RobotModel:
    return load_model(request.param)


@pytest.fixture(scope="module")
def mj_model(robot: RobotModel) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(robot.xml_path))


def _copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(load_model("quadruped").xml_path.parent, tmp_path / "quadruped"))


def _edit_joint(folder: Path, index: int, **changes: object) -> None:
    path = folder / "profile.json"
    profile = json.loads(path.read_text())
    profile["joints"][index].update(changes)
    path.write_text(json.dumps(profile))


def test_profile_agrees_with_the_xml(robot: RobotModel, mj_model: mujoco.MjModel) -> None:
    profile = robot.profile
    hinges = [
        mj_model.joint(i).name
        for i in range(mj_model.njnt)
        if mj_model.jnt_type[i] == mujoco.mjtJoint.mjJNT_HINGE
    ]
    assert [joint.name for joint in profile.joints] == hinges
    assert len(hinges) == ROBOTS[robot.name]
    home = mj_model.keyframe(profile.keyframe).qpos
    for joint in profile.joints:
        view = mj_model.joint(joint.name)
        np.testing.assert_array_equal(view.range, [joint.lower, joint.upper])
        assert view.armature == joint.armature
        assert home[view.qposadr[0]] == joint.default_pos
    assert mj_model.body(profile.base_body).jntnum == 1
    assert mj_model.site(profile.imu_site).bodyid == mj_model.body(profile.base_body).id
    assert home[2] == profile.base_height
    assert mj_model.nu == 0, "actuators are made from the contract, never read from the XML"


def test_public_figures_of_the_quadruped() -> None:
    model = mujoco.MjModel.from_xml_path(str(load_model("quadruped").xml_path))
    assert model.body_mass.sum() == pytest.approx(15.0, abs=0.2)
    for leg in ("FL", "FR", "RL", "RR"):
        # Thigh: hip axis to knee axis. Shank: knee axis to the centre of the foot.
        assert np.linalg.norm(model.body(f"{leg}_calf").pos) == pytest.approx(0.213)
        assert np.linalg.norm(model.geom(f"{leg}_foot").pos) == pytest.approx(0.213)


def test_figures_of_the_biped() -> None:
    model = mujoco.MjModel.from_xml_path(str(load_model("biped").xml_path))
    assert model.body_mass.sum() == pytest.approx(12.0, abs=0.2)
    for side in ("left", "right"):
        # Thigh: hip axis to knee axis. Shank: knee axis to ankle axis.
        assert np.linalg.norm(model.body(f"{side}_shank").pos) == pytest.approx(0.25)
        assert np.linalg.norm(model.body(f"{side}_foot").pos) == pytest.approx(0.25)


def test_home_pose_stands_on_its_feet_and_a_fallen_robot_lies_on_its_base(
    robot: RobotModel,
    mj_model: mujoco.MjModel,
) -> None:
    profile = robot.profile
    data = mujoco.MjData(mj_model)
    mujoco.mj_resetDataKeyframe(mj_model, data, mj_model.keyframe(profile.keyframe).id)
    mujoco.mj_forward(mj_model, data)
    for foot in profile.foot_geoms:
        geom = data.geom(foot)
        # Within half a millimetre above the ground: standing, and not pushed out of it.
        assert 0.0 <= geom.xpos[2] - mj_model.geom(foot).size[0] < 5e-4
    data.qpos[3:7] = [0.0, 1.0, 0.0, 0.0]
    for _ in range(800):
        mujoco.mj_step(mj_model, data)
    touching = {mj_model.geom(i).name for i in np.ravel(data.contact.geom)}
    bodies = {mj_model.body(mj_model.geom(name).bodyid[0]).name for name in touching}
    assert profile.base_body in bodies
    assert data.qpos[2] > 0.0, "the base must not sink through the floor"


def test_left_and_right_are_mirror_images(mj_model: mujoco.MjModel) -> None:
    flip = np.array([1.0, -1.0, 1.0])
    pairs = 0
    for i in range(1, mj_model.nbody):
        a = mj_model.body(i)
        other = other_side(a.name)
        if other is None:
            continue
        b = mj_model.body(other)
        np.testing.assert_allclose(a.pos, b.pos * flip)
        np.testing.assert_allclose(a.ipos, b.ipos * flip, atol=1e-12)
        np.testing.assert_allclose(a.inertia, b.inertia)
        assert a.mass == b.mass
        pairs += 1
    assert pairs >= 2 * 4


def test_hash_covers_every_byte_of_both_files(tmp_path: Path) -> None:
    folder = _copy(tmp_path)
    before = read_model(folder)
    assert before.hash == load_model("quadruped").hash
    assert len(before.hash) == 64
    (folder / "robot.xml").write_text((folder / "robot.xml").read_text() + "\n")
    after_xml = read_model(folder).hash
    _edit_joint(folder, 3, kp=26.0)
    assert len({before.hash, after_xml, read_model(folder).hash}) == 3


def test_unknown_model_lists_the_known() -> None:
    assert "quadruped" in model_names()
    with pytest.raises(BadInput, match=r"'hexapod'.*quadruped"):
        load_model("hexapod")


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [
        ({"kp": -1.0}, "FL_thigh_joint.*kp"),
        ({"effort_limit": 0.0}, "FL_thigh_joint.*effort_limit"),
        ({"default_pos": 9.0}, "FL_thigh_joint.*default_pos"),
        ({"kd": "0.5"}, "FL_thigh_joint.*kd"),
        ({"armature": float("nan")}, "FL_thigh_joint.*armature"),
        ({"stiffness": 1.0}, "FL_thigh_joint.*stiffness"),
        ({"name": "FL_hip_joint"}, "FL_hip_joint.*2 times"),
    ],
)
def test_bad_joint_is_refused_by_name(
    tmp_path: Path, changes: dict[str, object], culprit: str
) -> None:
    folder = _copy(tmp_path)
    _edit_joint(folder, 1, **changes)
    with pytest.raises(BadInput, match=culprit):
        read_model(folder)


def test_bad_files_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"robot\.xml"):
        read_model(tmp_path / "nowhere")
    folder = _copy(tmp_path)
    profile = json.loads((folder / "profile.json").read_text())
    for broken, culprit in (
        ({**profile, "schema_version": 2}, "schema_version is 2"),
        ({k: v for k, v in profile.items() if k != "imu_site"}, "imu_site"),
        ({**profile, "joints": []}, "joints"),
        ({**profile, "name": "other"}, "'other'"),
        ([], "object"),
    ):
        (folder / "profile.json").write_text(json.dumps(broken))
        with pytest.raises(BadInput, match=culprit):
            read_model(folder)
    (folder / "profile.json").write_text("{")
    with pytest.raises(BadInput, match="not JSON"):
        read_model(folder)
