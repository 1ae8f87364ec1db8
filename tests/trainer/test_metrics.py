"""Episode sums against a slow loop; the files of a run survive a cut-off line."""

import json
import math
import os
import resource
import signal
from pathlib import Path

import pytest
import torch

from robot_runtime.errors import BadInput
from trainer.metrics import METRICS_FILE, EpisodeTracker, MetricLog, read_metrics, to_floats
from trainer.progress import Bar, Lines, console_report, summary


def test_returns_and_lengths_against_a_slow_loop_across_rollouts() -> None:
    g = torch.Generator().manual_seed(0)
    reward = torch.randn(40, 5, generator=g)
    done = torch.rand(40, 5, generator=g) < 0.15
    tracker = EpisodeTracker(5, torch.device("cpu"))
    sums, steps = [0.0] * 5, [0] * 5
    for start in range(0, 40, 8):
        ended: list[tuple[float, int]] = []
        for t in range(start, start + 8):
            for n in range(5):
                sums[n] += float(reward[t, n])
                steps[n] += 1
                if done[t, n]:
                    ended.append((sums[n], steps[n]))
                    sums[n], steps[n] = 0.0, 0
        part = slice(start, start + 8)
        got = to_floats(tracker.update(reward[part], done[part]))
        assert got["episode/count"] == len(ended)
        if ended:
            returns, lengths = zip(*ended, strict=True)
            # float32 sums of some ten numbers of size 1.
            assert got["episode/return"] == pytest.approx(sum(returns) / len(ended), abs=1e-5)
            assert got["episode/length"] == pytest.approx(sum(lengths) / len(ended), rel=1e-6)
        else:
            assert "episode/return" not in got


def test_a_bad_reward_does_not_stay_in_the_sums() -> None:
    tracker = EpisodeTracker(1, torch.device("cpu"))
    reward = torch.tensor([[1.0], [math.inf], [2.0]])
    got = to_floats(tracker.update(reward, torch.tensor([[False], [False], [True]])))
    assert got["episode/return"] == 3.0


def test_a_restarted_episode_counts_from_zero() -> None:
    tracker = EpisodeTracker(2, torch.device("cpu"))
    tracker.update(torch.ones(3, 2), torch.zeros(3, 2, dtype=torch.bool))
    tracker.restart(torch.tensor([True, False]))
    got = to_floats(tracker.update(torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool)))
    assert got["episode/length"] == (1 + 4) / 2


def test_metrics_are_written_and_a_cut_off_line_is_dropped(tmp_path: Path) -> None:
    with MetricLog(tmp_path, start=0) as log:
        log.write(1, {"a": 1.0})
        log.write(2, {"a": 2.0})
    with (tmp_path / METRICS_FILE).open("a") as file:
        file.write('{"iteration": 3, "a"')
    assert read_metrics(tmp_path) == [{"iteration": 1, "a": 1.0}, {"iteration": 2, "a": 2.0}]
    with MetricLog(tmp_path, start=1) as log:
        log.write(2, {"a": 5.0})
    lines = (tmp_path / METRICS_FILE).read_text().splitlines()
    assert [json.loads(line)["a"] for line in lines] == [1.0, 5.0]


METRICS = {"rollout/reward": 0.5, "policy/kl": 0.01, "perf/steps_per_second": 12345.6}


def test_a_line_now_and_then_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = console_report(100, 0)
    assert isinstance(report, Lines)
    with report:
        for done in range(1, 101):
            report.iteration(done, METRICS)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 20
    assert lines[-1] == "iteration 100/100  reward 0.5000  KL 0.0100  steps/s 12,346"


def test_the_bar_shows_the_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar(10, start=4) as bar:
        bar.iteration(5, METRICS)
    assert "5/10" in capsys.readouterr().err
    # What an iteration does not tell is still known from an earlier one.
    assert summary({"episode/length": 7.0, **METRICS}).split("  ")[1] == "length 7"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "line 2 is no JSON"),
        (b"[1, 2]", "line 2 is no JSON object"),
        (b"[" * 100_000, "line 2 is no JSON"),
        (b"", "line 2 is no JSON"),
        (b'{"loss": 1.0}', "line 2 has no 'iteration'"),
        (b'{"iteration": 1.5}', "line 2 has no 'iteration'"),
        (b'{"iteration": "x"}', "line 2: iteration is not a number"),
        (b'{"iteration": 2, "loss": null}', "line 2: loss is not a number"),
        (b'{"iteration": 2, "loss": {}}', "line 2: loss is not a number"),
        (b'{"iteration": 2, "loss": true}', "line 2: loss is not a number"),
        (b'{"iteration": ' + b"9" * 400 + b"}", "line 2: iteration is not a number"),
        (b'{"iteration": ' + b"9" * 5000 + b"}", "line 2 is no JSON"),
        (b"\xff\xfe", "cannot read"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_lines_that_are_no_metrics_are_refused_by_number_and_stay(
    line: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / METRICS_FILE
    before = b'{"iteration": 1}\n' + line + b"\n"
    path.write_bytes(before)
    with pytest.raises(BadInput, match=rf"{METRICS_FILE}.*{message}|{message}"):
        read_metrics(tmp_path)
    # The second time nothing holds the folder any more.
    for _ in range(2):
        with pytest.raises(BadInput, match=message):
            MetricLog(tmp_path, start=1, loggers=())
    assert path.read_bytes() == before


def test_a_folder_takes_one_run_at_a_time(tmp_path: Path) -> None:
    with MetricLog(tmp_path, start=0, loggers=()) as log:
        log.write(1, {"a": 1.0})
        with pytest.raises(BadInput, match="another run writes into it"):
            MetricLog(tmp_path, start=0, loggers=())
        log.write(2, {"a": 2.0})
    assert [row["a"] for row in read_metrics(tmp_path)] == [1.0, 2.0]
    with MetricLog(tmp_path, start=1, loggers=()):
        pass
    assert [row["a"] for row in read_metrics(tmp_path)] == [1.0]


def test_a_resume_that_is_interrupted_keeps_the_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MetricLog(tmp_path, start=0, loggers=()) as log:
        log.write(1, {"a": 1.0})
    before = (tmp_path / METRICS_FILE).read_bytes()

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            MetricLog(tmp_path, start=0, loggers=())
    assert [path.name for path in tmp_path.iterdir()] == [METRICS_FILE]
    assert (tmp_path / METRICS_FILE).read_bytes() == before


def test_a_full_disk_is_named_and_the_folder_let_go(tmp_path: Path) -> None:
    """A real limit of the system, which it otherwise enforces by ending the process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with MetricLog(tmp_path, start=0, loggers=()) as log:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
            with pytest.raises(BadInput, match=r"cannot write '.*metrics\.jsonl': File too large"):
                log.write(1, {"loss/value": 3.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    MetricLog(tmp_path, start=0, loggers=()).__exit__(None, None, None)


def test_a_pipe_is_no_file_of_metrics(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / METRICS_FILE)
    with pytest.raises(BadInput, match="not a plain file"):
        read_metrics(tmp_path)
