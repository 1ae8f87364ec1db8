"""Checkpoints of rsl_rl: real files of several releases against what those releases computed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import Tensor

from export.handwritten import write_graph
from robot_runtime.errors import BadInput
from robot_runtime.policy.spec import RecurrentState
from trainer.compat.models import RslRlModel
from trainer.rsl_rl_checkpoints import (
    ForeignCheckpoint,
    Hints,
    read_rsl_rl_checkpoint,
    write_rsl_rl_checkpoint,
)

FOLDER = Path(os.environ.get("SUREFOOT_REAL", "")) / "rsl_rl_checkpoints"
FILES = sorted(FOLDER.glob("*.pt")) if "SUREFOOT_REAL" in os.environ else []
TOLERANCE = 1e-6
"""The oracles are float32 results of the original networks, with numbers of order 1."""

real = pytest.mark.skipif(not FILES, reason="SUREFOOT_REAL names no folder with checkpoints")


def _ids(path: Path) -> str:
    return path.stem


@pytest.fixture(params=FILES, ids=_ids)
def pair(request: pytest.FixtureRequest) -> tuple[ForeignCheckpoint, dict[str, Any]]:
    """A real checkpoint and its oracle."""
    path: Path = request.param
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as oracle:
        return read_rsl_rl_checkpoint(path), dict(oracle)


def _close(found: Tensor, oracle: np.ndarray) -> None:
    np.testing.assert_allclose(found.numpy(), oracle, rtol=0, atol=TOLERANCE)


@real
def test_actions_values_and_deviations(pair: tuple[ForeignCheckpoint, dict[str, Any]]) -> None:
    checkpoint, oracle = pair
    policy = checkpoint.model(checkpoint.policy_role)
    obs = torch.from_numpy(oracle["obs"])
    _close(policy(obs)[0], oracle["actions"])
    _close(policy.std(obs), oracle["std"])
    if "values" in oracle:
        critic_obs = torch.from_numpy(oracle["critic_obs"])
        _close(checkpoint.model("critic")(critic_obs)[0], oracle["values"])
    else:
        teacher_obs = torch.from_numpy(oracle["teacher_obs"])
        _close(checkpoint.model("teacher")(teacher_obs)[0], oracle["teacher_actions"])


@real
def test_recurrent_sequences(pair: tuple[ForeignCheckpoint, dict[str, Any]]) -> None:
    checkpoint, oracle = pair
    if "seq_obs" not in oracle:
        pytest.skip("not recurrent")
    resets = torch.from_numpy(oracle["seq_resets"])
    for role, obs_key, out_key in (
        ("actor", "seq_obs", "seq_actions"),
        ("critic", "seq_critic_obs", "seq_values"),
    ):
        model, obs = checkpoint.model(role), torch.from_numpy(oracle[obs_key])
        state = model.initial_state(obs.shape[1])
        for t in range(obs.shape[0]):
            state = tuple(part.masked_fill(resets[t][None, :, None], 0.0) for part in state)
            out, state = model(obs[t], state)
            _close(out, oracle[out_key][t])
        for part, name in zip(state, ("h", "c"), strict=False):
            _close(part, oracle[f"seq_final_{name}_{role}"])


@real
def test_moments_land_on_their_parameters(pair: tuple[ForeignCheckpoint, dict[str, Any]]) -> None:
    checkpoint, oracle = pair
    became = {row.key: row.became for row in checkpoint.report}
    adam = checkpoint.optimizer
    assert adam is not None
    names = [became[str(name)] for name in oracle["opt_names"]]
    assert list(adam.names) == names
    assert adam.lr == pytest.approx(float(oracle["opt_lr"]), rel=1e-12)
    for theirs, ours, has in zip(oracle["opt_names"], names, oracle["opt_has_state"], strict=True):
        assert (ours in adam.slots) == bool(has)
        if has:
            slot = adam.slots[ours]
            assert slot.step == float(oracle["opt_step"])
            # The file holds the very numbers that were read from the live optimizer.
            np.testing.assert_array_equal(slot.exp_avg.numpy(), oracle[f"exp_avg/{theirs}"])
            np.testing.assert_array_equal(slot.exp_avg_sq.numpy(), oracle[f"exp_avg_sq/{theirs}"])


@real
def test_random_network_distillation(pair: tuple[ForeignCheckpoint, dict[str, Any]]) -> None:
    checkpoint, oracle = pair
    if "rnd_state" not in oracle:
        assert checkpoint.rnd is None
        return
    assert checkpoint.rnd is not None
    module = checkpoint.rnd.module(checkpoint.hints)
    state = torch.from_numpy(oracle["rnd_state"])
    predicted, target = module(state)
    _close(predicted, oracle["rnd_predictor"])
    _close(target, oracle["rnd_target"])
    _close(module.error(state), oracle["rnd_error"])
    adam = checkpoint.rnd.optimizer
    assert adam is not None
    for name in oracle["rnd_opt_names"]:
        slot = adam.slots[str(name).removeprefix("rnd_state_dict/")]
        np.testing.assert_array_equal(slot.exp_avg.numpy(), oracle[f"rnd_exp_avg/{name}"])


@real
def test_every_key_is_accounted_for(pair: tuple[ForeignCheckpoint, dict[str, Any]]) -> None:
    checkpoint, _ = pair
    text = checkpoint.describe()
    top = {row.key.split("/")[0] for row in checkpoint.report}
    assert {"iter", "infos", "optimizer_state_dict"} <= top
    for role, state in checkpoint.weights.items():
        for key in state:
            assert f"-> {role}/{key}" in text


@real
def test_written_as_release_5_and_read_again(
    pair: tuple[ForeignCheckpoint, dict[str, Any]], tmp_path: Path
) -> None:
    checkpoint, oracle = pair
    write_rsl_rl_checkpoint(tmp_path / "model_0.pt", checkpoint)
    again = read_rsl_rl_checkpoint(tmp_path / "model_0.pt")
    role, obs = checkpoint.policy_role, torch.from_numpy(oracle["obs"])
    _close(again.model(role)(obs)[0], oracle["actions"])
    assert (again.iteration, again.infos) == (checkpoint.iteration, checkpoint.infos)
    assert again.optimizer is not None
    assert checkpoint.optimizer is not None
    assert set(again.optimizer.slots) == set(checkpoint.optimizer.slots)
    for name, slot in checkpoint.optimizer.slots.items():
        torch.testing.assert_close(again.optimizer.slots[name].exp_avg, slot.exp_avg)


class _Evil:
    """Would run code if it were unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return print, ("code ran",)


