"""LSTM and GRU through every writer, and squashed actions: parity, resets, planted faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray

import export.write
from export.graph import Source
from export.handwritten import write_graph
from export.networks import ScriptNetwork, script_content
from export.onnx import TARGETS, export_onnx
from export.torchscript import read_torchscript, trace_module
from export.write import export_source
from robot_runtime.errors import BadInput, GateFailed
from robot_runtime.policy.file import open_policy
from robot_runtime.policy.inference import OnnxNetwork
from tests.helpers.contracts import rich_contract, with_network
from tests.helpers.networks import (
    Convolution,
    Recurrent,
    changed,
    make_source,
    recurrent_contract,
    recurrent_source,
)
from trainer.networks.graph_spec import NoGraphSpecError, graph_spec_of

KINDS: list[dict[str, Any]] = [
    {"kind": "lstm"},
    {"kind": "lstm", "layers": 2, "squash": "beta"},
    {"kind": "gru", "squash": "tanh"},
    {"kind": "gru", "layers": 3},
    {"kind": "none", "squash": "beta"},
    {"kind": "none", "activation": torch.nn.GELU, "squash": "tanh"},
]


def reference(source: Source, obs: NDArray[np.float32], starts: NDArray[np.bool_]) -> Any:
    """Actions of the torch module itself, one robot, state zeroed where an episode starts."""
    zeros = [torch.zeros(state.shape) for state in source.contract.network.states]
    states, rows = zeros, []
    for row, start in zip(obs, starts, strict=True):
        states = zeros if start else states
        with torch.no_grad():
            result = source.module.actor(torch.from_numpy(row)[None], *states)
        if zeros:
            result, *states = result
        rows.append(result.numpy()[0])
    return np.stack(rows)


def ran(network: OnnxNetwork, obs: NDArray[np.float32], starts: NDArray[np.bool_]) -> Any:
    rows = []
    for row, start in zip(obs, starts, strict=True):
        if start:
            network.reset()
        rows.append(network(row))
    return np.stack(rows)


@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_our_writer_acts_like_torch_at_every_opset(settings: dict[str, Any]) -> None:
    """300 steps with resets in the middle; float32 in another order: 2e-6 x largest action."""
    source = recurrent_source(**settings)
    spec = source.spec
    assert spec is not None
    rng = np.random.default_rng(3)
    obs = rng.normal(0.5, 2.0, size=(300, 45)).astype(np.float32)
    starts = rng.random(300) < 0.02
    starts[0] = True
    expected = reference(source, obs, starts)
    for opset, ir_version in ((11, 6), (13, 7), (15, 8), (17, 8), (18, 8), (21, 10)):
        model = write_graph(spec, source.contract, opset=opset, ir_version=ir_version)
        onnx.checker.check_model(onnx.load_from_string(model), full_check=True)
        found = ran(OnnxNetwork(model, source.contract), obs, starts)
        assert np.abs(found - expected).max() <= 2e-6 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("settings", KINDS[:3], ids=str)
def test_a_file_is_written_and_proves_itself(tmp_path: Path, settings: dict[str, Any]) -> None:
    """For the oldest target and the default one; the TorchScript keeps its state inside."""
    source = recurrent_source(**settings)
    starts = source.trace.inputs.start
    expected = reference(source, source.trace.observation, starts)
    bound = 2e-6 * max(1.0, np.abs(expected).max())
    for target in ("ort-1.10", "ort-1.14"):
        output, script = tmp_path / f"{target}.onnx", tmp_path / f"{target}.pt"
        policy, gate = export_source(source, output, torchscript=script, target=target)
        assert gate.target == target
        assert (gate.random, gate.outliers, gate.rollout) == (1000, 100, 1000)
        assert "TorchScript, batch 64" not in gate.errors, "its one state is for one robot"
        opened = open_policy(output)
        found = ran(opened.network(), source.trace.observation, starts)
        assert np.abs(found - expected).max() <= bound
        proto = onnx.load_from_string(policy.model)
        wanted = TARGETS[target]
        assert (proto.opset_import[0].version, proto.ir_version) == (
            wanted.opset,
            wanted.ir_version,
        )
        for value in (*proto.graph.input, *proto.graph.output):
            sizes = value.type.tensor_type.shape.dim
            assert [size.dim_param for size in sizes if size.dim_param] == ["batch"], value.name
        module, contract, _ = read_torchscript(script)
        network = ScriptNetwork(module, contract)
        network.begin(1)
        rows = []
        for row, start in zip(source.trace.observation, starts, strict=True):
            network.reset(np.array([start]))
            rows.append(network.step(row[None])[0])
        assert np.abs(np.stack(rows) - expected).max() <= bound


def test_several_inputs_of_a_recurrent_network() -> None:
    base = rich_contract()
    module = Recurrent((base.observation_dim, base.num_actions), kind="gru", layers=2)
    source = make_source(module.requires_grad_(False).eval(), recurrent_contract(module, base))
    assert list(source.contract.inputs()) == ["obs", "past"]
    obs, starts = source.trace.observation, source.trace.inputs.start
    expected = reference(source, obs, starts)
    for target in ("ort-1.12", "ort-1.14"):
        model = export_onnx(source.module, source.contract, source.spec, TARGETS[target])
        found = ran(OnnxNetwork(model, source.contract), obs, starts)
        assert np.abs(found - expected).max() <= 2e-6 * max(1.0, np.abs(expected).max())


def test_a_network_that_is_no_chain_goes_through_torch(tmp_path: Path) -> None:
    contract = rich_contract()
    module = Convolution((contract.observation_dim, contract.num_actions))
    with pytest.raises(NoGraphSpecError, match="Convolution has no graph_spec"):
        graph_spec_of(module)
    source = make_source(module.requires_grad_(False).eval(), contract)
    for target in TARGETS:
        policy, _ = export_source(source, tmp_path / "p.onnx", target=target, allow_privileged=True)
        assert onnx.load_from_string(policy.model).opset_import[0].version == TARGETS[target].opset


def test_states_of_another_shape_are_refused() -> None:
    source = recurrent_source(kind="lstm", hidden=24)
    states = source.contract.network.states
    wrong = with_network(source.contract, states=states[:1])
    assert source.spec is not None
    with pytest.raises(BadInput, match=r"states of the shapes .*24.*network\.states say"):
        write_graph(source.spec, wrong, opset=15, ir_version=8)


# Planted faults.


class Faulty(torch.nn.Module):
    """A recurrent module with a fault planted by name."""

    def __init__(self, actor: Recurrent, fault: str) -> None:
        super().__init__()
        self.actor = actor
        self.fault = fault
        self.normalizer = torch.nn.Identity() if fault == "normalizer" else actor.normalizer

    def forward(self, obs: torch.Tensor, *states: torch.Tensor) -> Any:
        if self.fault == "order":
            obs = torch.cat([obs[:, 1:2], obs[:, 0:1], obs[:, 2:]], dim=1)
        if self.fault == "normalizer":
            obs = self.actor.normalizer.center + self.actor.normalizer.scale * obs
        if self.fault == "forgets":
            states = tuple(0.0 * state for state in states)
        return self.actor(obs, *states)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("forgets", "it forgets its state between steps"),
        ("normalizer", "the normalizer is missing"),
        (
            "order",
            "the features are in another order: it takes base_ang_vel[x] for base_ang_vel[y]",
        ),
        ("weight", "weights differ from the checkpoint's: rnn.weight_hh_l0[50, 5]"),
        ("swapped gates", "no known fault explains it"),
    ],
)
def test_a_fault_of_the_onnx_file_is_refused_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, cause: str
) -> None:
    source = recurrent_source(kind="gru")
    actor = source.module.actor
    assert isinstance(actor, Recurrent)
    other = recurrent_source(kind="gru")
    assert isinstance(other.module.actor, Recurrent)
    broken = Faulty(other.module.actor, fault)
    hidden = other.module.actor.get_parameter("rnn.weight_hh_l0")
    if fault == "weight":
        hidden[50, 5] *= 1.01
    if fault == "swapped gates":
        hidden.copy_(torch.cat([hidden[24:48], hidden[:24], hidden[48:]]))

    def write(module: Any, contract: Any, spec: Any, target: Any) -> bytes:
        policy = make_source(broken.requires_grad_(False).eval(), contract).module
        return export_onnx(policy, contract, None, TARGETS["ort-1.12"])

    monkeypatch.setattr(export.write, "export_onnx", write)
    with pytest.raises(GateFailed, match="nothing was written") as caught:
        export_source(source, tmp_path / "p.onnx")
    assert "checkpoint and onnxruntime, batch 64 differ by" in str(caught.value)
    assert f"likely cause: {cause}" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_state_that_is_not_reset_is_refused_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NeverReset(torch.nn.Module):
        def __init__(self, script: torch.jit.ScriptModule) -> None:
            super().__init__()
            self.script = script
            self.begun = False

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return self.script(obs)

        def reset(self) -> None:
            if not self.begun:
                self.script.reset()
            self.begun = True

    monkeypatch.setattr(
        export.write, "trace_module", lambda *given: NeverReset(trace_module(*given))
    )
    monkeypatch.setattr(export.write, "script_content", lambda never: script_content(never.script))
    source = recurrent_source(kind="lstm")
    with pytest.raises(GateFailed, match=r"TorchScript, batch 1 .* its state is not reset"):
        export_source(source, tmp_path / "p.onnx", target="ort-1.10")


def test_a_gate_that_sees_another_head_refuses(tmp_path: Path) -> None:
    """The scale of a squashed action, lost on the way to our writer."""
    source = recurrent_source(kind="none", squash="tanh")
    assert source.spec is not None
    assert source.spec.squash is not None
    source.spec.squash.scale[3] *= 0.25
    broken = changed(source, spec=source.spec)
    with pytest.raises(
        GateFailed, match="scale or offset of the actions is lost: action of FR_hip"
    ):
        export_source(broken, tmp_path / "p.onnx", target="ort-1.10")
