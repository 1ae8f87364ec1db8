"""The shipped loop through whole scenarios: standing, falling, being pushed, and twice the same."""

from __future__ import annotations

import dataclasses
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_runtime.policy.file import open_policy
from sim2sim.evaluate import Job, RunResult, run_scenario, run_scenarios
from sim2sim.metrics import TRANSIENT, summarize_segments
from sim2sim.model import SimModel, build_model, find_model
from sim2sim.probe import Truth
from sim2sim.scenarios import Scenario, Segment, disturbed_scenario, nominal_scenario
from tests.helpers.contracts import joint_names, make_joint
from tests.sim2sim.conftest import standing_contract, write_still_policy


def _short(scenario: Scenario) -> Scenario:
    """Two seconds of standing, and everything else that was drawn."""
    return dataclasses.replace(
        scenario, segments=(Segment(name="stand", duration=2.0, command=(0.0, 0.0, 0.0)),)
    )


def _sim(path: Path) -> SimModel:
    contract = open_policy(path, replay=False).contract
    return build_model(contract, find_model(contract, None))


def test_a_standing_robot_stands(still_policy: Path) -> None:
    policy, sim = open_policy(still_policy), _sim(still_policy)
    scenario = _short(nominal_scenario(sim.contract, 0, 0))
    result = run_scenario(policy, sim, scenario, keep=True)
    assert result.failure == ""
    assert result.faults == {}
    assert result.metrics.duration == pytest.approx(2.0)
    (segment,) = result.metrics.segments
    assert segment.lin_vel_error < 0.02
    assert segment.drift < 0.02
    assert result.metrics.action_rate == 0.0
    run = result.trajectory
    assert run is not None
    assert run.truth.time == pytest.approx(0.02 * np.arange(101))
    assert run.command.shape == (100, 3)
    # Four calves hold the feet, and nothing else touches the floor.
    assert run.truth.bodies == ("FL_calf", "FR_calf", "RL_calf", "RR_calf")
    assert run.truth.contacts[50:].all()
    # Physics: the joints carry the weight, within what the motors give.
    assert 1.0 < np.abs(run.truth.efforts[50:]).max() < 24.0


def test_a_robot_that_cannot_stand_fails_by_name(tmp_path: Path) -> None:
    weak = tuple(make_joint(name, kp=80.0, kd=1.5, effort_limit=1.0) for name in joint_names())
    path = write_still_policy(tmp_path / "weak.onnx", standing_contract(joints=weak))
    scenario = _short(nominal_scenario(standing_contract(), 0, 0))
    result = run_scenario(open_policy(path), _sim(path), scenario)
    assert "fell: " in result.failure
    assert result.metrics.duration < 1.5
    assert result.metrics.saturation > 0.3
    assert result.metrics.saturated_joint in joint_names()
    assert result.metrics.segments == ()
    assert result.trajectory is None


def test_disturbances_reach_the_robot(still_policy: Path) -> None:
    policy, sim = open_policy(still_policy), _sim(still_policy)
    calm = _short(nominal_scenario(sim.contract, 0, 0))
    drawn = disturbed_scenario(sim.contract, 0, 0).disturbance
    assert drawn is not None
    none = dataclasses.replace(drawn, payload=0.0, latency=0.0, strength=(1.0,) * 12, pushes=())

    def truth(**changes: Any) -> Truth:
        only = dataclasses.replace(none, **changes)
        scenario = dataclasses.replace(calm, kind="disturbed", disturbance=only)
        result = run_scenario(policy, sim, scenario, keep=True)
        assert result.trajectory is not None
        return result.trajectory.truth

    usual, loaded, weak = truth(), truth(payload=3.0), truth(strength=(0.7,) * 12)
    # 3 kg more bend joints of 80 Nm/rad by some millimetres, and so do joints of 56 Nm/rad.
    for other in (loaded, weak):
        assert 0.002 < usual.base_pos_w[-1, 2] - other.base_pos_w[-1, 2] < 0.05
    # The command of the first tick arrives one tick later, and until then the motors are limp.
    late = truth(latency=0.02)
    assert np.abs(usual.efforts[1]).max() > 0.1
    assert not late.efforts[1].any()
    assert np.abs(late.efforts[2]).max() > 0.1


def _figures(results: list[RunResult]) -> list[object]:
    return [(result.scenario, result.metrics, result.failure) for result in results]


def test_results_do_not_depend_on_the_number_of_workers(still_policy: Path) -> None:
    contract = standing_contract()
    scenarios = [_short(nominal_scenario(contract, 3, i)) for i in range(2)]
    scenarios += [_short(disturbed_scenario(contract, 3, i)) for i in range(2)]
    job = Job(policy=still_policy, scene=None, physics_dt=None)
    seen: list[RunResult] = []
    alone = run_scenarios(job, scenarios, workers=1, keep=lambda s: s.index == 1, done=seen.append)
    assert seen == alone
    assert [result.trajectory is not None for result in alone] == [False, True, False, True]
    assert _figures(run_scenarios(job, scenarios, workers=2)) == _figures(alone)
    # One scenario by itself is what it was among others.
    assert _figures(run_scenarios(job, scenarios[2:3])) == _figures(alone[2:3])


def test_an_interrupt_between_two_results_ends_the_processes(still_policy: Path) -> None:
    """While whoever is told of results is busy, nobody waits for one."""
    contract = standing_contract()
    scenarios = [nominal_scenario(contract, 3, i) for i in range(500)]
    job = Job(policy=still_policy, scene=None, physics_dt=None)

    def interrupted(_: RunResult) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        # With trajectories, so that a result is more than a pipe takes that nobody reads.
        run_scenarios(job, scenarios, workers=2, keep=lambda _: True, done=interrupted)
    # The traceback still holds the frames, and with them whatever only garbage collection ends.
    assert caught.tb is not None
    assert multiprocessing.active_children() == []


def test_a_robot_that_drifts_at_zero_command_shows_it(still_policy: Path) -> None:
    """It slides down a slippery plane: by a t^2 / 2, whatever its legs do."""
    policy, sim = open_policy(still_policy), _sim(still_policy)
    friction, pull = 0.05, 0.9
    # The pull is the part of gravity along the plane.
    sim.mj.geom_friction[:, 0] = friction
    sim.mj.opt.gravity[0] = pull
    acceleration = pull + friction * sim.mj.opt.gravity[2]
    runs = []
    for duration in (2.0, 3.0):
        segments = (Segment(name="stop", duration=duration, command=(0.0, 0.0, 0.0)),)
        scenario = Scenario(
            kind="command", seed=0, index=0, segments=segments, start=None, disturbance=None
        )
        result = run_scenario(policy, sim, scenario)
        assert result.failure == ""
        (segment,) = result.metrics.segments
        # Judged after the first second. While it lands there is less weight on its feet, and less
        # friction: it is a few hundredths of a metre per second faster.
        expected = 0.5 * acceleration * (duration**2 - TRANSIENT**2)
        assert segment.drift == pytest.approx(expected, rel=0.1)
        assert segment.lin_vel_error == pytest.approx(expected / (duration - TRANSIENT), rel=0.1)
        runs.append(result.metrics)
    (summary,) = summarize_segments(runs)
    assert summary.drift == pytest.approx(np.mean([run.segments[0].drift for run in runs]))
