"""From a policy to one ONNX file that old and new runtimes load."""

from __future__ import annotations

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# torch.jit and torch.onnx have no types: what comes out of them is checked where it is used.
import contextlib
import logging
import tempfile
import warnings
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch.export import Dim

from export.bare import strip
from export.graph import Policy, batch_axis, example_inputs
from export.handwritten import write_graph
from export.networks import OnnxBatchNetwork
from robot_runtime.errors import BadInput, GateFailed, Refused
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.inference import OnnxNetwork
from trainer.networks.graph_spec import GraphSpec

_BATCHES = (1, 2, 7)


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A runtime to write for.

    Attributes:
        name: As `surefoot export --target` takes it: the oldest onnxruntime that loads the file.
        opset: Version of the operators.
        ir_version: Version of the file format.
    """

    name: str
    opset: int
    ir_version: int


TARGETS = {
    target.name: target
    for target in (
        Target(name="ort-1.10", opset=15, ir_version=8),
        Target(name="ort-1.12", opset=17, ir_version=8),
        Target(name="ort-1.14", opset=18, ir_version=8),
        Target(name="ort-1.18", opset=20, ir_version=10),
    )
}
"""What each runtime knows at most: https://onnxruntime.ai/docs/reference/compatibility.html."""

DEFAULT_TARGET = "ort-1.14"

_LOWEST_OF_TORCH = 18
"""Below it torch's exporter calls a converter that leaves invalid nodes and reports success."""


def export_onnx(
    module: Policy, contract: PolicyContract, spec: GraphSpec | None, target: Target
) -> bytes:
    """Export a policy.

    torch's exporter writes what its opset reaches. Below, our own writer writes chains of known
    layers, and torch's older exporter the rest.

    Args:
        module: The policy, with its normalizer inside.
        contract: The contract that names inputs, states and output.
        spec: The policy as plain arrays, where it is such a chain.
        target: The runtime to write for.

    Returns:
        An ONNX model without metadata, weights inside, with a free batch axis.

    Raises:
        BadInput: The contract's states are not the network's.
        Refused: The network cannot be written for this target.
        GateFailed: The exported graph is not valid, or its batch axis is not free.
    """
    if target.opset >= _LOWEST_OF_TORCH:
        model = _export(module, contract, target)
    elif spec is not None:
        model = onnx.load_from_string(
            write_graph(spec, contract, opset=target.opset, ir_version=target.ir_version)
        )
    else:
        model = _export_by_tracing(module, contract, target)
    model.ir_version = target.ir_version
    strip(model)
    data = model.SerializeToString(deterministic=True)
    try:
        _check(data, contract)
    except (BadInput, GateFailed) as error:
        if target.opset >= _LOWEST_OF_TORCH or spec is not None:
            raise
        # The older exporter takes some sizes of its example for constants.
        raise _too_old(target, error) from error
    return data


def _export(module: Policy, contract: PolicyContract, target: Target) -> onnx.ModelProto:
    """Let torch's exporter write it."""
    batch = Dim("batch", min=1)
    # With an example of batch 1 the exporter takes the axis for a constant, silently.
    inputs = example_inputs(contract, batch=2)
    axes = [0] * len(contract.inputs()) + [batch_axis(s.shape) for s in contract.network.states]
    with quiet():
        program = torch.onnx.export(
            module,
            inputs,
            **_names(contract),
            dynamic_shapes=(tuple({axis: batch} for axis in axes),),
            opset_version=target.opset,
            external_data=False,
            dynamo=True,
            verbose=False,
        )
    if program is None:
        raise GateFailed("torch.onnx.export gave no program")
    return program.model_proto


def _export_by_tracing(module: Policy, contract: PolicyContract, target: Target) -> onnx.ModelProto:
    """Let torch's older exporter write it, which reaches lower opsets."""
    names = _names(contract)
    axes = dict.fromkeys([*contract.inputs(), contract.network.output], 0)
    for state in contract.network.states:
        axes |= dict.fromkeys((state.input, state.output), batch_axis(state.shape))
    try:
        with quiet(), tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            torch.onnx.export(
                module,
                example_inputs(contract, batch=2),
                path,
                **names,
                dynamic_axes={name: {axis: "batch"} for name, axis in axes.items()},
                opset_version=target.opset,
                dynamo=False,
            )
            return onnx.load(path)
    except Exception as error:
        raise _too_old(target, error) from error


def _too_old(target: Target, error: Exception) -> Refused:
    text = " ".join(str(error).split())[:200]
    return Refused(
        f"this network cannot be written for {target.name} (opset {target.opset}): {text}; take a "
        "newer --target"
    )


def _names(contract: PolicyContract) -> dict[str, Any]:
    states = contract.network.states
    return {
        "input_names": [*contract.inputs(), *(state.input for state in states)],
        "output_names": [contract.network.output, *(state.output for state in states)],
    }


def _check(data: bytes, contract: PolicyContract) -> None:
    """Prove that the graph is valid and that its batch axis is free in fact."""
    try:
        onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    except onnx.checker.ValidationError as error:
        raise GateFailed(f"the exported graph is not valid: {error}") from error
    if not (OnnxNetwork(data, contract).dynamic or contract.network.states):
        raise GateFailed("the exported graph has a fixed batch")
    network = OnnxBatchNetwork(data, contract)
    for batch in _BATCHES:
        obs = np.zeros((batch, contract.observation_dim), np.float32)
        try:
            network.begin(batch)
            shape = network.step(obs).shape
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
