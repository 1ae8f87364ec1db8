"""The golden trace: what it notices, and that it survives bytes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from robot_runtime.errors import BadInput
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.extremes import extreme_inputs, join, synthesize
from robot_runtime.policy.proof import TraceMismatch, replay, roll
from robot_runtime.policy.trace import GoldenTrace
from tests.helpers.contracts import edited, quadruped_contract, rich_contract


class Linear:
    """A network of one random layer."""

    def __init__(self, contract: PolicyContract, seed: int = 0) -> None:
        shape = (contract.observation_dim, contract.num_actions)
        self.weights = (0.1 * np.random.default_rng(seed).normal(size=shape)).astype(np.float32)

    def __call__(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(observation @ self.weights, np.float32)


@pytest.fixture(scope="module")
def contract() -> PolicyContract:
    return rich_contract()


@pytest.fixture(scope="module")
def trace(contract: PolicyContract) -> GoldenTrace:
    return synthesize(contract, Linear(contract))


def test_a_trace_replays_through_bytes(contract: PolicyContract, trace: GoldenTrace) -> None:
    again = GoldenTrace.from_bytes(trace.to_bytes())
    report = replay(contract, again, Linear(contract))
    assert (report.observation, report.action, report.target, report.effort) == (0, 0, 0, 0)
    assert report.rows == trace.rows
    assert again.to_bytes() == trace.to_bytes()
    assert again.origin == "synthesized"


def test_a_trace_from_torch_replays_on_numpy(contract: PolicyContract) -> None:
    network = Linear(contract)
    weights = torch.from_numpy(network.weights)

    def as_tensor(values: NDArray[Any]) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values), dtype=torch.float32)

    inputs = extreme_inputs(contract)
    inputs.raw_action[5] = np.nan  # a row in which the network itself acts
    recorded = roll(contract, inputs, lambda o: o @ weights, origin="recorded", asarray=as_tensor)
    assert np.isfinite(recorded.inputs.raw_action).all()
    np.testing.assert_array_equal(recorded.inputs.raw_action[5], recorded.network_action[5])
    assert replay(contract, recorded, network).effort < 1e-6


def test_other_weights_differ_at_the_second_boundary(
    contract: PolicyContract, trace: GoldenTrace
) -> None:
    with pytest.raises(TraceMismatch, match=r"boundary B .*action of FL_hip_joint, row 0"):
        replay(contract, trace, Linear(contract, seed=1))


def test_a_network_with_nan_is_refused(contract: PolicyContract, trace: GoldenTrace) -> None:
    broken = Linear(contract)
    broken.weights[0, 3] = np.nan
    with pytest.raises(TraceMismatch, match=r"boundary B .*FR_hip_joint"):
        replay(contract, trace, broken)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("observation.0.terms.0.scale", [0.26], r"boundary A .*gyro\[x\]"),
        ("observation.0.history.order", "newest_first", "boundary A .*gyro"),
        ("action.terms.0.scale.3", 0.26, "boundary C .*position target of FR_hip_joint"),
        ("joints.4.kp", 24.1, "boundary C .*effort of FR_thigh_joint"),
        ("timing.control_dt", 0.04, "joint_effort has shape"),
        ("joints.4.name", "FR_knee", "joints are others than the contract's"),
    ],
)
def test_a_changed_contract_is_named_where_it_differs(
    contract: PolicyContract, trace: GoldenTrace, path: str, value: Any, message: str
) -> None:
    changes = {path: value}
    if path == "joints.4.name":
        changes["action.terms.0.joints.4"] = value
    with pytest.raises(TraceMismatch, match=message):
        replay(edited(contract, changes), trace, Linear(contract))


def test_a_record_of_another_period_is_refused() -> None:
    contract = quadruped_contract()
    trace = synthesize(contract, Linear(contract))
    slower = edited(
        contract, {"timing": {"control_dt": 0.024, "pd_dt": 0.006, "physics_dt": 0.006}}
    )
    with pytest.raises(TraceMismatch, match=r"recorded every 0.02 s.*control_dt is 0.024 s"):
        replay(slower, trace, Linear(contract))


def test_extremes_pass_every_bound(contract: PolicyContract) -> None:
    inputs = extreme_inputs(contract)
    trace = synthesize(contract, Linear(contract))
    assert (np.abs(inputs.base_ang_vel_b) > 4.0).any()
    assert (inputs.raw_action < -3.0).any()
    assert (inputs.raw_action > 3.5).any()
    limit = contract.joint_array("effort_limit")
    full = np.isclose(np.abs(trace.joint_effort), limit)
    # The held joint's target is off the default, the direct joint has no spring of its own to
    # speak of: every joint saturates somewhere and is free somewhere.
    assert full.any(axis=(0, 1)).all()
    assert (~full).any(axis=(0, 1)).all()


def test_rows_of_two_sources_are_joined() -> None:
    contract = quadruped_contract()
    first, second = extreme_inputs(contract, 0), extreme_inputs(contract, 1)
    both = roll(contract, join(first, second), Linear(contract), origin="recorded")
    alone = roll(contract, second, Linear(contract), origin="recorded")
    np.testing.assert_array_equal(both.observation[len(first.start) :], alone.observation)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("start", None, "start is missing"),
        ("observation", lambda a: a.astype(np.float64), "observation is float64"),
        ("joint_pos", lambda a: a[:-1], "joint_pos is float32 of shape"),
        ("joint_vel", lambda a: a * np.nan, "joint_vel is not finite"),
        ("start", lambda a: a[:, None], r"start is bool of shape \(\d+, 1\)"),
        ("elapsed", lambda a: a[:, None], "elapsed is float64 of shape"),
        ("meta", lambda a: a[:-3], "names cannot be read"),
        ("meta", lambda a: np.full(a.shape, np.nan), "meta is float64 of shape .* expected bytes"),
    ],
)
def test_a_spoiled_record_is_refused_by_name(
    trace: GoldenTrace, name: str, change: Any, message: str
) -> None:
    arrays = trace.to_arrays()
    if change is None:
        del arrays[name]
    else:
        arrays[name] = change(arrays[name])
    with pytest.raises(BadInput, match=message):
        GoldenTrace.from_arrays(arrays)


def test_bytes_that_are_no_record_are_refused(trace: GoldenTrace) -> None:
    data = trace.to_bytes()
    for cut in (0, 10, len(data) // 2, len(data) - 1):
        with pytest.raises(BadInput, match="golden trace"):
            GoldenTrace.from_bytes(data[:cut])


def test_a_record_with_other_widths_is_refused(
    contract: PolicyContract, trace: GoldenTrace
) -> None:
    short = dataclasses.replace(trace, observation=trace.observation[:, :-1])
    with pytest.raises(TraceMismatch, match="observation has shape"):
        replay(contract, short, Linear(contract))
