"""Checkpoints of rsl_rl become policy files: the network from the weights, the rest from people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from export.importers.pipeline import Imported
from export.importers.sheet import MissingFieldsError
from robot_runtime.cli import main
from robot_runtime.errors import BadInput, Refused
from robot_runtime.policy.file import open_policy
from tests.helpers.foreign import LEGS, Case, robot_xml

DIM = 14
"""Gravity, positions and speeds of four joints, and three command channels."""

CONTRACT = """
joints: {names: [left_hip, left_knee, right_hip, right_knee], default_pos: 0.1, kp: 20.0, kd: 0.5}
timing: {control_dt: 0.02, pd_dt: 0.002}
action: {scale: 0.25, offset: default_pos}
commands: {lin_vel_x: [-1, 1], lin_vel_y: [-1, 1], ang_vel_z: [-1, 1]}
observation: [projected_gravity, joint_pos_rel, joint_vel, command]
"""
ELU = "network.activation: elu\n"

TOLERANCE = 1e-6
"""One float32 network in two libraries, numbers of order one."""


def mlp(outputs: int = 4, inputs: int = DIM, activation: type[nn.Module] = nn.ELU) -> nn.Sequential:
    torch.manual_seed(outputs + inputs)
    return nn.Sequential(nn.Linear(inputs, 16), activation(), nn.Linear(16, outputs)).eval()


def prefixed(prefix: str, module: nn.Module) -> dict[str, Any]:
    return {f"{prefix}{key}": value for key, value in module.state_dict().items()}


def normalizer(prefix: str = "") -> dict[str, Any]:
    """Buffers of a normalizer, and what they make of ``x`` by hand: (x - 0.5) / (1.99 + 0.01)."""
    full = {"_mean": 0.5, "_var": 1.99**2, "_std": 1.99}
    found = {f"{prefix}{name}": torch.full((1, DIM), value) for name, value in full.items()}
    return {**found, f"{prefix}count": torch.tensor(1000)}


def flat(actor: nn.Module, **more: Any) -> dict[str, Any]:
    """A file of release 1 to 3."""
    state = {"std": torch.ones(4), **prefixed("actor.", actor), **prefixed("critic.", mlp(1))}
    return {"model_state_dict": state, "iter": 3, "infos": None, **more}


def split(actor: dict[str, Any]) -> dict[str, Any]:
    """A file of release 4 or 5."""
    critic = prefixed("mlp.", mlp(1))
    return {"actor_state_dict": actor, "critic_state_dict": critic, "iter": 3, "infos": None}


def case(folder: Path, content: dict[str, Any], said: str) -> Case:
    made = Case(format="rsl_rl", folder=folder)
    made.robot()
    torch.save(content, folder / "model_3.pt")
    made.files.append(folder / "model_3.pt")
    (folder / "user").mkdir(exist_ok=True)
    (folder / "user" / "user.yaml").write_text(said)
    return made


def run(made: Case) -> Imported:
    return made.run(user=(made.folder / "user" / "user.yaml",))


def observations() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(20, DIM)).astype(np.float32)


def check(imported: Imported, expected: Any) -> None:
    """Compare the policy with torch's own modules on random observations."""
    network = imported.policy.network()
    with torch.no_grad():
        for obs in observations():
            wanted = expected(torch.from_numpy(obs[None])).numpy()[0]
            np.testing.assert_allclose(network(obs), wanted, rtol=0, atol=TOLERANCE)


def test_releases_one_to_three(tmp_path: Path) -> None:
    actor = mlp()
    imported = run(case(tmp_path, flat(actor), CONTRACT + ELU))
    check(imported, actor)
    assert imported.policy.contract.network.normalizer == "none"
    assert imported.policy.contract.joint_names == LEGS
    said = " | ".join(imported.details)
    assert "rsl_rl 1.x to 3.x" in said
    assert "model_state_dict/actor.0.weight (16, 14) -> actor/mlp.0.weight" in said
    assert "model_state_dict/critic.2.bias (1,) -> critic/mlp.2.bias" in said
    # The same is kept in the file.
    kept = open_policy(imported.policy.path).provenance
    assert kept["network"] == list(imported.details)
    assert kept["fields"]["network.output"].startswith("file")


