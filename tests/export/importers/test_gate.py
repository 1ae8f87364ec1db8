"""The import gate: a network that acts differently is not written."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from export import parity
from export.importers import gate
from export.importers.gate import run_import_gate
from robot_runtime.errors import GateFailed
from robot_runtime.policy.inference import OnnxNetwork
from tests.helpers.contracts import quadruped_contract
from tests.helpers.policies import mlp_model, random_weights

NONE = np.zeros((0, 45), np.float32)


class Foreign:
    """Another network of the same lengths."""

    def __init__(self, **changes: Any) -> None:
        contract = quadruped_contract()
        self.network = OnnxNetwork(mlp_model(contract, random_weights(contract)), contract)
        self.scale = changes.get("scale", 1.0)
        self.forget = changes.get("forget", True)
        self.dim = changes.get("dim", 12)
        self.steps = 0

    def reset(self) -> None:
        self.steps = 0 if self.forget else self.steps

    def step(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        self.steps += 1
        kept = 1.0 if self.forget or self.steps <= 25 else 1.01
        return (self.network(obs) * self.scale * kept)[: self.dim]


def ours() -> OnnxNetwork:
    contract = quadruped_contract()
    return OnnxNetwork(mlp_model(contract, random_weights(contract)), contract)


def test_an_equal_network_passes_and_is_measured() -> None:
    recorded = np.ones((7, 45), np.float32)
    report = run_import_gate(Foreign(), ours(), 45, recorded)
    assert (report.error, report.steps, report.recorded) == (0.0, 8 * 25 + 7, 7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": 1.0001}, r"differ by .*accepted is .*nothing was written"),
        ({"forget": False}, r"differ by"),
        ({"scale": np.nan}, r"numbers that are not finite"),
        ({"dim": 11}, r"gives 11 numbers, ours 12"),
    ],
    ids=["a scale", "a state that is not reset", "not a number", "another length"],
)
def test_another_network_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GateFailed, match=message):
        run_import_gate(Foreign(**changes), ours(), 45, NONE)


class Line:
    """A network without bounds, off by ``near`` on ordinary observations alone."""

    def __init__(self, near: float = 0.0) -> None:
        self.near = near

    def reset(self) -> None:
        pass

    def __call__(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        return obs[:2] + np.float32(self.near if np.abs(obs).max() < 6.0 else 0.0)

    step = __call__


def test_large_actions_far_out_do_not_loosen_what_is_accepted_near_by() -> None:
    exact: Any = Line()
    assert run_import_gate(Line(), exact, 2, NONE[:, :2]).tolerance > 1e-4
    with pytest.raises(GateFailed, match=r"differ by 0\.0001 on ordinary observations"):
        run_import_gate(Line(near=1e-4), exact, 2, NONE[:, :2])


def test_both_gates_ask_for_the_same() -> None:
    assert gate.TOLERANCE == parity.TOLERANCE
    assert gate.OUTLIER_SIGMA == parity.OUTLIER_SIGMA


def test_an_import_of_onnx_needs_neither_torch_nor_mujoco_to_begin() -> None:
    code = (
        "import sys, export.import_command\n"
        "heavy = {'torch', 'mujoco', 'trainer'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
