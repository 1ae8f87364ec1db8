"""The runner with recurrent networks: files both ways, the policy it hands out, exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import Tensor

from robot_runtime.errors import BadInput
from tests.trainer.rsl_rl_scripts import MEMORIES, Points, config_5
from trainer.envs.as_rsl_rl import RslRlVecEnv
from trainer.rsl_rl import OnPolicyRunner

STEPS, ROBOTS = 60, 8


def config(name: str, **algorithm: Any) -> dict[str, Any]:
    return config_5(MEMORIES[name], MEMORIES[name], **algorithm)


def runner_of(name: str) -> OnPolicyRunner:
    torch.manual_seed(0)
    return OnPolicyRunner(RslRlVecEnv(Points()), config(name))


def sequence() -> tuple[Tensor, Tensor]:
    """Observations ``(STEPS, ROBOTS, 2)``, and where episodes end after a step, 0 or 1."""
    g = torch.Generator().manual_seed(4)
    obs = torch.randn(STEPS, ROBOTS, 2, generator=g)
    return obs, (torch.rand(STEPS, ROBOTS, generator=g) < 0.1).long()


def played(policy: Any, obs: Tensor, dones: Tensor) -> Tensor:
    """The actions along a sequence, as scripts play it."""
    actions: list[Tensor] = []
    for seen, done in zip(obs, dones, strict=True):
        actions.append(policy(seen).clone())
        policy.reset(done)
    return torch.stack(actions)


def weights(runner: OnPolicyRunner) -> dict[str, Tensor]:
    return {**runner.alg.actor.state_dict(), **{
        f"critic.{k}": v for k, v in runner.alg.critic.state_dict().items()
    }}  # fmt: skip


@pytest.mark.parametrize("name", MEMORIES)
def test_rsl_rl_continues_from_our_file_and_we_from_theirs(name: str, tmp_path: Path) -> None:
    runners = pytest.importorskip("rsl_rl.runners")
    from tensordict import TensorDict  # pyright: ignore[reportMissingImports]

    ours = runner_of(name)
    ours.learn(2)
    ours.save(tmp_path / "ours.pt", infos={"note": 1})
    theirs = runners.OnPolicyRunner(RslRlVecEnv(Points()), config(name), log_dir=None, device="cpu")
    assert theirs.load(str(tmp_path / "ours.pt")) == {"note": 1}
    obs, dones = sequence()

    class Theirs:
        def __init__(self) -> None:
            self.model = theirs.get_inference_policy()

        def __call__(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                return self.model(TensorDict({"policy": x}, [len(x)]))

        def reset(self, done: Tensor) -> None:
            self.model.reset(done)

    expected = played(Theirs(), obs, dones)
    found = played(ours.get_inference_policy(), obs, dones)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    theirs.alg.actor.reset()
    theirs.learn(1)
    theirs.save(str(tmp_path / "theirs.pt"))
    again = runner_of(name)
    again.load(tmp_path / "theirs.pt")
    theirs.alg.actor.reset()
    found = played(again.get_inference_policy(), obs, dones)
    torch.testing.assert_close(found, played(Theirs(), obs, dones), rtol=0, atol=1e-6)
    # The moments of the recurrent layers, which lie elsewhere in rsl_rl's order, by identity.
    (state,) = (again.alg.state_dict()["optimizer"]["state"],)
    order = [key for key, _ in again.alg.actor.named_parameters()]
    moment = theirs.alg.optimizer.state[theirs.alg.actor.rnn.rnn.weight_hh_l0]["exp_avg"]
    torch.testing.assert_close(state[order.index("rnn.weight_hh_l0")]["exp_avg"], moment)
    again.learn(1)


@pytest.mark.parametrize("name", ["lstm2", "gru1"])
def test_a_run_continues_where_it_was_saved(name: str, tmp_path: Path) -> None:
    """Ten steps of episodes of seven: actor and critic remember across the file."""
    whole = runner_of(name)
    whole.learn(4)
    first = runner_of(name)
    first.learn(2)
    first.save(tmp_path / "model.pt")
    second = runner_of(name)
    second.load(tmp_path / "model.pt")
    second.learn(2)
    expected = weights(whole)
    for key, value in weights(second).items():
        assert torch.equal(value, expected[key]), key


def test_another_number_of_environments_begins_new_episodes(tmp_path: Path) -> None:
    first = runner_of("lstm1")
    first.learn(1)
    first.save(tmp_path / "model.pt")
    play = OnPolicyRunner(RslRlVecEnv(Points(4)), config("lstm1"))
    play.load(tmp_path / "model.pt")
    for key, value in weights(first).items():
        torch.testing.assert_close(weights(play)[key], value, msg=key)
    play.learn(1)


@pytest.mark.parametrize("name", MEMORIES)
def test_exported_policies_act_alike(name: str, tmp_path: Path) -> None:
    runner = runner_of(name)
    runner.learn(2)
    runner.export_policy_to_jit(str(tmp_path / "exported"))
    runner.export_policy_to_onnx(str(tmp_path / "exported"))
    files = sorted(path.name for path in (tmp_path / "exported").iterdir())
    assert files == ["policy.onnx", "policy.pt"]
    obs, dones = sequence()
    expected = played(runner.get_inference_policy(), obs, dones)
    script = torch.jit.load(str(tmp_path / "exported" / "policy.pt"))
    for robot in (0, 5):
        script.reset()
        for t in range(STEPS):
            action = script(obs[t, robot : robot + 1])
            torch.testing.assert_close(action[0], expected[t, robot], rtol=0, atol=1e-6)
            if dones[t, robot]:
                script.reset()
    path = tmp_path / "exported" / "policy.onnx"
    letters = "hc" if name.startswith("lstm") else "h"
    graph = onnx.load(path).graph
    assert [value.name for value in graph.input] == ["obs", *(f"{x}_in" for x in letters)]
    assert [value.name for value in graph.output] == ["actions", *(f"{x}_out" for x in letters)]
    session = ort.InferenceSession(str(path))
    shape = (int(name[-1]), ROBOTS, 8)
    state = {f"{x}_in": np.zeros(shape, np.float32) for x in letters}
    for t in range(STEPS):
        actions, *after = session.run(None, {"obs": obs[t].numpy(), **state})
        np.testing.assert_allclose(actions, expected[t].numpy(), rtol=0, atol=1e-6)
        goes_on = (dones[t] == 0).numpy().reshape(1, -1, 1)
        state = {key: value * goes_on for key, value in zip(state, after, strict=True)}


def test_the_policy_remembers_apart_from_the_training_and_forgets_when_told() -> None:
    runner = runner_of("gru1")
    obs, _ = sequence()
    policy = runner.get_inference_policy()
    first = policy(obs[0])
    second = policy(obs[0])
    assert not torch.allclose(first, second)
    runner.learn(1)
    other = runner.get_inference_policy()
    assert not torch.allclose(other(obs[0]), policy(obs[0]))
    with pytest.raises(BadInput, match=r"remembers 8 environments and sees 3: call reset\(\)"):
        policy(obs[0, :3])
    policy.reset()
    assert policy({"policy": obs[0, :3], "critic": torch.zeros(3, 3)}).shape == (3, 2)
    # Flags as environments give them: float, with an axis more.
    policy.reset(torch.tensor([[1.0], [0.0], [0.0]]))
    policy(obs[1, :3])


def test_files_of_another_memory_are_refused_unless_asked(tmp_path: Path) -> None:
    runner_of("lstm1").save(tmp_path / "lstm.pt")
    gru, mlp = runner_of("gru1"), OnPolicyRunner(RslRlVecEnv(Points()), config_5())
    with pytest.raises(BadInput, match=r"actor: 'rnn.rnn.weight_ih_l0' has shape \(32, 2\)"):
        gru.load(tmp_path / "lstm.pt")
    with pytest.raises(BadInput, match=r"actor: the checkpoint lacks nothing and has \['rnn.rnn"):
        mlp.load(tmp_path / "lstm.pt")
    gru.load(tmp_path / "lstm.pt", load_cfg={"iteration": True})
    assert gru.current_learning_iteration == 0