@pytest.mark.parametrize("place", ["beside", "inside", "release 5"])
def test_normalizers_of_every_release(tmp_path: Path, place: str) -> None:
    actor = mlp()
    content = flat(actor)
    if place == "beside":
        content["obs_norm_state_dict"] = normalizer()
    elif place == "inside":
        content["model_state_dict"] |= normalizer("actor_obs_normalizer.")
    else:
        std = {"distribution.log_std_param": torch.zeros(4)}
        content = split({**normalizer("obs_normalizer."), **std, **prefixed("mlp.", actor)})
    imported = run(case(tmp_path, content, CONTRACT + ELU))
    check(imported, lambda obs: actor((obs - 0.5) / 2.0))
    assert imported.policy.contract.network.normalizer == "in_graph"


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_memory_gets_names_in_the_contract(tmp_path: Path, kind: type[nn.Module]) -> None:
    torch.manual_seed(3)
    memory, actor = kind(DIM, 8, 2).eval(), mlp(inputs=8)
    content = flat(actor)
    content["model_state_dict"] |= prefixed("memory_a.rnn.", memory)
    imported = run(case(tmp_path, content, CONTRACT + ELU))
    names = ["h", "c"] if kind is nn.LSTM else ["h"]
    states = imported.policy.contract.network.states
    assert [(s.input, s.output) for s in states] == [(f"{n}_in", f"{n}_out") for n in names]
    assert all(state.shape == (2, 1, 8) for state in states)
    state: Any = None

    def step(obs: torch.Tensor) -> torch.Tensor:
        nonlocal state
        out, state = memory(obs[None], state)
        return actor(out[0])

    check(imported, step)


def test_a_head_that_the_file_does_not_tell_is_asked_for(tmp_path: Path) -> None:
    """Eight numbers without a std: means and deviations, or a Beta distribution."""
    actor = mlp(8)
    content = split(prefixed("mlp.", actor))
    with pytest.raises(MissingFieldsError) as missing:
        run(case(tmp_path, content, CONTRACT))
    asked = {question.path: question.likely for question in missing.value.questions}
    assert asked["network.activation"][0] == "elu"
    assert asked["network.head"] == ("state_dependent_std", "state_dependent_log_std", "beta")
    gaussian = run(case(tmp_path, content, f"{CONTRACT}{ELU}network.head: state_dependent_std\n"))
    check(gaussian, lambda obs: actor(obs)[:, :4])
    with pytest.raises(MissingFieldsError) as missing:
        run(case(tmp_path, content, f"{CONTRACT}{ELU}network.head: beta\n"))
    assert [question.path for question in missing.value.questions] == ["network.action_range"]
    said = f"{CONTRACT}{ELU}network: {{head: beta, action_range: [-2.0, 4.0]}}\n"
    # torch's own distribution is the oracle.
    beta = run(case(tmp_path, content, said))

    def mean(obs: torch.Tensor) -> torch.Tensor:
        a, b = (nn.functional.softplus(part) + 1.0 for part in actor(obs).chunk(2, dim=-1))
        return torch.distributions.Beta(a, b).mean * 6.0 - 2.0

    check(beta, mean)


def test_the_contract_is_asked_for_at_once(tmp_path: Path) -> None:
    """Joints too: the training framework's order is not the model's."""
    with pytest.raises(MissingFieldsError) as missing:
        run(case(tmp_path, flat(mlp()), "{}"))
    assert {q.path for q in missing.value.questions} >= {"joints.names", "network.activation"}
    with pytest.raises(MissingFieldsError) as missing:
        run(case(tmp_path, flat(mlp()), "joints: [left_hip, left_knee, right_hip, right_knee]"))
    assert {q.path for q in missing.value.questions} == {
        "network.activation", "joints.default_pos", "joints.kp", "joints.kd", "action.scale",
        "action.offset", "observation", "timing.control_dt", "timing.pd_dt",
    }  # fmt: skip


AGENT = """
seed: 42
empirical_normalization: {normalization}
policy:
  class_name: ActorCritic
  activation: relu
  init_noise_std: 1.0
  actor_hidden_dims: !!python/tuple [16]
clip_actions: 100.0
"""


def test_the_settings_of_the_run_answer_some_of_it(tmp_path: Path) -> None:
    actor = mlp(activation=nn.ReLU)
    made = case(tmp_path, flat(actor), CONTRACT)
    made.write("agent.yaml", AGENT.format(normalization="false"))
    imported = run(made)
    check(imported, actor)
    (term,) = imported.policy.contract.action.terms
    assert (term.raw_lower, term.raw_upper) == ((-100.0,) * 4, (100.0,) * 4)
    # The user's word is the stronger one, and the difference a note.
    made = case(tmp_path, flat(mlp()), CONTRACT + ELU)
    imported = run(case(tmp_path, flat(mlp()), CONTRACT + ELU))
    check(imported, mlp())
    made.write("agent.yaml", AGENT.format(normalization="false"))
    assert "network.activation" in " | ".join(run(made).notes)


