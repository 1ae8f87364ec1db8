"""Every logger writes for real, without a network; none of them can end a training."""

import importlib
import importlib.util
import logging
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from robot_runtime.cli import main
from tests.trainer.toys.surefoot_toys import RECIPE, make
from trainer.config import InvalidSetting, TrainConfig
from trainer.loggers import TENSORBOARD_FOLDER, run_id
from trainer.metrics import MetricLog, read_metrics
from trainer.train import train

SETTINGS = {"task": "toy", "ppo": {"gamma": 0.9}}
ROWS = {1: {"loss/value": 3.0, "policy/kl": 0.5}, 2: {"loss/value": 1.5}}


@pytest.fixture(autouse=True)
def nothing_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "WANDB_MODE", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME",
        "MLFLOW_ALLOW_FILE_STORE",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)


def write_rows(folder: Path, logger: str) -> None:
    with MetricLog(folder, start=0, loggers=(logger,), settings=SETTINGS) as log:
        for step, metrics in ROWS.items():
            log.write(step, metrics)


def test_tensorboard_has_the_same_numbers_at_the_same_steps(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write_rows(tmp_path, "tensorboard")
    events = EventAccumulator(str(tmp_path / TENSORBOARD_FOLDER))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss/value")] == [(1, 3.0), (2, 1.5)]
    assert [(e.step, e.value) for e in events.Scalars("policy/kl")] == [(1, 0.5)]


def test_mlflow_keeps_metrics_and_parameters_in_files_and_goes_on_on_resume(
    tmp_path: Path,
) -> None:
    mlflow = pytest.importorskip("mlflow")
    write_rows(tmp_path, "mlflow")
    with MetricLog(tmp_path, start=2, loggers=("mlflow",), settings=SETTINGS) as log:
        log.write(3, {"loss/value": 0.5})
    client = mlflow.MlflowClient((tmp_path / "mlflow").as_uri())
    experiment = client.get_experiment_by_name("surefoot")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params == {"task": "toy", "ppo.gamma": "0.9"}
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "loss/value")
    assert [(m.step, m.value) for m in history] == [(1, 3.0), (2, 1.5), (3, 0.5)]


def wandb_records(path: Path) -> Iterator[Any]:
    """Read a file of wandb: LevelDB's log format with a header of seven bytes."""
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")

    data = path.read_bytes()
    at, parts = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = messages.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def is_whole(path: Path) -> bool:
    return any(record.WhichOneof("record_type") == "exit" for record in wandb_records(path))


def test_wandb_writes_a_run_that_can_be_sent_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    # Its process may take longer than its 30 s to start on a busy machine.
    monkeypatch.setenv("WANDB__SERVICE_WAIT", "200")
    write_rows(tmp_path, "wandb")
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert path.name == f"run-{run_id(tmp_path)}.wandb"
    rows: dict[int, dict[str, float]] = {}
    config: dict[str, str] = {}
    # A process of wandb's own writes the file, and is not always done when the run is finished.
    end = time.monotonic() + 200.0
    while not is_whole(path) and time.monotonic() < end:
        time.sleep(0.05)
    for record in wandb_records(path):
        if record.WhichOneof("record_type") == "history":
            items = {(i.key or ".".join(i.nested_key)): i.value_json for i in record.history.item}
            own = {k: float(v) for k, v in items.items() if not k.startswith("_")}
            rows[record.history.step.num] = own
        if record.WhichOneof("record_type") == "run":
            config |= {i.key: i.value_json for i in record.run.config.update}
    assert rows == ROWS
    assert config["task"] == '"toy"'


class Listener:
    """Any object with `add_scalar`."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.heard.append((tag, scalar_value, global_step))


CONFIG = replace(RECIPE, num_envs=8, iterations=2, loggers=())


def run(folder: Path, config: TrainConfig = CONFIG, **more: Any) -> None:
    task = make(num_envs=config.num_envs, seed=0, device="cpu", num_threads=1)
    train("toy-point", task, config, folder, **more)


def test_a_writer_of_the_caller_gets_what_the_lines_get(tmp_path: Path) -> None:
    listener = Listener()
    run(tmp_path, writers=[listener])
    rows = read_metrics(tmp_path)
    lines = {(k, row["iteration"]): v for row in rows for k, v in row.items() if k != "iteration"}
    assert {(tag, step): value for tag, value, step in listener.heard} == lines
    assert not (tmp_path / TENSORBOARD_FOLDER).exists()


def test_a_writer_that_fails_is_named_and_dropped_and_the_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Listener):
        def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
            super().add_scalar(tag, scalar_value, global_step)
            raise OSError("disk\nfull")

    broken, listener = Broken(), Listener()
    with caplog.at_level(logging.WARNING):
        run(tmp_path, writers=[broken, listener])
    assert [row["iteration"] for row in read_metrics(tmp_path)] == [1, 2]
    assert len(broken.heard) == 1
    assert {step for _, _, step in listener.heard} == {1, 2}
    (said,) = [r.getMessage() for r in caplog.records if r.name == "trainer.loggers"]
    assert said.startswith("logger 'Broken' failed at iteration 1")
    assert said.endswith("OSError: disk full")


def test_neptune_is_refused_with_what_to_do_instead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "toy-point", "--loggers", "neptune", "--out", str(tmp_path / "out")]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "the service of Neptune ended in March 2026" in said
    assert "add_scalar" in said
    with pytest.raises(InvalidSetting, match="unknown logger 'clearml'; there are: tensorboard"):
        TrainConfig(loggers=("clearml",))


@pytest.mark.parametrize("logger", ["wandb", "mlflow"])
def test_a_logger_that_is_not_installed_is_said_before_anything_is_made(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    logger: str,
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == logger else real(n))
    out = tmp_path / "out"
    assert main(["train", "toy-point", "--loggers", logger, "--out", str(out)]) == 2
    assert f"pip install 'surefoot[{logger}]'" in capsys.readouterr().err
    assert not out.exists()
