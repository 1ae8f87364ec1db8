"""Where a runner's metrics go, under the names that users of rsl_rl know."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from robot_runtime.errors import BadInput
from robot_runtime.files import atomic_write
from trainer.compat.names import find_object
from trainer.loggers import ScalarWriter
from trainer.metrics import MetricLog

logger = logging.getLogger(__name__)

NAMES = {
    "loss/value": "Loss/value",
    "loss/surrogate": "Loss/surrogate",
    "policy/entropy": "Loss/entropy",
    "policy/lr": "Loss/learning_rate",
    "policy/std": "Policy/mean_std",
    "perf/steps_per_second": "Perf/total_fps",
    "perf/collect_seconds": "Perf/collection_time",
    "perf/learn_seconds": "Perf/learning_time",
    "episode/return": "Train/mean_reward",
    "episode/length": "Train/mean_episode_length",
}
"""Our names and rsl_rl's; metrics that it does not have keep theirs.

`Train/mean_reward` is the mean over the episodes that ended in the iteration, where rsl_rl takes
the last hundred.
"""

_KNOWN = {
    "tensorboard": ("tensorboard",),
    "wandb": ("tensorboard", "wandb"),
    "WandbLogWriter": ("tensorboard", "wandb"),
    "neptune": ("tensorboard",),
    "NeptuneLogWriter": ("tensorboard",),
}
"""Loggers of rsl_rl by name, and which of ours take their place."""


class Writers(AbstractContextManager["Writers"]):
    """JSON lines always, and what the configuration names; without a folder, nothing."""

    def __init__(
        self, folder: Path | None, spec: Any, *, start: int, settings: Mapping[str, Any]
    ) -> None:
        """Open them.

        Args:
            folder: The log folder.
            spec: What the configuration says about the logger: a name, or `class_name` and the
                arguments of the class.
            start: Iterations already done.
            settings: The configuration, for loggers that keep it.

        Raises:
            BadInput: The logger cannot be found or made.
            MissingExtra: The logger's package is not installed.
        """
        self._log: MetricLog | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            names, own = find_logger(spec, folder)
            if "wandb" in names and settings.get("wandb_project"):
                os.environ.setdefault("WANDB_PROJECT", str(settings["wandb_project"]))
            self._log = MetricLog(
                folder, start=start, loggers=names, settings=settings, writers=own
            )

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of an iteration, counted from 1."""
        if self._log is not None:
            named = {NAMES.get(name, name): value for name, value in metrics.items()}
            self._log.write(iteration, named)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close them."""
        if self._log is not None:
            self._log.__exit__(kind, error, trace)


class _Own:
    """A logger of the user's as rsl_rl has them: `stop` at the end instead of `close`."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, /) -> None:
        self._writer.add_scalar(tag, scalar_value, global_step)

    def close(self) -> None:
        for name in ("stop", "close"):
            end = getattr(self._writer, name, None)
            if callable(end):
                end()
                return


def find_logger(spec: Any, folder: Path) -> tuple[tuple[str, ...], list[ScalarWriter]]:
    """Return the names of our loggers and the user's own ones that a configuration asks for.

    Raises:
        BadInput: A class cannot be found, or has no `add_scalar`.
    """
    if spec is None:
        return _KNOWN["tensorboard"], []
    arguments = dict(spec) if isinstance(spec, Mapping) else {"class_name": spec}
    name = arguments.pop("class_name", "tensorboard")
    if isinstance(name, str) and name in _KNOWN:
        if name in ("neptune", "NeptuneLogWriter"):
            logger.warning(
                "Neptune's service ended in March 2026: metrics go to TensorBoard and "
                "metrics.jsonl, and to any class with add_scalar that `logger` names"
            )
        return _KNOWN[name], []
    kind: Any = name if callable(name) else find_object(str(name), "logger")
    writer = kind(log_dir=str(folder), **arguments)
    if not callable(getattr(writer, "add_scalar", None)):
        raise BadInput(f"logger {name}: it has no method 'add_scalar'")
    return _KNOWN["tensorboard"], [_Own(writer)]


_AS_IT_IS = ("utf-8", "surrogateescape")
"""How files are decoded that need not be in UTF-8, and encoded to what they were."""


def store_code_state(folder: Path, repositories: list[Path]) -> None:
    """Write the commit and the changes of git repositories beside a run's logs, as rsl_rl does.

    Args:
        folder: The log folder.
        repositories: A file or folder in each of them; what is in none is passed over.
    """
    for place in repositories:
        inside = place if place.is_dir() else place.parent
        texts = [_git(inside, *words) for words in (
            ("rev-parse", "--show-toplevel"), ("rev-parse", "HEAD"), ("status",), ("diff", "HEAD"),
        )]  # fmt: skip
        if texts[0] is None:
            logger.info("'%s' is in no git repository: its state is not stored", place)
            continue
        target = folder / "git" / f"{Path(texts[0].strip()).name}.diff"
        if not target.exists():
            with atomic_write(target) as temporary:
                temporary.write_bytes("\n".join(t or "" for t in texts[1:]).encode(*_AS_IT_IS))


def _git(folder: Path, *words: str) -> str | None:
    """Return what git says, None if it cannot."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(*_AS_IT_IS)
