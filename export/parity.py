"""The gate: everything that was exported acts like the checkpoint, or nothing is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.diagnosis import Difference, Evidence, act, diagnose
from export.networks import Candidate
from robot_runtime.errors import GateFailed
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.inference import OnnxNetwork
from robot_runtime.policy.proof import roll
from robot_runtime.policy.trace import GoldenTrace

TOLERANCE = 2e-6
"""Largest accepted difference of an action, times max(1, largest action of the checkpoint).

The largest action is that of the same group of observations: what the checkpoint does far out does
not loosen what is accepted near by. torch differs from itself by a third of that when only the
batch changes, so equal bits are no sane demand; one weight changed by one part in ten thousand is
above it.
"""

SQUASHED_ROOM = 10.0
"""How many times more may be accepted of a squashed action, where the checkpoint needs it.

A squash bounds the action but not what goes into it: far out, numbers of 100 cancel to one of 1,
and their rounding is that of numbers of 100. How much that is shows between the checkpoint's own
batches; twice of it is accepted, up to this.
"""

BATCHES = (64, 1)
"""The batches that everything is run with: many at once, and one as on the robot."""

NUM_RANDOM = 1000
"""Random observations, the outliers included."""

NUM_OUTLIERS = 100
"""How many of them are drawn with `OUTLIER_SIGMA` times the deviation."""

OUTLIER_SIGMA = 50.0
"""Deviations of an outlier: far beyond the bound of any normalizer."""

ROLLOUT_STEPS = 1000
"""Steps of the one long run of a network with a state, in which errors might add up."""

_ROLLOUT_STARTS = (0, 600, 850)
_START_SHARE = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """Observations that belong together and have one tolerance.

    Attributes:
        name: What they are, for messages.
        obs: float32, shape ``(steps, rows, observation_dim)``.
        starts: Where the states of a row are reset before the step, shape ``(steps, rows)``.
    """

    name: str
    obs: NDArray[np.float32]
    starts: NDArray[np.bool_]

    @property
    def count(self) -> int:
        """Number of observations."""
        return self.starts.size


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupReport:
    """What the gate measured over one group of observations.

    Attributes:
        observations: How many.
        largest_action: Largest absolute action of the checkpoint.
        tolerance: Largest accepted difference, `TOLERANCE` times max(1, ``largest_action``); of
            squashed actions up to `SQUASHED_ROOM` times that.
        error: Largest difference of anything.
    """

    observations: int
    largest_action: float
    tolerance: float
    error: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GateReport:
    """What the gate measured.

    Attributes:
        target: The runtime that the file was written for.
        tolerance: Largest accepted difference in any group.
        largest_action: Largest absolute action of the checkpoint over all observations.
        random: Random observations, outliers included.
        outliers: Outliers among them.
        rollout: Steps of the long run; 0 for a network without state.
        recorded: Observations of the golden trace.
        errors: Largest difference from the checkpoint, by what was compared.
        groups: The same by group of observations, with each group's tolerance.
        constant_features: Observation features that never changed in training.
        normalized_bound: Bound of a normalized feature; None where there is none.
        warnings: What whoever deploys the policy should know.
    """

    target: str
    tolerance: float
    largest_action: float
    random: int
    outliers: int
    rollout: int
    recorded: int
    errors: dict[str, float]
    groups: dict[str, GroupReport]
    constant_features: tuple[str, ...]
    normalized_bound: float | None
    warnings: tuple[str, ...]

    def to_plain(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        lists = {
            "constant_features": list(self.constant_features),
            "warnings": list(self.warnings),
        }
        return dataclasses.asdict(self) | lists


def run_gate(
    evidence: Evidence,
    candidates: Sequence[Candidate],
    *,
    contract: PolicyContract,
    trace: GoldenTrace,
    runtime: OnnxNetwork,
    center: NDArray[np.float32],
    spread: NDArray[np.float32],
    target: str,
) -> GateReport:
    """Compare everything that was exported with the checkpoint's own policy.

    Args:
        evidence: The checkpoint's policy, and what is known of it.
        candidates: What was exported from it.
        contract: The contract.
        trace: The golden trace; its observations and actions are compared too.
        runtime: The network as the robot runs it, for the path from states.
        center: Where random observations are drawn around, shape ``(observation_dim,)``.
        spread: Their deviation, shape ``(observation_dim,)``.
        target: The runtime that the file was written for.

    Returns:
        What was measured; nothing is known of constant features and warnings here.

    Raises:
        GateFailed: Something acts differently; the message names it, both figures and, where one
            fits, the fault.
    """
    comparison = _Comparison(evidence)
    probes = make_probes(contract, trace, center, spread)
    many, one = BATCHES
    for probe in probes:
        expected = act(evidence.reference, probe.obs, probe.starts, many)
        comparison.begin(probe, expected)
        if probe.name == "recorded":
            comparison.check("golden trace", np.reshape(trace.network_action, expected.shape))
        alone = act(evidence.reference, probe.obs, probe.starts, one)
        if evidence.squashed:
            comparison.make_room(alone)
        comparison.check(f"checkpoint, batch {one}", alone)
        for candidate in candidates:
            for batch in BATCHES if candidate.batched else (one,):
                found = act(candidate.network, probe.obs, probe.starts, batch)
                comparison.check(f"{candidate.name}, batch {batch}", found, candidate)
    runtime.reset()
    walked = roll(contract, trace.inputs, runtime, origin=trace.origin, reset=runtime.reset)
    states = _recorded(walked.observation, trace, recurrent=True)
    comparison.begin(states, act(evidence.reference, states.obs, states.starts, one))
    comparison.check("runtime from states", walked.network_action[:, None])
    counts = {probe.name: probe.count for probe in probes}
    return GateReport(
        target=target,
        tolerance=max(group.tolerance for group in comparison.groups.values()),
        largest_action=max(group.largest_action for group in comparison.groups.values()),
        random=counts["ordinary"] + counts["outliers"],
        outliers=counts["outliers"],
        rollout=counts.get("rollout", 0),
        recorded=trace.rows,
        errors=comparison.errors,
        groups=comparison.groups,
        constant_features=(),
        normalized_bound=None,
        warnings=(),
    )


class _Comparison:
    """Holds the largest errors, by what was compared and by group."""

    def __init__(self, evidence: Evidence) -> None:
        self.errors: dict[str, float] = {}
        self.groups: dict[str, GroupReport] = {}
        self._evidence = evidence
        self._probe: Probe
        self._expected: NDArray[np.float32]

    def begin(self, probe: Probe, expected: NDArray[np.float32]) -> None:
        """Take the checkpoint's actions for the comparisons that follow."""
        largest = float(np.abs(expected).max())
        if not np.isfinite(expected).all():
            raise GateFailed(
                f"the checkpoint's own actions on {probe.name} observations are not finite; "
                "nothing was written"
            )
        self._probe, self._expected = probe, expected
        tolerance, known = TOLERANCE * max(1.0, largest), self.groups.get(probe.name)
        if known is not None:
            tolerance = max(tolerance, known.tolerance)
        self.groups[probe.name] = GroupReport(
            observations=probe.count,
            largest_action=largest,
            tolerance=tolerance,
            error=0.0 if known is None else known.error,
        )

    def make_room(self, alone: NDArray[np.float32]) -> None:
        """Accept twice what the checkpoint differs from itself, within `SQUASHED_ROOM`."""
        group = self.groups[self._probe.name]
        own = float(np.abs(alone.astype(np.float64) - self._expected).max())
        wider = min(max(group.tolerance, 2.0 * own), SQUASHED_ROOM * group.tolerance)
        self.groups[self._probe.name] = dataclasses.replace(group, tolerance=wider)

    def check(
        self, what: str, found: NDArray[np.float32], candidate: Candidate | None = None
    ) -> None:
        """Refuse other actions than the checkpoint's."""
        probe, expected = self._probe, self._expected
        if found.shape != expected.shape:
            raise GateFailed(
                f"checkpoint and {what}: {expected.shape[-1]} and {found.shape[-1]} actions; "
                "nothing was written"
            )
        group = self.groups[probe.name]
        error = float(np.abs(found.astype(np.float64) - expected).max())
        # Not "error > tolerance": a NaN must not pass.
        if not error <= group.tolerance:
            raise GateFailed(
                f"checkpoint and {what} differ by {error:.3g} on {probe.name} observations, "
                f"accepted is {group.tolerance:.3g} ({self._rule(group)})"
                f"{self._cause(found, candidate)}; nothing was written"
            )
        self.errors[what] = max(self.errors.get(what, 0.0), error)
        if error > group.error:
            self.groups[probe.name] = dataclasses.replace(group, error=error)

    def _rule(self, group: GroupReport) -> str:
        """Where a tolerance comes from."""
        plain = TOLERANCE * max(1.0, group.largest_action)
        rule = f"{TOLERANCE:g} x max(1, largest action {group.largest_action:.3g})"
        wider = "twice what the checkpoint differs from itself, more than "
        return (wider if group.tolerance > plain else "") + rule

    def _cause(self, found: NDArray[np.float32], candidate: Candidate | None) -> str:
        if candidate is None:
            return ""
        difference = Difference(
            obs=self._probe.obs,
            starts=self._probe.starts,
            expected=self._expected,
            found=found,
            tolerance=self.groups[self._probe.name].tolerance,
        )
        return f"; likely cause: {diagnose(self._evidence, candidate, difference)}"


