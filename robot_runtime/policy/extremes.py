"""States and actions beyond every clip and limit of a contract, for its golden trace.

A rollout of a good policy stays inside its limits, and so would not notice when a limit changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.observation import history_gather
from robot_runtime.policy.pipeline import Network
from robot_runtime.policy.proof import roll
from robot_runtime.policy.trace import GoldenTrace, TraceInputs

_EPISODES = 16
_MAX_PUSH = 500
_NO_BOUND = 1e12
"""A bound beyond this bounds nothing: it stands for the open side of a clip."""


def extreme_inputs(contract: PolicyContract, seed: int = 0) -> TraceInputs:
    """Short episodes of random states, quiet ones and ones beyond every bound.

    Each episode is long enough to fill every history. Odd rows are quiet, so that gains and
    scales show unclipped; even rows reach up to twice the farthest bound of what they draw. Two
    last episodes push commands and actions one way until rates and filters let them arrive.

    Args:
        contract: The contract whose bounds are passed.
        seed: Seed of the draws.

    Returns:
        The rows, with an action given in each.
    """
    rng = np.random.default_rng(seed)
    depth = max(
        int(history_gather(contract, block).max()) // contract.frame_dim(block)
        for block in contract.observation
    )
    push = max(_push_length(contract), depth + 4)
    lengths = [depth + 4] * _EPISODES + [push, push]
    step = np.concatenate([np.arange(length) for length in lengths])
    rows = len(step)
    loud = np.arange(rows) % 2 == 0
    asked, actions = _asked(contract, rng, rows), _actions(contract, rng, loud)
    up, down = slice(rows - 2 * push, rows - push), slice(rows - push, rows)
    lower, upper = _command_bounds(contract)
    asked[up], asked[down] = upper + 1.0, lower - 1.0
    reach = _action_reach(contract)
    actions[up], actions[down] = reach, -reach
    return TraceInputs(
        start=step == 0,
        elapsed=np.repeat(rng.uniform(0.0, 10.0, len(lengths)), lengths)
        + contract.timing.control_dt * step,
        base_quat=_quaternions(rng, rows),
        base_ang_vel_b=_draw(rng, loud, _reach(contract, "base_ang_vel", 3.0), 3),
        base_lin_vel_b=_draw(rng, loud, _reach(contract, "base_lin_vel", 2.0), 3),
        joint_pos=_joint_pos(contract, rng, loud),
        joint_vel=_joint_vel(contract, rng, loud),
        asked=asked,
        raw_action=actions,
    )


def synthesize(
    contract: PolicyContract,
    network: Network,
    *,
    seed: int = 0,
    reset: Callable[[], None] = lambda: None,
) -> GoldenTrace:
    """A golden trace for a policy that came without a record.

    It proves that contract and network stay consistent from now on, not where they came from, and
    says so in its origin.

    Args:
        contract: The contract.
        network: The network, observation to raw action.
        seed: Seed of the draws.
        reset: Forgets a recurrent network's state.

    Returns:
        The trace over `extreme_inputs`.
    """
    inputs = extreme_inputs(contract, seed)
    return roll(contract, inputs, network, origin="synthesized", reset=reset)


def join(first: TraceInputs, second: TraceInputs) -> TraceInputs:
    """The rows of one after those of the other; the second must begin with a start."""
    return TraceInputs(
        **{
            f.name: np.concatenate([getattr(first, f.name), getattr(second, f.name)])
            for f in fields(TraceInputs)
        }
    )


def _reach(contract: PolicyContract, source: str, usual: float) -> float:
    """Twice the farthest value of a source at which one of its terms clips, at least ``usual``."""
    reach = usual
    for block in contract.observation:
        for term in block.terms:
            if term.source != source:
                continue
            smallest = min((abs(s) for s in term.scale if s), default=1.0)
            if term.clip is not None:
                bound = max((abs(b) for b in term.clip if abs(b) < _NO_BOUND), default=0.0)
                reach = max(reach, 2.0 * (bound if term.clip_first else bound / smallest))
            if block.clip is not None:
                reach = max(reach, 2.0 * block.clip / smallest)
    return reach


def _draw(
    rng: np.random.Generator, loud: NDArray[np.bool_], reach: float | NDArray[np.float64], dim: int
) -> NDArray[np.float32]:
    """Uniform in +-reach in loud rows, down to a thousandth of it in quiet ones."""
    quiet = 10.0 ** rng.uniform(-3.0, -0.5, size=(len(loud), 1))
    size = np.where(loud[:, None], 1.0, quiet)
    return (rng.uniform(-1.0, 1.0, size=(len(loud), dim)) * size * reach).astype(np.float32)


def _push_length(contract: PolicyContract) -> int:
    """Policy steps until commands reach their bounds and filtered actions nine tenths of theirs."""
    steps = [
        max(abs(c.lower), abs(c.upper)) / (c.max_rate * contract.timing.control_dt)
        for c in contract.commands
        if c.max_rate is not None
    ]
    if contract.action.filter < 1.0:
        steps.append(math.log(0.1) / math.log1p(-contract.action.filter))
    return min(math.ceil(max(steps, default=0.0)) + 2, _MAX_PUSH)


def _quaternions(rng: np.random.Generator, rows: int) -> NDArray[np.float32]:
    quat = rng.normal(size=(rows, 4))
    return (quat / np.linalg.norm(quat, axis=1, keepdims=True)).astype(np.float32)


def _joint_pos(
    contract: PolicyContract, rng: np.random.Generator, loud: NDArray[np.bool_]
) -> NDArray[np.float32]:
    reach = max(_reach(contract, "joint_pos", 1.5), _reach(contract, "joint_pos_rel", 1.5))
    spread = _draw(rng, loud, reach, len(contract.joints))
    return (contract.joint_array("default_pos") + spread).astype(np.float32)


def _joint_vel(
    contract: PolicyContract, rng: np.random.Generator, loud: NDArray[np.bool_]
) -> NDArray[np.float32]:
    no_load = contract.joint_array("no_load_speed")
    fastest = np.where(np.isfinite(no_load), 1.5 * no_load, 10.0)
    reach = np.maximum(fastest, _reach(contract, "joint_vel", 10.0))
    # Every fourth row stays around the no-load speed, where the torque-speed line is seen.
    below = (np.arange(len(loud)) % 4 == 0)[:, None]
    return _draw(rng, loud, np.where(below, fastest, reach), len(contract.joints))


def _asked(contract: PolicyContract, rng: np.random.Generator, rows: int) -> NDArray[np.float32]:
    """Beyond the ranges, and every third row just around a threshold where there is one."""
    lower, upper = _command_bounds(contract)
    middle, half = (upper + lower) / 2.0, (upper - lower) / 2.0
    asked = middle + rng.uniform(-2.0, 2.0, size=(rows, len(lower))) * np.maximum(half, 0.1)
    thresholds = _thresholds(contract)
    if thresholds and len(lower):
        which = rng.integers(len(thresholds), size=rows)
        norms = np.array([norm for norm, _ in thresholds])[which]
        counted = np.array([mask for _, mask in thresholds])[which]
        near = rng.normal(size=(rows, len(lower)))
        near *= (norms / np.linalg.norm(near * counted, axis=1))[:, None]
        near *= rng.choice([0.97, 1.03], size=(rows, 1))
        asked[::3] = near[::3]
    return asked.astype(np.float32)


def _thresholds(contract: PolicyContract) -> list[tuple[float, NDArray[np.float64]]]:
    """Norms of the command at which a term switches, and 1 for the channels each counts."""
    names = contract.command_names
    found: list[tuple[float, tuple[str, ...]]] = []
    if contract.phase is not None:
        found.append((contract.phase.stand_threshold, contract.phase.stand_channels or names))
    for block in contract.observation:
        for term in block.terms:
            if term.source == "command_active":
                found += [(value, term.channels or names) for value in term.value or ()]
    return [
        (threshold, np.array([float(name in counted) for name in names]))
        for threshold, counted in found
        if threshold > 0.0
    ]


def _command_bounds(
    contract: PolicyContract,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    lower = np.array([c.lower for c in contract.commands], dtype=np.float64)
    return lower, np.array([c.upper for c in contract.commands], dtype=np.float64)


def _actions(
    contract: PolicyContract, rng: np.random.Generator, loud: NDArray[np.bool_]
) -> NDArray[np.float32]:
    return _draw(rng, loud, _action_reach(contract), contract.num_actions)


def _action_reach(contract: PolicyContract) -> NDArray[np.float64]:
    """Beyond the raw bounds and what the target bounds translate to, and the last-action clips."""
    reach: list[float] = []
    seen = _reach(contract, "last_action", 3.0)
    for term in contract.action.terms:
        for i, scale in enumerate(term.scale):
            far = seen
            for bound in (term.raw_lower, term.raw_upper):
                far = max(far, 2.0 * abs(bound[i]) if bound is not None else 0.0)
            for bound in (term.target_lower, term.target_upper):
                if bound is not None and scale:
                    far = max(far, 2.0 * abs((bound[i] - term.offset[i]) / scale))
            reach.append(far)
    return np.array(reach)
