"""Learning curves as a figure: PNG, or one HTML page that needs nothing else."""

from __future__ import annotations

import html
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from robot_runtime.errors import BadInput
from robot_runtime.files import atomic_write, check_output
from trainer.curves import RunLog, band, metric_names

SHOWN = (
    "eval/return",
    "episode/return",
    "rollout/reward",
    "episode/length",
    "error/lin_vel",
    "error/ang_vel",
)
"""Metrics that are drawn unless others are asked for, as far as the runs have them."""

COLORS = ("#3d85e0", "#e0813a", "#2f9e5b", "#d8504d", "#8a63d2", "#7a7a7a")
"""Colours of the groups, in turn; they can be read on white and in print."""

AXIS_LABELS = {
    "iteration": "iteration",
    "env_steps": "environment steps",
    "seconds": "seconds of collecting and learning",
}

_STYLE: Any = {
    "svg.fonttype": "none",
    # Element names that do not change from call to call: the same runs give the same file.
    "svg.hashsalt": "surefoot",
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.xmargin": 0.01,
    "grid.linewidth": 0.5,
    "grid.color": "#dddddd",
    "legend.frameon": False,
}


def chosen_metrics(runs: Sequence[RunLog], asked: Sequence[str]) -> list[str]:
    """Return the metrics to draw.

    Raises:
        BadInput: No run has a metric that was asked for; the message lists those there are.
    """
    known = metric_names(runs)
    for name in asked:
        if name not in known:
            raise BadInput(f"no run has a metric '{name}'; there are: {', '.join(known)}")
    return list(asked) or [name for name in SHOWN if name in known] or known[:6]


def draw(
    groups: Mapping[str, Sequence[RunLog]], metrics: Sequence[str], *, axis: str, smooth: int = 1
) -> Figure:
    """Draw one panel per metric and one curve per group.

    Args:
        groups: Runs by label, see `trainer.curves.grouped`.
        metrics: Names of the metrics.
        axis: One of `trainer.curves.AXES`.
        smooth: Width of a moving average, in logged values.
    """
    with mpl.rc_context(_STYLE):
        columns = min(2, len(metrics))
        rows = math.ceil(len(metrics) / columns)
        figure = Figure(figsize=(4.8 * columns, 0.4 + 2.7 * rows), layout="constrained")
        panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
        for panel in panels[len(metrics) :]:
            panel.remove()
        for panel, metric in zip(panels, metrics, strict=False):
            _panel(panel, groups, metric, axis, smooth)
        handles, labels = _legend(panels[: len(metrics)])
        figure.legend(handles, labels, loc="outside upper left", ncols=1)
        return figure


def check_plot(path: Path) -> None:
    """Refuse a file that a figure cannot be written to, before anything is drawn.

    Raises:
        BadInput: See `robot_runtime.files.check_output`.
    """
    check_output(path, "a plot", ".png", ".html")


def save(figure: Figure, path: Path, *, title: str) -> None:
    """Write a figure, whole or not at all, in the form its suffix says.

    Raises:
        BadInput: The suffix is neither ``.png`` nor ``.html``, or the file cannot be written.
    """
    check_plot(path)
    with mpl.rc_context(_STYLE), atomic_write(path) as temporary:
        if path.suffix.lower() == ".png":
            figure.savefig(temporary, format="png", dpi=150)
        else:
            temporary.write_text(_page(figure, title), encoding="utf-8")


def _panel(
    panel: Axes, groups: Mapping[str, Sequence[RunLog]], metric: str, axis: str, smooth: int
) -> None:
    for i, (label, group) in enumerate(groups.items()):
        found = band(group, metric, axis, smooth=smooth)
        if found is None:
            continue
        color = COLORS[i % len(COLORS)]
        seeds = "1 seed" if found.seeds == 1 else f"{found.seeds} seeds"
        if found.seeds > 1:
            panel.fill_between(found.x, found.low, found.high, color=color, alpha=0.2, lw=0)
        # A single value, of one evaluation say, would be no line.
        marker = "o" if len(found.x) == 1 else None
        panel.plot(
            found.x, found.mean, color=color, lw=1.3, marker=marker, label=f"{label} ({seeds})"
        )
    panel.set_title(metric)
    panel.set_xlabel(AXIS_LABELS[axis])


def _legend(panels: Sequence[Axes]) -> tuple[list[Any], list[str]]:
    """One entry per group, whichever panels it is in."""
    found: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)


def _page(figure: Figure, title: str) -> str:
    text = io.StringIO()
    # Without the date the same runs give the same page.
    figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title>"
        "<style>body{margin:1.5rem auto;max-width:62rem;padding:0 1rem;background:#fff;"
        "font-family:system-ui,sans-serif}svg{width:100%;height:auto}</style></head>"
        f"<body><h1>{html.escape(title)}</h1>\n{svg}\n"
        "<p>Lines are means over the seeds, bands reach from the lowest seed to the highest.</p>"
        "</body></html>\n"
    )
