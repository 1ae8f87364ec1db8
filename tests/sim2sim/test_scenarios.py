"""What is drawn lies within its bounds and depends on (seed, kind, index) alone."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from robot_runtime.policy.command import clip_command
from robot_runtime.policy.spec import CommandChannel
from sim2sim.scenarios import (
    command_scenario,
    disturbed_scenario,
    nominal_scenario,
    nominal_schedule,
)
from tests.helpers.contracts import quadruped_contract


def _channel(name: str, lower: float, upper: float) -> CommandChannel:
    return CommandChannel(name=name, lower=lower, upper=upper, max_rate=None)


def test_nominal_schedule() -> None:
    segments, notes = nominal_schedule(quadruped_contract())
    assert [(s.name, s.duration, s.command) for s in segments] == [
        ("stand", 2.0, (0.0, 0.0, 0.0)),
        ("forward", 4.0, (0.5, 0.0, 0.0)),
        ("sideways", 4.0, (0.0, 0.3, 0.0)),
        ("turn", 4.0, (0.0, 0.0, 0.8)),
        ("stop", 2.0, (0.0, 0.0, 0.0)),
    ]
    assert notes == []


def test_schedule_follows_names_ranges_and_order_of_the_contract() -> None:
    commands = (
        _channel("ang_vel_z", -0.2, 0.2),
        _channel("height", 0.3, 0.4),
        _channel("lin_vel_x", -0.5, 1.0),
    )
    segments, notes = nominal_schedule(quadruped_contract(commands=commands, observation=_blind()))
    assert [s.name for s in segments] == ["stand", "forward", "turn", "stop"]
    assert segments[1].command == (0.0, 0.3, 0.5)
    assert segments[2].command == (0.2, 0.3, 0.0)
    assert any("'sideways' is left out" in n and "lin_vel_y" in n for n in notes)
    assert any("'turn': ang_vel_z 0.8 is clipped to 0.2" in n for n in notes)


def _blind():  # noqa: ANN202
    """The observation without the command, which has other channels here."""
    (block,) = quadruped_contract().observation
    terms = tuple(term for term in block.terms if term.source != "command")
    return (dataclasses.replace(block, terms=terms),)


def test_a_draw_depends_on_seed_kind_and_index_alone() -> None:
    contract = quadruped_contract()
    alone = nominal_scenario(contract, 7, 3)
    among = [nominal_scenario(contract, 7, i) for i in range(5)]
    assert among[3] == alone
    drawn = [
        alone,
        nominal_scenario(contract, 7, 4),
        nominal_scenario(contract, 8, 3),
        disturbed_scenario(contract, 7, 3),
    ]
    starts = [scenario.start for scenario in drawn]
    assert len({start.yaw for start in starts if start is not None}) == 4
    assert disturbed_scenario(contract, 7, 3) == drawn[3]


def test_draws_fill_their_bounds() -> None:
    contract = quadruped_contract()
    runs = [disturbed_scenario(contract, 0, i) for i in range(300)]
    starts = [run.start for run in runs if run.start is not None]
    draws = [run.disturbance for run in runs if run.disturbance is not None]
    assert len(starts) == len(draws) == 300

    def fills(values: object, low: float, high: float) -> None:
        array = np.ravel(np.array(values))
        reach = 0.05 * (high - low)
        assert low <= array.min() < low + reach
        assert high - reach < array.max() <= high

    fills([s.yaw for s in starts], -math.pi, math.pi)
    fills([s.joint_offsets for s in starts], -0.1, 0.1)
    fills([math.hypot(*s.base_velocity) for s in starts], 0.0, 0.2)
    fills([d.friction for d in draws], 0.4, 1.2)
    fills([d.payload for d in draws], -1.0, 1.5)
    fills([d.strength for d in draws], 0.85, 1.15)
    fills([d.latency for d in draws], 0.0, 0.02)
    for draw, run in zip(draws, runs, strict=True):
        times = [push.time for push in draw.pushes]
        assert len(times) == 4
        assert times == sorted(times)
        assert times[0] > 0.0
        assert times[-1] < run.duration
        for push in draw.pushes:
            assert math.isclose(math.hypot(*push.velocity), 0.5)
    angles = [math.atan2(*push.velocity) for draw in draws for push in draw.pushes]
    assert abs(np.mean(np.exp(1j * np.array(angles)))) < 0.1, "pushes come from everywhere"


def test_constant_command_is_clipped_and_said() -> None:
    scenario, notes = command_scenario(quadruped_contract(), np.array([0.5, 0.0, -3.0]), 12.0)
    assert scenario.start is None
    assert scenario.disturbance is None
    assert scenario.duration == 12.0
    assert scenario.segments[0].command == (0.5, 0.0, -1.0)
    assert notes == ["ang_vel_z -3 is clipped to -1, the contract's range is -1..1"]
    assert clip_command(quadruped_contract(), np.zeros(3)) == ((0.0, 0.0, 0.0), [])
