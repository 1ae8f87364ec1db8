"""What is measured during training, and the JSON lines it is always written to."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import torch
from torch import Tensor

from robot_runtime.errors import BadInput
from robot_runtime.files import atomic_write
from trainer.loggers import TENSORBOARD_FOLDER, Guarded, Scalars, ScalarWriter, open_writers

__all__ = [
    "METRICS_FILE",
    "TENSORBOARD_FOLDER",
    "EpisodeTracker",
    "MetricLog",
    "read_metrics",
    "to_floats",
]

METRICS_FILE = "metrics.jsonl"


class EpisodeTracker:
    """Adds up return and length of every running episode, across rollouts."""

    def __init__(self, num_envs: int, device: torch.device) -> None:
        """Start with every episode new."""
        self._returns = torch.zeros(num_envs, device=device)
        self._lengths = torch.zeros(num_envs, device=device)

    def update(
        self, reward: Tensor, done: Tensor, valid: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Add a rollout.

        Args:
            reward: Rewards, ``(T, N)``; what is not finite counts as 0.
            done: Where episodes ended, bool, ``(T, N)``.
            valid: False where there was no step, bool, ``(T, N)``; None: nowhere.

        Returns:
            Mean return and length of the episodes that ended, NaN if none did, and their number.
        """
        reward = reward.nan_to_num(0.0, 0.0, 0.0)
        alive = (~done).to(reward.dtype)
        steps = torch.ones_like(reward) if valid is None else valid.to(reward.dtype)
        done = done if valid is None else done & valid
        returns, lengths = torch.empty_like(reward), torch.empty_like(reward)
        for t in range(reward.shape[0]):
            torch.add(self._returns, reward[t], out=returns[t])
            torch.add(self._lengths, steps[t], out=lengths[t])
            self._returns = returns[t] * alive[t]
            self._lengths = lengths[t] * alive[t]
        count = done.sum()
        return {
            "episode/return": (returns * done).sum() / count,
            "episode/length": (lengths * done).sum() / count,
            "episode/count": count.float(),
        }

    def restart(self, rows: Tensor) -> None:
        """Begin the episodes of the environments `rows`, bool ``(N,)``, anew."""
        self._returns = self._returns.masked_fill(rows, 0.0)
        self._lengths = self._lengths.masked_fill(rows, 0.0)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the running sums."""
        return {"returns": self._returns, "lengths": self._lengths}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with the sums that `state_dict` returned."""
        self._returns = state["returns"].to(self._returns.device)
        self._lengths = state["lengths"].to(self._lengths.device)


def to_floats(metrics: Mapping[str, Tensor]) -> dict[str, float]:
    """Bring 0-d tensors to the host, all at once, and leave out those that are NaN."""
    if not metrics:
        return {}
    device = next(iter(metrics.values())).device
    values = torch.stack([value.detach().to(device).double() for value in metrics.values()])
    pairs = zip(metrics, values.tolist(), strict=True)
    return {name: value for name, value in pairs if not math.isnan(value)}


class MetricLog:
    """Writes the metrics of each iteration into a run folder, and to whoever else wants them.

    While it is open the folder is taken: two runs in one would mix their lines and checkpoints.
    """

    def __init__(
        self,
        folder: Path,
        *,
        start: int,
        loggers: Sequence[str] = ("tensorboard",),
        settings: Mapping[str, Any] | None = None,
        writers: Sequence[ScalarWriter] = (),
    ) -> None:
        """Open the files.

        Args:
            folder: The run folder.
            start: Iterations already done: lines beyond them, left by a run that went on after
                its last checkpoint, are dropped.
            loggers: Names of the writers beside the lines, see `trainer.loggers.open_writers`.
            settings: The settings of the run, for writers that keep them.
            writers: Writers of the caller.

        Raises:
            BadInput: Another run writes into the folder, or its lines are no metrics.
            MissingExtra: The package of a writer is not installed.
        """
        path = folder / METRICS_FILE
        self._lock = _take(folder)
        try:
            kept = [line for line, row in _rows(path) if row["iteration"] <= start]
            opened = open_writers(loggers, folder, settings or {}, start=start)
            opened += [(type(writer).__name__, Scalars(writer)) for writer in writers]
            self._writers = [Guarded(name, writer) for name, writer in opened]
            with atomic_write(path) as temporary:
                temporary.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
            self._file = path.open("a", encoding="utf-8")
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> MetricLog:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the files and let go of the folder."""
        # A line that did not fit has been said.
        with contextlib.suppress(OSError):
            self._file.close()
        for writer in self._writers:
            writer.close()
        os.close(self._lock)

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of an iteration, counted from 1.

        Raises:
            BadInput: The line cannot be written.
        """
        try:
            self._file.write(json.dumps({"iteration": iteration, **metrics}) + "\n")
            self._file.flush()
        except OSError as error:
            raise BadInput(f"cannot write '{self._file.name}': {error.strerror}") from error
        for writer in self._writers:
            writer.write(iteration, metrics)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return what a run has logged, one dict per iteration, oldest first.

    Raises:
        BadInput: It cannot be read, or a line is not what `MetricLog` writes.
    """
    return [row for _, row in _rows(folder / METRICS_FILE)]


def _take(folder: Path) -> int:
    """Take a run folder for this process, and return the descriptor that holds it.

    The kernel gives it back however the process ends, so that nothing has to be cleared away.
    """
    descriptor = -1
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
        # Where a file system has no locks there is none, and the run goes on.
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise BadInput(
                    f"run folder '{folder}': another run writes into it; name another folder, or "
                    "wait for its end"
                ) from None
    except OSError as error:
        raise BadInput(f"cannot use run folder '{folder}': {error.strerror}") from error
    return descriptor


def _rows(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the whole lines of a file, as text and parsed; none if it does not exist."""
    try:
        # A pipe that nobody writes into would be waited for.
        if path.is_fifo():
            raise BadInput(f"cannot read '{path}': it is not a plain file")
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read '{path}': {error}") from error
    # A line without its end was cut off by whatever ended the process.
    lines = text.split("\n")[:-1]
    return [(line, _row(f"'{path}' line {i}", line)) for i, line in enumerate(lines, start=1)]


def _row(where: str, line: str) -> dict[str, Any]:
    try:
        row = cast("object", json.loads(line))
    except (ValueError, RecursionError):
        raise BadInput(f"{where} is no JSON: {line[:60]!r}") from None
    if not isinstance(row, dict):
        raise BadInput(f"{where} is no JSON object: {line[:60]!r}")
    metrics = cast("dict[str, Any]", row)
    for name, value in metrics.items():
        # No float holds a whole number of any length.
        if type(value) is not float and (type(value) is not int or value.bit_length() > 64):
            raise BadInput(f"{where}: {name[:60]} is not a number")
    if type(metrics.get("iteration")) is not int:
        raise BadInput(f"{where} has no 'iteration', a whole number")
    return metrics
