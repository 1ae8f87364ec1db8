"""What probably went wrong: a failed comparison tried against the faults that exporters have.

Each hypothesis is tried on the numbers: a reference with the fault built in must act like what was
exported. It names the likeliest cause for people; the verdict of the gate does not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from export.networks import Candidate, Content, StepNetwork
from trainer.networks.graph_spec import Normalization

_NEAR = 20.0
"""How many tolerances a hypothesis may miss by: it has its own rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What is known of the policy.

    Attributes:
        reference: The checkpoint's policy.
        normalization: Its normalizer, None where it has none.
        weights: Its weights by name, the normalizer's left out.
        features: Names of the elements of an observation.
        actions: Names of the elements of an action.
        squashed: Whether the network ends in a squash, which bounds its actions.
    """

    reference: StepNetwork
    normalization: Normalization | None
    weights: Mapping[str, NDArray[np.float32]]
    features: list[str]
    actions: list[str]
    squashed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A comparison that failed.

    Attributes:
        obs: Observations, shape ``(steps, rows, observation_dim)``.
        starts: Where states are reset, shape ``(steps, rows)``.
        expected: Actions of the checkpoint, shape ``(steps, rows, num_actions)``.
        found: Actions of the candidate.
        tolerance: What was accepted.
    """

    obs: NDArray[np.float32]
    starts: NDArray[np.bool_]
    expected: NDArray[np.float32]
    found: NDArray[np.float32]
    tolerance: float

    def explained_by(self, actions: NDArray[np.float32]) -> bool:
        """Whether other actions are those of the candidate."""
        if actions.shape != self.found.shape:
            return False
        return bool(np.abs(actions - self.found).max() <= _NEAR * self.tolerance)


def act(
    network: StepNetwork, obs: NDArray[np.float32], starts: NDArray[np.bool_], batch: int
) -> NDArray[np.float32]:
    """Run a network over sequences.

    Args:
        network: The network.
        obs: Shape ``(steps, rows, observation_dim)``.
        starts: Where states are reset before the step, shape ``(steps, rows)``.
        batch: Rows at once.

    Returns:
        Actions, shape ``(steps, rows, num_actions)``.
    """
    columns: list[NDArray[np.float32]] = []
    for first in range(0, obs.shape[1], batch):
        part = slice(first, first + batch)
        network.begin(obs[:, part].shape[1])
        steps: list[NDArray[np.float32]] = []
        for now, start in zip(obs[:, part], starts[:, part], strict=True):
            if start.any():
                network.reset(start)
            steps.append(network.step(now))
        columns.append(np.stack(steps))
    return np.concatenate(columns, axis=1)


def diagnose(evidence: Evidence, candidate: Candidate, difference: Difference) -> str:
    """Name the likeliest cause of a difference.

    Returns:
        A clause such as ``the normalizer is missing``.
    """
    if not np.isfinite(difference.found).all():
        return "it gives numbers that are not finite"
    content = candidate.content()
    return (
        _state(evidence, difference)
        or _normalizer(evidence, difference)
        or _scale(evidence, difference)
        or _weights(evidence, content)
        or _order(evidence, candidate)
        or _half(content)
        or "no known fault explains it"
    )


def _state(evidence: Evidence, difference: Difference) -> str:
    obs, starts = difference.obs, difference.starts
    steps, rows, width = obs.shape
    if steps < 2:
        return ""
    never = np.zeros_like(starts)
    never[0] = True
    kept = act(evidence.reference, obs, never, rows)
    # One robot at a time may carry its state over into the next one's run as well.
    joined = np.reshape(np.ascontiguousarray(np.swapaxes(obs, 0, 1)), (-1, 1, width))
    once = np.zeros((len(joined), 1), np.bool_)
    once[0] = True
    alone = np.reshape(act(evidence.reference, joined, once, 1), (rows, steps, -1))
    through = np.swapaxes(alone, 0, 1)
    if difference.explained_by(kept) or difference.explained_by(through):
        return "its state is not reset where an episode begins"
    if difference.explained_by(act(evidence.reference, obs, np.ones_like(starts), rows)):
        return "it forgets its state between steps"
    return ""


