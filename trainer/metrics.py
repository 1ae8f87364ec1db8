"""What is measured during training, and the JSON lines it is always written to."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

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
    """Writes the metrics of each iteration into a run folder, and to whoever else wants them."""

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
            MissingExtra: The package of a writer is not installed.
        """
        path = folder / METRICS_FILE
        kept = [line for line in _lines(path) if json.loads(line)["iteration"] <= start]
        opened = open_writers(loggers, folder, settings or {}, start=start)
        opened += [(type(writer).__name__, Scalars(writer)) for writer in writers]
        self._writers = [Guarded(name, writer) for name, writer in opened]
        path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")

    def __enter__(self) -> MetricLog:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the files."""
        self._file.close()
        for writer in self._writers:
            writer.close()

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of an iteration, counted from 1."""
        self._file.write(json.dumps({"iteration": iteration, **metrics}) + "\n")
        self._file.flush()
        for writer in self._writers:
            writer.write(iteration, metrics)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return what a run has logged, one dict per iteration, oldest first."""
    return [json.loads(line) for line in _lines(folder / METRICS_FILE)]


def _lines(path: Path) -> list[str]:
    """Return the whole lines of a file; none if it does not exist."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    # A line without its end was cut off by whatever ended the process.
    return [line.removesuffix("\n") for line in text.splitlines(keepends=True) if "\n" in line]
