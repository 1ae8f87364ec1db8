"""Figures of made-up motions, against hand numbers."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from sim2sim.evaluate import RunResult, judge
from sim2sim.metrics import RunMetrics, Thresholds, fallen, run_metrics, summarize_segments
from sim2sim.probe import Truth
from sim2sim.scenarios import Scenario, Segment

NAMES = ("lin_vel_x", "lin_vel_y", "ang_vel_z")
JOINTS = ("a", "b")


def _scenario(*segments: Segment) -> Scenario:
    return Scenario(
        kind="nominal", seed=0, index=0, segments=segments, start=None, disturbance=None
    )


def _truth(seconds: float, period: float = 0.02) -> Truth:
    """A robot that stands still, upright, at rest."""
    rows = round(seconds / period) + 1
    return Truth(
        time=period * np.arange(rows, dtype=np.float64),
        base_pos_w=np.zeros((rows, 3)),
        velocity=np.zeros((rows, 3)),
        tilt=np.zeros(rows),
        com_height=np.full(rows, 0.3),
        qpos=np.zeros((rows, 9)),
        efforts=np.zeros((rows, 2)),
        saturation=np.zeros((rows, 2)),
        contacts=np.zeros((rows, 0), dtype=np.bool_),
        bodies=(),
    )


def _metrics(scenario: Scenario, truth: Truth, actions: np.ndarray | None = None) -> RunMetrics:
    if actions is None:
        actions = np.zeros((len(truth.time) - 1, 2), dtype=np.float32)
    return run_metrics(scenario, NAMES, JOINTS, truth, actions)


def test_the_first_second_of_a_segment_is_left_out() -> None:
    scenario = _scenario(
        Segment(name="one", duration=2.0, command=(0.5, 0.0, 0.0)),
        Segment(name="two", duration=3.0, command=(0.0, 0.3, -0.4)),
    )
    truth = _truth(5.0)
    truth.velocity[(truth.time >= 0.99) & (truth.time < 2.01), 0] = 0.4
    truth.velocity[truth.time < 0.99, 0] = 9.0
    truth.velocity[(truth.time > 2.01) & (truth.time < 2.99)] = 9.0
    truth.velocity[truth.time >= 2.99] = (0.03, 0.34, -0.5)
    one, two = _metrics(scenario, truth).segments
    assert one.velocity == pytest.approx((0.4, 0.0, 0.0))
    assert one.lin_vel_error == pytest.approx(0.1)
    assert two.lin_vel_error == pytest.approx(0.05)  # 3-4-5
    assert two.ang_vel_error == pytest.approx(0.1)
    assert (one.lin_vel_rmse, two.ang_vel_rmse) == pytest.approx((0.1, 0.1))


def test_swinging_around_the_command_is_no_error_of_the_mean() -> None:
    truth = _truth(3.0)
    inside = truth.time >= 0.99
    truth.velocity[:, 2] = 0.2 * np.where(np.arange(len(truth.time)) % 2, 1.0, -1.0)
    (segment,) = _metrics(
        _scenario(Segment(name="one", duration=3.0, command=(0.0, 0.0, 0.0))), truth
    ).segments
    assert segment.ang_vel_error == pytest.approx(0.2 / inside.sum())  # one sample more of one sign
    assert segment.ang_vel_rmse == pytest.approx(0.2)


def test_drift_is_the_distance_between_first_and_last_place() -> None:
    truth = _truth(3.0)
    truth.base_pos_w[:, 0] = 0.3 * np.minimum(truth.time - 1.0, 1.0)
    truth.base_pos_w[:, 1] = 0.2 * (truth.time - 1.0)
    scenario = _scenario(Segment(name="stop", duration=3.0, command=(0.0, 0.0, 0.0)))
    (segment,) = _metrics(scenario, truth).segments
    assert segment.drift == pytest.approx(0.5)  # 0.3 forward, 0.4 sideways


def test_a_segment_that_was_not_finished_has_no_figures() -> None:
    scenario = _scenario(
        Segment(name="one", duration=2.0, command=(0.0, 0.0, 0.0)),
        Segment(name="two", duration=2.0, command=(0.0, 0.0, 0.0)),
    )
    metrics = _metrics(scenario, _truth(3.5))
    assert [segment.name for segment in metrics.segments] == ["one"]
    assert metrics.duration == pytest.approx(3.5)


def test_commands_are_found_by_name() -> None:
    scenario = _scenario(Segment(name="one", duration=2.0, command=(0.7, -0.2)))
    metrics = run_metrics(
        scenario, ("ang_vel_z", "lin_vel_x"), JOINTS, _truth(2.0), np.zeros((100, 1), np.float32)
    )
    assert metrics.segments[0].command == (-0.2, 0.0, 0.7)


@pytest.mark.parametrize(
    ("tilt", "height", "fell"),
    [
        (59.0, 0.3, ""),
        (61.0, 0.3, "tilt 61 deg"),
        (0.0, 0.166, ""),
        (0.0, 0.164, "centre of mass at 0.16 m, 0.30 m at the start"),
    ],
)
def test_falls(tilt: float, height: float, fell: str) -> None:
    assert fallen(math.radians(tilt), height, 0.3) == fell
    truth = _truth(2.0)
    truth.tilt[50], truth.com_height[50] = math.radians(tilt), height
    scenario = _scenario(Segment(name="one", duration=2.0, command=(0.0, 0.0, 0.0)))
    assert _metrics(scenario, truth).fell == fell


def test_saturation_and_action_rate() -> None:
    truth = _truth(2.0)
    truth.saturation[1:51, 1] = 1.0  # one joint of two, half of the time
    actions = np.zeros((100, 2), dtype=np.float32)
    actions[1::2, 0] = 0.1  # one element of two moves by 0.1 every 20 ms
    scenario = _scenario(Segment(name="one", duration=2.0, command=(0.0, 0.0, 0.0)))
    metrics = _metrics(scenario, truth, actions)
    assert metrics.saturation == pytest.approx(0.25)
    assert metrics.saturated_joint == "b"
    assert metrics.action_rate == pytest.approx(2.5)


def _result(kind: str, index: int, failure: str = "", error: float = 0.0) -> RunResult:
    truth = _truth(2.0)
    truth.velocity[:, 0] = 0.5 + error
    scenario = _scenario(Segment(name="one", duration=2.0, command=(0.5, 0.0, 0.0)))
    scenario = dataclasses.replace(scenario, kind=kind, index=index)
    return RunResult(
        scenario=scenario,
        metrics=_metrics(scenario, truth),
        failure=failure,
        faults={},
        trajectory=None,
    )


def test_segments_are_judged_by_their_mean_over_nominal_runs() -> None:
    results = [_result("nominal", i, error=e) for i, e in enumerate((0.2, -0.1))]
    results.append(_result("disturbed", 0, error=5.0))
    (segment,) = judge(results, Thresholds()).segments
    assert segment.lin_vel_error == pytest.approx(0.05)
    assert segment.worst_lin_vel_error == pytest.approx(0.2)
    assert segment.runs == 2
    assert judge(results, Thresholds()).passed
    assert not judge(results, Thresholds(lin_vel_error=0.04)).passed


def test_falls_are_judged_apart() -> None:
    good = [_result("nominal", i) for i in range(19)]
    rough = [_result("disturbed", i) for i in range(19)]
    assert judge(good + rough, Thresholds()).passed
    assert judge([*good, *rough, _result("disturbed", 19, "fell")], Thresholds()).passed
    two = [_result("disturbed", i, "fell") for i in (19, 20)]
    assert not judge([*good, *rough, *two], Thresholds()).passed
    assert not judge([*good, _result("nominal", 19, "fell"), *rough], Thresholds()).passed


def test_nothing_that_came_through_is_no_pass() -> None:
    result = _result("nominal", 0, failure="fell: tilt 61 deg")
    cut = dataclasses.replace(result, metrics=dataclasses.replace(result.metrics, segments=()))
    verdict = judge([cut], Thresholds())
    assert verdict.segments == ()
    assert not verdict.passed
    assert summarize_segments([]) == ()
