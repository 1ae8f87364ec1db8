"""What a user sees while a run trains."""

from __future__ import annotations

import dataclasses
import sys
import textwrap
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from trainer.config import TrainConfig
from trainer.loggers import flat_settings

SHOWN = (
    ("rollout/reward", "reward", ".4f"),
    ("episode/return", "return", ".5g"),
    ("episode/length", "length", ".0f"),
    ("policy/kl", "KL", ".4f"),
    ("loss/distillation", "loss", ".4f"),
    ("perf/steps_per_second", "steps/s", ",.0f"),
)
"""Metric, its short name and its format."""

EVALUATED = (
    ("rollout/reward", "reward", ".4f"),
    ("eval/return", "eval", ".5g"),
    ("eval/average", "average", ".5g"),
    ("perf/steps_per_second", "steps/s", ",.0f"),
)
"""The same once there was an evaluation."""


class Report(AbstractContextManager["Report"], Protocol):
    """Takes the metrics of every iteration, and shows them or not."""

    def iteration(self, done: int, metrics: Mapping[str, float]) -> None:
        """Show that `done` iterations are done."""
        ...


class Silent:
    """Shows nothing."""

    def iteration(self, done: int, metrics: Mapping[str, float]) -> None:
        """Do nothing."""

    def __enter__(self) -> Silent:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Do nothing."""


class Lines(Silent):
    """Writes a line now and then, for logs and pipes."""

    def __init__(self, total: int, *, start: int, every: int, opening: str = "") -> None:
        """Take the number of iterations, how many are done, and how many lie between two lines."""
        self._opening = opening
        self._total = total
        self._start = start
        self._every = every
        self._begin = time.monotonic()
        self._last: dict[str, float] = {}

    def __enter__(self) -> Lines:
        """Write the opening."""
        sys.stderr.write(self._opening)
        return self

    def iteration(self, done: int, metrics: Mapping[str, float]) -> None:
        """Write a line if it is time."""
        self._last |= metrics
        if done % self._every == 0 or done == self._total:
            line = f"iteration {done}/{self._total}  {summary(self._last)}"
            if done < self._total:
                each = (time.monotonic() - self._begin) / (done - self._start)
                line += f"  {timedelta(seconds=round(each * (self._total - done)))} left"
            print(line, file=sys.stderr, flush=True)  # noqa: T201 - this is the console


class Bar:
    """A progress bar with the metrics beside it."""

    def __init__(self, total: int, *, start: int, opening: str = "") -> None:
        """Take the number of iterations and how many are done already."""
        self._opening = opening
        self._progress = Progress(
            MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=9)),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[metrics]}"),
            TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=7)),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task("", total=total, completed=start, metrics="")
        self._last: dict[str, float] = {}

    def iteration(self, done: int, metrics: Mapping[str, float]) -> None:
        """Move the bar."""
        self._last |= metrics
        self._progress.update(self._task, completed=done, metrics=summary(self._last))

    def __enter__(self) -> Bar:
        """Write the opening and show the bar."""
        sys.stderr.write(self._opening)
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the bar as it is."""
        self._progress.stop()


def summary(metrics: Mapping[str, float]) -> str:
    """Return the metrics worth a look, in one line."""
    names = EVALUATED if "eval/return" in metrics else SHOWN
    shown = [f"{label} {metrics[name]:{spec}}" for name, label, spec in names if name in metrics]
    return "  ".join(shown)


def console_report(total: int, start: int, opening: str = "") -> Report:
    """Return a bar on a terminal and lines elsewhere, on standard error.

    Args:
        total: Iterations of the whole run.
        start: How many are done already.
        opening: What is written once before the first, with its line ends.
    """
    if sys.stderr.isatty():
        return Bar(total, start=start, opening=opening)
    return Lines(total, start=start, every=max(1, total // 20), opening=opening)


def settings_in_effect(config: TrainConfig) -> str:
    """Return the settings of all that learns as lines, what follows from others resolved."""
    if config.distill.enabled:
        learns = {"distill": dataclasses.asdict(config.distill)}
    else:
        learns = {"ppo": dataclasses.asdict(config.ppo) | {"min_lr": config.ppo.lr_floor}}
    extensions = {"rnd": config.rnd, "amp": config.amp}
    learns |= {name: dataclasses.asdict(one) for name, one in extensions.items() if one.enabled}
    lines: list[str] = []
    for name, settings in learns.items():
        flat = flat_settings(settings).items()
        text = " ".join(
            f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
            for key, value in flat
        )
        lines += textwrap.wrap(f"{name}: {text}", width=100, subsequent_indent="  ")
    return "".join(f"{line}\n" for line in lines)
