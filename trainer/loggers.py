"""Where metrics go beside the run folder's own lines: TensorBoard, Weights & Biases, MLflow, yours.

All of them get the same numbers under the same names, at the same step: the iteration.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from robot_runtime.errors import MissingExtra
from robot_runtime.files import atomic_write

logger = logging.getLogger(__name__)

TENSORBOARD_FOLDER = "tensorboard"
MLFLOW_FOLDER = "mlflow"
RUN_ID_FILE = "run_id"

PROJECT = "surefoot"
"""Project of Weights & Biases and experiment of MLflow, unless their own variables name another."""


EXTRAS = {"wandb": "wandb", "mlflow": "mlflow"}
"""Packages of loggers, by name, and the extra that brings each."""


class MetricWriter(Protocol):
    """Takes the metrics of every iteration."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of an iteration, counted from 1."""
        ...

    def close(self) -> None:
        """Write what is still to be written."""
        ...


class ScalarWriter(Protocol):
    """Anything that takes one number at a time, as TensorBoard's `SummaryWriter` does.

    If it has a method `close`, that is called at the end.
    """

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, /) -> object:
        """Take one metric of an iteration, counted from 1."""
        ...


class Scalars:
    """A `MetricWriter` over a `ScalarWriter`."""

    def __init__(self, writer: ScalarWriter) -> None:
        """Take the writer."""
        self._writer = writer

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand over one number after the other."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Close the writer if it can be closed."""
        close = getattr(self._writer, "close", None)
        if callable(close):
            close()


class WandbWriter:
    """Weights & Biases. Without a network: ``wandb sync`` sends the folder later.

    `WANDB_MODE=online` sends at once. A resumed run has the id of the run it resumes.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Begin a run.

        Args:
            folder: The run folder; wandb writes into ``wandb/`` below it.
            settings: The settings of the run, kept as its configuration.

        Raises:
            MissingExtra: wandb is not installed.
        """
        require_packages(["wandb"])
        wandb: Any = importlib.import_module("wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            mode=os.environ.get("WANDB_MODE", "offline"),
            dir=str(folder),
            name=folder.resolve().name,
            id=run_id(folder),
            resume="allow" if os.environ.get("WANDB_MODE") == "online" else None,
            config=dict(settings),
            # Numbers only: what the console shows and what the machine is stays here.
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                save_code=False,
                x_disable_meta=True,
                x_disable_stats=True,
            ),
        )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log a row of the run's history."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class MlflowWriter:
    """MLflow, into files below the run folder; `MLFLOW_TRACKING_URI` names another store."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Begin a run, or go on with the one of this folder.

        Args:
            folder: The run folder; the store is ``mlflow/`` below it.
            settings: The settings of the run, kept as its parameters.

        Raises:
            MissingExtra: mlflow is not installed.
        """
        # Files need no server and no database. MLflow 3.17 asks for this word before it uses them.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        require_packages(["mlflow"])
        mlflow: Any = importlib.import_module("mlflow")
        self._entities = mlflow.entities
        local = (folder.resolve() / MLFLOW_FOLDER).as_uri()
        self._client = mlflow.MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", local))
        experiment = _experiment(self._client)
        tag = {"surefoot.run_id": run_id(folder)}
        found = self._client.search_runs(
            [experiment], f"tags.`surefoot.run_id` = '{tag['surefoot.run_id']}'"
        )
        run = found[0] if found else self._new_run(experiment, folder, tag, settings)
        self._id: str = run.info.run_id

    def _new_run(
        self, experiment: str, folder: Path, tags: dict[str, str], settings: Mapping[str, Any]
    ) -> Any:
        name = folder.resolve().name
        run = self._client.create_run(experiment, tags=tags, run_name=name)
        parameters = [self._entities.Param(k, str(v)) for k, v in flat_settings(settings).items()]
        self._client.log_batch(run.info.run_id, params=parameters)
        return run

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of an iteration in one go."""
        rows = [self._entities.Metric(k, v, 0, step) for k, v in metrics.items()]
        self._client.log_batch(self._id, metrics=rows)

    def close(self) -> None:
        """End the run."""
        self._client.set_terminated(self._id)


def require_packages(names: Sequence[str]) -> None:
    """Refuse loggers whose package is not installed, before anything is made.

    Raises:
        MissingExtra: Names the package and how to install it.
    """
    for name in names:
        if name in EXTRAS and importlib.util.find_spec(name) is None:
            raise MissingExtra(
                f"logger '{name}': its package is not installed; install it with: "
                f"pip install 'surefoot[{EXTRAS[name]}]'"
            )


def open_writers(
    names: Sequence[str], folder: Path, settings: Mapping[str, Any], *, start: int
) -> list[tuple[str, MetricWriter]]:
    """Open writers by name.

    Args:
        names: Of `trainer.config.LOGGERS`.
        folder: The run folder.
        settings: The settings of the run as plain containers.
        start: Iterations already done; TensorBoard drops what was logged beyond them.

    Returns:
        Name and writer of each.

    Raises:
        MissingExtra: A package is not installed; the message says how to install it.
    """
    make: dict[str, Callable[[], MetricWriter]] = {
        "tensorboard": lambda: _tensorboard(folder, start),
        "wandb": lambda: WandbWriter(folder, settings),
        "mlflow": lambda: MlflowWriter(folder, settings),
    }
    return [(name, make[name]()) for name in names]


class Guarded:
    """A writer that cannot end the training: what it raises is said once, and it is dropped."""

    def __init__(self, name: str, writer: MetricWriter) -> None:
        """Take a writer and its name."""
        self._name = name
        self._writer: MetricWriter | None = writer

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write, unless the writer has failed before."""
        if self._writer is None:
            return
        try:
            self._writer.write(step, metrics)
        except Exception as error:  # whatever another package raises
            self._drop(f"iteration {step}", error)

    def close(self) -> None:
        """Close, unless the writer has failed before."""
        if self._writer is None:
            return
        try:
            self._writer.close()
        except Exception as error:
            self._drop("the end", error)

    def _drop(self, when: str, error: Exception) -> None:
        self._writer = None
        text = " ".join(str(error).split())
        logger.warning(
            "logger '%s' failed at %s and gets nothing more: %s: %s",
            self._name, when, type(error).__name__, text,
        )  # fmt: skip


def run_id(folder: Path) -> str:
    """Return the name that other services know a run folder by; made when it is first asked for."""
    path = folder / RUN_ID_FILE
    if not path.exists():
        with atomic_write(path) as temporary:
            temporary.write_text(f"{uuid.uuid4().hex[:12]}\n", encoding="utf-8")
    return path.read_text(encoding="utf-8").strip()


def _tensorboard(folder: Path, start: int) -> MetricWriter:
    # Imported here: it costs a second, and whoever does not want it need not pay.
    from torch.utils.tensorboard.writer import SummaryWriter

    purge = start + 1 if start else None
    return Scalars(SummaryWriter(str(folder / TENSORBOARD_FOLDER), purge_step=purge))


def _experiment(client: Any) -> str:
    """Return the id of the experiment, made if it does not exist."""
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
    known = client.get_experiment_by_name(name)
    return known.experiment_id if known else client.create_experiment(name)


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flat_settings(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
