"""The loop: exact resume, Ctrl-C, what is logged; and the verb around it."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_runtime.cli import main
from robot_runtime.errors import BadInput
from tests.trainer.conftest import TOYS
from tests.trainer.toys.surefoot_toys import RECIPE, make
from trainer.checkpoint import Checkpoint, checkpoint_path, find_checkpoint, load_checkpoint
from trainer.config import RndConfig, TrainConfig
from trainer.metrics import METRICS_FILE, TENSORBOARD_FOLDER, read_metrics
from trainer.tasks.base import recipe_of
from trainer.train import TrainResult, train

CONFIG = replace(RECIPE, num_envs=8, iterations=6, checkpoint_every=3)


def run(folder: Path, config: TrainConfig = CONFIG, **more: Any) -> TrainResult:
    task = make(num_envs=config.num_envs, seed=config.seed, device="cpu", num_threads=1)
    return train("toy-point", task, config, folder, **more)


def assert_same(one: Checkpoint, other: Checkpoint) -> None:
    """Everything that the future depends on is equal, bit for bit."""
    for field in ("agent", "collector", "progress", "rng"):
        torch.testing.assert_close(getattr(one, field), getattr(other, field), rtol=0.0, atol=0.0)
    assert (one.iteration, one.env_steps) == (other.iteration, other.env_steps)


def surefoot(
    *arguments: str, cwd: Path, check: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, with the toy task installed."""
    environment = {**os.environ, "PYTHONPATH": str(TOYS), **variables}
    code = "import sys; from robot_runtime.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd, env=environment, check=check, capture_output=True, text=True,
        timeout=900,  # against a hang, whatever else the machine does
    )  # fmt: skip


def test_ten_and_ten_more_in_a_new_process_are_twenty(tmp_path: Path) -> None:
    config = replace(CONFIG, checkpoint_every=100, seed=5)
    run(tmp_path / "half", replace(config, iterations=10))
    surefoot("train", "toy-point", "--iterations", "20", "--resume", "half", cwd=tmp_path)
    run(tmp_path / "whole", replace(config, iterations=20))
    resumed = load_checkpoint(checkpoint_path(tmp_path / "half", 20))
    straight = load_checkpoint(checkpoint_path(tmp_path / "whole", 20))
    assert_same(resumed, straight)
    rows = [read_metrics(tmp_path / name) for name in ("half", "whole")]
    for one, other in zip(*rows, strict=True):
        timeless = [{k: v for k, v in row.items() if "perf/" not in k} for row in (one, other)]
        assert timeless[0] == timeless[1]


def test_same_seed_same_checkpoint_and_another_seed_another(tmp_path: Path) -> None:
    states = []
    for i, seed in enumerate((0, 0, 1)):
        result = run(tmp_path / str(i), replace(CONFIG, seed=seed))
        states.append(load_checkpoint(result.checkpoint))
    assert_same(states[0], states[1])
    weight = "net.0.weight"
    assert not torch.equal(states[0].agent["actor"][weight], states[2].agent["actor"][weight])


def test_checkpoints_come_every_n_iterations_and_at_the_end(tmp_path: Path) -> None:
    result = run(tmp_path, replace(CONFIG, iterations=7))
    found = sorted(path.name for path in result.checkpoint.parent.iterdir())
    assert found == [f"iteration_000000{i}.pt" for i in (3, 6, 7)]
    assert result.iterations == 7
    assert result.env_steps == 7 * 8 * 16


