"""The gate of an import: our network acts like the foreign one, over random runs with resets."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.importers.graph import Reference
from robot_runtime.errors import GateFailed
from robot_runtime.policy.inference import OnnxNetwork

TOLERANCE = 2e-6
"""Largest accepted difference of an action, times max(1, largest action): the export gate's, which
is not imported because an import of ONNX needs no torch."""

ROUNDING = 4.0
"""How many times what one unit in the last place of its observation makes of an action two runtimes
may differ in it: of networks with some hundred inputs and units they do by up to twice that. It
counts where outputs are squashed, so that their size does not tell how finely they depend."""

OUTLIER_SIGMA = 50.0
"""Deviations of a far observation, as in the export gate."""

_GROUPS = ("ordinary", "far", "recorded")
_RUNS = 8
_STEPS = 25
_OUTLIER_EVERY = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportGate:
    """What the gate measured.

    Attributes:
        tolerance: Largest accepted difference in any group of observations (ordinary, far out,
            recorded): `TOLERANCE` times max(1, the group's largest action), or `ROUNDING` of its
            observations where that is more.
        largest_action: Largest absolute action of the foreign network.
        steps: Observations compared, in runs that begin with a reset.
        recorded: Recorded observations among them.
        error: Largest difference.
    """

    tolerance: float
    largest_action: float
    steps: int
    recorded: int
    error: float

    def to_plain(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return asdict(self)


def run_import_gate(
    reference: Reference,
    network: OnnxNetwork,
    observation_dim: int,
    recorded: NDArray[np.float32],
    *,
    memory: bool = True,
) -> ImportGate:
    """Compare the network that is written with the one that came.

    Runs of random observations, a tenth of them far out, each begun by a reset in the middle of
    whatever state there is; then the recorded observations as one run.

    Args:
        reference: The foreign network.
        network: Ours, as the robot runs it.
        observation_dim: Length of an observation.
        recorded: Observations of a record in order, shape ``(n, observation_dim)``, ``n`` may be 0.
        memory: Whether the network has a state; of one without the rounding of its observations is
            measured.

    Raises:
        GateFailed: They act differently, or the foreign network gives no finite number.
    """
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(_RUNS, _STEPS, observation_dim))
    rows[:, ::_OUTLIER_EVERY] *= OUTLIER_SIGMA
    runs = [*rows.astype(np.float32)]
    if len(recorded):
        runs.append(np.ascontiguousarray(recorded, np.float32))
    far = np.arange(_RUNS * _STEPS) % _STEPS % _OUTLIER_EVERY == 0
    group = np.concatenate([far.astype(int), np.full(len(recorded), 2)])
    wanted: list[NDArray[np.float32]] = []
    found: list[NDArray[np.float32]] = []
    blurred: list[NDArray[np.float32]] = []
    signs = np.array([-1.0, 1.0], np.float32)
    for run in runs:
        reference.reset()
        network.reset()
        for obs in run:
            wanted.append(reference.step(obs))
            found.append(network(obs))
            unit = obs * np.finfo(np.float32).eps * rng.choice(signs, size=obs.shape)
            blurred.append(found[-1] if memory else network(obs + unit))
    expected, ours = np.stack(wanted).astype(np.float64), np.stack(found)
    if expected.shape != ours.shape:
        raise GateFailed(
            f"the foreign network gives {expected.shape[1]} numbers, ours {ours.shape[1]}"
        )
    if not np.isfinite(expected).all():
        raise GateFailed("the foreign network gives numbers that are not finite")
    error = np.abs(expected - ours).max(axis=1)
    blur = np.abs(np.stack(blurred) - ours).max(axis=1)
    # What a network does far out must not loosen what is accepted near by.
    accepted = [_check_group(name, expected[group == i], error[group == i], blur[group == i])
                for i, name in enumerate(_GROUPS) if (group == i).any()]  # fmt: skip
    return ImportGate(
        tolerance=max(accepted),
        largest_action=float(np.abs(expected).max()),
        steps=len(expected),
        recorded=len(recorded),
        error=float(error.max()),
    )


def _check_group(
    name: str,
    expected: NDArray[np.float64],
    error: NDArray[np.float64],
    blur: NDArray[np.float32],
) -> float:
    """Refuse a group's errors, shape ``(n,)``, above its tolerance, which is given back."""
    largest = float(np.abs(expected).max())
    tolerance, rounding = TOLERANCE * max(1.0, largest), ROUNDING * float(blur.max())
    why = f"{TOLERANCE:g} x max(1, largest action {largest:.3g})"
    if rounding > tolerance:
        tolerance, why = rounding, f"{ROUNDING:g} x what the last digit of an observation makes"
    # Not "error > tolerance": a NaN must not pass.
    if not error.max() <= tolerance:
        raise GateFailed(
            f"foreign network and ours differ by {error.max():.3g} on {name} observations, "
            f"accepted is {tolerance:.3g} ({why}); nothing was written"
        )
    return tolerance
