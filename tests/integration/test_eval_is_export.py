"""`surefoot eval` runs the very policy that is exported: normalizer, memory and head included."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import trainer.commands.eval
from export.graph import read_source
from export.write import export_checkpoint
from robot_runtime.policy.contract import PolicyContract
from tests.helpers.checkpoints import make_checkpoint
from trainer.config import NetworkConfig

MLP = NetworkConfig(actor_hidden=(32, 16))
GRU = NetworkConfig(kind="gru", rnn_hidden=8, actor_hidden=(16,))
BETA = NetworkConfig(head="beta", actor_hidden=(16,))


def evaluated(path: Path, contract: PolicyContract, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The policy that the verb hands to the episodes of a checkpoint."""
    dims = {"policy": contract.observation_dim}
    env = SimpleNamespace(obs_dims=dims, num_actions=contract.num_actions)
    task = SimpleNamespace(env=env, evaluation_env=lambda: env)
    handed: list[Any] = []

    class Enough(Exception):
        """The episodes are not what is asked about."""

    def take(policy: Any, *_: Any) -> Any:
        handed.append(policy)
        raise Enough

    monkeypatch.setattr(trainer.commands.eval, "find_task", lambda _: lambda **_: task)
    monkeypatch.setattr(trainer.commands.eval, "evaluate", take)
    with pytest.raises(Enough):
        trainer.commands.eval.main([str(path)])
    return handed[0]


@pytest.mark.parametrize("network", [MLP, GRU, BETA], ids=["mlp", "gru", "beta"])
def test_eval_runs_what_is_exported(
    network: NetworkConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_checkpoint(tmp_path / "model.pt", network=network)
    policy = evaluated(made.path, made.contract, monkeypatch)
    exported = export_checkpoint(made.path, tmp_path / "policy.onnx").policy
    rng = np.random.default_rng(0)
    # Far from what the normalizer makes of them.
    obs = rng.normal(0.5, 2.0, size=(12, made.contract.observation_dim)).astype(np.float32)
    network_of_file = exported.network()
    network_of_file.reset()
    of_file, of_eval = [], []
    for row in obs:
        of_file.append(np.array(network_of_file(row)))
        of_eval.append(policy(torch.from_numpy(row)[None]).numpy()[0])
    # Two libraries, sums in another order; the gate's own tolerance.
    np.testing.assert_allclose(of_eval, of_file, rtol=0, atol=exported_tolerance(of_file))
    without = without_normalizer(made.path, obs)
    assert np.abs(without - np.array(of_file)).max() > 0.05, "the normalizer must matter"


def exported_tolerance(actions: list[NDArray[np.float32]]) -> float:
    return 2e-5 * max(1.0, float(np.abs(actions).max()))


def without_normalizer(path: Path, obs: NDArray[np.float32]) -> NDArray[np.float32]:
    """What a policy would do whose statistics were left behind."""
    source = read_source(path)
    normalizer: Any = next(m for m in source.module.modules() if hasattr(m, "center"))
    normalizer.center.zero_()
    normalizer.scale.fill_(1.0)
    states = [torch.zeros(s.shape) for s in source.contract.network.states]
    actions = []
    for row in obs:
        out = source.module(torch.from_numpy(row)[None], *states)
        action, states = (out[0], list(out[1:])) if isinstance(out, tuple) else (out, [])
        actions.append(action.numpy()[0])
    return np.array(actions)