def test_what_is_logged(tmp_path: Path) -> None:
    run(tmp_path)
    rows = read_metrics(tmp_path)
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4, 5, 6]
    expected = {
        "policy/kl", "policy/clip_fraction", "policy/entropy", "policy/std", "policy/lr",
        "policy/grad_norm", "value/explained_variance", "loss/surrogate", "loss/value",
        "loss/mirror", "rollout/reward", "reward/distance", "episode/return", "episode/length",
        "guard/quarantined_envs", "perf/steps_per_second", "perf/collect_seconds",
        "perf/learn_seconds", "progress/env_steps",
    }  # fmt: skip
    assert expected <= set(rows[-1])
    assert rows[-1]["reward/distance"] == pytest.approx(-rows[-1]["rollout/reward"], rel=1e-5)
    events = [path.name for path in (tmp_path / TENSORBOARD_FOLDER).iterdir()]
    assert len(events) == 1
    assert events[0].startswith("events.out.tfevents.")
    assert json.loads((tmp_path / "config.json").read_text())["ppo"]["gamma"] == 0.9


def test_a_resumed_run_drops_what_was_logged_after_its_checkpoint(tmp_path: Path) -> None:
    run(tmp_path)
    checkpoint = load_checkpoint(checkpoint_path(tmp_path, 3))
    run(tmp_path, resume=checkpoint)
    assert [row["iteration"] for row in read_metrics(tmp_path)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("floor", "in_effect"), [(4e-4, 4e-4), (None, 5e-5)])
