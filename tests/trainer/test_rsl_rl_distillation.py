"""The runner with the interface of rsl_rl's DistillationRunner, against rsl_rl."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest
import torch
from torch import Tensor

from robot_runtime.errors import BadInput, Refused
from tests.trainer.rsl_rl_scripts import Points, config_5
from trainer.compat.distillation_settings import read_distillation_settings
from trainer.compat.runner import Runner
from trainer.envs.as_rsl_rl import RslRlVecEnv
from trainer.rsl_rl import OnPolicyRunner
from trainer.rsl_rl_distillation import DistillationRunner

MLP: dict[str, Any] = {"class_name": "MLPModel", "hidden_dims": [12], "activation": "elu"}
RNN: dict[str, Any] = {
    "class_name": "RNNModel", "hidden_dims": [12], "activation": "elu", "rnn_type": "gru",
    "rnn_hidden_dim": 6, "rnn_num_layers": 1,
}  # fmt: skip


def config(student: dict[str, Any], std: float = 0.1, **algorithm: Any) -> dict[str, Any]:
    """A configuration of release 5."""
    noise = {"class_name": "GaussianDistribution", "init_std": std, "std_type": "scalar"}
    return {
        "class_name": "DistillationRunner",
        "seed": 3,
        "num_steps_per_env": 10,
        "save_interval": 50,
        "obs_groups": {"student": ["policy"], "teacher": ["critic"]},
        "student": {**student, "obs_normalization": True, "distribution_cfg": noise},
        # Its deviation is in the file, and rsl_rl wants a place for it.
        "teacher": {"class_name": "MLPModel", "hidden_dims": [16, 8], "activation": "elu",
                    "obs_normalization": True, "distribution_cfg": noise},
        "algorithm": {"class_name": "Distillation", "num_learning_epochs": 2,
                      "gradient_length": 5, **algorithm},
    }  # fmt: skip


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("teacher") / "model_1.pt"
    # Weights are drawn as rsl_rl's are, from the global generator.
    torch.manual_seed(1)
    settings = config_5() | {"obs_groups": {"actor": ["critic"], "critic": ["critic"]}}
    runner = OnPolicyRunner(RslRlVecEnv(Points()), settings)
    runner.learn(2)
    runner.save(path, infos={"note": 1})
    return path


def ours(settings: dict[str, Any], folder: Path | None = None) -> DistillationRunner:
    return DistillationRunner(RslRlVecEnv(Points()), settings, folder)


def theirs(settings: dict[str, Any]) -> Any:
    runners = pytest.importorskip("rsl_rl.runners")
    env = RslRlVecEnv(Points())
    return runners.DistillationRunner(env, copy.deepcopy(settings), log_dir=None, device="cpu")


@pytest.mark.parametrize("student", [MLP, RNN], ids=["mlp", "gru"])
def test_files_travel_both_ways(tmp_path: Path, teacher: Path, student: dict[str, Any]) -> None:
    runner = ours(config(student), tmp_path)
    assert runner.load(teacher) == {"note": 1}
    runner.learn(2)
    other = theirs(config(student))
    other.load(str(tmp_path / "model_1.pt"))
    obs = other.env.get_observations()
    mine = runner.get_inference_policy()(obs)
    torch.testing.assert_close(other.get_inference_policy()(obs), mine, rtol=0, atol=1e-6)
    label, _ = runner.alg.teacher.act(obs["critic"], ())
    torch.testing.assert_close(other.alg.teacher(obs), label, rtol=0, atol=1e-6)
    other.learn(1)
    other.save(str(tmp_path / "theirs.pt"))
    again = ours(config(student))
    again.load(tmp_path / "theirs.pt")
    other.alg.eval_mode()
    if student is RNN:
        other.alg.student.reset()
    with torch.no_grad():
        expected = other.alg.student(obs)
    torch.testing.assert_close(again.get_inference_policy()(obs), expected, rtol=0, atol=1e-6)
    moments = other.alg.optimizer.state_dict()["state"]
    restored = again.alg.state_dict()["optimizer"]["state"]
    # Their slot 0 is the deviation; the layers after the memory come first there and last here.
    index = 0 if student is MLP else 4
    torch.testing.assert_close(restored[index]["exp_avg"], moments[1]["exp_avg"])
    again.learn(1)


def test_one_iteration_is_rsl_rls(tmp_path: Path, teacher: Path) -> None:
    # Next to without noise both walk the same way.
    torch.manual_seed(0)
    settings = config(RNN, std=1e-6, num_learning_epochs=1, learning_rate=0.01)
    runner = ours(settings)
    runner.load(teacher)
    runner.save(tmp_path / "start.pt")
    before = torch.load(tmp_path / "start.pt", weights_only=True)["student_state_dict"]
    other = theirs(settings)
    other.load(str(tmp_path / "start.pt"))
    runner.learn(1)
    other.learn(1)
    runner.save(tmp_path / "ours.pt")
    mine = torch.load(tmp_path / "ours.pt", weights_only=True)["student_state_dict"]
    right = other.alg.student.state_dict()
    weights = [name for name in right if name.startswith(("mlp", "rnn"))]
    assert len(weights) == 8
    moved = torch.cat([(right[name] - before[name]).flatten() for name in weights])
    apart = torch.cat([(right[name] - mine[name]).flatten() for name in weights])
    # They add the losses of a piece, of which we take the mean: where a gradient is not much more
    # than Adam's epsilon, a step differs. Pieces of another length are half the way apart.
    assert float(apart.norm()) < 0.02 * float(moved.norm())
    # The statistics are of the same observations, but for the noise.
    torch.testing.assert_close(
        mine["obs_normalizer._mean"], right["obs_normalizer._mean"], rtol=0, atol=1e-4
    )


def test_a_run_goes_on_where_it_was(tmp_path: Path, teacher: Path) -> None:
    def state(runner: DistillationRunner) -> dict[str, Tensor]:
        return dict(runner.alg.actor.state_dict())

    whole = ours(config(RNN), tmp_path / "whole")
    whole.load(teacher)
    whole.learn(4)
    half = ours(config(RNN), tmp_path / "half")
    half.load(teacher)
    half.learn(2)
    rest = ours(config(RNN), tmp_path / "half")
    rest.load(tmp_path / "half" / "model_1.pt")
    assert rest.current_learning_iteration == 1
    rest.learn(2)
    torch.testing.assert_close(state(rest), state(whole), rtol=0, atol=0)


def test_exports_are_the_student(tmp_path: Path, teacher: Path) -> None:
    runner = ours(config(MLP))
    runner.load(teacher)
    obs = torch.randn(1, 2)
    expected = runner.get_inference_policy()(obs)
    runner.export_policy_to_jit(str(tmp_path))
    script = torch.jit.load(str(tmp_path / "policy.pt"))
    torch.testing.assert_close(script(obs), expected, rtol=0, atol=1e-6)
    runner.export_policy_to_onnx(str(tmp_path))
    (action,) = ort.InferenceSession(str(tmp_path / "policy.onnx")).run(None, {"obs": obs.numpy()})
    torch.testing.assert_close(torch.as_tensor(action), expected, rtol=0, atol=1e-6)


def test_without_a_teacher_nothing_is_learned() -> None:
    with pytest.raises(BadInput, match="there is no teacher yet"):
        ours(config(MLP)).learn(1)


def runner_with_file(kind: type[Runner], teacher: Path, folder: Path) -> tuple[Runner, Path]:
    """A runner that has learned, and its file."""
    if kind is OnPolicyRunner:
        runner: Runner = OnPolicyRunner(RslRlVecEnv(Points()), config_5())
    else:
        runner = ours(config(MLP))
        runner.load(teacher)
    runner.learn(2)
    runner.save(folder / "file.pt")
    return runner, folder / "file.pt"


@pytest.mark.parametrize("kind", [OnPolicyRunner, DistillationRunner])
def test_load_takes_the_parts_that_are_named_and_no_other(
    tmp_path: Path, teacher: Path, kind: type[Runner]
) -> None:
    runner, path = runner_with_file(kind, teacher, tmp_path)
    fresh: Runner = OnPolicyRunner(RslRlVecEnv(Points()), config_5())
    if kind is DistillationRunner:
        fresh = ours(config(MLP))
    known = ", ".join(sorted(kind.PARTS))
    with pytest.raises(BadInput, match=f"load_cfg names polcy, x; there are: {known}$"):
        fresh.load(path, load_cfg={"x": True, "polcy": False, "iteration": True})
    assert fresh.current_learning_iteration == 0
    fresh.load(path, load_cfg=dict.fromkeys(kind.PARTS, False) | {"iteration": True})
    assert fresh.current_learning_iteration == 1
    learned = runner._started.agent.actor.state_dict()
    loaded = fresh._started.agent.actor.state_dict()
    assert not torch.equal(loaded["net.0.weight"], learned["net.0.weight"])
    fresh.load(path, load_cfg=dict.fromkeys(kind.PARTS, True))
    loaded = fresh._started.agent.actor.state_dict()
    assert torch.equal(loaded["net.0.weight"], learned["net.0.weight"])


def test_what_only_a_distillation_has_is_not_asked_of_a_training(teacher: Path) -> None:
    with pytest.raises(BadInput, match=r"load_cfg asks for student: 'model_1.pt' is the file of a"):
        ours(config(MLP)).load(teacher, load_cfg={"teacher": True, "student": True})
    runner = ours(config(MLP))
    runner.load(teacher, load_cfg={"teacher": True, "iteration": True})
    assert runner.current_learning_iteration == 1


@pytest.mark.parametrize("name", ["OnPolicyRunner", "DistillationRunner"])
def test_the_runners_have_rsl_rls_methods(name: str) -> None:
    theirs = getattr(pytest.importorskip("rsl_rl.runners"), name)
    mine: Any = {"OnPolicyRunner": OnPolicyRunner, "DistillationRunner": DistillationRunner}[name]
    methods = {n: f for n, f in inspect.getmembers(theirs, callable) if not n.startswith("_")}
    assert {"learn", "save", "load", "get_inference_policy"} <= set(methods)
    for method, right in methods.items():
        taken = list(inspect.signature(getattr(mine, method)).parameters)
        expected = list(inspect.signature(right).parameters)
        assert taken[: len(expected)] == expected, method


def test_what_became_of_each_setting() -> None:
    settings = read_distillation_settings(config(RNN, max_grad_norm=0.5, loss_type="huber"))
    found = {row.key: row.status for row in settings.report}
    assert found["algorithm.gradient_length"] == "mapped"
    assert found["algorithm.learning_rate"] == "default"
    assert found["student.rnn_hidden_dim"] == "mapped"
    assert found["teacher.hidden_dims"] == "ignored"
    assert "distill.loss" in settings.table()
    run = settings.train_config("x.pt", num_envs=8, dims={"policy": 2}, groups=("teacher",), seed=1)
    assert (run.network.kind, run.network.rnn_hidden, run.ppo.num_steps) == ("gru", 6, 10)
    distill = run.distill
    assert (distill.loss, distill.max_grad_norm, distill.std) == ("huber", 0.5, 0.1)
    assert (distill.epochs, distill.gradient_length, distill.minibatches) == (2, 5, 1)
    assert (distill.teacher_groups, distill.teacher_activation) == (("teacher",), "elu")


def test_a_configuration_of_release_2() -> None:
    policy = {
        "class_name": "StudentTeacherRecurrent", "student_hidden_dims": [7], "activation": "tanh",
        "teacher_hidden_dims": [9], "rnn_type": "lstm", "rnn_hidden_dim": 4, "rnn_num_layers": 2,
        "teacher_recurrent": False,
    }  # fmt: skip
    old = {k: v for k, v in config(MLP).items() if k not in ("student", "teacher", "obs_groups")}
    settings = read_distillation_settings(
        old | {"policy": policy, "empirical_normalization": True, "run_name": "a"}
    )
    student = settings.student
    assert (student.actor_hidden, student.activation, student.init_std) == ((7,), "tanh", 0.1)
    assert student.memory is not None
    assert (student.memory.kind, student.memory.layers) == ("lstm", 2)
    assert student.normalize_obs
    assert settings.teacher_activation == "tanh"
    assert settings.distill.max_grad_norm is None
    found = {row.key: row.status for row in settings.report}
    assert found["policy.teacher_hidden_dims"] == found["run_name"] == "ignored"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"algorithm": {"rnd_cfg": {"weight": 1.0}}}, Refused, "algorithm.rnd_cfg"),
        ({"algorithm": {"gradient": 3}}, Refused, r"algorithm.gradient = 3 \(no release"),
        ({"algorithm": {"class_name": "PPO"}}, Refused, "expected Distillation"),
        ({"algorithm": {"optimizer": "sgd"}}, Refused, "there is only Adam"),
        ({"algorithm": {"loss_type": "l1"}}, BadInput, "there are: mse, huber"),
        ({"class_name": "OnPolicyRunner"}, Refused, "expected DistillationRunner"),
        ({"student": None}, BadInput, "no 'student'"),
        ({"num_steps_per_env": None}, BadInput, "no 'num_steps_per_env'"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_distillation_settings(config(MLP) | changes)
