"""The graph in onnxruntime against NumPy: names, lengths, batches, recurrent state."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from robot_runtime.errors import BadInput
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.inference import OnnxNetwork
from robot_runtime.policy.spec import RecurrentState
from tests.helpers.contracts import quadruped_contract, rich_contract, with_network
from tests.helpers.policies import (
    Weights,
    mlp_model,
    model_bytes,
    random_weights,
    tensor_info,
)

# float32 sums of some 100 products in another order.
TOLERANCE = 2e-6


def by_hand(weights: Weights, obs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The network in float64 NumPy."""
    value = obs.astype(np.float64)
    for i, (matrix, bias) in enumerate(weights):
        value = (value if i == 0 else np.tanh(value)) @ matrix + bias
    return value


@pytest.mark.parametrize("batch", ["batch", 1])
@pytest.mark.parametrize("make", [quadruped_contract, rich_contract])
def test_actions_are_those_of_numpy(make: Any, batch: int | str) -> None:
    contract = make()
    weights = random_weights(contract)
    network = OnnxNetwork(mlp_model(contract, weights, batch=batch), contract)
    assert network.dynamic == (batch == "batch")
    obs = np.random.default_rng(1).normal(size=(7, contract.observation_dim)).astype(np.float32)
    expected = by_hand(weights, obs)
    one_by_one = np.stack([network(row) for row in obs])
    assert one_by_one.dtype == np.float32
    np.testing.assert_allclose(one_by_one, expected, atol=TOLERANCE)
    np.testing.assert_allclose(network.batch(obs), expected, atol=TOLERANCE)
    assert network.batch(obs[:0]).shape == (0, contract.num_actions)


def test_an_action_is_not_overwritten_by_the_next() -> None:
    contract = quadruped_contract()
    network = OnnxNetwork(mlp_model(contract), contract)
    first = network(np.ones(contract.observation_dim, np.float32))
    kept = first.copy()
    second = network(np.full(contract.observation_dim, -1.0, np.float32))
    assert np.array_equal(first, kept)
    assert not np.array_equal(first, second)


def recurrent(contract: PolicyContract) -> bytes:
    """A graph that adds up the first features of all observations: h' = h + x, action = h'."""
    dim, actions = contract.observation_dim, contract.num_actions
    constants = [
        numpy_helper.from_array(np.array(values, np.int64), name)
        for name, values in (("from", [0]), ("to", [actions]), ("axis", [1]), ("shape", [1, 1, -1]))
    ]
    nodes = [
        helper.make_node("Slice", ["obs", "from", "to", "axis"], ["x"]),
        helper.make_node("Reshape", ["x", "shape"], ["x3"]),
        helper.make_node("Add", ["h_in", "x3"], ["h_out"]),
        helper.make_node("Squeeze", ["h_out", "from"], ["actions"]),
    ]
    return model_bytes(
        nodes,
        [tensor_info("obs", [1, dim]), tensor_info("h_in", [1, 1, actions])],
        [tensor_info("actions", [1, actions]), tensor_info("h_out", [1, 1, actions])],
        constants,
    )


def recurrent_contract(*shape: int) -> PolicyContract:
    state = RecurrentState(input="h_in", output="h_out", shape=shape)
    return with_network(quadruped_contract(), states=(state,))


def test_recurrent_state_is_kept_and_reset() -> None:
    contract = recurrent_contract(1, 1, 12)
    network = OnnxNetwork(recurrent(contract), contract)
    assert not network.dynamic
    obs = np.random.default_rng(2).normal(size=(5, contract.observation_dim)).astype(np.float32)
    for _ in range(2):
        network.reset()
        actions = np.stack([network(row) for row in obs])
        np.testing.assert_allclose(actions, np.cumsum(obs[:, :12], axis=0), atol=TOLERANCE)
    # In a batch every row is an episode's first.
    np.testing.assert_allclose(network.batch(obs), obs[:, :12], atol=TOLERANCE)


def test_two_networks_of_one_file_do_not_share_state(tmp_path: Any) -> None:
    contract = recurrent_contract(1, 1, 12)
    model = recurrent(contract)
    a, b = OnnxNetwork(model, contract), OnnxNetwork(model, contract)
    ones = np.ones(contract.observation_dim, np.float32)
    assert a(ones)[0] == 1.0
    assert a(ones)[0] == 2.0
    assert b(ones)[0] == 1.0


