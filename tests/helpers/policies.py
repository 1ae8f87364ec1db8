"""Policy files for tests, made without torch: small random networks written node by node."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.extremes import synthesize
from robot_runtime.policy.file import write_policy
from robot_runtime.policy.inference import OnnxNetwork
from robot_runtime.policy.trace import GoldenTrace

Weights = list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]
"""A matrix of shape (inputs, outputs) and a bias per layer."""


def random_weights(
    contract: PolicyContract, seed: int = 0, hidden: tuple[int, ...] = (16,)
) -> Weights:
    """Float32 layers from the contract's observation to its action."""
    rng = np.random.default_rng(seed)
    widths = (contract.observation_dim, *hidden, contract.num_actions)
    return [
        (
            (rng.normal(size=(a, b)) / np.sqrt(a)).astype(np.float32),
            (0.1 * rng.normal(size=b)).astype(np.float32),
        )
        for a, b in itertools.pairwise(widths)
    ]


def mlp_model(
    contract: PolicyContract,
    weights: Weights | None = None,
    *,
    seed: int = 0,
    batch: int | str = "batch",
) -> bytes:
    """An ONNX model of a tanh network whose inputs and output the contract names.

    Args:
        contract: The contract.
        weights: Layers; None for random ones.
        seed: Seed of the random ones.
        batch: Name of a free batch axis, or a fixed batch.
    """
    inputs = list(contract.inputs().items())
    names = [name for name, _ in inputs]
    nodes = [helper.make_node("Concat", names, ["x"], axis=-1)]
    constants: list[onnx.TensorProto] = []
    value, layers = "x", random_weights(contract, seed) if weights is None else weights
    for i, (matrix, bias) in enumerate(layers):
        constants.append(numpy_helper.from_array(matrix, f"w{i}"))
        constants.append(numpy_helper.from_array(bias, f"b{i}"))
        last = i == len(layers) - 1
        out = contract.network.output if last else f"h{i}"
        nodes.append(helper.make_node("Gemm", [value, f"w{i}", f"b{i}"], [out]))
        if not last:
            nodes.append(helper.make_node("Tanh", [out], [f"a{i}"]))
        value = f"a{i}"
    return model_bytes(
        nodes,
        [tensor_info(name, [batch, dim]) for name, dim in inputs],
        [tensor_info(contract.network.output, [batch, contract.num_actions])],
        constants,
    )


def model_bytes(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: list[onnx.TensorProto],
) -> bytes:
    """A checked ONNX model of opset 18, IR 8."""
    graph = helper.make_graph(nodes, "policy", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def tensor_info(name: str, shape: list[int | str], kind: int = TensorProto.FLOAT) -> Any:
    """The declaration of a tensor; a string is a free axis."""
    return helper.make_tensor_value_info(name, kind, shape)


def synthesized_trace(contract: PolicyContract, model: bytes) -> GoldenTrace:
    """A trace beyond every bound of the contract."""
    network = OnnxNetwork(model, contract)
    return synthesize(contract, network, reset=network.reset)


def write_random_policy(path: Path, contract: PolicyContract, *, seed: int = 0) -> Path:
    """Write a policy file with random weights and a synthesized trace.

    Returns:
        The path.
    """
    model = mlp_model(contract, seed=seed)
    write_policy(
        path,
        model,
        contract=contract,
        trace=synthesized_trace(contract, model),
        provenance={"source": "random weights"},
        report={},
    )
    return path
