"""Curves of several seeds against slow loops, and the verb that draws them."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from robot_runtime.cli import main
from trainer.curves import RunLog, band, curve, grouped, read_run, smoothed
from trainer.plots import SHOWN


def write_run(folder: Path, seed: int, values: list[float | None], **settings: Any) -> Path:
    """A run folder as training leaves it, with one metric; None where it was not logged."""
    folder.mkdir(parents=True)
    plain = {"task": "toy", "seed": seed, "ppo": {"gamma": 0.9}, **settings}
    (folder / "config.json").write_text(json.dumps(plain))
    rows = []
    for i, value in enumerate(values):
        row: dict[str, float] = {"iteration": i + 1, "progress/env_steps": 100.0 * (i + 1)}
        row |= {"perf/collect_seconds": 1.0, "perf/learn_seconds": 0.5}
        rows.append(row if value is None else row | {"episode/return": value})
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


def log(*values: float | None) -> RunLog:
    rows = [{"iteration": i + 1} | ({} if v is None else {"a": v}) for i, v in enumerate(values)]
    return RunLog(name="x", settings={}, rows=rows)


def test_a_curve_leaves_out_what_was_not_logged(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", 0, [1.0, None, 3.0]))
    for axis, places in (
        ("iteration", [1, 3]), ("env_steps", [100, 300]), ("seconds", [1.5, 4.5]),
    ):  # fmt: skip
        x, y = curve(run, "episode/return", axis)
        assert x.tolist() == places
        assert y.tolist() == [1.0, 3.0]


def test_a_band_is_mean_lowest_and_highest_where_all_seeds_have_been() -> None:
    found = band([log(1.0, 2.0, 3.0, 4.0), log(None, 6.0, None, 10.0, 12.0)], "a", "iteration")
    assert found is not None
    assert found.seeds == 2
    assert found.x.tolist() == [2, 3, 4]
    # Between its values at 2 and 4 the second one is on a line.
    assert found.mean.tolist() == [4.0, 5.5, 7.0]
    assert found.low.tolist() == [2.0, 3.0, 4.0]
    assert found.high.tolist() == [6.0, 8.0, 10.0]
    assert band([log(1.0)], "b", "iteration") is None
    assert band([log(1.0), log(None, 2.0)], "a", "iteration") is None


def test_smoothing_against_a_slow_loop() -> None:
    values = np.random.default_rng(0).normal(size=20)
    slow = [values[max(0, i - 4) : i + 1].mean() for i in range(20)]
    np.testing.assert_allclose(smoothed(values, 5), slow, atol=1e-12)
    np.testing.assert_array_equal(smoothed(values, 1), values)
    np.testing.assert_allclose(smoothed(values, 50)[-1], values.mean(), atol=1e-12)


def test_runs_that_differ_in_the_seed_alone_are_one_group(tmp_path: Path) -> None:
    runs = [
        read_run(write_run(tmp_path / "a", 0, [1.0])),
        read_run(write_run(tmp_path / "b", 1, [1.0], iterations=7)),
        read_run(write_run(tmp_path / "c", 0, [1.0], ppo={"gamma": 0.5})),
    ]
    found = {label: [run.name for run in group] for label, group in grouped(runs).items()}
    assert found == {"toy, ppo.gamma 0.9": ["a", "b"], "toy, ppo.gamma 0.5": ["c"]}
    assert list(grouped(runs[:2])) == ["toy"]


def test_the_verb_draws_png_and_a_page_that_needs_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        str(write_run(tmp_path / f"run{i}", i, [float(i), 2.0 + i, 3.0 * i, 5.0 - i]))
        for i in range(3)
    ]
    png, page = tmp_path / "curves.png", tmp_path / "curves.html"
    assert main(["plot", *runs, "-o", str(png)]) == 0
    assert png.read_bytes().startswith(b"\x89PNG\r\n")
    assert main(["plot", *runs, "-o", str(page), "--x", "env_steps", "--smooth", "2"]) == 0
    assert capsys.readouterr().out.split() == [str(png), str(page)]
    text = page.read_text()
    assert not re.search(r"(src|href)=\"(?!#)", text), "nothing is loaded from elsewhere"
    svg = ElementTree.fromstring(re.search(r"<svg.*</svg>", text, re.DOTALL)[0])  # type: ignore[index]
    words = " ".join(t.strip() for t in svg.itertext())
    for expected in ("toy (3 seeds)", "environment steps", "episode/return"):
        assert expected in words
    before = page.read_text()
    assert main(["plot", *runs, "-o", str(page), "--x", "env_steps", "--smooth", "2"]) == 0
    assert page.read_text() == before, "the same runs give the same page"
    assert "episode/return" in SHOWN


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: RUN"),
        (["{here}/nowhere"], "'{here}/nowhere' is no run folder"),
        (["{here}/empty"], "no finished iteration"),
        (["{here}/broken"], "cannot read '{here}/broken/config.json'"),
        (["{here}/deep"], "cannot read '{here}/deep/config.json'"),
        (["{here}/list"], "'{here}/list/config.json' is no JSON object"),
        (["{here}/words"], "line 1: episode/return is not a number"),
        (["{here}/run", "--metric", "fun"], "no run has a metric 'fun'; there are: .*episode/ret"),
        (["{here}/run", "-o", "{here}/x.pdf"], "must end in .png or .html"),
        (["{here}/run", "--smooth", "0"], "--smooth 0: must be at least 1"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    write_run(tmp_path / "run", 0, [1.0])
    write_run(tmp_path / "empty", 0, [])
    (write_run(tmp_path / "broken", 0, [1.0]) / "config.json").write_text("{")
    (write_run(tmp_path / "deep", 0, [1.0]) / "config.json").write_text("[" * 100_000)
    (write_run(tmp_path / "list", 0, [1.0]) / "config.json").write_text("[]")
    words = '{"iteration": 1, "episode/return": "high"}\n'
    (write_run(tmp_path / "words", 0, [1.0]) / "metrics.jsonl").write_text(words)
    here = str(tmp_path)
    assert main(["plot", *(argument.format(here=here) for argument in arguments)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(message.format(here=here), said)
