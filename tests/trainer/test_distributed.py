"""Several processes: they learn what one would, stay equal, and begin, go on and end together."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.processes import Start
from tests.trainer.conftest import TOYS
from tests.trainer.two_processes import CASES, SYMMETRY, Points, in_one_process
from trainer.checkpoint import checkpoint_path, load_checkpoint
from trainer.distributed import ALONE
from trainer.evaluation import best_path
from trainer.metrics import read_metrics
from trainer.tasks.base import TaskRun
from trainer.together import merged_metrics
from trainer.train import train

ROOT = Path(__file__).parents[2]
RANKS = (0, 1)


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(TOYS), str(ROOT)])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def torchrun(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *arguments]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes have written that torchrun has started."""
    folder = tmp_path_factory.mktemp("two")
    script = str(Path(__file__).with_name("two_processes.py"))
    command = torchrun("--standalone", "--nproc-per-node", "2", script, str(folder))
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def seen(folder: Path) -> list[dict[str, Any]]:
    """What each of them has seen."""
    return [torch.load(folder / f"rank_{rank}.pt", weights_only=True) for rank in RANKS]


@pytest.mark.parametrize("name", CASES)
def test_two_processes_learn_what_one_learns_from_all_their_samples(
    seen: list[dict[str, Any]], name: str
) -> None:
    theirs, ours = seen[0][name], in_one_process(CASES[name])
    assert len(ours["tensors"]) == CASES[name].iterations
    for two, one in zip(theirs["tensors"], ours["tensors"], strict=True):
        assert two.keys() == one.keys()
        for key, value in one.items():
            # Sums in another order; Adam makes more of it where a gradient is next to nothing.
            bound = 1e-5 if "normalizer" in key else 1e-4
            torch.testing.assert_close(two[key], value, rtol=bound, atol=bound, msg=key)
    rates = [row["policy/lr"] for row in ours["metrics"]]
    assert len(set(rates)) > 1, "nothing has moved the learning rate"
    for two, one in zip(theirs["metrics"], ours["metrics"], strict=True):
        for key in ("policy/kl", "value/explained_variance", "rollout/reward", "episode/return"):
            assert two[key] == pytest.approx(one[key], rel=1e-3, abs=1e-4), key
        assert two["episode/count"] == one["episode/count"]
        assert two["progress/env_steps"] == one["progress/env_steps"]


@pytest.mark.parametrize("name", [*CASES, "lost", "novelty", "style", "rsl_rl", "distilled"])
def test_processes_stay_equal_bit_for_bit(seen: list[dict[str, Any]], name: str) -> None:
    first, second = (of_rank[name]["tensors"] for of_rank in seen)
    for one, other in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert torch.equal(value, other[key]), key


