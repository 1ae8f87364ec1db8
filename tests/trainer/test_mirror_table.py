"""Mirror tables: by hand for a quadruped, tried in the simulator, refused by name."""

import dataclasses

import pytest
import torch

from robot_runtime.errors import Refused
from robot_runtime.policy.labels import observation_labels
from tests.helpers.contracts import (
    edited,
    joint_names,
    make_block,
    make_history,
    make_term,
    quadruped_contract,
)
from trainer.envs.mirror_check import check_mirror_table, gait_half_cycle, make_mirror_table
from trainer.envs.privileged import privileged_labels
from trainer.mirror_table import joint_reflection, mirror_table, named_reflection, other_side
from trainer.symmetry import Mirror, MirrorTable
from trainer.tasks.quadruped_flat import env_config


@pytest.fixture(scope="module")
def table() -> MirrorTable:
    return make_mirror_table(env_config())


def _flipped(mirror: Mirror, entry: int) -> Mirror:
    """One wrong sign; both ends of a pair, since a mirror has to undo itself."""
    sign = mirror.sign.clone()
    for i in {entry, int(mirror.index[entry])}:
        sign[i] = -sign[i]
    return Mirror(index=mirror.index, sign=sign)


def test_signs_of_a_quadruped_by_hand(table: MirrorTable) -> None:
    labels = observation_labels(env_config().contract)
    mirror = table.obs["policy"]
    image = {
        label: (labels[int(mirror.index[i])], float(mirror.sign[i]))
        for i, label in enumerate(labels)
    }
    for axis, sign in zip("xyz", (-1.0, 1.0, -1.0), strict=True):
        assert image[f"base_ang_vel[{axis}]"] == (f"base_ang_vel[{axis}]", sign)
        # Gravity is polar: the other way round.
        assert image[f"projected_gravity[{axis}]"] == (f"projected_gravity[{axis}]", -sign)
    assert image["command[lin_vel_x]"] == ("command[lin_vel_x]", 1.0)
    assert image["command[lin_vel_y]"] == ("command[lin_vel_y]", -1.0)
    assert image["command[ang_vel_z]"] == ("command[ang_vel_z]", -1.0)
    for term in ("joint_pos", "joint_vel", "last_action"):
        # Legs spread outwards with opposite signs, and bend with the same.
        assert image[f"{term}[FL_hip_joint]"] == (f"{term}[FR_hip_joint]", -1.0)
        assert image[f"{term}[RR_thigh_joint]"] == (f"{term}[RL_thigh_joint]", 1.0)
        assert image[f"{term}[RL_calf_joint]"] == (f"{term}[RR_calf_joint]", 1.0)
    # The trot's mirror image is the trot half a cycle later.
    assert image["phase[sin 0]"] == ("phase[sin 0]", -1.0)
    assert image["phase[cos 0]"] == ("phase[cos 0]", -1.0)


def test_applied_twice_it_is_the_identity(table: MirrorTable) -> None:
    for mirror in (*table.obs.values(), table.action):
        x = torch.randn(5, len(mirror.index), generator=torch.Generator().manual_seed(0))
        assert not torch.equal(mirror.apply(x), x)
        assert torch.equal(mirror.apply(mirror.apply(x)), x)


def test_one_wrong_sign_is_refused_naming_the_term(table: MirrorTable) -> None:
    """In the simulator, for every number of both observation groups."""
    config = env_config()
    labels = observation_labels(config.contract)
    critic = labels + privileged_labels(config.robot.profile.foot_geoms)
    for group, names in (("policy", labels), ("critic", critic)):
        for entry in range(len(names)):
            wrong = dict(table.obs) | {group: _flipped(table.obs[group], entry)}
            with pytest.raises(Refused) as refusal:
                check_mirror_table(config, MirrorTable(obs=wrong, action=table.action))
            pair = {names[entry], names[int(table.obs[group].index[entry])]}
            assert any(f"'{name}'" in str(refusal.value) for name in pair), names[entry]


def test_one_wrong_action_sign_is_refused_naming_the_joint(table: MirrorTable) -> None:
    config = env_config()
    for joint in (0, 4, 11):
        wrong = MirrorTable(obs=table.obs, action=_flipped(table.action, joint))
        name = config.contract.action_joints[joint]
        partner = config.contract.action_joints[int(table.action.index[joint])]
        with pytest.raises(Refused, match=rf"last_action\[({name}|{partner})\]"):
            check_mirror_table(config, wrong)


