"""The gate: everything that was exported acts like the checkpoint, or nothing is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.graph import BatchNetwork
from robot_runtime.errors import GateFailed
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.inference import OnnxNetwork
from robot_runtime.policy.proof import roll
from robot_runtime.policy.trace import GoldenTrace

TOLERANCE = 2e-6
"""Largest accepted difference of an action, times max(1, largest action of the checkpoint).

torch differs from itself by a third of that when only the batch changes, so equal bits are no sane
demand; one weight changed by one part in ten thousand is above it.
"""

BATCHES = (64, 1)
"""The batches that everything is run with: many at once, and one as on the robot."""

NUM_RANDOM = 1000
"""Random observations, the outliers included."""

NUM_OUTLIERS = 100
"""How many of them are drawn with `OUTLIER_SIGMA` times the deviation."""

OUTLIER_SIGMA = 50.0
"""Deviations of an outlier: far beyond the bound of any normalizer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GateReport:
    """What the gate measured.

    Attributes:
        tolerance: Largest accepted difference, `TOLERANCE` times max(1, ``largest_action``).
        largest_action: Largest absolute action of the checkpoint over all observations.
        random: Random observations, outliers included.
        outliers: Outliers among them.
        recorded: Observations of the golden trace.
        errors: Largest difference from the checkpoint, by what was compared.
        constant_features: Observation features that never changed in training.
        normalized_bound: Bound of a normalized feature; None where there is none.
    """

    tolerance: float
    largest_action: float
    random: int
    outliers: int
    recorded: int
    errors: dict[str, float]
    constant_features: tuple[str, ...] = ()
    normalized_bound: float | None = None

    def to_plain(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return dataclasses.asdict(self) | {"constant_features": list(self.constant_features)}


def run_gate(
    reference: BatchNetwork,
    candidates: Mapping[str, BatchNetwork],
    *,
    contract: PolicyContract,
    trace: GoldenTrace,
    runtime: OnnxNetwork,
    center: NDArray[np.float32],
    spread: NDArray[np.float32],
) -> GateReport:
    """Compare everything that was exported with the checkpoint's own policy.

    Args:
        reference: The checkpoint's policy.
        candidates: What was exported from it, by name.
        contract: The contract.
        trace: The golden trace; its observations and actions are compared too.
        runtime: The network as the robot runs it, one observation at a time.
        center: Where random observations are drawn around, shape ``(observation_dim,)``.
        spread: Their deviation, shape ``(observation_dim,)``.

    Raises:
        GateFailed: Something acts differently; the message names it and both figures.
    """
    obs = np.concatenate([random_observations(center, spread), trace.observation])
    expected = _in_batches(reference, obs, BATCHES[0])
    largest = float(np.abs(expected).max())
    tolerance = TOLERANCE * max(1.0, largest)
    errors: dict[str, float] = {}

    def compare(what: str, found: NDArray[np.float32], wanted: NDArray[np.float32]) -> None:
        if found.shape != wanted.shape:
            raise GateFailed(
                f"checkpoint and {what}: actions of shape {wanted.shape} and {found.shape}; "
                "nothing was written"
            )
        error = float(np.abs(found.astype(np.float64) - wanted).max())
        # Not "error > tolerance": a NaN must not pass.
        if not error <= tolerance:
            raise GateFailed(
                f"checkpoint and {what} differ by {error:.3g}, accepted is {tolerance:.3g} "
                f"({TOLERANCE:g} x max(1, largest action {largest:.3g})); nothing was written"
            )
        errors[what] = error

    compare("golden trace", trace.network_action, expected[NUM_RANDOM:])
    for name, network in {"checkpoint": reference, **candidates}.items():
        for batch in BATCHES if network is not reference else BATCHES[1:]:
            compare(f"{name}, batch {batch}", _in_batches(network, obs, batch), expected)
    runtime.reset()
    compare("runtime", np.stack([runtime(row) for row in obs]), expected)
    walked = roll(contract, trace.inputs, runtime, origin=trace.origin, reset=runtime.reset)
    compare("runtime from states", walked.network_action, reference(walked.observation))
    return GateReport(
        tolerance=tolerance,
        largest_action=largest,
        random=NUM_RANDOM,
        outliers=NUM_OUTLIERS,
        recorded=trace.rows,
        errors=errors,
    )


def random_observations(
    center: NDArray[np.float32], spread: NDArray[np.float32], seed: int = 0
) -> NDArray[np.float32]:
    """Draw normal observations, the last of them outliers.

    Args:
        center: Mean, shape ``(dim,)``.
        spread: Deviation, shape ``(dim,)``.
        seed: Seed of the draws.

    Returns:
        float32, shape ``(NUM_RANDOM, dim)``.
    """
    draws = np.random.default_rng(seed).normal(size=(NUM_RANDOM, len(center)))
    draws[-NUM_OUTLIERS:] *= OUTLIER_SIGMA
    return (center + spread * draws).astype(np.float32)


def _in_batches(network: BatchNetwork, obs: NDArray[np.float32], batch: int) -> NDArray[np.float32]:
    parts = [network(obs[i : i + batch]) for i in range(0, len(obs), batch)]
    return np.concatenate(parts)
