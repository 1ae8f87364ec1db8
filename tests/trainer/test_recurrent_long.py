"""One network with a memory, run in five ways for 3,000 control steps: the same actions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import Tensor

from tests.trainer.scripted import ScriptedEnv
from trainer.compat.agent import foreign_of, hints_of
from trainer.compat.exports import export_jit, export_onnx
from trainer.config import NetworkConfig, PPOConfig
from trainer.networks.body import features
from trainer.networks.policy import DeterministicPolicy
from trainer.ppo import PPO
from trainer.rollout import Collector
from trainer.sequences import Padded

STEPS, ENVS, ROLLOUTS = 100, 2, 30
TOTAL = STEPS * ROLLOUTS
TOLERANCE = 1e-5
"""Sums of float32 in another order, carried along through episodes of a hundred steps and more."""


def agent_of(kind: str, layers: int) -> PPO:
    network = NetworkConfig(kind=kind, rnn_hidden=16, rnn_layers=layers, actor_hidden=(16,),
                            critic_hidden=(16,), obs_clip=0.0)  # fmt: skip
    config = PPOConfig(num_steps=STEPS, minibatches=1, epochs=1)
    agent = PPO({"policy": 5}, 2, config=config, network=network, seed=1,
                device=torch.device("cpu"))  # fmt: skip
    with torch.no_grad():
        list(agent.actor.net.parameters())[-2].mul_(100.0)  # actions of order 1
    return agent


def environment() -> ScriptedEnv:
    """Random numbers in which an episode lasts a hundred steps on average, and ends both ways."""
    g = torch.Generator().manual_seed(7)
    obs = torch.randn(TOTAL + 1, ENVS, 5, generator=g)
    ends = [torch.rand(TOTAL, ENVS, generator=g) < 0.005 for _ in range(2)]
    reward = torch.randn(TOTAL, ENVS, generator=g)
    return ScriptedEnv({"policy": obs}, reward, *ends, final_obs={"policy": obs[1:] + 1.0})


def collected(agent: PPO, env: ScriptedEnv) -> tuple[Tensor, Tensor]:
    """Outputs of the rollouts, and those of the update's padded sequences, ``(TOTAL, ENVS, 2)``."""
    collector = Collector(env, num_steps=STEPS, device=torch.device("cpu"))
    stepped, padded = [], []
    for _ in range(ROLLOUTS):
        rollout = collector.collect(agent.act)
        batch = agent._batch(rollout, None)
        data = batch.minibatch(torch.arange(ENVS), images=False, standardize=False)
        assert data is not None
        assert isinstance(data.actor_in, Padded)
        with torch.no_grad():
            new = agent.actor.net(features(agent.actor, data.actor_in))
        # The samples lie by sequence; what was said when they were drawn lies beside them.
        torch.testing.assert_close(new, data.old_outputs, rtol=0.0, atol=TOLERANCE)
        stepped.append(rollout.outputs.clone())
        padded.append(new)
    assert sum(map(len, padded)) == TOTAL * ENVS
    return torch.cat(stepped), torch.cat(padded)


@pytest.mark.parametrize(("kind", "layers"), [("lstm", 2), ("gru", 1)])
def test_rollout_update_evaluation_and_exports_agree(
    kind: str, layers: int, tmp_path: Path
) -> None:
    agent, env = agent_of(kind, layers), environment()
    expected, padded = collected(agent, env)
    assert float(expected.std()) > 0.1
    assert float(padded.sum()) == pytest.approx(float(expected.sum()), abs=0.1)
    done, obs = env._terminated | env._truncated, env._obs["policy"]
    assert 30 < int(done.sum()) < 150
    policy = DeterministicPolicy(agent.actor)
    model = foreign_of(agent, hints_of(NetworkConfig(kind=kind)), iteration=0).model("actor")
    export_onnx(model, tmp_path / "p.onnx")
    export_jit(model, tmp_path / "p.pt")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(tmp_path / "p.onnx"), options)
    scripts = [torch.jit.load(str(tmp_path / "p.pt")) for _ in range(ENVS)]
    names = [value.name for value in session.get_inputs()][1:]
    state = {name: np.zeros((layers, ENVS, 16), np.float32) for name in names}
    worst: dict[str, float] = {"evaluation": 0.0, "onnx": 0.0, "torchscript": 0.0}
    with torch.no_grad():
        for t in range(TOTAL):
            found = {"evaluation": policy(obs[t])}
            action, *after = session.run(None, {"obs": obs[t].numpy(), **state})
            found["onnx"] = torch.from_numpy(np.asarray(action))
            found["torchscript"] = torch.cat(
                [script(obs[t, n : n + 1]) for n, script in enumerate(scripts)]
            )
            for name, actions in found.items():
                worst[name] = max(worst[name], float((actions - expected[t]).abs().max()))
            policy.reset(done[t])
            goes_on = (~done[t]).numpy().reshape(1, -1, 1)
            state = {name: x * goes_on for name, x in zip(names, after, strict=True)}
            for n in done[t].nonzero().flatten().tolist():
                scripts[n].reset()
    assert max(worst.values()) <= TOLERANCE, worst