@pytest.mark.parametrize("lost", [True, False])
def test_a_normalizer_that_the_settings_speak_of_must_be_there(tmp_path: Path, lost: bool) -> None:
    content = flat(mlp()) if lost else flat(mlp(), obs_norm_state_dict=normalizer())
    made = case(tmp_path, content, CONTRACT)
    made.write("agent.yaml", AGENT.format(normalization="true" if lost else "false"))
    with pytest.raises(Refused, match=r"empirical_normalization says .*or it was lost"):
        run(made)
    assert not (tmp_path / "out.onnx").exists()


BROKEN: dict[str, tuple[dict[str, Any], str, str]] = {
    "no checkpoint of rsl_rl": ({"weights": torch.zeros(3)}, "", "found the keys: weights"),
    "another head than the weights": (flat(mlp()), "network.head: beta", "those of 'gaussian'"),
    "an activation nobody has": (flat(mlp()), "network.activation: cubic", "unknown activation"),
    "one that no graph has": (flat(mlp()), "network.activation: softplus", "no graph can be"),
    "a normalizer that is not there": (flat(mlp()), "network.norm_eps: 0.1", "no normalizer"),
    "said to be normalized": (flat(mlp()), "network.normalizer: in_graph", "without a shift"),
    "a setting nobody has": (flat(mlp()), "network.layers: 3", "network.layers: no such field"),
    "another number of joints": (flat(mlp(3)), "", "do not fit a last layer of 3"),
    "another length": (flat(mlp(inputs=11)), "", "takes 11 numbers, the terms give 14"),
}


@pytest.mark.parametrize("why", BROKEN)
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, why: str) -> None:
    content, said, expected = BROKEN[why]
    elu = "" if "network.activation" in said else ELU
    with pytest.raises(BadInput, match=expected):
        run(case(tmp_path, content, f"{CONTRACT}{elu}{said}"))
    assert not (tmp_path / "out.onnx").exists()


def test_a_pickle_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = case(tmp_path, {}, CONTRACT)
    made.files[0].write_bytes(b"cos\nsystem\n(S'touch gone'\ntR.")
    assert main(made.argv("--user", str(tmp_path / "user" / "user.yaml"))) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_verb_shows_every_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = case(tmp_path, flat(mlp()), CONTRACT + ELU)
    argv = made.argv("--user", str(tmp_path / "user" / "user.yaml"))
    assert main([argv[0], "rsl-rl", *argv[2:]]) == 0
    shown = capsys.readouterr().out
    assert "what was in the file:" in shown
    for key in flat(mlp())["model_state_dict"]:
        assert f"model_state_dict/{key}" in shown


# -- real files of several releases ----------------------------------------------------------------

REAL_JOINTS = ("a", "b", "c", "d", "e")
REAL = """
joints: {names: [a, b, c, d, e], default_pos: 0.0, kp: 20.0, kd: 0.5}
timing: {control_dt: 0.02, pd_dt: 0.002}
action: {scale: 1.0, offset: 0.0}
commands: {lin_vel_x: [-1, 1]}
observation: [joint_pos_rel, joint_vel, projected_gravity, command: {channels: [lin_vel_x]}]
network.activation: elu
"""


def test_real_files_of_several_releases(real_dir: Path, tmp_path: Path) -> None:
    files = sorted((real_dir / "rsl_rl_checkpoints").glob("*.pt"))
    assert len(files) == 10
    for path in files:
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as found:
            oracle = dict(found)
        made = Case(format="rsl_rl", folder=tmp_path, files=[path])
        made.robot(robot_xml(REAL_JOINTS, REAL_JOINTS))
        (tmp_path / "user").mkdir(exist_ok=True)
        (tmp_path / "user" / "user.yaml").write_text(REAL)
        imported = run(made)
        network = imported.policy.network()
        for obs, action in zip(oracle["obs"], oracle["actions"], strict=True):
            network.reset()
            np.testing.assert_allclose(network(obs), action, rtol=0, atol=TOLERANCE)
        if "seq_obs" in oracle:
            for env in range(oracle["seq_obs"].shape[1]):
                for t, obs in enumerate(oracle["seq_obs"][:, env]):
                    if t == 0 or oracle["seq_resets"][t, env]:
                        network.reset()
                    wanted = oracle["seq_actions"][t, env]
                    np.testing.assert_allclose(network(obs), wanted, rtol=0, atol=TOLERANCE)
        content = torch.load(path, weights_only=True)
        states = [key for key, value in content.items() if isinstance(value, dict)]
        tensors = [
            f"{top}/{key}" for top in states for key, value in content[top].items()
            if isinstance(value, torch.Tensor)
        ]  # fmt: skip
        said = "\n".join(imported.details)
        assert all(f"{key} " in said for key in tensors), path.name
