"""Files that are not two networks of layers and an Adam: images, students, odd contents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robot_runtime.errors import BadInput
from trainer.compat.convolution import CnnHint
from trainer.networks.graph_spec import NoGraphSpecError
from trainer.rsl_rl_checkpoints import (
    ForeignCheckpoint,
    Hints,
    read_rsl_rl_checkpoint,
    write_rsl_rl_checkpoint,
)

models = pytest.importorskip("rsl_rl.models")
CNNS: dict[str, tuple[dict[str, Any], CnnHint]] = {
    "plain": (
        {"output_channels": [4, 5], "kernel_size": 3},
        CnnHint(size=(12, 10)),
    ),
    "strided": (
        {"output_channels": [4, 5], "kernel_size": [5, 3], "stride": [2, 1], "padding": "zeros"},
        CnnHint(size=(12, 10), stride=(2, 1), padding="zeros"),
    ),
    "normed-and-pooled": (
        {"output_channels": [4, 5, 3], "kernel_size": 3, "padding": "replicate", "dilation": 2,
         "norm": ["layer", "batch", "none"], "max_pool": [True, False, True], "activation": "relu",
         "global_pool": "avg"},
        CnnHint(size=(12, 10), dilation=2, padding="replicate", max_pool=True, activation="relu",
                global_pool="avg"),
    ),
}  # fmt: skip


def observed() -> Any:
    from tensordict import TensorDict  # pyright: ignore[reportMissingImports]

    torch.manual_seed(5)
    shapes = {"policy": (6,), "critic": (9,), "camera": (2, 12, 10), "map": (1, 12, 10)}
    return TensorDict({name: torch.randn(7, *shape) for name, shape in shapes.items()}, [7])


def stepped(parameters: Any) -> torch.optim.Adam:
    """An optimizer after one step in which each gradient is its parameter."""
    optimizer = torch.optim.Adam(parameters, lr=3e-4)
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = parameter.detach().clone()
    optimizer.step()
    return optimizer


def moments_of(optimizer: Any, **networks: Any) -> dict[str, Tensor]:
    return {
        f"{role}/{name}": optimizer.state[parameter]["exp_avg"]
        for role, network in networks.items()
        for name, parameter in network.named_parameters()
        if parameter in optimizer.state
    }


def saved(path: Path, networks: dict[str, Any], optimizer: Any, **more: Any) -> Path:
    content = {f"{role}_state_dict": network.state_dict() for role, network in networks.items()}
    if optimizer is not None:
        content["optimizer_state_dict"] = optimizer.state_dict()
    torch.save({**content, "iter": 3, "infos": None, **more}, path)
    return path


def check_moments(checkpoint: ForeignCheckpoint, expected: dict[str, Tensor]) -> None:
    assert checkpoint.optimizer is not None
    assert set(checkpoint.optimizer.slots) == set(expected)
    for name, moment in expected.items():
        assert torch.equal(checkpoint.optimizer.slots[name].exp_avg, moment), name


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("name", CNNS)
def test_images(name: str, normalized: bool, tmp_path: Path) -> None:
    """Of release 5's `CNNModel`: the actor has two images, the critic one."""
    config, hint = CNNS[name]
    obs = observed()
    groups = {"actor": ["policy", "camera", "map"], "critic": ["critic", "camera"]}
    shape: dict[str, Any] = {"hidden_dims": (8,), "obs_normalization": normalized}
    gaussian = {"class_name": "GaussianDistribution"}
    actor = models.CNNModel(obs, groups, "actor", 3, cnn_cfg=dict(config),
                            distribution_cfg=gaussian, **shape)  # fmt: skip
    critic = models.CNNModel(obs, groups, "critic", 1, cnn_cfg=dict(config), **shape)
    optimizer = stepped([*actor.parameters(), *critic.parameters()])
    for model in (actor, critic):
        model(obs)  # Batch normalization learns its statistics.
        model.update_normalization(obs)
        model.eval()
    path = saved(tmp_path / "model.pt", {"actor": actor, "critic": critic}, optimizer)
    bare = read_rsl_rl_checkpoint(path)
    assert bare.shapes["actor"].images == ("camera", "map")
    assert "cnn(camera)" in bare.describe()
    check_moments(bare, moments_of(optimizer, actor=actor, critic=critic))
    with pytest.raises(BadInput, match=r"no file says sizes, strides and padding of .*'camera'"):
        bare.model("actor")
    hints = Hints(cnn={"camera": hint, "map": hint})
    write_rsl_rl_checkpoint(tmp_path / "again.pt", read_rsl_rl_checkpoint(path, hints))
    for place in (path, tmp_path / "again.pt"):
        checkpoint = read_rsl_rl_checkpoint(place, hints)
        images = {name: obs[name] for name in ("camera", "map")}
        with torch.no_grad():
            action, _ = checkpoint.model("actor")(obs["policy"], images=images)
            value, _ = checkpoint.model("critic")(obs["critic"], images=images)
            torch.testing.assert_close(action, actor(obs), rtol=0, atol=1e-6)
            torch.testing.assert_close(value, critic(obs), rtol=0, atol=1e-6)
    loaded = torch.load(tmp_path / "again.pt", weights_only=True)
    assert list(loaded["actor_state_dict"]) == list(actor.state_dict())
    again = torch.optim.Adam([*actor.parameters(), *critic.parameters()])
    again.load_state_dict(loaded["optimizer_state_dict"])
    assert moments_of(again, actor=actor).keys() == moments_of(optimizer, actor=actor).keys()
    with pytest.raises(BadInput, match=r"sees the images \['map'\], and none were given"):
        checkpoint.model("actor")(obs["policy"], images={"camera": obs["camera"]})
    with pytest.raises(NoGraphSpecError, match="convolutions of camera, map"):
        checkpoint.model("actor").graph_spec()