def test_a_linear_schedule_runs_from_start_to_floor(
    tmp_path: Path, floor: float | None, in_effect: float
) -> None:
    ppo = replace(RECIPE.ppo, desired_kl=None, lr_anneal="linear", learning_rate=1e-3, min_lr=floor)
    run(tmp_path, replace(CONFIG, ppo=ppo))
    rates = [row["policy/lr"] for row in read_metrics(tmp_path)]
    expected = torch.linspace(1e-3, in_effect, CONFIG.iterations + 1, dtype=torch.float64)[:-1]
    assert rates == pytest.approx(expected.tolist())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_writes_a_checkpoint_and_ends(number: signal.Signals, tmp_path: Path) -> None:
    class Interrupting:
        """Presses Ctrl-C after two iterations."""

        def iteration(self, done: int, metrics: dict[str, float]) -> None:
            if done == 2:
                signal.raise_signal(number)

        def __enter__(self) -> "Interrupting":
            return self

        def __exit__(self, *_: object) -> None:
            return None

    before = signal.getsignal(number)
    result = run(tmp_path, report=Interrupting())
    assert result.interrupted
    assert load_checkpoint(result.checkpoint).iteration == result.iterations == 2
    assert signal.getsignal(number) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iterations": 6}, "has done 6 iterations .* ask for more with --iterations"),
        ({"iterations": 9, "num_envs": 4}, "does not fit this run: position has shape"),
        (
            {"iterations": 9, "network": replace(RECIPE.network, actor_hidden=(5,))},
            "does not fit this run: .*size mismatch",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    checkpoint = load_checkpoint(run(tmp_path / "first").checkpoint)
    with pytest.raises(BadInput, match=message):
        run(tmp_path / "second", replace(CONFIG, **changes), resume=checkpoint)


def test_the_verb_trains_resumes_and_tells_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    common = ["--num-envs", "8", "--json"]
    assert main(["train", "toy-point", "--iterations", "2", "--out", out, *common]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["run"] == out
    assert (told["iterations"], told["interrupted"]) == (2, False)
    assert Path(told["checkpoint"]).is_file()
    resume = ["--iterations", "4", "--resume", told["checkpoint"], "--ppo.learning-rate", "1e-4"]
    assert main(["train", "toy-point", *resume]) == 0
    assert "4 iterations" in capsys.readouterr().out
    config = load_checkpoint(checkpoint_path(tmp_path / "out", 4)).config
    # From the checkpoint, and on top of it from the command line.
    assert (config.num_envs, config.ppo.learning_rate) == (8, 1e-4)


def test_the_settings_in_effect_are_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--num-envs", "8", "--iterations", "2", "--ppo.learning-rate", "2e-4"]
    linear = ["--ppo.desired-kl", "None", "--ppo.lr-anneal", "linear", "--rnd.weight", "0.3"]
    assert main(["train", "toy-point", *options, *linear, "--out", str(tmp_path / "out")]) == 0
    said = " ".join(capsys.readouterr().err.split())
    for text in ("ppo: num_steps=", " min_lr=1e-05 ", " symmetry.augment=", " adam_eps=1e-08 "):
        assert said.count(text) == 1, text
    assert "rnd: weight=0.3 " in said
    assert "amp: " not in said


def test_another_branch_of_a_run_is_for_another_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    run(out, replace(CONFIG, iterations=2, checkpoint_every=1))
    logged = (out / METRICS_FILE).read_bytes()
    branch = ["train", "toy-point", "--iterations", "3", "--resume", str(checkpoint_path(out, 1))]
    assert main(branch) == 2
    assert "has gone on beyond iteration 1, to iteration_0000002.pt" in capsys.readouterr().err
    assert (out / METRICS_FILE).read_bytes() == logged
    assert main([*branch, "--out", str(tmp_path / "branch")]) == 0
    assert find_checkpoint(tmp_path / "branch") == checkpoint_path(tmp_path / "branch", 3)


def test_what_a_resumed_run_leaves_off_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    curious = replace(CONFIG, iterations=1, rnd=RndConfig(weight=0.1))
    checkpoint = load_checkpoint(run(tmp_path, curious).checkpoint)
    run(tmp_path, replace(CONFIG, iterations=2), resume=checkpoint)
    assert "'rnd' is off: the state that the checkpoint has of it is dropped" in caplog.text


def test_help_has_an_example_and_the_recipe_as_defaults(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "toy-point", "--help"]) == 0
    text = capsys.readouterr().out
    assert "surefoot train toy-point --iterations 300" in text
    assert "--ppo.gamma FLOAT" in text
    assert "(default: 0.9)" in text
    assert main(["train", "--help"]) == 0
    assert "--network.encoders.0.shape" in capsys.readouterr().out


def test_encoders_are_numbered_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--num-envs", "8", "--iterations", "1", "--out", str(tmp_path / "out")]
    encoder = "--network.encoders.0"
    shape = [f"{encoder}.group", "policy", f"{encoder}.shape", "2", "1", f"{encoder}.width", "4"]
    assert main(["train", "toy-point", *common, *shape, f"{encoder}.queries", "2"]) == 0
    capsys.readouterr()
    (one,) = load_checkpoint(checkpoint_path(tmp_path / "out", 1)).config.network.encoders
    assert (one.group, one.shape, one.width, one.queries) == ("policy", (2, 1), 4, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["toy-point", "--network.encoders.0.kind", "conv1d", "--out", "{full}/run"],
            "shape = .* of the group 'policy'",
        ),
        (
            ["toy-point", "--network.encoders.1.kind", "conv1d", "--out", "{full}/run"],
            "the observation group 'group 1'",
        ),
        (["toy-point", "--network.encoders.99.kind", "conv1d"], "there are at most 8"),
        (
            ["toy-point", "--network.kind", "lstn", "--out", "{full}/run"],
            "unknown kind of network 'lstn'; there are: mlp",
        ),
        (["toy-points"], "unknown task 'toy-points'; there are: .*toy-point"),
        ([], "name the task first: .*toy-point"),
        (["--seed", "1", "toy-point"], "name the task first"),
        (["toy-point", "--itrations", "3"], "Unrecognized options: --itrations, 3"),
        (["toy-point", "--iterations", "three"], "--iterations: invalid literal"),
        (["toy-point", "--ppo.gamma", "2"], "gamma = 2.0: must be at least 0 and at most 1"),
        (["toy-point", "--ppo.lr-anneal", "linear"], "choose one"),
        (["toy-point", "--out", "{file}"], "cannot make run folder '{file}'"),
        (["toy-point", "--out", "{file}/below"], "cannot make run folder"),
        (["toy-point", "--out", "{full}"], "'{full}' is not empty"),
        (["toy-point", "--network.actor-groups", "scan"], "the observation group 'scan'"),
        (["toy-point", "--initial", "nowhere"], "no checkpoint or run folder 'nowhere'"),
        (["toy-point", "--resume", "{file}"], "'{file}' is not a checkpoint"),
        (["toy-point", "--resume", "nowhere"], "no checkpoint or run folder 'nowhere'"),
        (["toy-point", "--num-envs", "0"], "num_envs = 0"),
        (
            ["toy-point", "--ppo.compile-backend", "inducter", "--out", "{full}/run"],
            "compile_backend = 'inducter': torch.compile has: .*inductor",
        ),
        (["toy-point", "--num-envs", "1", "--ppo.num-steps", "7"], r"ppo\.minibatches = 4: each"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_and_leaves_no_run_folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"file": str(tmp_path / "file"), "full": str(tmp_path / "full")}
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    before = sorted(tmp_path.rglob("*"))
    assert main(["train", *(argument.format(**names) for argument in arguments)]) == 2
    assert sorted(tmp_path.rglob("*")) == before
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("surefoot train: error: ")
    assert re.search(message.format(**names), error)


def test_bad_input_is_as_clear_where_the_terminal_knows_no_frames(tmp_path: Path) -> None:
    arguments = ("train", "toy-point", "--ppo.gamma", "2")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = surefoot(*arguments, cwd=tmp_path, check=False, **plain)
    assert done.returncode == 2
    assert done.stderr == (
        "surefoot train: error: Error parsing config.ppo: gamma = 2.0: must be at least 0 and at "
        "most 1 (see 'surefoot train --help')\n"
    )


def test_a_second_run_into_the_folder_of_one_that_runs_is_refused_and_changes_nothing(
    tmp_path: Path,
) -> None:
    class Second:
        """Starts another run into the folder while the first one is running."""

        def iteration(self, done: int, metrics: dict[str, float]) -> None:
            if done == 2:
                before = {p: p.read_bytes() for p in tmp_path.rglob("*.json*")}
                with pytest.raises(BadInput, match="another run writes into it"):
                    run(tmp_path, replace(CONFIG, seed=9))
                assert {p: p.read_bytes() for p in tmp_path.rglob("*.json*")} == before

        def __enter__(self) -> "Second":
            return self

        def __exit__(self, *_: object) -> None:
            return None

    assert run(tmp_path, report=Second()).iterations == CONFIG.iterations
    assert [row["iteration"] for row in read_metrics(tmp_path)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "out")]
    assert main(["train", "toy-point", "--device", "cuda", *out]) == 2
    assert "device 'cuda' is not available" in capsys.readouterr().err


@pytest.mark.gpu
def test_a_gpu_trains_and_its_checkpoint_is_read_on_the_cpu(tmp_path: Path) -> None:
    result = run(tmp_path, replace(CONFIG, device="cuda", iterations=30, num_envs=32))
    rewards = [row["rollout/reward"] for row in read_metrics(tmp_path)]
    assert rewards[-1] > 0.5 * rewards[0]
    checkpoint = load_checkpoint(result.checkpoint)
    assert all(t.device.type == "cpu" for t in checkpoint.agent["actor"].values())
    more = replace(CONFIG, device="cuda", iterations=32, num_envs=32)
    assert run(tmp_path, more, resume=checkpoint).iterations == 32


def test_a_task_that_is_none_is_refused() -> None:
    def no_task(**_: object) -> None:
        return None

    with pytest.raises(BadInput, match="a task must return a TaskRun, got NoneType"):
        recipe_of(no_task)  # pyright: ignore[reportArgumentType]


def test_a_run_that_could_keep_no_checkpoint_does_not_begin(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").touch()  # For root, too, no folder that can be written.
    with pytest.raises(BadInput, match=r"cannot write into folder '.*checkpoints'"):
        run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