def one_node(contract: PolicyContract, **changes: Any) -> bytes:
    """A graph of one matrix product, with single properties of its tensors changed."""
    what: dict[str, Any] = {
        "input": "obs",
        "output": "actions",
        "obs_shape": ["batch", contract.observation_dim],
        "action_shape": ["batch", contract.num_actions],
        "kind": TensorProto.FLOAT,
        "extra": [],
        "inside": contract.observation_dim,
    }
    what.update(changes)
    dtype = helper.tensor_dtype_to_np_dtype(what["kind"])
    actions = what["action_shape"][-1]
    matrix = numpy_helper.from_array(np.zeros((what["inside"], actions), dtype), "w")
    nodes = [helper.make_node("MatMul", [what["input"], "w"], [what["output"]])]
    return model_bytes(
        nodes,
        [tensor_info(what["input"], what["obs_shape"], what["kind"]), *what["extra"]],
        [tensor_info(what["output"], what["action_shape"], what["kind"])],
        [matrix],
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"input": "observation"}, ["no input 'obs'", "observation"]),
        ({"output": "mean"}, ["no output 'actions'", "mean"]),
        ({"extra": [tensor_info("h", [1, 4])]}, ["input 'h'", "does not feed"]),
        ({"obs_shape": [1, 48], "inside": 48}, ["'obs'", "48", "45", "projected_gravity 3"]),
        ({"action_shape": ["batch", 11]}, ["'actions'", "11", "12", "RR_calf_joint"]),
        ({"kind": TensorProto.DOUBLE}, ["'obs'", "double"]),
        ({"kind": TensorProto.FLOAT16}, ["'obs'", "float16"]),
        ({"obs_shape": [4, 45], "action_shape": [4, 12]}, ["'obs'", "4", "45"]),
        ({"obs_shape": ["batch", "dim"], "inside": 48}, ["does not run"]),
    ],
)
def test_a_graph_of_another_contract_is_refused_by_name(
    changes: dict[str, Any], words: list[str]
) -> None:
    contract = quadruped_contract()
    OnnxNetwork(one_node(contract), contract)
    with pytest.raises(BadInput) as caught:
        OnnxNetwork(one_node(contract, **changes), contract)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_state_of_another_shape_is_refused_by_name() -> None:
    model = recurrent(recurrent_contract(1, 1, 12))
    with pytest.raises(BadInput, match=r"state input 'h_in'.*\[1, 1, 12\].*\[1, 12\]"):
        OnnxNetwork(model, recurrent_contract(1, 12))


def test_an_unreadable_graph_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    contract = quadruped_contract()
    unknown = mlp_model(contract).replace(b"Tanh", b"Tnah")
    for data, words in (
        (b"\x08\x08nonsense", "not an ONNX file"),
        (unknown, r"onnxruntime .* cannot load the graph"),
    ):
        with pytest.raises(BadInput, match=words) as caught:
            OnnxNetwork(data, contract)
        assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_a_vector_of_another_length_is_a_mistake_of_the_caller(tmp_path: Any) -> None:
    contract = quadruped_contract()
    network = OnnxNetwork(mlp_model(contract), contract)
    with pytest.raises(ValueError, match=r"\(44,\), expected \(45,\)"):
        network(np.zeros(44, np.float32))
    with pytest.raises(ValueError, match="expected"):
        network.batch(np.zeros((2, 44), np.float32))


@pytest.mark.parametrize(
    "module", ["robot_runtime.policy.inference", "export.networks", "sim2sim.report"]
)
def test_onnxruntime_keeps_nothing_at_home(module: str, tmp_path: Path) -> None:
    """Whichever module of ours imports it: no database, no identifier, nothing to be sent."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("ORT_DISABLE_TELEMETRY", "CI")}
    subprocess.run(
        [sys.executable, "-c", f"import {module}"],
        cwd=tmp_path,
        env=inherited | {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        check=True,
    )
    assert not list(tmp_path.rglob("*onnxruntime*"))