def test_hints_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    config, hint = CNNS["strided"]
    obs, groups = observed(), {"actor": ["policy", "camera"]}
    actor = models.CNNModel(obs, groups, "actor", 3, hidden_dims=(8,), obs_normalization=True,
                            cnn_cfg=dict(config), distribution_cfg={
                                "class_name": "GaussianDistribution"})  # fmt: skip
    path = saved(tmp_path / "model.pt", {"actor": actor, "critic": actor}, None)
    wrong = Hints(cnn={"camera": CnnHint(size=(12, 10))})
    with pytest.raises(BadInput, match="the convolutions give 120 numbers"):
        read_rsl_rl_checkpoint(path, wrong).model("actor")
    small = Hints(cnn={"camera": CnnHint(size=(2, 2))})
    with pytest.raises(BadInput, match=r"images of \(2, 2\) do not fit"):
        read_rsl_rl_checkpoint(path, small).model("actor")
    assert read_rsl_rl_checkpoint(path, Hints(cnn={"camera": hint})).model("actor") is not None
    with pytest.raises(BadInput, match="unknown padding 'same'; there are: none, zeros"):
        CnnHint(size=(2, 2), padding="same")


def test_convolutions_that_actor_and_critic_share(tmp_path: Path) -> None:
    """`share_cnn_encoders`: the optimizer holds them twice, under one number."""
    config, hint = CNNS["strided"]
    obs, groups = observed(), {"actor": ["policy", "camera"], "critic": ["critic", "camera"]}
    actor = models.CNNModel(obs, groups, "actor", 3, hidden_dims=(8,), cnn_cfg=dict(config),
                            distribution_cfg={"class_name": "GaussianDistribution"})  # fmt: skip
    critic = models.CNNModel(obs, groups, "critic", 1, hidden_dims=(8,), cnns=actor.cnns)
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = stepped([*actor.parameters(), *critic.parameters()])
    path = saved(tmp_path / "model.pt", {"actor": actor, "critic": critic}, optimizer)
    checkpoint = read_rsl_rl_checkpoint(path, Hints(cnn={"camera": hint}))
    check_moments(checkpoint, moments_of(optimizer, actor=actor, critic=critic))


@pytest.mark.parametrize("name", ["mlp", "lstm"])
def test_a_student_and_a_teacher_with_a_memory(name: str, tmp_path: Path) -> None:
    """Release 5: the optimizer steps the student alone; the teacher has no deviation."""
    obs, groups = observed(), {"student": ["policy"], "teacher": ["critic"]}
    memory = {"rnn_type": "lstm", "rnn_hidden_dim": 5, "rnn_num_layers": 2}
    kind, more = (models.RNNModel, memory) if name == "lstm" else (models.MLPModel, {})
    student = kind(obs, groups, "student", 3, hidden_dims=(8,), obs_normalization=True,
                   distribution_cfg={"class_name": "GaussianDistribution"}, **more)  # fmt: skip
    teacher = models.RNNModel(obs, groups, "teacher", 3, hidden_dims=(6,), **memory)
    student.update_normalization(obs)
    optimizer = stepped(student.parameters())
    networks = {"student": student.eval(), "teacher": teacher.eval()}
    path = saved(tmp_path / "model.pt", networks, optimizer)
    for place in (path, tmp_path / "again.pt"):
        checkpoint = read_rsl_rl_checkpoint(place)
        assert checkpoint.policy_role == "student"
        check_moments(checkpoint, moments_of(optimizer, student=student))
        write_rsl_rl_checkpoint(tmp_path / "again.pt", checkpoint)
        for role, network in networks.items():
            network.reset()
            seen = obs[groups[role][0]]
            ours, state = checkpoint.model(role), ()
            for _ in range(3):
                action, state = ours(seen, state)
                with torch.no_grad():
                    torch.testing.assert_close(action, network(obs), rtol=0, atol=1e-6)