def test_history_is_mirrored_frame_by_frame() -> None:
    terms = (make_term("gravity", "projected_gravity"), make_term("joint_pos", "joint_pos"))
    for layout in ("term_major", "frame_major"):
        history = make_history(3, layout=layout)
        contract = quadruped_contract(observation=(make_block(*terms, history=history),))
        labels = observation_labels(contract)
        mirror = mirror_table(contract, half_cycle=False).obs["policy"]
        for i, label in enumerate(labels):
            source = labels[int(mirror.index[i])]
            assert label.partition(" ")[2] == source.partition(" ")[2], "the same age"
        oldest = labels.index("joint_pos[FR_calf_joint] 2 steps back")
        assert labels[int(mirror.index[oldest])] == "joint_pos[FL_calf_joint] 2 steps back"


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("FL_hip_joint", "FR_hip_joint"),
        ("RR_foot", "RL_foot"),
        ("left_knee", "right_knee"),
        ("knee_r", "knee_l"),
        ("LH_KFE", "RH_KFE"),
        ("Left_Hip_Pitch", "Right_Hip_Pitch"),
        ("waist_yaw", None),
        ("roll_flap", None),
    ],
)
def test_sides_are_found_in_names(name: str, other: str | None) -> None:
    assert other_side(name) == other


def test_unknown_term_is_refused_by_name() -> None:
    clock = env_config().contract.phase
    contract = quadruped_contract(
        observation=(
            make_block(make_term("gravity", "projected_gravity"), make_term("g", "phase")),
        ),
        phase=clock,
    )
    with pytest.raises(Refused, match=r"'g' \(phase\)"):
        mirror_table(contract, half_cycle=True)


def test_unknown_command_is_refused_by_name() -> None:
    contract = edited(quadruped_contract(), {"commands.1.name": "wiggle"})
    with pytest.raises(Refused, match="'wiggle'"):
        mirror_table(contract, half_cycle=True)


def test_joint_without_partner_is_refused_unless_it_is_central() -> None:
    contract = quadruped_contract()
    with pytest.raises(Refused, match=r"'FL_hip_joint'.*'FR_hip_joint'"):
        joint_reflection(contract, joint_names(("FL", "RL", "RR")))
    with pytest.raises(Refused, match="'FL_foot'"):
        named_reflection(("FL_foot", "RL_foot", "RR_foot"))

    def waist(*axis: float) -> tuple[int, float]:
        joint = dataclasses.replace(contract.joints[0], name="waist", axis=axis)  # type: ignore[arg-type]
        own = dataclasses.replace(
            contract,
            joints=(*contract.joints, joint),
            action=dataclasses.replace(
                contract.action,
                terms=(
                    *contract.action.terms,
                    dataclasses.replace(
                        contract.action.terms[0],
                        name="waist",
                        joints=("waist",),
                        scale=(1.0,),
                        offset=(0.0,),
                    ),
                ),
            ),
        )
        mirror = joint_reflection(own, own.joint_names)
        return mirror.index[-1], mirror.sign[-1]

    assert waist(0.0, 0.0, 1.0) == (12, -1.0), "yaw turns the other way"
    assert waist(0.0, 1.0, 0.0) == (12, 1.0), "pitch stays"
    assert waist(0.6, 0.0, 0.8) == (12, -1.0), "any axis in the sagittal plane"
    with pytest.raises(Refused, match="'waist' has no partner"):
        waist(0.6, 0.8, 0.0)


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [
        ({"joints.3.axis": [0.8, 0.6, 0.0]}, "axes of 'FL_hip_joint'"),
        ({"joints.3.axis": None}, "'FR_hip_joint' states no axis"),
        ({"joints.4.default_pos": 0.9}, "default positions of 'FL_thigh_joint'"),
        ({"joints.5.kp": 30.0}, "'FL_calf_joint' and 'FR_calf_joint' differ in kp"),
        ({"action.terms.0.scale.0": 0.3}, "scale of 'FL_hip_joint'"),
        ({"action.terms.0.offset.3": 0.1}, "offset of 'FL_hip_joint'"),
        ({"observation.0.terms.3.scale": [1.0] * 11 + [2.0]}, "'joint_pos': scale"),
        ({"observation.0.terms.1.clip": [-1.0, 0.5]}, "'projected_gravity': clip"),
    ],
)
def test_lopsided_contracts_are_refused_by_name(changes: dict[str, object], culprit: str) -> None:
    with pytest.raises(Refused, match=culprit):
        mirror_table(edited(quadruped_contract(), changes), half_cycle=True)


def test_gait_says_how_its_image_is_shifted() -> None:
    config = env_config()
    assert gait_half_cycle(config)

    def offsets(*values: float) -> bool:
        return gait_half_cycle(
            dataclasses.replace(config, gait=dataclasses.replace(config.gait, offsets=values))
        )

    assert not offsets(0.0, 0.0, 0.5, 0.5), "a bound is its own image"
    with pytest.raises(Refused, match="gait offsets"):
        offsets(0.0, 0.25, 0.5, 0.75)
