"""The training scripts for Isaac Lab and mjlab, with stand-ins for the packages they need."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import pytest
import torch

from tests.trainer.adapters.rsl_rl_envs import Grouped
from trainer.rsl_rl_checkpoints import read_rsl_rl_checkpoint

EXAMPLES = Path(__file__).parents[3] / "examples"


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _install(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    """Put a module with some content where `import` finds it, its parents included."""
    parts = name.split(".")
    for i in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:i]), ModuleType(".".join(parts[:i])))
    module = ModuleType(name)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)


@dataclasses.dataclass
class AgentConfig:
    """The part of an agent configuration that scripts touch, and what runners read."""

    seed: int = 42
    device: str = "cpu"
    num_steps_per_env: int = 6
    max_iterations: int = 300
    save_interval: int = 50
    experiment_name: str = "counting"
    run_name: str = "try"
    clip_actions: float | None = None
    logger: str = "tensorboard"
    obs_groups: dict[str, tuple[str, ...]] = dataclasses.field(
        default_factory=lambda: {"actor": ("proprio", "step"), "critic": ("proprio",)}
    )
    actor: dict[str, Any] = dataclasses.field(
        default_factory=lambda: {
            "class_name": "MLPModel",
            "hidden_dims": [8],
            "distribution_cfg": {"class_name": "GaussianDistribution"},
        }
    )
    critic: dict[str, Any] = dataclasses.field(
        default_factory=lambda: {"class_name": "MLPModel", "hidden_dims": [8]}
    )
    algorithm: dict[str, Any] = dataclasses.field(
        default_factory=lambda: {"class_name": "PPO", "num_mini_batches": 2}
    )

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class Wrapped(Grouped):
    """What a wrapper makes of an environment."""

    made: list[Wrapped]

    def __init__(self, env: Any, clip_actions: float | None = None) -> None:
        super().__init__("final_obs")
        self.given, self.clip_actions = env, clip_actions
        type(self).made.append(self)

    made = []  # noqa: RUF012


@pytest.fixture(autouse=True)
def _forget() -> None:
    Wrapped.made.clear()


def test_isaac_lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = _load("isaaclab_train")
    seen: dict[str, Any] = {}

    class AppLauncher:
        def __init__(self, options: argparse.Namespace) -> None:
            seen["headless"] = options.headless
            self.app = SimpleNamespace(close=lambda: seen.update(closed=True))

        @staticmethod
        def add_app_launcher_args(parser: argparse.ArgumentParser) -> None:
            parser.add_argument("--headless", action="store_true")
            parser.add_argument("--device")

    env_cfg = SimpleNamespace(scene=SimpleNamespace(num_envs=4096), sim=SimpleNamespace(device="x"),
                              seed=None, compute_final_obs=False)  # fmt: skip

    def hydra_task_config(task: str, agent: str) -> Any:
        seen["hydra"] = (task, agent, sys.argv[1:])
        return lambda function: lambda: function(env_cfg, AgentConfig())

    closing = SimpleNamespace(close=lambda: None)
    _install(monkeypatch, "isaaclab.app", AppLauncher=AppLauncher)
    _install(monkeypatch, "isaaclab_rl.rsl_rl", RslRlVecEnvWrapper=Wrapped)
    _install(monkeypatch, "isaaclab_tasks.utils.hydra", hydra_task_config=hydra_task_config)
    monkeypatch.setattr(gymnasium, "make", lambda task, cfg: closing)
    monkeypatch.setattr(sys, "argv", ["isaaclab_train.py"])
    module.main(["--task", "Isaac-X", "--num_envs", "3", "--max_iterations", "2", "--headless",
                 "--device", "cpu", "--seed", "7", "--log_root", str(tmp_path),
                 "agent.algorithm.gamma=0.9"])  # fmt: skip
    assert seen["hydra"] == ("Isaac-X", "rsl_rl_cfg_entry_point", ["agent.algorithm.gamma=0.9"])
    assert (seen["headless"], seen["closed"]) == (True, True)
    assert (env_cfg.scene.num_envs, env_cfg.seed, env_cfg.sim.device) == (3, 7, "cpu")
    assert env_cfg.compute_final_obs is True
    assert Wrapped.made[0].given is closing
    (folder,) = (tmp_path / "counting").iterdir()
    assert folder.name.endswith("_try")
    assert (folder / "model_1.pt").is_file()
    assert (folder / "exported" / "policy.pt").is_file()


def test_isaac_lab_on_several_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _load("isaaclab_train")
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_RANK", "1")
    options, _ = module.parse(["--task", "Isaac-X", "--distributed"], lambda parser: None)
    env_cfg = SimpleNamespace(sim=SimpleNamespace(device="cuda:0"), seed=None)
    agent_cfg = SimpleNamespace(seed=7, device="cuda:0")
    module.configure(env_cfg, agent_cfg, options)
    # The GPU that the runner demands, and episodes of its own.
    assert (env_cfg.sim.device, agent_cfg.device) == ("cuda:1", "cuda:1")
    assert (env_cfg.seed, agent_cfg.seed) == (12, 7)


def test_mjlab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = _load("mjlab_train")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    env_cfg = SimpleNamespace(scene=SimpleNamespace(num_envs=4096), seed=None)
    made: dict[str, Any] = {}

    class ManagerBasedRlEnv:
        def __init__(self, cfg: Any, device: str) -> None:
            made.update(cfg=cfg, device=device)

        def close(self) -> None:
            made.update(closed=True)

    _install(monkeypatch, "mjlab.envs", ManagerBasedRlEnv=ManagerBasedRlEnv)
    _install(monkeypatch, "mjlab.tasks.registry", load_env_cfg=lambda task: env_cfg,
             load_rl_cfg=lambda task: AgentConfig())  # fmt: skip
    _install_beside(monkeypatch, "mjlab.rl", RslRlVecEnvWrapper=Wrapped)
    _install_beside(monkeypatch, "mjlab.envs", ManagerBasedRlEnv=ManagerBasedRlEnv)
    module.main(["Mjlab-X", "--num-envs", "3", "--device", "cpu", "--max-iterations", "1",
                 "--log-root", str(tmp_path)])  # fmt: skip
    assert made == {"cfg": env_cfg, "device": "cpu", "closed": True}
    assert (env_cfg.scene.num_envs, env_cfg.seed) == (3, 42)
    (folder,) = (tmp_path / "counting").iterdir()
    assert (folder / "model_0.pt").is_file()
    # A second run goes on from the first.
    module.main(["Mjlab-X", "--device", "cpu", "--max-iterations", "1", "--log-root",
                 str(tmp_path / "again"), "--checkpoint", str(folder / "model_0.pt")])  # fmt: skip
    (again,) = (tmp_path / "again" / "counting").iterdir()
    assert [path.name for path in again.glob("*.pt")] == ["model_1.pt"]


def _install_beside(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    """Put a module beside others of the same parent."""
    module = ModuleType(name)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("name", ["isaaclab_train", "mjlab_train"])
def test_what_is_missing_on_the_command_line_is_said(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module = _load(name)
    arguments = ([], lambda parser: None) if name == "isaaclab_train" else ([],)
    with pytest.raises(SystemExit):
        module.parse(*arguments)
    assert "required: " in capsys.readouterr().err


NEEDED = ("onnxruntime", "array-api-compat", "tyro", "rich", "tensorboard")
"""What our trainer needs beside what mjlab brings along."""


@pytest.fixture(scope="module")
def mjlab_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with mjlab 1.6, which pins another MuJoCo.

    SUREFOOT_MJLAB_PYTHON names one; else it is made, for which the packages must be reachable.
    """
    given = os.environ.get("SUREFOOT_MJLAB_PYTHON")
    if given:
        return Path(given)
    folder = tmp_path_factory.mktemp("mjlab")
    torch_release = f"torch=={torch.__version__.partition('+')[0]}"
    python = folder / "bin" / "python"
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "-q", "mjlab==1.6.*", torch_release, *NEEDED],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no message"]
            pytest.fail(f"mjlab 1.6 cannot be installed: {lines[-1]}")
    return python


@pytest.mark.slow
def test_mjlab_for_real(mjlab_python: Path, tmp_path: Path) -> None:
    """Two iterations of a velocity task on the CPU: the first run compiles for minutes."""
    done = subprocess.run(
        [str(mjlab_python), str(EXAMPLES / "mjlab_train.py"), "Mjlab-Velocity-Flat-Unitree-Go1",
         "--num-envs", "8", "--device", "cpu", "--max-iterations", "2", "--log-root", str(tmp_path),
         "--logger", "tensorboard"],
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (folder,) = (tmp_path / "go1_velocity").iterdir()
    assert sorted(path.name for path in folder.glob("*.pt")) == ["model_0.pt", "model_1.pt"]
    checkpoint = read_rsl_rl_checkpoint(folder / "model_1.pt")
    assert checkpoint.shapes["actor"].hidden == (512, 256, 128)
    assert checkpoint.optimizer is not None
    assert {slot.step for slot in checkpoint.optimizer.slots.values()} == {40.0}