def test_a_student_of_two_processes_goes_on_where_it_was(
    seen: list[dict[str, Any]], folder: Path
) -> None:
    whole, rest = seen[0]["distilled"]["tensors"]
    assert float(whole["actor.normalizer.count"]) == 2 * 8 * 10 * 4
    for name, value in whole.items():
        assert torch.equal(value, rest[name]), name
    lines = (folder / "distilled" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 4, "the first process alone writes"


def test_what_extensions_know_is_of_all(seen: list[dict[str, Any]]) -> None:
    first, *_, last = seen[0]["novelty"]["tensors"]
    # 16 steps of 8 environments.
    assert float(first["rnd.states.count"]) == float(first["rnd.rewards.count"]) == 128.0
    assert not torch.equal(first["rnd.net.0.weight"], last["rnd.net.0.weight"])
    first, *_, last = seen[0]["style"]["tensors"]
    # As many states of the reference.
    assert float(first["amp.states.count"]) == 2 * 128.0
    assert not torch.equal(first["amp.net.0.weight"], last["amp.net.0.weight"])


def test_a_process_without_samples_goes_along(seen: list[dict[str, Any]]) -> None:
    for of_rank in seen:
        metrics = of_rank["lost"]["metrics"]
        assert [row["nonfinite/reward"] for row in metrics[1:]] == [64.0, 64.0]
        assert metrics[-1]["nonfinite/grad"] == 0.0
        counts = [tensors["actor.normalizer.count"] for tensors in of_rank["lost"]["tensors"]]
        # With mirror images switched off, 16 steps of 4 environments of 2, then 1, then 2.
        assert [float(count) for count in counts] == [128.0, 192.0, 320.0]


def test_drift_is_refused_by_rank_and_name(seen: list[dict[str, Any]]) -> None:
    for of_rank in seen:
        assert {
            "actor.net.0.weight", "critic.normalizer.mean", "optimizer.0.exp_avg",
            "rnd.net.0.weight", "rnd.target.0.weight", "rnd.states.mean", "rnd.rewards.var",
        } <= set(of_rank["drifted"])  # fmt: skip
        for name, said in of_rank["drifted"].items():
            assert "what rank 1 has learned differs from what rank 0 has, in 1 of " in said, name
            assert f"first in '{name}'" in said


def test_different_settings_are_refused_by_name(seen: list[dict[str, Any]]) -> None:
    for of_rank in seen:
        assert re.fullmatch(
            r"ppo\.clip = 0\.3\d* in rank 1 and 0\.2 in rank 0", of_rank["settings"]
        )


def test_only_the_first_process_writes(folder: Path) -> None:
    rows = read_metrics(folder / "whole")
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
    assert "eval/return" in rows[1]
    assert len(list((folder / "whole" / "tensorboard").iterdir())) == 1
    assert best_path(folder / "whole").is_file()
    checkpoint = load_checkpoint(checkpoint_path(folder / "whole", 4))
    assert len(checkpoint.others) == 1
    assert checkpoint.env_steps == 4 * 2 * 8 * 16


def test_the_same_number_of_processes_goes_on_exactly(
    folder: Path, seen: list[dict[str, Any]]
) -> None:
    whole, rest = (load_checkpoint(checkpoint_path(folder / name, 4)) for name in ("whole", "rest"))
    for field in ("agent", "collector", "progress", "rng", "others"):
        one, other = getattr(whole, field), getattr(rest, field)
        torch.testing.assert_close(one, other, rtol=0.0, atol=0.0)
    own = whole.others[0]["collector"]["env"]["position"]
    assert not torch.equal(own, whole.collector["env"]["position"])
    assert seen[0]["rest"] == seen[1]["rest"] == seen[0]["whole"]


def test_another_number_of_processes_begins_the_episodes_anew(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = load_checkpoint(checkpoint_path(folder / "half", 2))
    config = replace(checkpoint.config, iterations=3, num_envs=6)
    task = TaskRun(env=Points(6), train=config, symmetry=SYMMETRY)
    result = train("points", task, config, tmp_path, resume=checkpoint, eval_env=Points(4))
    assert result.iterations == 3
    assert "the checkpoint is of 2 processes and there are 1" in caplog.text
    assert result.env_steps == checkpoint.env_steps + 6 * 16


def test_they_end_together(seen: list[dict[str, Any]]) -> None:
    first, second = seen
    assert first["early"] == second["early"]
    assert first["early"]["iterations"] == 2
    assert "has reached the target" in first["early"]["stopped"]
    assert first["pressed"] == second["pressed"]
    assert first["pressed"]["interrupted"]
    assert first["pressed"]["iterations"] == 2


def test_the_runner_of_rsl_rl_writes_once(folder: Path) -> None:
    names = {path.name for path in (folder / "rsl_rl").iterdir()}
    assert {"model_2.pt", "by_hand.pt", "metrics.jsonl"} <= names
    assert len(read_metrics(folder / "rsl_rl")) == 3


def test_a_failure_ends_all_with_its_traceback(tmp_path: Path) -> None:
    command = torchrun("--standalone", "--nproc-per-node", "2", "-m", "trainer")
    done = subprocess.run(
        [*command, "toy-crash", "--num-envs", "4", "--out", "out"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode != 0
    assert "rank 1 of 2 failed" in done.stderr
    assert "Traceback" in done.stderr
    assert "RuntimeError: the cable is cut" in done.stderr
    assert "rank 0 ends: rank 1 has failed" in done.stderr
    # The toy says when it fails; meanwhile the other one sleeps for minutes.
    failed = float((tmp_path / "failed").read_text())
    assert time.time() - failed < 120.0


def test_a_process_that_is_gone_is_missed_without_torchrun(tmp_path: Path, start: Start) -> None:
    """Other launchers set the same variables and may leave the processes to themselves."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    processes = [
        start(
            [sys.executable, "-m", "trainer", "toy-crash", "--num-envs", "4", "--out", "out"],
            cwd=tmp_path, stderr=subprocess.PIPE, text=True,
            env=environment() | where
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "TOY_CRASH": "gone"},
        )
        for rank in RANKS
    ]  # fmt: skip
    _, told = processes[0].communicate(timeout=200)
    left = time.time() - float((tmp_path / "failed").read_text())
    processes[1].communicate(timeout=60)
    assert [process.returncode for process in processes] == [1, 9], told
    assert "rank 0 of 2: error: rank 0 cannot reach the other processes" in told
    # Not the ten minutes for which one that lives is waited for.
    assert left < 120.0


def test_two_nodes_train_and_tell_once(tmp_path: Path, start: Start) -> None:
    where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    # A machine need not know its own name.
    where += ["--local-addr", "127.0.0.1"]
    command = torchrun("--nnodes", "2", "--nproc-per-node", "1", *where, "-m", "trainer")
    verb = ["toy-point", "--num-envs", "4", "--iterations", "2", "--out", "out"]
    nodes = [
        start(
            [*command, *verb], cwd=tmp_path, env=environment(),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    told = [node.communicate(timeout=200) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], told
    assert "".join(out for out, _ in told).count("done: 2 iterations, 256 steps") == 1
    assert load_checkpoint(checkpoint_path(tmp_path / "out", 2)).env_steps == 256


def test_without_others_nothing_is_done() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = gradient = torch.tensor([1.0, 2.0, 3.0])
    measured: Tensor = torch.tensor(0.5)
    assert ALONE.average_gradients([parameter], measured, 7) is measured
    assert parameter.grad is gradient
    assert ALONE.gather("x") == ["x"]
    assert ALONE.from_first(measured) is measured
    assert ALONE.seed(11) == 11


def test_metrics_of_two_are_merged_by_what_they_are_of() -> None:
    own = {
        "episode/return": 1.0, "episode/count": 3.0, "policy/kl": 0.1, "nonfinite/grad": 2.0,
        "nonfinite/reward": 1.0, "perf/collect_seconds": 2.0, "perf/steps_per_second": 50.0,
    }  # fmt: skip
    other = {
        "episode/return": 5.0, "episode/count": 1.0, "policy/kl": 0.4, "nonfinite/grad": 2.0,
        "nonfinite/reward": 4.0, "perf/collect_seconds": 7.0, "loss/value": 3.0,
    }  # fmt: skip
    peers: Any = SimpleNamespace(size=2, gather=lambda mine: [mine, (other, 20)])
    merged, steps = merged_metrics(own, 10, peers)
    assert steps == 30
    assert merged == pytest.approx({
        "episode/return": 2.0,  # (3 * 1 + 1 * 5) / 4: of all episodes
        "episode/count": 4.0,
        "policy/kl": 0.3,  # (10 * 0.1 + 20 * 0.4) / 30: of all steps
        "nonfinite/grad": 2.0,  # one gradient, seen by both
        "nonfinite/reward": 5.0,
        "perf/collect_seconds": 7.0,
        "perf/steps_per_second": 50.0,
        "loss/value": 3.0,
    })  # fmt: skip


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two GPUs")
def test_two_gpus_train(tmp_path: Path) -> None:
    command = torchrun("--standalone", "--nproc-per-node", "2", "-m", "trainer", "toy-point")
    options = ["--device", "cuda", "--iterations", "30", "--compare-every", "1", "--out", "out"]
    subprocess.run([*command, *options], cwd=tmp_path, env=environment(), check=True, timeout=300)
    rewards = [row["rollout/reward"] for row in read_metrics(tmp_path / "out")]
    assert rewards[-1] > 0.5 * rewards[0]
