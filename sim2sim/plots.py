"""Figures of a report as inline SVG whose ink follows the page's light or dark colours."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from robot_runtime.policy.contract import PolicyContract
from sim2sim.evaluate import RunResult, Trajectory
from sim2sim.metrics import TRANSIENT, velocity_command
from sim2sim.scenarios import Scenario

INK, FAINT = "#010203", "#040506"
"""Stand-ins for the page's own colours, replaced in the finished SVG."""

BLUE, ORANGE, GREEN, RED = "#3d85e0", "#e0813a", "#2f9e5b", "#d8504d"
"""Colours that can be read on white and on black."""

_STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlesize": 9.0,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.xmargin": 0.01,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "lines.linewidth": 1.3,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.transparent": True,
}

_WIDTH = 9.6
_CONTACT_SHARE = 0.02
"""Share of the time that a body must touch the ground to be shown."""
_CONTACT_WINDOW = 3.0
"""Length of the shown piece of gait, [s]."""


def velocity_figure(runs: Sequence[RunResult], contract: PolicyContract) -> str:
    """Commanded and measured velocities of all runs with a trajectory."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, 5.4), layout="constrained")
        axes = figure.subplots(3, 1, sharex=True)
        labels = ("forward [m/s]", "sideways [m/s]", "turning [rad/s]")
        for i, (ax, label) in enumerate(zip(axes, labels, strict=True)):
            for k, (_, run) in reversed(list(enumerate(_kept(runs)))):
                truth = run.truth
                style = {"lw": 1.4} if k == 0 else {"lw": 0.6, "alpha": 0.45}
                ax.plot(truth.time, truth.velocity[:, i], color=BLUE, **style)
            _, first = _kept(runs)[0]
            commands = [velocity_command(c, contract.command_names)[i] for c in first.command]
            time = first.truth.time[: len(commands)]
            ax.plot(time, commands, color=ORANGE, lw=1.8, ls="--", drawstyle="steps-post")
            ax.set_ylabel(label)
            _shade_transients(ax, runs[0].scenario)
        _name_segments(axes[0], runs[0].scenario)
        axes[-1].set_xlabel("time [s]")
        figure.align_ylabels(axes)
        return _svg(figure, "velocity")


def posture_figure(runs: Sequence[RunResult]) -> str:
    """Height of the centre of mass and tilt of the base."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, 3.6), layout="constrained")
        height, tilt = figure.subplots(2, 1, sharex=True)
        for k, (_, run) in reversed(list(enumerate(_kept(runs)))):
            style = {"lw": 1.4} if k == 0 else {"lw": 0.6, "alpha": 0.45}
            height.plot(run.truth.time, run.truth.com_height, color=GREEN, **style)
            tilt.plot(run.truth.time, np.degrees(run.truth.tilt), color=ORANGE, **style)
        height.set_ylabel("centre of mass [m]")
        height.set_ylim(bottom=0.0)
        tilt.set_ylabel("tilt [deg]")
        tilt.set_ylim(bottom=0.0)
        tilt.set_xlabel("time [s]")
        figure.align_ylabels([height, tilt])
        return _svg(figure, "posture")


def effort_figure(run: Trajectory, contract: PolicyContract) -> str:
    """Effort of every joint over time, with its limits."""
    names = contract.joint_names
    columns = 3 if len(names) <= 12 else 4
    rows = -(-len(names) // columns)
    with mpl.rc_context(_STYLE | {"font.size": 7.5, "axes.titlesize": 7.5}):
        figure = Figure(figsize=(_WIDTH, 1.25 * rows + 0.3), layout="constrained")
        grid = figure.subplots(rows, columns, sharex=True, squeeze=False)
        for ax in grid.flat[len(names) :]:
            ax.set_visible(False)
        for j, (ax, joint) in enumerate(zip(grid.flat, contract.joints, strict=False)):
            ax.plot(run.truth.time, run.truth.efforts[:, j], color=BLUE, lw=0.7)
            ax.set_title(joint.name)
            if joint.effort_limit is not None:
                for sign in (-1.0, 1.0):
                    ax.axhline(sign * joint.effort_limit, color=RED, lw=0.9, ls="--")
                ax.set_ylim(-1.15 * joint.effort_limit, 1.15 * joint.effort_limit)
        for ax in grid[-1]:
            ax.set_xlabel("time [s]")
        for ax in grid[:, 0]:
            ax.set_ylabel("[Nm]")
        return _svg(figure, "effort")


def action_figure(run: Trajectory) -> str:
    """How fast the actions change: mean and largest over the elements."""
    time = run.truth.time[1 : len(run.action)]
    period = float(np.median(np.diff(run.truth.time)))
    rate = np.abs(np.diff(run.action.astype(np.float64), axis=0)) / period
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, 2.2), layout="constrained")
        ax = figure.subplots()
        ax.plot(time, rate.max(axis=1), color=ORANGE, lw=0.8, label="largest")
        ax.plot(time, rate.mean(axis=1), color=BLUE, lw=1.3, label="mean")
        ax.set_ylabel("change of action [1/s]")
        ax.set_xlabel("time [s]")
        ax.set_ylim(bottom=0.0)
        ax.legend(loc="upper right", ncols=2)
        return _svg(figure, "action")


