"""Tasks named gym:ID that gymnasium cannot make: one line, exit code 2, naming what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from robot_runtime.cli import main


class Picky(CartPoleEnv):
    """Breaks where and how it is told."""

    def __init__(self, kind: str = "", late: bool = False) -> None:
        super().__init__()
        self._late = {"": None, "assert": AssertionError(), "key": KeyError("9x9"),
                      "file": FileNotFoundError(2, "No such file", "map.xml"),
                      "zero": ZeroDivisionError("division by zero")}[kind]  # fmt: skip
        if self._late is not None and not late:
            raise self._late

    def step(self, action: Any) -> Any:
        if self._late is not None:
            raise self._late
        return super().step(action)


class Sound(CartPoleEnv):
    """Has an argument that must be used."""

    def __init__(self, size: float = 1.0) -> None:
        super().__init__()
        self.theta_threshold_radians = size * np.pi


@pytest.fixture(autouse=True)
def registered() -> Any:
    picky: Any = Picky
    sound: Any = Sound
    gymnasium.register("Picky-v0", picky, disable_env_checker=True)
    gymnasium.register("Sound-v0", sound, max_episode_steps=20)
    gymnasium.register("Bare-v0", "a_package_that_is_not_here.envs:Env")
    yield
    for name in ("Picky-v0", "Sound-v0", "Bare-v0"):
        del gymnasium.registry[name]


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("CartPole-v1?nonsense=1", "'CartPole-v1' has no argument 'nonsense'; there are: disable_"),
        ("CartPole-v1?id=3", "'CartPole-v1' has no argument 'id'; there are: disable_env_checker,"),
        ("CartPole-v1?max_episode_steps=abc", "'CartPole-v1' with max_episode_steps='abc'"),
        ("Pendulum-v1?g=heavy", "'Pendulum-v1' with g='heavy'"),
        ("Picky-v0?kind=assert", "'Picky-v0' with kind='assert': AssertionError"),
        ("Picky-v0?kind=key", "'Picky-v0' with kind='key': KeyError: '9x9'"),
        ("Picky-v0?kind=file", "with kind='file': FileNotFoundError: [Errno 2] No such file"),
        ("Picky-v0?kind=zero&late=True", "with kind='zero', late=True: ZeroDivisionError"),
        ("Picky-v0?knd=key", "'Picky-v0' has no argument 'knd'; there are: disable_env_checker, k"),
        ("Bare-v0?x=1", "'Bare-v0' with x=1: No module named 'a_package_that_is_not_here'"),
        ("Bare-v0", "'Bare-v0': No module named 'a_package_that_is_not_here'"),
        ("a_package_that_is_not_here:Foo-v0", "No module named 'a_package_that_is_not_here'"),
        ("CartPole-v7", "'CartPole-v7': Environment version `v7` for environment `CartPole` does"),
        ("Cartpole-v1", "'Cartpole-v1': Environment `Cartpole` doesn't exist. Did you mean: `Car"),
        ("", "gymnasium cannot make ''"),
        ("CartPole-v1?nonsense", "'nonsense' is not of the form name=value"),
    ],
)
def test_what_gymnasium_cannot_make_is_said_in_one_line(
    task: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["train", f"gym:{task}", "--iterations", "1", "--out", str(tmp_path / "run")])
    error = capsys.readouterr().err
    assert code == 2, error
    assert not (tmp_path / "run").exists()
    lines = [line for line in error.splitlines() if line.startswith("surefoot train: error: ")]
    assert len(lines) == 1
    assert error.rstrip().endswith(lines[0])
    assert said in lines[0]


def test_an_argument_that_is_right_reaches_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--iterations", "1", "--num-envs", "2", "--ppo.num-steps", "64"]
    out = ["--out", str(tmp_path / "run")]
    code = main(["train", "gym:Sound-v0?size=2.0", *settings, *out])
    assert code == 0, capsys.readouterr().err
    # Poles that may fall all the way end by the time limit alone.
    assert "length 20" in capsys.readouterr().err