@pytest.fixture
def plain() -> dict[str, Any]:
    """A small actor and critic."""
    obs, groups = observed(), {"actor": ["policy"], "critic": ["critic"]}
    gaussian = {"class_name": "GaussianDistribution"}
    return {
        "actor": models.MLPModel(obs, groups, "actor", 3, hidden_dims=(8,),
                                 distribution_cfg=gaussian),
        "critic": models.MLPModel(obs, groups, "critic", 1, hidden_dims=(8,),
                                  obs_normalization=True),
    }  # fmt: skip


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.RMSprop])
def test_optimizers_of_other_kinds_are_left_out_and_said_so(
    kind: Any, plain: dict[str, Any], tmp_path: Path
) -> None:
    parameters = [p for network in plain.values() for p in network.parameters()]
    path = saved(tmp_path / "model.pt", plain, kind(parameters, lr=0.1))
    checkpoint = read_rsl_rl_checkpoint(path)
    assert checkpoint.optimizer is None
    assert "optimizer_state_dict -> left out (no state of Adam" in checkpoint.describe()


def test_adamw_is_an_adam(plain: dict[str, Any], tmp_path: Path) -> None:
    parameters = [p for network in plain.values() for p in network.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=torch.tensor(0.1), weight_decay=0.02)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    checkpoint = read_rsl_rl_checkpoint(saved(tmp_path / "model.pt", plain, optimizer))
    check_moments(checkpoint, moments_of(optimizer, **plain))
    assert checkpoint.optimizer is not None
    assert checkpoint.optimizer.lr == pytest.approx(0.1)
    assert checkpoint.optimizer.weight_decay == 0.02


def test_a_critic_may_be_normalized_alone(plain: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = read_rsl_rl_checkpoint(saved(tmp_path / "model.pt", plain, None))
    assert [checkpoint.shapes[role].normalized for role in ("actor", "critic")] == [False, True]


INFOS: dict[str, Any] = {
    "numbers of NumPy": {"reward": np.float64(2.5), "step": np.int64(7), "done": np.bool_(True)},
    "arrays": {"terrain": np.arange(4, dtype=np.float32)},
    "containers": {"set": {1, 2}, "tuple": (1, "a"), "nested": [{"x": torch.ones(2)}]},
    "a string": "of a script",
}


@pytest.mark.parametrize("infos", INFOS.values(), ids=INFOS)
def test_odd_infos_come_through(infos: Any, plain: dict[str, Any], tmp_path: Path) -> None:
    path = saved(tmp_path / "model.pt", plain, None, infos=infos, iter=torch.tensor(9))
    checkpoint = read_rsl_rl_checkpoint(path)
    assert checkpoint.iteration == 9
    assert repr(checkpoint.infos) == repr(infos)


@pytest.mark.parametrize(("infos", "named"), [
    ({"folder": Path("logs")}, "PosixPath"),
    ({"objects": np.array([Path("logs")], dtype=object)}, ""),
    ({"function": observed}, "observed"),
])  # fmt: skip
def test_objects_in_infos_are_refused_by_name(
    infos: Any, named: str, plain: dict[str, Any], tmp_path: Path
) -> None:
    path = saved(tmp_path / "model.pt", plain, None, infos=infos)
    with pytest.raises(BadInput, match=f"refused: it holds more than tensors .*{named}"):
        read_rsl_rl_checkpoint(path)


def test_iterations_are_whole(plain: dict[str, Any], tmp_path: Path) -> None:
    for wrong in (1.5, "7", None, torch.ones(2)):
        path = saved(tmp_path / "model.pt", plain, None, iter=wrong)
        with pytest.raises(BadInput, match=r"'iter' is .*, expected an integer"):
            read_rsl_rl_checkpoint(path)


@pytest.mark.gpu
def test_files_of_a_gpu_open_on_the_cpu(plain: dict[str, Any], tmp_path: Path) -> None:
    networks = {role: network.cuda() for role, network in plain.items()}
    path = saved(tmp_path / "model.pt", networks, None)
    checkpoint = read_rsl_rl_checkpoint(path)
    assert {x.device.type for x in checkpoint.weights["actor"].values()} == {"cpu"}