def contact_figure(run: Trajectory, scenario: Scenario) -> str:
    """Which bodies touch the ground during a piece of the first moving segment."""
    truth = run.truth
    begin, end = _gait_window(scenario, float(truth.time[-1]))
    inside = (truth.time >= begin) & (truth.time <= end)
    shown = np.flatnonzero(truth.contacts.mean(axis=0) >= _CONTACT_SHARE)
    if not shown.size or not inside.any():
        return ""
    time = truth.time[inside]
    period = float(np.median(np.diff(truth.time)))
    with mpl.rc_context(_STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(_WIDTH, 0.32 * len(shown) + 0.9), layout="constrained")
        ax = figure.subplots()
        for place, body in enumerate(shown):
            touching = truth.contacts[inside, body]
            spans = [(start, length) for start, length in _spans(touching)]
            bars = [(time[start], length * period) for start, length in spans]
            ax.broken_barh(bars, (place - 0.36, 0.72), color=BLUE)
        ax.set_yticks(range(len(shown)), [truth.bodies[i] for i in shown])
        ax.set_ylim(len(shown) - 0.4, -0.6)
        ax.set_xlim(begin, end)
        ax.set_xlabel("time [s]")
        return _svg(figure, "contact")


def _kept(runs: Sequence[RunResult]) -> list[tuple[RunResult, Trajectory]]:
    return [(run, run.trajectory) for run in runs if run.trajectory is not None]


def _gait_window(scenario: Scenario, last: float) -> tuple[float, float]:
    begin = 0.0
    for segment in scenario.segments:
        if any(segment.command):
            begin += min(TRANSIENT, segment.duration / 2.0)
            return begin, min(begin + _CONTACT_WINDOW, last)
        begin += segment.duration
    return 0.0, min(_CONTACT_WINDOW, last)


def _spans(values: np.ndarray) -> list[tuple[int, int]]:
    """First index and length of every row of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], values, [False]]).astype(int)))
    return [(int(a), int(b - a)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _shade_transients(ax: Axes, scenario: Scenario) -> None:
    begin = 0.0
    for segment in scenario.segments:
        ax.axvspan(begin, begin + TRANSIENT, color=FAINT, alpha=0.35, lw=0)
        begin += segment.duration


def _name_segments(ax: Axes, scenario: Scenario) -> None:
    begin = 0.0
    for segment in scenario.segments:
        ax.text(
            begin + segment.duration / 2.0,
            1.04,
            segment.name,
            transform=ax.get_xaxis_transform(),
            ha="center",
            va="bottom",
        )
        begin += segment.duration


def _svg(figure: Figure, name: str) -> str:
    """The figure as an `<svg>` element for HTML: no declaration, no metadata, no addresses."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
    # Its size is the page's business; the view box keeps the proportions.
    text = re.sub(r'(<svg[^>]*?)\swidth="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?)\sheight="[^"]*"', r"\1", text, count=1)
    # Kept are the ids of markers and clips, which the salt makes unique on the page.
    text = re.sub(r'\sid="(?![mp][0-9a-f]{10}")[^"]*"', "", text)
    text = re.sub(r"font-family: [^;]*; ", "", text)
    text = re.sub(r"(\d\.\d\d)\d+", r"\1", text)
    return text.replace(INK, "var(--ink)").replace(FAINT, "var(--faint)")
