"""From a module to one ONNX file that old and new runtimes load."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Generator

import numpy as np
import onnx
import torch
from torch.export import Dim

from export.graph import Policy, example_inputs
from robot_runtime.errors import GateFailed
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.inference import OnnxNetwork

OPSET = 18
"""The lowest opset that torch's exporter writes without a converter that breaks graphs."""

IR_VERSION = 8
"""The file format of onnxruntime 1.14: what opset 18 needs, and no newer."""

_BATCHES = (1, 2, 7)


def export_onnx(module: Policy, contract: PolicyContract) -> bytes:
    """Export a policy.

    Args:
        module: The policy, with its normalizer inside.
        contract: The contract that names the inputs and the output.

    Returns:
        An ONNX model without metadata, weights inside, with a free batch axis.

    Raises:
        GateFailed: The exported graph is not valid, or its batch axis is not free.
    """
    batch = Dim("batch", min=1)
    inputs = example_inputs(contract, batch=2)
    # With an example of batch 1 the exporter takes the axis for a constant, silently.
    with quiet():
        program = torch.onnx.export(
            module,
            inputs,
            input_names=list(contract.inputs()),
            output_names=[contract.network.output],
            dynamic_shapes=(tuple({0: batch} for _ in inputs),),
            opset_version=OPSET,
            external_data=False,
            dynamo=True,
            verbose=False,
        )
    if program is None:
        raise GateFailed("torch.onnx.export gave no program")
    model = program.model_proto
    model.ir_version = IR_VERSION
    _strip(model)
    data = model.SerializeToString(deterministic=True)
    _check(data, contract)
    return data


def _strip(model: onnx.ModelProto) -> None:
    """Remove stack traces with source paths, and everything else that only debugging needs."""
    model.ClearField("metadata_props")
    model.ClearField("doc_string")
    graph = model.graph
    graph.ClearField("metadata_props")
    graph.ClearField("doc_string")
    items = (
        *graph.node,
        *graph.input,
        *graph.output,
        *graph.value_info,
        *graph.initializer,
        *model.functions,
        *(node for function in model.functions for node in function.node),
    )
    for item in items:
        item.ClearField("metadata_props")
        item.ClearField("doc_string")


def _check(data: bytes, contract: PolicyContract) -> None:
    """Prove that the graph is valid and that its batch axis is free in fact."""
    try:
        onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    except onnx.checker.ValidationError as error:
        raise GateFailed(f"the exported graph is not valid: {error}") from error
    network = OnnxNetwork(data, contract)
    if not network.dynamic:
        raise GateFailed("the exported graph has a fixed batch")
    for batch in _BATCHES:
        obs = np.zeros((batch, contract.observation_dim), np.float32)
        try:
            shape = network.batch(obs).shape
        except Exception as error:
            raise GateFailed(f"the exported graph does not run with batch {batch}") from error
        if shape != (batch, contract.num_actions):
            raise GateFailed(f"the exported graph gives {shape} for batch {batch}")


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Silence the exporter, which speaks of its own internals."""
    levels = {name: logging.getLogger(name).level for name in ("torch.onnx", "onnxscript")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in levels:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
