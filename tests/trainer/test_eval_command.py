"""The verb eval: what it tells is what the episodes were."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from robot_runtime.cli import main
from tests.trainer.toys.surefoot_toys import RECIPE, PointEnv, make
from trainer.checkpoint import build_actor, load_checkpoint
from trainer.evaluation import evaluate
from trainer.train import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    config = replace(RECIPE, num_envs=8, iterations=2, loggers=())
    task = make(num_envs=8, seed=0, device="cpu", num_threads=1)
    train("toy-point", task, config, folder)
    return folder


def test_what_it_tells_is_what_the_episodes_were(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(run), "--episodes", "7", "--seed", "5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    path = run / "checkpoints" / "iteration_0000002.pt"
    found = evaluate(build_actor(load_checkpoint(path)), PointEnv(7, seed=5))
    assert told["returns"] == found.returns.tolist()
    assert told["return"] == pytest.approx(sum(told["returns"]) / 7)
    assert told["lengths"] == [20] * 7
    assert (told["task"], told["iteration"], told["terminated"]) == ("toy-point", 2, 0)
    assert told["checkpoint"] == str(path)
    assert main(["eval", str(path), "--episodes", "7", "--seed", "5"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("toy-point, iteration 2: 7 episodes, seed 5\n")
    assert re.search(rf"return +{re.escape(format(told['return'], '.4g'))} ", text)
    assert re.search(r"terminated +0 of 7\n", text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "no checkpoint or run folder 'nowhere'"),
        (["{run}", "--episodes", "0"], "--episodes 0: must be at least 1"),
        (["{run}", "--seed", "-1"], "--seed -1: must be at least 0"),
        (["{run}", "--task", "walk"], "unknown task 'walk'"),
        (["{run}", "--task", "gym:Pendulum-v1"], "policy of 2 observations, and task .* has 3"),
    ],
)
def test_bad_input_is_one_line(
    run: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["eval", *(argument.format(run=run) for argument in arguments)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(message, said)
