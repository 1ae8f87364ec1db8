"""Delayed targets of many rows behave like those of one robot's actuator, row by row."""

import dataclasses

import numpy as np
import pytest
import torch

from robot_runtime.policy.actuator import Actuator
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.state import JointTargets
from tests.helpers.contracts import quadruped_contract, rich_contract
from trainer.envs.targets import TargetQueue

DELAYS = (0, 1, 3, 4, 5, 8)
STEPS = 12


def _targets(contract: PolicyContract, generator: torch.Generator) -> JointTargets:
    def draw() -> torch.Tensor:
        return torch.rand(len(DELAYS), len(contract.joints), generator=generator)

    return JointTargets(position=draw(), velocity=draw(), effort=draw())


def _row(targets: JointTargets, row: int) -> JointTargets:
    return JointTargets(
        position=targets.position[row], velocity=targets.velocity[row], effort=targets.effort[row]
    )


@pytest.mark.parametrize("longest", [8, 4, 0])
@pytest.mark.parametrize("target_filter", [1.0, 0.6])
def test_queue_equals_one_actuator_per_row(target_filter: float, longest: int) -> None:
    """Delays of up to two policy steps, of one, and none: the queue keeps no more than needed."""
    contract = rich_contract()
    assert contract.decimation == 4
    delays = [min(delay, longest) for delay in DELAYS]
    queue = TargetQueue(
        dataclasses.replace(
            contract,
            actuator=dataclasses.replace(contract.actuator, target_filter=target_filter),
        ),
        len(DELAYS),
        longest,
    )
    queue.delay = torch.tensor(delays)
    actuators = [
        Actuator(
            dataclasses.replace(
                contract,
                actuator=dataclasses.replace(
                    contract.actuator,
                    delay=delay * contract.timing.pd_dt,
                    target_filter=target_filter,
                ),
            ),
            lambda x: torch.as_tensor(x, dtype=torch.float32),
        )
        for delay in delays
    ]
    generator = torch.Generator().manual_seed(0)
    for step in range(STEPS):
        if step == 5:
            # Two rows begin a new episode: their next target has always been there.
            again = np.array([1, 4])
            queue.restart(again, np.array(delays)[again])
            actuators[1].reset()
            actuators[4].reset()
        targets = _targets(contract, generator)
        queue.push(targets)
        for row, actuator in enumerate(actuators):
            actuator.set_target(_row(targets, row))
        for pd_step in range(contract.decimation):
            got = queue.at(pd_step)
            for row, actuator in enumerate(actuators):
                want = actuator.next_targets()
                for kind in ("position", "velocity", "effort"):
                    torch.testing.assert_close(
                        getattr(got, kind)[row], getattr(want, kind), rtol=0.0, atol=0.0
                    )


def test_state_continues_exactly_and_foreign_states_are_refused() -> None:
    contract = rich_contract()
    generator = torch.Generator().manual_seed(1)
    first = TargetQueue(contract, len(DELAYS), max(DELAYS))
    first.delay = torch.tensor(DELAYS)
    for _ in range(3):
        first.push(_targets(contract, generator))
        for pd_step in range(contract.decimation):
            first.at(pd_step)
    second = TargetQueue(contract, len(DELAYS), max(DELAYS))
    second.load_state_dict(first.state_dict())
    targets = _targets(contract, generator)
    first.push(targets)
    second.push(targets)
    for pd_step in range(contract.decimation):
        assert torch.equal(first.at(pd_step).position, second.at(pd_step).position)
    with pytest.raises(ValueError, match="past"):
        TargetQueue(contract, 2, max(DELAYS)).load_state_dict(first.state_dict())
    state = first.state_dict()
    del state["delay"]
    with pytest.raises(ValueError, match="delay"):
        second.load_state_dict(state)


def test_what_no_action_drives_keeps_its_rest() -> None:
    contract = quadruped_contract()
    queue = TargetQueue(contract, 2, 0)
    zeros = torch.zeros(2, len(contract.joints))
    queue.push(JointTargets(position=zeros + 1.0, velocity=zeros, effort=zeros + 0.5))
    assert torch.equal(queue.at(0).effort, zeros + 0.5)
    assert torch.equal(queue.at(0).position, zeros + 1.0)
    np.testing.assert_array_equal(queue.at(0).velocity.numpy(), 0.0)
