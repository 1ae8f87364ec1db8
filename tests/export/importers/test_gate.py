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


class Squashed:
    """Bounded outputs of three layers, summed forwards or backwards: equal but for rounding."""

    def __init__(self, *, backwards: bool = False, off: float = 0.0) -> None:
        rng = np.random.default_rng(0)
        sizes = ((45, 256), (256, 128), (128, 12))
        self.layers = [(rng.normal(size=s) / np.sqrt(3 * s[0])).astype(np.float32) for s in sizes]
        self.turn = slice(None, None, -1 if backwards else 1)
        self.off = np.float32(off)

    def reset(self) -> None:
        pass

    def __call__(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        value = obs
        for matrix in self.layers:
            value = np.add.reduce((value[:, None] * matrix)[self.turn], axis=0)
        return np.tanh(value + self.off)

    step = __call__


def test_squashed_outputs_may_differ_by_the_rounding_of_observations_far_out() -> None:
    ours: Any = Squashed()
    report = run_import_gate(Squashed(backwards=True), ours, 45, NONE, memory=False)
    # The size of the outputs alone would refuse it.
    assert gate.TOLERANCE < report.error <= report.tolerance < 1e-4
    with pytest.raises(GateFailed, match=r"on far observations, accepted is 2e-06 \(2e-06 x max"):
        run_import_gate(Squashed(backwards=True), ours, 45, NONE)
    with pytest.raises(GateFailed, match=r"on ordinary observations"):
        run_import_gate(Squashed(off=3e-5), ours, 45, NONE, memory=False)
    with pytest.raises(GateFailed, match=r"4 x what the last digit of an observation makes"):
        run_import_gate(Far(), ours, 45, NONE, memory=False)


class Far(Squashed):
    """Off by a part in a thousand on far observations alone, as where a clip was lost."""

    def step(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        return self(obs * np.float32(0.999 if np.abs(obs).max() > 20.0 else 1.0))


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
