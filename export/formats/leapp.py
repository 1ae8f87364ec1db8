"""A LEAPP pipeline beside the model: what each tensor of the policy is."""

from __future__ import annotations

import hashlib
import platform
from typing import Any

import yaml

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.labels import observation_labels

_NODE = "policy"
_KINDS = {
    "position": "target/joint/position",
    "velocity": "target/joint/velocity",
    "effort": "target/joint/effort",
}
_CONFIG_VERSION = "1.2"


def leapp_yaml(contract: PolicyContract, model: bytes, model_name: str) -> str:
    """The pipeline of one node.

    The policy's graph takes finished observations and gives raw actions, so its tensors are named
    element by element; how they are made of measurements and become targets is in the contract,
    which stands under ``configs`` as well.

    Args:
        contract: The contract.
        model: The policy file that stands beside the pipeline.
        model_name: Its file name.
    """
    labels, start = observation_labels(contract), 0
    inputs: list[dict[str, Any]] = []
    for name, dim in contract.inputs().items():
        inputs.append(_tensor(name, [1, dim], [None, labels[start : start + dim]]))
        start += dim
    actions = _tensor(
        contract.network.output,
        [1, contract.num_actions],
        [None, [f"action of {name}" for name in contract.action_joints]],
    )
    states = contract.network.states
    plain: dict[str, Any] = {
        "models": {
            _NODE: {
                "inputs": [*inputs, *(_tensor(s.input, list(s.shape), None) for s in states)],
                "outputs": [actions, *(_tensor(s.output, list(s.shape), None) for s in states)],
                "parameters": {
                    "backend": "onnx",
                    "model_path": f"./{model_name}",
                    "md5sum": hashlib.md5(model, usedforsecurity=False).hexdigest(),
                    "sha256sum": hashlib.sha256(model).hexdigest(),
                },
            }
        },
        "pipeline": {
            "data_flow": {},
            "feedback_flow": {f"{_NODE}/{s.output}": [f"{_NODE}/{s.input}"] for s in states},
            "inputs": {_NODE: list(contract.inputs())},
            "outputs": {_NODE: [contract.network.output]},
            "configs": {
                "frequency": 1.0 / contract.timing.control_dt,
                "surefoot": {"targets": _targets(contract), "contract": contract.to_dict()},
            },
        },
        "system information": {
            "python version": platform.python_version(),
            "leapp config version": _CONFIG_VERSION,
            "os": platform.system(),
        },
    }
    return yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=100)


def _tensor(name: str, shape: list[int], elements: list[Any] | None) -> dict[str, Any]:
    tensor: dict[str, Any] = {"name": name, "shape": shape, "dtype": "float32"}
    return tensor if elements is None else {**tensor, "element_names": elements}


def _targets(contract: PolicyContract) -> list[dict[str, Any]]:
    """What the raw actions become: target = offset + scale * action, and the gains behind it."""
    gains = {joint.name: joint for joint in contract.joints}
    return [
        {
            "kind": _KINDS[term.kind],
            "element_names": list(term.joints),
            "scale": list(term.scale),
            "offset": list(term.offset),
            "kp": [gains[name].kp for name in term.joints],
            "kd": [gains[name].kd for name in term.joints],
        }
        for term in contract.action.terms
    ]
