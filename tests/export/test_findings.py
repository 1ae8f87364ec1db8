"""What an export names although nothing is wrong with it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from export.findings import check_measurable, contract_findings
from export.saturation import saturated_actions
from export.write import export_source
from robot_runtime.errors import Refused
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.file import open_policy
from robot_runtime.policy.trace import GoldenTrace
from tests.helpers.contracts import (
    edited,
    joint_names,
    make_action,
    quadruped_contract,
    rich_contract,
)
from tests.helpers.networks import (
    Recurrent,
    make_source,
    recurrent_contract,
    recurrent_source,
)
from trainer.networks.graph_spec import Squash


def test_a_symmetric_robot_has_no_findings() -> None:
    hips = {f"joints.{3 * i}.default_pos": 0.1 * (-1) ** i for i in range(4)}
    # Outward hips: turned about x, the angle of the other side has the other sign.
    assert contract_findings(edited(quadruped_contract(), hips)) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"joints.4.kp": 30.0}, "kp of FL_thigh_joint is 25, of FR_thigh_joint 30"),
        ({"joints.11.kd": 0.7}, "kd of RL_calf_joint is 0.5, of RR_calf_joint 0.7"),
        ({"joints.1.default_pos": 0.9}, "default_pos of FL_thigh_joint is 0.9, of FR_thigh"),
        # Equal hips point to the same side, not outward.
        ({"joints.0.default_pos": 0.1, "joints.3.default_pos": 0.1}, "default_pos of FL_hip"),
        ({"joints.0.default_pos": 0.1, "joints.0.axis": None}, "default_pos of FL_hip"),
        ({"joints.0.kp": 0.0, "joints.3.kp": 0.0}, "kp of FL_hip_joint is 0"),
        ({"joints.5.kd": 0.0, "joints.2.kd": 0.0}, "kd of FL_calf_joint is 0"),
    ],
)
def test_lopsided_and_missing_gains_are_named(changes: dict[str, object], words: str) -> None:
    found = contract_findings(edited(quadruped_contract(), changes))
    assert any(words in text for text in found), found


def test_wheels_need_no_stiffness() -> None:
    """A velocity-driven joint has kp 0, an effort-driven one neither gain."""
    names = joint_names()
    plain = quadruped_contract()
    action = dataclasses.replace(
        plain.action,
        terms=(
            make_action("wheels", names[:2], kind="velocity"),
            make_action("direct", names[2:3], kind="effort"),
            make_action("legs", names[3:]),
        ),
    )
    gains = {f"joints.{i}.kp": 0.0 for i in (0, 1, 2)} | {"joints.2.kd": 0.0}
    found = contract_findings(edited(dataclasses.replace(plain, action=action), gains))
    assert not [text for text in found if "is 0:" in text], found


def test_what_the_robot_cannot_measure_is_refused_by_name(tmp_path: Path) -> None:
    contract = rich_contract()
    with pytest.raises(Refused, match=r"'world_vel' needs base_lin_vel_b, which robot 'quadruped'"):
        check_measurable(contract, allowed=False)
    (text,) = check_measurable(contract, allowed=True)
    assert "an estimator must give it" in text
    assert check_measurable(quadruped_contract(), allowed=False) == []
    source = recurrent_source(kind="none")
    privileged = {"observation.0.terms.0.source": "base_lin_vel"}
    asking = dataclasses.replace(source, contract=edited(source.contract, privileged))
    with pytest.raises(Refused, match=r"'base_ang_vel' needs base_lin_vel_b, .*--allow-privileged"):
        export_source(asking, tmp_path / "p.onnx")
    assert not list(tmp_path.iterdir())


def trace_of_own_actions(contract: PolicyContract, actions: np.ndarray) -> GoldenTrace:
    """A trace in which the network's own action was taken in every row."""
    trace = recurrent_source(kind="none").trace
    rows = np.resize(actions, (trace.rows, contract.num_actions)).astype(np.float32)
    inputs = dataclasses.replace(trace.inputs, raw_action=rows)
    return dataclasses.replace(trace, inputs=inputs, network_action=rows)


def test_actions_at_their_bounds_are_named() -> None:
    """Ten rows: action 0 beyond its raw bound in three, action 1 at its target bound in one."""
    names = joint_names()
    offset = make_action("legs", names).offset
    term = make_action(
        "legs",
        names,
        raw_lower=(-2.0,) * 12,
        raw_upper=(2.0,) * 12,
        target_lower=tuple(o - 0.25 for o in offset),
        target_upper=tuple(o + 0.4 for o in offset),
    )
    plain = quadruped_contract()
    contract = dataclasses.replace(plain, action=dataclasses.replace(plain.action, terms=(term,)))
    actions = np.zeros((10, 12))
    actions[:3, 0] = (-2.5, 2.0, 3.0)
    actions[0, 1] = -1.5
    found = saturated_actions(contract, trace_of_own_actions(contract, actions), None)
    assert [text.split(" is at")[0] for text in found] == [
        "action of FL_hip_joint",
        "action of FL_thigh_joint",
    ]
    rows = recurrent_source(kind="none").trace.rows
    share = np.resize([1, 1, 1, 0, 0, 0, 0, 0, 0, 0], rows).mean()
    assert f"{100 * share:.0f} %" in found[0]


def test_squashed_actions_saturate_at_the_squash() -> None:
    contract = quadruped_contract()
    half, middle = np.full(12, 0.5, np.float32), np.full(12, 0.1, np.float32)
    actions = np.full((4, 12), 0.1)
    actions[:2, 7] = 0.1 - 0.499
    trace = trace_of_own_actions(contract, actions)
    (found,) = saturated_actions(contract, trace, Squash(kind="tanh", scale=half, offset=middle))
    assert "action of RL_thigh_joint is at its bound in 50 %" in found
    beta = Squash(kind="beta", scale=2.0 * half, offset=middle - half)
    assert saturated_actions(contract, trace, beta) == [found]


def test_forced_actions_say_nothing() -> None:
    source = recurrent_source(kind="none")
    small = np.full(12, 1e-3, np.float32)
    squash = Squash(kind="tanh", scale=small, offset=small)
    assert saturated_actions(source.contract, source.trace, squash) == []


def test_warnings_are_kept_in_the_file(tmp_path: Path) -> None:
    lopsided = edited(quadruped_contract(), {"joints.1.kp": 35.0})
    module = Recurrent((lopsided.observation_dim, lopsided.num_actions), kind="none")
    source = make_source(module.requires_grad_(False).eval(), recurrent_contract(module, lopsided))
    _, gate = export_source(source, tmp_path / "a.onnx", target="ort-1.10")
    (text,) = gate.warnings
    assert "kp of FL_thigh_joint is 35, of FR_thigh_joint 25" in text
    assert open_policy(tmp_path / "a.onnx").report["warnings"] == [text]