def make_probes(
    contract: PolicyContract,
    trace: GoldenTrace,
    center: NDArray[np.float32],
    spread: NDArray[np.float32],
) -> tuple[Probe, ...]:
    """The observations of the gate, group by group.

    A network without state sees independent ones. One with a state sees runs with resets in their
    middle, different ones in each row of a batch, and one long run.
    """
    random = random_observations(center, spread)
    ordinary, outliers = random[:-NUM_OUTLIERS], random[-NUM_OUTLIERS:]
    recurrent = bool(contract.network.states)
    if not recurrent:
        return (
            _independent("ordinary", ordinary),
            _independent("outliers", outliers),
            _recorded(trace.observation, trace, recurrent=False),
        )
    rng = np.random.default_rng(1)
    long = random_observations(center, spread, seed=2, count=ROLLOUT_STEPS, outliers=0)[:, None]
    starts = np.zeros((ROLLOUT_STEPS, 1), np.bool_)
    starts[list(_ROLLOUT_STARTS)] = True
    return (
        _runs("ordinary", np.reshape(ordinary, (15, -1, len(center))), rng),
        _runs("outliers", np.reshape(outliers, (10, -1, len(center))), rng),
        Probe(name="rollout", obs=long, starts=starts),
        _recorded(trace.observation, trace, recurrent=True),
    )


