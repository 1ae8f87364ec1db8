"""Where a runner's metrics go, under the names that users of rsl_rl know."""

from __future__ import annotations

import importlib
import logging
import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from robot_runtime.errors import BadInput
from robot_runtime.files import atomic_write
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

GENERIC = ("tensorboard",)
"""Loggers that TensorBoard and JSON lines stand for."""

_GONE = {
    "neptune": "Neptune's service ended in March 2026",
    "NeptuneLogWriter": "Neptune's service ended in March 2026",
    "wandb": "there is no writer for Weights & Biases here",
    "WandbLogWriter": "there is no writer for Weights & Biases here",
}
"""Loggers that cannot be had, and why."""


class ScalarWriter(Protocol):
    """Any logger: what rsl_rl asks of one, too."""

    def add_scalar(self, tag: str, value: float, global_step: int) -> None:
        """Take a number."""
        ...


class Writers(AbstractContextManager["Writers"]):
    """TensorBoard, JSON lines and, where the configuration names one, a logger of the user's."""

    def __init__(self, folder: Path | None, spec: Any, *, start: int) -> None:
        """Open them; without a folder nothing is written.

        Args:
            folder: The log folder.
            spec: What the configuration says about the logger: a name, or `class_name` and the
                arguments of the class.
            start: Iterations already done.

        Raises:
            BadInput: The logger cannot be found or made.
        """
        self._log: MetricLog | None = None
        self._own: ScalarWriter | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._own = make_writer(spec, folder)
            self._log = MetricLog(folder, start=start)

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of an iteration, counted from 1."""
        named = {NAMES.get(name, name): value for name, value in metrics.items()}
        if self._log is not None:
            self._log.write(iteration, named)
        if self._own is not None:
            for name, value in named.items():
                self._own.add_scalar(name, value, iteration)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close them."""
        if self._log is not None:
            self._log.__exit__(kind, error, trace)
        stop = getattr(self._own, "stop", None)
        if callable(stop):
            stop()


def make_writer(spec: Any, folder: Path) -> ScalarWriter | None:
    """Return the user's own logger, None where the usual ones do.

    Raises:
        BadInput: It cannot be found, or has no `add_scalar`.
    """
    if spec is None:
        return None
    arguments = {"class_name": spec} if isinstance(spec, str | type) else dict(spec)
    name = arguments.pop("class_name", None)
    if name in _GONE:
        logger.warning("%s: metrics go to TensorBoard and metrics.jsonl", _GONE[name])
        return None
    if name is None or name in GENERIC:
        return None
    kind: Any = name if callable(name) else _find(str(name))
    writer = kind(log_dir=str(folder), **arguments)
    if not callable(getattr(writer, "add_scalar", None)):
        raise BadInput(f"logger {name}: it has no method 'add_scalar'")
    return writer


def _find(name: str) -> Any:
    """Import a class named ``package.module:Class`` or ``package.module.Class``."""
    module, colon, attribute = name.partition(":")
    if not colon:
        module, _, attribute = name.rpartition(".")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(f"no logger '{name}': {error}") from error
    return found


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
                temporary.write_text("\n".join(text or "" for text in texts[1:]), encoding="utf-8")


def _git(folder: Path, *words: str) -> str | None:
    """Return what git says, None if it cannot."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout
