"""One policy path, three ways: NumPy, torch, and a slow obvious reference, on random states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from robot_runtime.policy.actuator import Actuator
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.labels import observation_labels
from robot_runtime.policy.observation import ObservationBuilder
from robot_runtime.policy.pipeline import PolicyPipeline
from robot_runtime.policy.spec import ActuatorSpec
from robot_runtime.policy.state import AsArray, PolicyInputs, RobotState, as_float32
from tests.helpers.contracts import quadruped_contract, rich_contract
from tests.helpers.reference import ReferencePolicy
from tests.helpers.states import random_state, robot_state

EPISODES, STEPS = 50, 20

# float32 keeps 24 bits: a rounding of the inputs and a handful of operations stay below these,
# which are far below what any wrong sign, order or scale would do.
OBSERVATION_TOLERANCE = 1e-6
EFFORT_TOLERANCE = 2e-6


def as_tensor(values: NDArray[Any]) -> torch.Tensor:
    return torch.as_tensor(np.asarray(values), dtype=torch.float32)


def single(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same numbers as float32 holds them."""
    return values.astype(np.float32).astype(np.float64)


def native_contract() -> PolicyContract:
    return quadruped_contract(
        actuator=ActuatorSpec(form="native", damping="joint", delay=0.0, target_filter=1.0)
    )


@pytest.mark.parametrize("make", [quadruped_contract, rich_contract, native_contract])
@pytest.mark.parametrize("asarray", [as_float32, as_tensor], ids=["numpy", "torch"])
def test_a_thousand_states_against_the_reference(
    make: Callable[[], PolicyContract], asarray: AsArray
) -> None:
    contract = make()
    rng = np.random.default_rng(7)
    labels = observation_labels(contract)
    assert len(labels) == contract.observation_dim
    kp, limit = contract.joint_array("kp"), contract.joint_array("effort_limit")
    for _ in range(EPISODES):
        reference = ReferencePolicy(contract)
        actuator = Actuator(contract, asarray)
        raw = np.zeros(contract.num_actions)
        pipeline = PolicyPipeline(contract, lambda _: asarray(raw), asarray)  # noqa: B023
        begin = rng.uniform(0.0, 5.0)
        for k in range(STEPS):
            # The reference sees the float32 state that the policy sees.
            state = {n: single(v) for n, v in random_state(rng, 12).items()}
            asked = single(rng.uniform(-2.0, 2.0, size=3) * rng.choice([0.02, 1.0]))
            raw = single(rng.normal(size=contract.num_actions) * 4.0)
            elapsed = begin + k * contract.timing.control_dt
            step = pipeline.step(robot_state(state), asked, elapsed)
            expected = reference.observe(state, asked, elapsed)
            error = np.abs(np.asarray(step.observation) - expected)
            bad = error > OBSERVATION_TOLERANCE * np.maximum(1.0, np.abs(expected))
            assert not bad.any(), labels[int(np.argmax(bad))]
            targets = reference.act(raw, state["joint_pos"])
            actuator.set_target(step.targets)
            efforts = reference.efforts(targets, state["joint_pos"], state["joint_vel"])
            position, velocity = asarray(state["joint_pos"]), asarray(state["joint_vel"])
            scale = np.maximum(limit, kp * np.abs(targets["position"] - state["joint_pos"]))
            for expected_effort in efforts:
                effort = np.asarray(actuator.step(position, velocity))
                assert (np.abs(effort - expected_effort) <= EFFORT_TOLERANCE * scale).all()


@pytest.mark.parametrize("make", [quadruped_contract, rich_contract])
def test_a_batch_is_many_robots_one_by_one(make: Callable[[], PolicyContract]) -> None:
    """The trainer's batched builder and the robot's single one, with resets in between."""
    contract = make()
    rng = np.random.default_rng(3)
    robots = 5
    batch = ObservationBuilder(contract, as_tensor, (robots,))
    singles = [ObservationBuilder(contract) for _ in range(robots)]
    for k in range(12):
        rows = rng.random(robots) < 0.3
        batch.reset(torch.from_numpy(rows))
        for single, again in zip(singles, rows, strict=True):
            if again:
                single.reset()
        states = [random_state(rng, 12) for _ in range(robots)]
        command = rng.normal(size=(robots, 3))
        raw, applied = rng.normal(size=(2, robots, contract.num_actions))
        stacked = {n: as_tensor(np.stack([s[n] for s in states])) for n in states[0]}
        elapsed = rng.uniform(0, 3, size=robots)
        observation = batch.compute(
            PolicyInputs(
                state=RobotState(time=k * 0.02, **stacked),
                command=as_tensor(command),
                raw_action=as_tensor(raw),
                applied_action=as_tensor(applied),
                elapsed=torch.from_numpy(elapsed),
            )
        )
        batch.commit()
        for i, single in enumerate(singles):
            own = {n: as_float32(v) for n, v in states[i].items()}
            alone = single.compute(
                PolicyInputs(
                    state=RobotState(time=k * 0.02, **own),
                    command=as_float32(command[i]),
                    raw_action=as_float32(raw[i]),
                    applied_action=as_float32(applied[i]),
                    elapsed=elapsed[i],
                )
            )
            single.commit()
            # Same operations on the same float32 inputs; libraries may fuse them differently.
            np.testing.assert_allclose(observation[i].numpy(), alone, rtol=1e-6, atol=1e-6)
