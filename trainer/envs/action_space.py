"""What an environment takes as an action, so that a policy's head can be chosen for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from robot_runtime.errors import Refused
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.spec import ActionTerm
from trainer.env import VecEnv

Kind = Literal["continuous", "discrete"]

KINDS_WITH_A_HEAD: frozenset[Kind] = frozenset({"continuous", "discrete"})
"""The kinds of action that a policy can give."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionSpace:
    """The actions of an environment.

    Attributes:
        kind: `continuous`: a vector of real numbers. `discrete`: a vector of indices from 0 on,
            which travel as float32 like any action.
        num_actions: Length of the vector.
        sizes: How many choices each index has; empty where actions are continuous.
        names: What each number of a vector moves; empty where nobody says.
        bounds: Lowest and highest raw action, one number per action each; what lies beyond has the
            effect of the bound. None where nobody says.
    """

    kind: Kind
    num_actions: int
    sizes: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    bounds: tuple[tuple[float, ...], tuple[float, ...]] | None = None


def action_space_of(env: VecEnv) -> ActionSpace:
    """Return what an environment says of its actions; one that says nothing is continuous."""
    found = getattr(env, "action_space", None)
    if isinstance(found, ActionSpace):
        return found
    return ActionSpace(kind="continuous", num_actions=env.num_actions)


def action_bounds(contract: PolicyContract) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return where the raw actions of a contract stop having an effect.

    That is its clip, or where the target meets its own bound, whichever comes first; what is
    relative to the measured position has no bound of the second kind.
    """
    pairs = [_bounds(term, i) for term in contract.action.terms for i in range(len(term.joints))]
    low, high = zip(*pairs, strict=True)
    return tuple(low), tuple(high)


def _bounds(term: ActionTerm, i: int) -> tuple[float, float]:
    """The bounds of action ``i`` of a term."""
    low = -math.inf if term.raw_lower is None else term.raw_lower[i]
    high = math.inf if term.raw_upper is None else term.raw_upper[i]
    lower, upper = term.target_lower, term.target_upper
    if lower is None or upper is None or term.relative_to == "measured" or term.scale[i] == 0.0:
        return low, high
    # A negative scale makes the upper bound of an action of the lower one of the target.
    ends = sorted((target[i] - term.offset[i]) / term.scale[i] for target in (lower, upper))
    return max(low, ends[0]), min(high, ends[1])


def require_head(space: ActionSpace) -> None:
    """Refuse actions that no policy can give.

    Raises:
        Refused: There is no head for this kind; the message says what there is.
    """
    if space.kind not in KINDS_WITH_A_HEAD:
        raise Refused(
            f"the environment takes {space.kind} actions (choices: {list(space.sizes)}); there "
            f"are policies for: {', '.join(sorted(KINDS_WITH_A_HEAD))}"
        )
