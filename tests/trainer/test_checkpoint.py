"""Checkpoints: whole, self-describing, and refused in one line when they are not what they seem."""

import errno
import os
import pickle
import resource
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_runtime.errors import BadInput
from tests.trainer.toys.surefoot_toys import RECIPE, PointEnv, make
from trainer.checkpoint import (
    Checkpoint,
    build_actor,
    checkpoint_path,
    find_checkpoint,
    load_checkpoint,
    read_archive,
    save_checkpoint,
    trace_from_arrays,
    trace_to_arrays,
)
from trainer.config import PPOConfig, TrainConfig
from trainer.tasks.base import TaskRun
from trainer.train import train


def run(folder: Path, *, seed: int = 0, **ppo: Any) -> Path:
    """Train the toy task for two iterations and return its checkpoint."""
    config = replace(RECIPE, iterations=2, num_envs=16, seed=seed, ppo=replace(RECIPE.ppo, **ppo))
    task = make(num_envs=16, seed=seed, device="cpu", num_threads=1)
    return train("toy-point", task, config, folder).checkpoint


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def checkpoint(path: Path) -> Checkpoint:
    return load_checkpoint(path)


def test_it_describes_itself(checkpoint: Checkpoint) -> None:
    assert checkpoint.task == "toy-point"
    assert checkpoint.config == replace(RECIPE, iterations=2, num_envs=16)
    assert (checkpoint.obs_dims, checkpoint.num_actions) == ({"policy": 2}, 2)
    assert (checkpoint.iteration, checkpoint.env_steps) == (2, 2 * 16 * 16)
    assert checkpoint.contract == '{"robot": "point"}'
    assert {"python", "torch", "numpy"} <= set(checkpoint.versions)