def _small(**changes: Any) -> dict[str, Any]:
    """The content of a small file of release 2: 3 observations, 2 actions."""
    state = {
        "std": torch.ones(2),
        "actor.0.weight": torch.full((4, 3), 0.1),
        "actor.0.bias": torch.zeros(4),
        "actor.2.weight": torch.full((2, 4), 0.2),
        "actor.2.bias": torch.tensor([0.0, 1.0]),
        "critic.0.weight": torch.ones(1, 3),
        "critic.0.bias": torch.zeros(1),
    }
    content = {"model_state_dict": state, "iter": 7, "infos": {"env_state": {"counter": 5}}}
    return content | changes


def _read(content: Any, folder: Path, hints: Hints | None = None) -> ForeignCheckpoint:
    torch.save(content, folder / "model_7.pt")
    return read_rsl_rl_checkpoint(folder / "model_7.pt", hints)


def _refused(content: Any, folder: Path, hints: Hints | None = None) -> str:
    with pytest.raises(BadInput) as caught:
        _read(content, folder, hints)
    return str(caught.value)


def test_a_small_file_of_release_2_by_hand(tmp_path: Path) -> None:
    norm = {"_mean": torch.tensor([[1.0, 0.0, 0.0]]), "_var": torch.ones(1, 3) * 0.9801,
            "_std": torch.ones(1, 3) * 0.99, "count": torch.tensor(10)}  # fmt: skip
    checkpoint = _read(_small(obs_norm_state_dict=norm), tmp_path, Hints(activation="relu"))
    # (3, 1, 1) - mean over 0.99 + 0.01 is (2, 1, 1); 0.1 * 4 = 0.4 per unit, 4 * 0.2 * 0.4 = 0.32.
    action, _ = checkpoint.model("actor")(torch.tensor([[3.0, 1.0, 1.0]]))
    torch.testing.assert_close(action, torch.tensor([[0.32, 1.32]]))
    assert checkpoint.layout == "rsl_rl 1.x or 2.x"
    assert (checkpoint.iteration, checkpoint.infos) == (7, {"env_state": {"counter": 5}})
    assert checkpoint.optimizer is None
    assert "obs_norm_state_dict/_mean (1, 3) -> actor/obs_normalizer._mean" in checkpoint.describe()


