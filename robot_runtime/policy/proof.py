"""Recording and replaying a golden trace: the proof that a policy is still the same policy.

Three boundaries are replayed, each from what was recorded on its near side, so that the first one
that differs is where the fault is: A states -> observation, B observation -> action,
C action -> joint targets and efforts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from robot_runtime.errors import Refused
from robot_runtime.policy.actuator import Actuator
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.labels import observation_labels
from robot_runtime.policy.pipeline import Network, PolicyPipeline
from robot_runtime.policy.state import Array, AsArray, as_float32
from robot_runtime.policy.trace import OUTPUTS, GoldenTrace, TraceInputs

MAX_PD_STEPS = 400_000
"""Most PD steps of a trace: every loading robot replays all of them."""


class TraceMismatch(Refused):
    """A replay differs from the record; the message names boundary, term or joint, and row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tolerances:
    """Largest accepted differences, each times max(1, |recorded value|).

    float32 observations of the same state differ by a few 1e-7 between array libraries; a network
    adds about 1e-6 between machines. Ten times that leaves room for other processors and is far
    below any fault of the contract. Efforts also scale with kp |target - q| + kd |dq|.
    """

    observation: float = 1e-5
    action: float = 1e-4
    target: float = 1e-5
    effort: float = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayReport:
    """Largest scaled difference at each boundary, in units of its tolerance's scale."""

    rows: int
    observation: float
    action: float
    target: float
    effort: float


def roll(
    contract: PolicyContract,
    inputs: TraceInputs,
    network: Network,
    *,
    origin: Literal["recorded", "synthesized"],
    asarray: AsArray = as_float32,
    reset: Callable[[], None] = lambda: None,
) -> GoldenTrace:
    """Run the policy's path over given states and record every boundary.

    Args:
        contract: The contract.
        inputs: States, commands, and where given the actions to take.
        network: The network, observation to raw action.
        origin: Where the states come from.
        asarray: Makes constants of the array library, dtype and device to compute with.
        reset: Forgets a recurrent network's state; called where an episode starts.

    Returns:
        The trace.
    """
    pipeline = PolicyPipeline(contract, network, asarray)
    actuator = Actuator(contract, asarray)
    columns: dict[str, list[NDArray[Any]]] = {name: [] for name in (*OUTPUTS, "raw_action")}
    for row in range(len(inputs.start)):
        if inputs.start[row]:
            pipeline.reset()
            actuator.reset()
            reset()
        state, forced = inputs.state(row), inputs.raw_action[row]
        own = bool(np.isnan(forced).any())
        step = pipeline.step(
            state, inputs.asked[row], float(inputs.elapsed[row]), None if own else forced
        )
        network_action = step.raw_action if own else network(step.observation)
        actuator.set_target(step.targets)
        joint_pos, joint_vel = asarray(state.joint_pos), asarray(state.joint_vel)
        efforts = [actuator.step(joint_pos, joint_vel) for _ in range(contract.decimation)]
        columns["raw_action"].append(_numpy(step.raw_action))
        columns["observation"].append(_numpy(step.observation))
        columns["network_action"].append(_numpy(network_action))
        columns["target_pos"].append(_numpy(step.targets.position))
        columns["target_vel"].append(_numpy(step.targets.velocity))
        columns["target_effort"].append(_numpy(step.targets.effort))
        columns["joint_effort"].append(np.stack([_numpy(effort) for effort in efforts]))
    stacked = {name: np.stack(values) for name, values in columns.items()}
    taken = stacked.pop("raw_action")
    given = {f.name: getattr(inputs, f.name) for f in fields(TraceInputs)}
    return GoldenTrace(
        origin=origin,
        joint_names=contract.joint_names,
        command_names=contract.command_names,
        inputs=TraceInputs(**given | {"raw_action": taken}),
        **stacked,
    )


