"""Learning curves: runs that differ in their seed alone belong together, as one band."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from robot_runtime.errors import BadInput
from trainer.loggers import flat_settings
from trainer.metrics import METRICS_FILE, read_metrics

AXES = {
    "iteration": "iteration",
    "env_steps": "progress/env_steps",
    "seconds": "",
}
"""What a curve can be drawn over, and the metric it is. Seconds add up collecting and learning."""

NOT_COMPARED = frozenset(
    {"seed", "iterations", "checkpoint_every", "sim_threads", "torch_threads", "loggers"}
)
"""Settings in which runs of one group may differ: they change nothing that is learned, but for
the seed, over which the band is taken, and the length."""

_POINTS = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLog:
    """What a run folder tells.

    Attributes:
        name: Name of the folder.
        settings: Settings by their dotted names, `task` among them.
        rows: Metrics, one row per iteration, oldest first.
    """

    name: str
    settings: dict[str, Any]
    rows: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """One metric of several seeds on common places.

    Attributes:
        x: Where, ascending, shape ``(n,)``.
        mean: Mean over the seeds, shape ``(n,)``.
        low: Lowest seed, shape ``(n,)``.
        high: Highest seed, shape ``(n,)``.
        seeds: How many there are.
    """

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    seeds: int


def read_run(folder: Path) -> RunLog:
    """Read a run folder.

    Raises:
        BadInput: It is no run folder, or nothing is logged yet.
    """
    config = folder / "config.json"
    if not config.is_file():
        raise BadInput(f"'{folder}' is no run folder: it has no config.json")
    try:
        plain = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"cannot read '{config}': {str(error)[:200]}") from error
    if not isinstance(plain, dict):
        raise BadInput(f"'{config}' is no JSON object")
    settings, rows = flat_settings(cast("dict[str, Any]", plain)), read_metrics(folder)
    if not rows:
        raise BadInput(f"run folder '{folder}' has no finished iteration in {METRICS_FILE}")
    return RunLog(name=folder.resolve().name, settings=settings, rows=rows)


def grouped(runs: Sequence[RunLog]) -> dict[str, list[RunLog]]:
    """Put together what differs in the seed alone.

    Returns:
        Runs by a label: the task and the settings in which the groups differ.
    """
    keyed: dict[str, list[RunLog]] = {}
    for run in runs:
        keyed.setdefault(json.dumps(_compared(run), sort_keys=True, default=str), []).append(run)
    groups = list(keyed.values())
    settings = [_compared(group[0]) for group in groups]
    names = dict.fromkeys(name for one in settings for name in one)
    varied = [
        name for name in names
        if name != "task" and any(one.get(name) != settings[0].get(name) for one in settings)
    ]  # fmt: skip
    labels = [
        ", ".join([str(one.get("task", group[0].name)), *(f"{k} {one.get(k)}" for k in varied)])
        for one, group in zip(settings, groups, strict=True)
    ]
    return dict(zip(labels, groups, strict=True))


def curve(run: RunLog, metric: str, axis: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return where a run has logged a metric, and the values; both of shape ``(n,)``."""
    places = _places(run, axis)
    pairs = [(x, row[metric]) for x, row in zip(places, run.rows, strict=True) if metric in row]
    if not pairs:
        return np.empty(0), np.empty(0)
    x, y = np.array(pairs, dtype=np.float64).T
    return x, y


def smoothed(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Return the mean of each value and at most ``width - 1`` before it, shape ``(n,)``."""
    if width <= 1 or not len(values):
        return values
    total = np.cumsum(values)
    total[width:] -= total[:-width].copy()
    return total / np.minimum(np.arange(1, len(values) + 1), width)


def band(group: Sequence[RunLog], metric: str, axis: str, *, smooth: int = 1) -> Band | None:
    """Bring a metric of several seeds to common places, as far as all of them go.

    Args:
        group: The runs.
        metric: Name of the metric.
        axis: One of `AXES`.
        smooth: Width of a moving average over each curve, in logged values.

    Returns:
        The band; None if no run has the metric.
    """
    curves = [(x, smoothed(y, smooth)) for x, y in (curve(run, metric, axis) for run in group)]
    curves = [(x, y) for x, y in curves if len(x)]
    if not curves:
        return None
    low, high = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    places = np.unique(np.concatenate([x for x, _ in curves]))
    places = places[(places >= low) & (places <= high)]
    if len(places) > _POINTS:
        places = np.linspace(low, high, _POINTS)
    if not len(places):
        return None
    values = np.stack([np.interp(places, x, y) for x, y in curves])
    return Band(
        x=places,
        mean=values.mean(0),
        low=values.min(0),
        high=values.max(0),
        seeds=len(curves),
    )


def metric_names(runs: Sequence[RunLog]) -> list[str]:
    """Return every metric that a run has, sorted."""
    return sorted({name for run in runs for row in run.rows for name in row} - {"iteration"})


def _places(run: RunLog, axis: str) -> list[float]:
    if axis == "seconds":
        spent = [
            row.get("perf/collect_seconds", 0.0) + row.get("perf/learn_seconds", 0.0)
            for row in run.rows
        ]
        return np.cumsum(spent).tolist()
    return [float(row.get(AXES[axis], 0.0)) for row in run.rows]


def _compared(run: RunLog) -> dict[str, Any]:
    return {
        name: value
        for name, value in run.settings.items()
        if name not in NOT_COMPARED and not name.startswith("evaluation.")
    }
