"""Actions that lie at their bounds: what a policy asks for and does not get."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.trace import GoldenTrace

if TYPE_CHECKING:
    # Only for the type: an import of ONNX looks for saturation too, and needs no torch.
    from trainer.networks.graph_spec import Squash

SATURATED_SHARE = 0.05
"""Share of the recorded steps in which an action may be at its bound without being named."""

_SQUASHED = 0.99
"""Where a squashed action counts as at its bound."""


def saturated_actions(
    contract: PolicyContract, trace: GoldenTrace, squash: Squash | None
) -> list[str]:
    """Actions of the policy's own that lie at a bound in many recorded steps.

    Args:
        contract: Says where actions and targets are clipped.
        trace: Rows in which the network's own action was taken count; there may be none.
        squash: The bounds of a squashed action, None where it is not.
    """
    taken = trace.inputs.raw_action
    # Recorded in batches of another size, the network's own action differs in its last digits.
    own = np.isclose(taken, trace.network_action, rtol=1e-4, atol=1e-4).all(axis=1)
    if not own.any():
        return []
    raw = taken[own].astype(np.float64)
    share = np.zeros(contract.num_actions)
    column = 0
    for term in contract.action.terms:
        part = slice(column, column + len(term.joints))
        column = part.stop
        value = raw[:, part]
        at_bound = np.zeros(value.shape, np.bool_)
        if term.raw_lower is not None and term.raw_upper is not None:
            at_bound |= (value <= term.raw_lower) | (value >= term.raw_upper)
            lower, upper = np.array(term.raw_lower), np.array(term.raw_upper)
            value = np.minimum(np.maximum(value, lower), upper)
        if term.target_lower is not None and term.relative_to == "offset":
            target = np.array(term.offset) + np.array(term.scale) * value
            at_bound |= (target <= np.array(term.target_lower)) | (
                target >= np.array(term.target_upper)
            )
        share[part] = at_bound.mean(axis=0)
    if squash is not None:
        middle = 0.0 if squash.kind == "tanh" else 0.5
        half = np.abs(squash.scale) * (1.0 - middle)
        center = squash.offset + squash.scale * middle
        share = np.maximum(share, (np.abs(raw - center) >= _SQUASHED * half).mean(axis=0))
    return [
        f"action of {name} is at its bound in {100.0 * part:.0f} % of the recorded steps"
        for name, part in zip(contract.action_joints, share, strict=True)
        if part > SATURATED_SHARE
    ]