def _normalizer(evidence: Evidence, difference: Difference) -> str:
    normalization, obs = evidence.normalization, difference.obs
    if normalization is None:
        return ""
    clip = normalization.clip or np.inf
    normalized = (obs - normalization.center) / normalization.scale
    # What the bound touches is no evidence for a network that is fed raw observations.
    inside = np.where(np.abs(obs) <= clip, obs, 0.0).astype(np.float32)
    raw = (normalization.center + normalization.scale * inside).astype(np.float32)
    untouched = (np.abs(obs) <= clip).all(axis=(0, 2))
    actions = act(evidence.reference, raw, difference.starts, obs.shape[1])
    if untouched.any() and np.abs(actions - difference.found)[:, untouched].max() <= (
        _NEAR * difference.tolerance
    ):
        return "the normalizer is missing"
    beyond = (np.abs(normalized) > clip).any(axis=(0, 2))
    wrong = np.abs(difference.expected - difference.found).max(axis=(0, 2)) > difference.tolerance
    if beyond.any() and not (wrong & ~beyond).any():
        return f"the normalizer's bound of {normalization.clip:g} deviations is missing"
    return ""


def _scale(evidence: Evidence, difference: Difference) -> str:
    """Whether every action is the right one times a factor plus a constant."""
    width = difference.expected.shape[-1]
    wanted = np.reshape(difference.expected, (-1, width)).astype(np.float64)
    found = np.reshape(difference.found, wanted.shape).astype(np.float64)
    spread = wanted.std(axis=0)
    if len(wanted) < 3 or not (spread > 0.0).all():
        return ""
    factor = ((wanted - wanted.mean(0)) * (found - found.mean(0))).mean(0) / spread**2
    constant = found.mean(0) - factor * wanted.mean(0)
    rest = np.abs(found - (factor * wanted + constant)).max(axis=0)
    if not (rest <= _NEAR * difference.tolerance * np.maximum(1.0, np.abs(factor))).all():
        return ""
    first = int(np.argmax(np.abs(found - wanted).max(axis=0)))
    return (
        f"scale or offset of the actions is lost: {evidence.actions[first]} comes as "
        f"{factor[first]:.6g} x the right one {constant[first]:+.4g}"
    )


def _weights(evidence: Evidence, content: Content) -> str:
    """Whether every number of the checkpoint's weights is in the export."""
    changed: list[str] = []
    rounded = True
    for name, values in evidence.weights.items():
        # Exporters leave out a bias of zeros.
        known = np.isin(values, content.values) | (values == 0.0)
        if known.all():
            continue
        missing = values[~known]
        rounded &= bool(
            np.isin(missing.astype(np.float16).astype(np.float32), content.values).all()
        )
        place = tuple(int(i) for i in np.argwhere(~known)[0])
        shown = "" if len(missing) > 1 else f"[{', '.join(map(str, place))}]"
        changed.append(f"{name}{shown}" + (f" ({len(missing)} numbers)" if not shown else ""))
    if not changed:
        return ""
    listed = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
    if rounded:
        return f"float16: weights are rounded to it: {listed}"
    return f"weights differ from the checkpoint's: {listed}"


def _order(evidence: Evidence, candidate: Candidate) -> str:
    """Whether a feature acts as another one does in the checkpoint."""
    count = len(evidence.features)
    # From zero, which every reordering leaves alone; all features move by the same.
    probes = np.concatenate([np.zeros((1, count)), np.eye(count)]).astype(np.float32)[None]
    starts = np.ones(probes.shape[:2], np.bool_)
    wanted = act(evidence.reference, probes, starts, probes.shape[1])[0].astype(np.float64)
    found = act(candidate.network, probes, starts, probes.shape[1] if candidate.batched else 1)[0]
    if np.abs(wanted[0] - found[0]).max() > 1e-5 * max(1.0, np.abs(wanted[0]).max()):
        return ""
    size = max(float(np.abs(wanted[1:] - wanted[0]).max()), 1e-6)
    distance = np.abs(found[1:, None] - wanted[None, 1:]).max(axis=2) / size
    near = distance <= 1e-4
    own = np.diagonal(near)
    moved = np.flatnonzero(~own)
    if not len(moved) or not near.any(axis=1).all():
        return ""
    names = evidence.features
    pairs = [f"{names[i]} for {names[int(distance[i].argmin())]}" for i in moved[:2]]
    return f"the features are in another order: it takes {', '.join(pairs)}"


def _half(content: Content) -> str:
    return "float16: it computes in it" if content.half else ""