def test_the_layout_of_release_4(tmp_path: Path) -> None:
    state = _small()["model_state_dict"]
    actor = {"log_std": torch.zeros(2)}
    actor |= {k.replace("actor", "mlp"): v for k, v in state.items() if k.startswith("actor")}
    critic = {k.replace("critic", "mlp"): v for k, v in state.items() if k.startswith("critic")}
    content = {"actor_state_dict": actor, "critic_state_dict": critic, "iter": 0, "infos": None}
    checkpoint = _read(content, tmp_path)
    assert checkpoint.layout == "rsl_rl 4.x"
    torch.testing.assert_close(checkpoint.model("actor").std(torch.zeros(1, 3)), torch.ones(1, 2))


def test_unknown_layouts_are_refused_with_the_keys_that_were_found(tmp_path: Path) -> None:
    said = _refused({"net": torch.zeros(1), "epoch": 3}, tmp_path)
    assert "net, epoch" in said
    assert "model_state_dict" in said
    strange = _small()
    strange["model_state_dict"]["adaptation_module.0.weight"] = torch.zeros(1)
    said = _refused(strange, tmp_path)
    assert "'adaptation_module.0.weight'" in said
    assert "actor.2.bias" in said


def test_parts_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    torn = _small()
    torn["model_state_dict"]["actor.2.weight"] = torch.zeros(2, 5)
    assert "actor: 'mlp.2.weight' has shape (2, 5)" in _refused(torn, tmp_path)
    wrong = _small()
    wrong["model_state_dict"]["std"] = torch.ones(3)
    assert "do not fit a last layer of 2" in _refused(wrong, tmp_path)
    broken = _small()
    broken["model_state_dict"]["actor.0.bias"][1] = float("nan")
    assert "'model_state_dict/actor.0.bias' has numbers that are not finite" in _refused(
        broken, tmp_path
    )
    norm = {"_mean": torch.zeros(1, 4), "_var": torch.ones(1, 4), "_std": torch.ones(1, 4),
            "count": torch.tensor(10)}  # fmt: skip
    assert "'obs_normalizer._mean' has shape (1, 4)" in _refused(
        _small(obs_norm_state_dict=norm), tmp_path
    )
    assert "'iter' is None" in _refused(_small(iter=None), tmp_path)