def replay(
    contract: PolicyContract,
    trace: GoldenTrace,
    network: Network,
    *,
    tolerances: Tolerances | None = None,
    reset: Callable[[], None] = lambda: None,
) -> ReplayReport:
    """Run a trace again on this machine and compare.

    Args:
        contract: The contract to prove.
        trace: The record.
        network: The network to prove, observation to raw action.
        tolerances: Largest accepted differences.
        reset: Forgets a recurrent network's state; called where an episode starts.

    Returns:
        The largest differences, all within the tolerances.

    Raises:
        TraceMismatch: The first boundary, term or joint, and row that differs.
    """
    allowed = tolerances or Tolerances()
    _check_structure(contract, trace)
    again = roll(contract, trace.inputs, lambda _: trace.network_action[0], origin=trace.origin)
    observation = _compare(
        "A (states -> observation)",
        trace.observation,
        again.observation,
        np.maximum(1.0, np.abs(trace.observation)),
        allowed.observation,
        observation_labels(contract),
    )
    action = _compare(
        "B (observation -> action)",
        trace.network_action,
        _run_network(trace, network, reset),
        np.maximum(1.0, np.abs(trace.network_action)),
        allowed.action,
        [f"action of {name}" for name in contract.action_joints],
    )
    target = max(
        _compare(
            "C (action -> joint targets)",
            getattr(trace, field),
            getattr(again, field),
            np.maximum(1.0, np.abs(getattr(trace, field))),
            allowed.target,
            [f"{what} target of {name}" for name in contract.joint_names],
        )
        for field, what in (
            ("target_pos", "position"),
            ("target_vel", "velocity"),
            ("target_effort", "effort"),
        )
    )
    effort = _compare(
        "C (joint targets -> efforts)",
        trace.joint_effort,
        again.joint_effort,
        _effort_scale(contract, trace),
        allowed.effort,
        [f"effort of {name}" for name in contract.joint_names],
    )
    return ReplayReport(
        rows=trace.rows, observation=observation, action=action, target=target, effort=effort
    )


def _run_network(
    trace: GoldenTrace, network: Network, reset: Callable[[], None]
) -> NDArray[np.float32]:
    rows: list[NDArray[np.float32]] = []
    for row in range(trace.rows):
        if trace.inputs.start[row]:
            reset()
        rows.append(_numpy(network(trace.observation[row])))
    return np.stack(rows)


def _effort_scale(contract: PolicyContract, trace: GoldenTrace) -> NDArray[np.float64]:
    kp, kd = contract.joint_array("kp"), contract.joint_array("kd")
    spring = kp * np.abs(trace.target_pos - trace.inputs.joint_pos)
    damping = kd * (np.abs(trace.inputs.joint_vel) + np.abs(trace.target_vel))
    return np.maximum(1.0, spring + damping)[:, None, :]


def _check_structure(contract: PolicyContract, trace: GoldenTrace) -> None:
    """Names, lengths and the period of the record against the contract."""
    for what, recorded, expected in (
        ("joints", trace.joint_names, contract.joint_names),
        ("commands", trace.command_names, contract.command_names),
    ):
        if recorded != expected:
            first = next(
                (f"{a!r} for {b!r}" for a, b in zip(recorded, expected, strict=False) if a != b),
                f"{len(recorded)} for {len(expected)}",
            )
            raise TraceMismatch(f"golden trace: {what} are others than the contract's: {first}")
    if trace.rows * contract.decimation > MAX_PD_STEPS:
        raise TraceMismatch(
            f"golden trace: {trace.rows} rows of {contract.decimation} PD steps are more than the "
            f"{MAX_PD_STEPS} that are replayed"
        )
    joints, actions = len(contract.joints), contract.num_actions
    widths = {
        "base_quat": (4,),
        "base_ang_vel_b": (3,),
        "base_lin_vel_b": (3,),
        "joint_pos": (joints,),
        "joint_vel": (joints,),
        "asked": (len(contract.commands),),
        "raw_action": (actions,),
        "observation": (contract.observation_dim,),
        "network_action": (actions,),
        "target_pos": (joints,),
        "target_vel": (joints,),
        "target_effort": (joints,),
        "joint_effort": (contract.decimation, joints),
    }
    for name, width in widths.items():
        holder: object = trace if name in OUTPUTS else trace.inputs
        shape = getattr(holder, name).shape
        if shape != (trace.rows, *width):
            raise TraceMismatch(
                f"golden trace: {name} has shape {shape}, the contract asks for "
                f"{(trace.rows, *width)}"
            )
    going = ~trace.inputs.start[1:]
    periods = np.diff(trace.inputs.elapsed)[going]
    if periods.size and np.abs(periods - contract.timing.control_dt).max() > 1e-6:
        raise TraceMismatch(
            f"golden trace: recorded every {periods.mean():.6g} s, the contract's control_dt is "
            f"{contract.timing.control_dt} s"
        )


def _compare(
    boundary: str,
    recorded: NDArray[np.float32],
    replayed: NDArray[np.float32],
    scale: NDArray[Any],
    tolerance: float,
    labels: list[str],
) -> float:
    """Largest scaled difference; refuses above the tolerance, and on NaN."""
    error = np.abs(recorded.astype(np.float64) - replayed) / scale
    bad = ~(error <= tolerance)
    if not bad.any():
        return float(error.max()) if error.size else 0.0
    place = tuple(np.argwhere(bad)[0])
    raise TraceMismatch(
        f"golden trace differs at boundary {boundary}: {labels[place[-1]]}, row {place[0]}: "
        f"recorded {recorded[place]:.7g}, replayed {replayed[place]:.7g}"
    )


def _numpy(values: Array) -> NDArray[Any]:
    """A NumPy array of an array of any library."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.array(values)