def test_a_full_disk_is_named_and_leaves_nothing(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """A real limit of the system, which it otherwise enforces by ending the process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(BadInput, match=r"cannot write '.*again\.pt': File too large"):
            save_checkpoint(tmp_path / "again.pt", checkpoint)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert os.listdir(tmp_path) == []


def test_saved_and_read_it_is_the_same(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "again.pt", checkpoint)
    again = load_checkpoint(tmp_path / "again.pt")
    assert again.config == checkpoint.config
    torch.testing.assert_close(again.agent, checkpoint.agent, rtol=0.0, atol=0.0)
    torch.testing.assert_close(again.collector, checkpoint.collector, rtol=0.0, atol=0.0)


def test_the_actor_of_a_checkpoint_replays_its_golden_trace(checkpoint: Checkpoint) -> None:
    assert checkpoint.trace is not None
    trace = trace_to_arrays(checkpoint.trace)
    assert trace["names"].tolist() == ["x", "y"]
    actor = build_actor(checkpoint)
    assert not any(p.requires_grad for p in actor.parameters())
    action = actor(torch.from_numpy(trace["obs"]))
    assert np.array_equal(action.numpy(), trace["action"])  # the same code on the same numbers
    assert float(action.abs().max()) > 0.0


def test_a_trace_keeps_its_dtypes_and_refuses_objects() -> None:
    arrays = {
        "flags": np.array([True, False]),
        "steps": np.arange(3),
        "torque": np.zeros((2, 3), dtype=np.float32),
        "names": np.array(["hip", "knee"]),
    }
    back = trace_to_arrays(trace_from_arrays(arrays))
    assert {name: array.dtype.kind for name, array in back.items()} == {
        "flags": "b", "steps": "i", "torque": "f", "names": "U",
    }  # fmt: skip
    assert all(np.array_equal(back[name], arrays[name]) for name in arrays)
    with pytest.raises(TypeError, match="trace array 'x' has dtype object"):
        trace_from_arrays({"x": np.array([None])})


def test_state_that_is_no_plain_container_is_named(checkpoint: Checkpoint, tmp_path: Path) -> None:
    odd = replace(checkpoint, collector={"env": {"qpos": np.zeros(3)}})
    with pytest.raises(TypeError, match=r"checkpoint.collector.env.qpos is a ndarray"):
        save_checkpoint(tmp_path / "odd.pt", odd)
    assert list(tmp_path.iterdir()) == []


def test_the_newest_checkpoint_of_a_run_is_found(path: Path, tmp_path: Path) -> None:
    assert find_checkpoint(path) == path
    assert find_checkpoint(path.parent.parent) == path
    for iteration in (9, 10, 2000000):
        target = checkpoint_path(tmp_path, iteration)
        target.parent.mkdir(exist_ok=True)
        target.touch()
    assert find_checkpoint(tmp_path) == checkpoint_path(tmp_path, 2000000)
    for missing in (tmp_path / "nowhere", path.parent):
        with pytest.raises(BadInput, match=str(missing)):
            find_checkpoint(missing)


class Explosive:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self._mark),)


def bad_file(kind: str, path: Path, good: Path) -> None:
    """Write a file with one fault."""
    content = torch.load(good, weights_only=True)
    if kind == "truncated":
        path.write_bytes(good.read_bytes()[:-100])
    elif kind == "half":
        path.write_bytes(good.read_bytes()[: good.stat().st_size // 2])
    elif kind == "text":
        path.write_text("no checkpoint at all")
    elif kind == "empty":
        path.touch()
    elif kind == "pickle":
        path.write_bytes(pickle.dumps(Explosive(path.parent / "mark")))
    elif kind == "explosive":
        torch.save({**content, "rng": Explosive(path.parent / "mark")}, path)
    elif kind == "list":
        torch.save([1, 2], path)
    elif kind == "foreign":
        torch.save({"model_state_dict": {}, "iter": 3}, path)
    elif kind == "newer":
        torch.save({**content, "schema": 2}, path)
    elif kind == "setting":
        torch.save({**content, "config": {**content["config"], "iterations": 0}}, path)
    elif kind == "type":
        torch.save({**content, "agent": [1]}, path)
    elif kind.startswith("without "):
        del content[kind.removeprefix("without ")]
        torch.save(content, path)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "does not exist"),
        ("truncated", "not a checkpoint, or it is truncated"),
        ("half", "not a checkpoint, or it is truncated"),
        ("text", "not a checkpoint, or it is truncated"),
        ("empty", "not a checkpoint, or it is truncated"),
        ("pickle", "not a checkpoint, or it is truncated"),
        ("explosive", "could run code"),
        ("list", "not a checkpoint; it holds a list"),
        ("foreign", "not a checkpoint of surefoot; it holds: model_state_dict, iter"),
        ("newer", "schema 2, which is newer than the 1"),
        ("setting", "iterations = 0"),
        ("type", "'agent' is a list"),
        ("without agent", "lacks 'agent'"),
        ("without trace", "lacks 'trace'"),
    ],
)
def test_every_bad_file_is_one_line_and_runs_no_code(
    kind: str, message: str, path: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.pt"
    bad_file(kind, bad, path)
    with pytest.raises(BadInput, match=message) as caught:
        load_checkpoint(bad)
    assert str(bad) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "mark").exists()


def test_a_folder_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not a file"):
        load_checkpoint(tmp_path)


def test_weights_that_do_not_fit_the_settings_are_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(BadInput, match=r"do not fit its settings.*net\.0\.weight"):
        build_actor(replace(checkpoint, obs_dims={"policy": 3}))
    with pytest.raises(BadInput, match="the checkpoint has no 'policy'"):
        build_actor(replace(checkpoint, obs_dims={}))


@pytest.mark.parametrize("backends", [("aot_eager", ""), ("", "aot_eager")])
def test_compiled_and_plain_runs_read_each_others_checkpoints(
    backends: tuple[str, str], path: Path, tmp_path: Path
) -> None:
    first, second = backends
    plain = load_checkpoint(path)
    checkpoint = load_checkpoint(run(tmp_path / "a", compile_backend=first))
    assert not [key for key in checkpoint.agent["actor"] if "_orig_mod" in key]

    def resumed(folder: str, start: Checkpoint, backend: str) -> Checkpoint:
        ppo = replace(RECIPE.ppo, compile_backend=backend)
        config = replace(start.config, iterations=3, ppo=ppo)
        task = make(num_envs=16, seed=0, device="cpu", num_threads=1)
        return load_checkpoint(
            train("toy-point", task, config, tmp_path / folder, resume=start).checkpoint
        )

    other, uncompiled = resumed("b", checkpoint, second), resumed("c", plain, "")
    assert list(other.agent["actor"]) == list(checkpoint.agent["actor"])
    # Compiling changes the order of float32 operations, not what is computed and learned.
    obs = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    for one, expected in ((checkpoint, plain), (other, uncompiled)):
        torch.testing.assert_close(
            build_actor(one)(obs), build_actor(expected)(obs), rtol=1e-4, atol=1e-5
        )
    assert not torch.equal(build_actor(other)(obs), build_actor(checkpoint)(obs)), "it learns"


def test_a_task_without_a_robot_has_neither_contract_nor_trace(tmp_path: Path) -> None:
    config = TrainConfig(num_envs=4, iterations=1, ppo=PPOConfig(num_steps=4, epochs=1))
    result = train("bare", TaskRun(env=PointEnv(4), train=config), config, tmp_path)
    checkpoint = load_checkpoint(result.checkpoint)
    assert checkpoint.contract is None
    assert checkpoint.trace is None


def test_a_file_that_may_not_be_read_is_not_called_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever runs the tests may read everything, perhaps.
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    path = tmp_path / "file.pt"
    path.touch()
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(BadInput, match=r"cannot read checkpoint '.*file\.pt': Permission denied"):
        read_archive(path)