def random_observations(
    center: NDArray[np.float32],
    spread: NDArray[np.float32],
    seed: int = 0,
    *,
    count: int = NUM_RANDOM,
    outliers: int = NUM_OUTLIERS,
) -> NDArray[np.float32]:
    """Draw normal observations, the last of them outliers.

    Args:
        center: Mean, shape ``(dim,)``.
        spread: Deviation, shape ``(dim,)``.
        seed: Seed of the draws.
        count: How many.
        outliers: How many of them are drawn with `OUTLIER_SIGMA` times the deviation.

    Returns:
        float32, shape ``(count, dim)``.
    """
    draws = np.random.default_rng(seed).normal(size=(count, len(center)))
    draws[count - outliers :] *= OUTLIER_SIGMA
    return (center + spread * draws).astype(np.float32)


def _independent(name: str, obs: NDArray[np.float32]) -> Probe:
    return Probe(name=name, obs=obs[None], starts=np.ones((1, len(obs)), np.bool_))


def _runs(name: str, obs: NDArray[np.float32], rng: np.random.Generator) -> Probe:
    starts = rng.random(obs.shape[:2]) < _START_SHARE
    starts[0] = True
    return Probe(name=name, obs=obs, starts=starts)


def _recorded(obs: NDArray[np.float32], trace: GoldenTrace, *, recurrent: bool) -> Probe:
    """Recorded rows in their order, where order matters."""
    if not recurrent:
        return _independent("recorded", obs)
    starts = np.array(trace.inputs.start[:, None])
    starts[0] = True
    return Probe(name="recorded", obs=obs[:, None], starts=starts)
