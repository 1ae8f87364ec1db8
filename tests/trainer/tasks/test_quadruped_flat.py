"""The recipe takes any quadruped, whatever its parts are called, and refuses what is none."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from robot_runtime.errors import BadInput
from robot_runtime.robots import RobotModel, load_model, read_model
from trainer.envs.anatomy import anatomy_of
from trainer.tasks.quadruped_flat import env_config, trot_offsets

NAMES = {
    "FL": "LF", "FR": "RF", "RL": "LH", "RR": "RH",
    "hip": "abductor", "thigh": "upper", "calf": "lower", "foot": "tip",
    "trunk": "body", "head": "nose",
}  # fmt: skip


def renamed(folder: Path) -> RobotModel:
    """The quadruped under other names, its feet in another order."""
    source = load_model("quadruped").xml_path.parent
    folder.mkdir()
    for name in ("robot.xml", "profile.json"):
        text = (source / name).read_text()
        for old, new in NAMES.items():
            text = re.sub(rf"(?<![A-Za-z]){old}(?![A-Za-z]|_geoms)", new, text)
        (folder / name).write_text(text)
    path = folder / "profile.json"
    profile = json.loads(path.read_text())
    profile |= {"name": folder.name, "foot_geoms": ["RH_tip", "LF_tip", "LH_tip", "RF_tip"]}
    path.write_text(json.dumps(profile))
    return read_model(folder)


def test_the_built_in_quadruped_is_what_it_always_was() -> None:
    config = env_config()
    assert config.gait.offsets == (0.0, 0.5, 0.5, 0.0)
    assert config.solver.colliding_geoms == (
        "FL_foot", "FR_foot", "RL_foot", "RR_foot", "trunk", "head",
    )  # fmt: skip
    assert config.fall.clear_bodies == ("FL_calf", "FR_calf", "RL_calf", "RR_calf")
    assert config.pose_weight == (1.0, 0.1, 0.1) * 4


def test_a_quadruped_of_other_names_and_order_is_the_same_task(tmp_path: Path) -> None:
    config = env_config(renamed(tmp_path / "other"))
    # Right hind with left front, left hind with right front.
    assert config.gait.offsets == (0.0, 0.0, 0.5, 0.5)
    assert config.fall.clear_bodies == ("RH_lower", "LF_lower", "LH_lower", "RF_lower")
    assert config.solver.colliding_geoms == (
        "RH_tip", "LF_tip", "LH_tip", "RF_tip", "body", "nose",
    )  # fmt: skip
    assert config.pose_weight == env_config().pose_weight


def test_who_has_not_a_foot_in_each_corner_is_no_quadruped() -> None:
    feet = anatomy_of(load_model("quadruped")).feet
    with pytest.raises(BadInput, match=r"'six'.*not one foot in each corner.*FL_foot, FR_foot"):
        trot_offsets("six", (*feet[:3], feet[0]))


def test_feet_are_where_the_home_pose_has_them() -> None:
    feet = {foot.geom: foot for foot in anatomy_of(load_model("biped")).feet}
    assert {name: foot.body for name, foot in feet.items()} == {
        "left_toe": "left_foot", "left_heel": "left_foot",
        "right_toe": "right_foot", "right_heel": "right_foot",
    }  # fmt: skip
    # Toe and heel are 0.16 m apart, the legs 0.18 m.
    assert feet["left_toe"].forward - feet["left_heel"].forward == pytest.approx(0.16)
    assert feet["left_toe"].left - feet["right_toe"].left == pytest.approx(0.18)
    assert anatomy_of(load_model("biped")).base_geoms == ("torso", "head")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"foot_geoms": ("FL_foot", "toe")}, "'quadruped': its model has no geom 'toe'"),
        ({"keyframe": "sit"}, "has no key 'sit'"),
        ({"base_body": "pelvis"}, "has no body 'pelvis'"),
    ],
)
def test_a_profile_that_names_what_is_not_there_is_refused(
    change: dict[str, object], message: str
) -> None:
    robot = load_model("quadruped")
    profile = dataclasses.replace(robot.profile, **change)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=message):
        anatomy_of(dataclasses.replace(robot, profile=profile))
