"""Every kind of actor through the exporter: memory, heads, encoders, a shared body."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from export.graph import read_source
from export.write import export_checkpoint, export_source
from robot_runtime.cli import main
from robot_runtime.errors import GateFailed, Refused
from robot_runtime.policy.file import open_policy
from tests.helpers.checkpoints import make_checkpoint
from trainer.checkpoint import build_actor, load_checkpoint
from trainer.config import EncoderConfig, NetworkConfig

SMALL: dict[str, Any] = {"actor_hidden": (16,), "rnn_hidden": 12}
NETWORKS: dict[str, dict[str, Any]] = {
    "lstm": {"kind": "lstm"},
    "gru of 2 layers, shared": {"kind": "gru", "rnn_layers": 2, "shared": True,
                                "trunk_hidden": (14,)},
    "lstm, beta": {"kind": "lstm", "head": "beta", "action_range": (-3.0, 2.0)},
    # What the gate accepts grows with the action alone, rounding with what is squashed.
    "tanh": {"head": "tanh", "action_range": (-2.0, 2.0), "obs_clip": 2.0},
    "state-gaussian": {"head": "state-gaussian"},
}  # fmt: skip
ENCODERS: dict[str, EncoderConfig] = {
    "attention": EncoderConfig(kind="attention", shape=(9, 5), width=8, heads=2),
    "conv1d": EncoderConfig(kind="conv1d", shape=(9, 5), width=8, channels=(4,)),
    "conv2d": EncoderConfig(kind="conv2d", shape=(5, 9), width=8, channels=(4,)),
}


def check(path: Path, output: Path, target: str) -> None:
    """Export, and replay the trace against the actor itself, explicit state and all."""
    exported = export_checkpoint(path, output, torchscript=output.with_suffix(".pt"), target=target)
    policy, checkpoint = open_policy(output), load_checkpoint(path)
    contract, trace = policy.contract, policy.trace
    actor = build_actor(checkpoint)
    zero = [torch.zeros(state.shape) for state in contract.network.states]
    network, states = policy.network(), zero
    for obs, start in zip(trace.observation, trace.inputs.start, strict=True):
        if start:
            network.reset()
            states = zero
        result = actor(torch.from_numpy(obs)[None], *states)
        action, *states = result if zero else (result,)
        # float32 in another order of sums.
        np.testing.assert_allclose(network(obs), action[0].numpy(), rtol=1e-5, atol=1e-5)
    assert onnx.load_from_string(exported.policy.model).graph.node


@pytest.mark.parametrize(
    ("name", "target"),
    [(name, "ort-1.14") for name in NETWORKS]
    + [(name, "ort-1.10") for name in list(NETWORKS)[1:3]],
)
def test_it_exports_and_acts_alike(tmp_path: Path, name: str, target: str) -> None:
    made = make_checkpoint(tmp_path / "it.pt", network=NetworkConfig(**SMALL, **NETWORKS[name]))
    states = made.contract.network.states
    names = {"lstm": ["h_in", "c_in"], "gru": ["h_in"]}.get(NETWORKS[name].get("kind", ""), [])
    assert [state.input for state in states] == names
    assert [state.output for state in states] == [n.replace("_in", "_out") for n in names]
    check(made.path, tmp_path / "policy.onnx", target)


@pytest.mark.parametrize("name", list(ENCODERS))
def test_encoders_export_through_torch(tmp_path: Path, name: str) -> None:
    network = NetworkConfig(encoders=(ENCODERS[name],), **SMALL)
    made = make_checkpoint(tmp_path / "it.pt", network=network)
    check(made.path, tmp_path / "policy.onnx", "ort-1.14")


def test_what_the_older_exporter_gets_wrong_is_refused(tmp_path: Path) -> None:
    """It takes the batch of its example for a constant in an attention."""
    network = NetworkConfig(encoders=(ENCODERS["attention"],), **SMALL)
    made = make_checkpoint(tmp_path / "it.pt", network=network)
    with pytest.raises(Refused, match=r"cannot be written for ort-1\.10 .*newer --target"):
        export_checkpoint(made.path, tmp_path / "policy.onnx", target="ort-1.10")
    assert [path.name for path in tmp_path.iterdir()] == ["it.pt"]


def test_the_quadruped_trains_with_a_memory_and_is_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, output = tmp_path / "run", tmp_path / "policy.onnx"
    arguments = [
        "--num-envs",
        "4",
        "--iterations",
        "1",
        "--ppo.minibatches",
        "2",
        "--out",
        str(run),
    ]
    network = ["--network.kind", "gru", "--network.rnn-hidden", "16", "--json"]
    assert main(["train", "quadruped-flat", *arguments, *network]) == 0
    told = json.loads(capsys.readouterr().out)
    assert main(["export", told["checkpoint"], "-o", str(output)]) == 0
    policy = open_policy(output)
    (state,) = policy.contract.network.states
    assert (state.input, state.output, state.shape) == ("h_in", "h_out", (1, 1, 16))
    assert policy.trace.origin == "recorded"


def test_a_squashed_action_far_out_is_held_against_what_torch_makes_of_it(tmp_path: Path) -> None:
    """Numbers of 100 that cancel before the squash: torch itself differs by more than 2e-6 x 3.

    A fault is as far from that as from anything: a weight changed by a hundredth is refused.
    """
    network = NetworkConfig(actor_hidden=(512, 256, 128), head="tanh", action_range=(-3.0, 3.0))
    made = make_checkpoint(tmp_path / "it.pt", network=network)
    output = tmp_path / "policy.onnx"
    gate = export_checkpoint(made.path, output).gate
    far, near = gate.groups["outliers"], gate.groups["ordinary"]
    assert far.largest_action <= 3.0
    assert 2e-6 * 3.0 < far.tolerance <= 10 * 2e-6 * 3.0
    assert near.tolerance <= far.tolerance
    assert far.error <= far.tolerance
    source = read_source(made.path)
    assert source.spec is not None
    source.spec.layers[1].weight[7, 11] *= 1.01
    with pytest.raises(GateFailed, match="twice what the checkpoint differs from itself"):
        export_source(source, output, target="ort-1.10")