def test_moments_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    content = _small()
    parameters = [torch.nn.Parameter(v) for v in content["model_state_dict"].values()]
    adam = torch.optim.Adam(parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    adam.step()
    assert _read(_small(optimizer_state_dict=adam.state_dict()), tmp_path).optimizer is not None
    # Two layers swapped: equal in number, different in shape.
    state = adam.state_dict()
    state["state"][1], state["state"][3] = state["state"][3], state["state"][1]
    said = _refused(_small(optimizer_state_dict=state), tmp_path)
    assert "slot 1 ('actor/mlp.0.weight') has moments of shape (2, 4)" in said
    state["param_groups"][0]["params"].pop()
    assert "6 slots; the models have 7" in _refused(_small(optimizer_state_dict=state), tmp_path)


def test_files_that_would_run_code_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "could run code" in _refused(_small(infos=_Evil()), tmp_path)
    (tmp_path / "text.pt").write_text("no archive")
    with pytest.raises(BadInput, match="not a checkpoint"):
        read_rsl_rl_checkpoint(tmp_path / "text.pt")
    assert "code ran" not in capsys.readouterr().out


def test_hints_are_checked() -> None:
    with pytest.raises(BadInput, match="unknown activation 'elo'; there are: elu"):
        Hints(activation="elo")
    with pytest.raises(BadInput, match="unknown head"):
        Hints(head="gauss")  # pyright: ignore[reportArgumentType]


def _models_of_release_5(head: dict[str, Any] | None, rnn: dict[str, Any]) -> Any:
    """Actor and critic of the installed rsl_rl, and their observations: 6 and 9 numbers."""
    models = pytest.importorskip("rsl_rl.models")
    from tensordict import TensorDict  # pyright: ignore[reportMissingImports]

    torch.manual_seed(3)
    obs = TensorDict({"policy": torch.randn(5, 6), "critic": torch.randn(5, 9)}, [5])
    groups = {"actor": ["policy"], "critic": ["critic"]}
    kind = models.RNNModel if rnn else models.MLPModel
    shape = {"hidden_dims": (8, 7), "activation": "tanh", "obs_normalization": True, **rnn}
    actor = kind(obs, groups, "actor", 3, distribution_cfg=head, **shape)
    critic = kind(obs, groups, "critic", 1, **shape)
    for model in (actor, critic):
        model.update_normalization(obs)
        model.eval()
    return actor, critic, obs


def _check_graph(model: RslRlModel, obs: Tensor) -> None:
    """What a model says of itself as plain arrays, written as ONNX, acts as it does."""
    spec, names = model.graph_spec(), ("h", "c")
    states = tuple(
        RecurrentState(input=f"{name}_in", output=f"{name}_out", shape=shape)
        for name, shape in zip(names, spec.state_shapes, strict=False)
    )
    lengths: Any = SimpleNamespace(
        inputs=lambda: {"obs": obs.shape[1]},
        observation_dim=obs.shape[1],
        num_actions=model.architecture.num_outputs,
        network=SimpleNamespace(states=states, output="actions"),
    )
    session = ort.InferenceSession(write_graph(spec, lengths, opset=17, ir_version=8))
    state, feed = model.initial_state(obs.shape[0]), {"obs": obs.numpy()}
    feed |= {s.input: x.numpy() for s, x in zip(states, state, strict=True)}
    for _ in range(3):
        action, state = model(obs, state)
        found, *after = session.run(["actions", *(s.output for s in states)], feed)
        feed |= {s.input: x for s, x in zip(states, after, strict=True)}
        _close(action, found)


def _content_of(actor: Any, critic: Any) -> dict[str, Any]:
    return {
        "actor_state_dict": actor.state_dict(),
        "critic_state_dict": critic.state_dict(),
        "iter": 0,
        "infos": None,
    }


@pytest.mark.parametrize("rnn", [
    {},
    {"rnn_type": "gru", "rnn_hidden_dim": 5, "rnn_num_layers": 2},
    {"rnn_type": "lstm", "rnn_hidden_dim": 5, "rnn_num_layers": 3},
], ids=["mlp", "gru", "lstm"])  # fmt: skip
@pytest.mark.parametrize(("head", "answer"), [
    ({"class_name": "GaussianDistribution", "std_type": "log", "init_std": 0.7}, None),
    ({"class_name": "HeteroscedasticGaussianDistribution", "init_std": 0.6},
     "state_dependent_std"),
    ({"class_name": "HeteroscedasticGaussianDistribution", "std_type": "log", "init_std": 0.6},
     "state_dependent_log_std"),
    ({"class_name": "BetaDistribution", "action_range": (-2.0, 1.0)}, "beta"),
], ids=["gaussian", "std", "log_std", "beta"])  # fmt: skip
def test_every_head_as_the_installed_release_computes_it(
    head: dict[str, Any], answer: Any, rnn: dict[str, Any], tmp_path: Path
) -> None:
    actor, critic, obs = _models_of_release_5(head, rnn)
    content = _content_of(actor, critic)
    if answer is not None:
        said = _refused(content, tmp_path)
        assert "actor: the file has no std" in said
        assert answer in said
    hints = Hints(activation="tanh", head=answer, action_range=(-2.0, 1.0))
    checkpoint = _read(content, tmp_path, hints)
    ours, state = checkpoint.model("actor"), ()
    with torch.no_grad():
        for _ in range(3):
            assert ours.std(obs["policy"], state).shape == (5, 3)
            action, state = ours(obs["policy"], state)
            torch.testing.assert_close(action, actor(obs), rtol=0, atol=1e-6)
        actor.reset()
        actor(obs, stochastic_output=True)
        torch.testing.assert_close(
            ours.std(obs["policy"]), actor.output_std.expand(5, 3), rtol=0, atol=1e-6
        )
        _check_graph(ours, obs["policy"])
        value, _ = checkpoint.model("critic")(obs["critic"])
        torch.testing.assert_close(value, critic(obs), rtol=0, atol=1e-6)


def test_the_installed_release_loads_what_is_written(tmp_path: Path) -> None:
    """A recurrent file of release 2 becomes one whose moments belong to the right parameters."""
    head = {"class_name": "GaussianDistribution"}
    rnn = {"rnn_type": "lstm", "rnn_hidden_dim": 5, "rnn_num_layers": 1}
    actor, critic, _ = _models_of_release_5(head, rnn)
    old = {"std": actor.state_dict()["distribution.std_param"]}
    for prefix, net, memory in (("actor", actor, "memory_a"), ("critic", critic, "memory_c")):
        old |= {f"{prefix}.{k}": v for k, v in net.mlp.state_dict().items()}
        old |= {f"{memory}.rnn.{k}": v for k, v in net.rnn.rnn.state_dict().items()}
    order = sorted(old, key=lambda key: key.startswith("memory"))  # release 2: memories come last
    state = {key: old[key] for key in order}
    parameters = [torch.nn.Parameter(value.clone()) for value in state.values()]
    adam = torch.optim.Adam(parameters, lr=3e-4)
    for parameter in parameters:
        parameter.grad = parameter.detach().clone()
    adam.step()
    norms = {"obs_norm_state_dict": actor.obs_normalizer.state_dict(),
             "critic_obs_norm_state_dict": critic.obs_normalizer.state_dict()}  # fmt: skip
    content = {"model_state_dict": state, "optimizer_state_dict": adam.state_dict(),
               "iter": 4, "infos": None, **norms}  # fmt: skip
    checkpoint = _read(content, tmp_path, Hints(activation="tanh"))
    write_rsl_rl_checkpoint(tmp_path / "new.pt", checkpoint)
    loaded = torch.load(tmp_path / "new.pt", weights_only=True)
    live = [*actor.named_parameters(), *critic.named_parameters()]
    optimizer = torch.optim.Adam([parameter for _, parameter in live])
    actor.load_state_dict(loaded["actor_state_dict"])
    critic.load_state_dict(loaded["critic_state_dict"])
    optimizer.load_state_dict(loaded["optimizer_state_dict"])
    assert optimizer.param_groups[0]["lr"] == 3e-4
    for name, parameter in live:
        # The gradient was the parameter itself, so the first moment is a tenth of it.
        moment = optimizer.state[parameter]["exp_avg"]
        torch.testing.assert_close(moment, 0.1 * parameter.detach(), msg=name)
