"""What an environment takes as an action, so that a policy's head can be chosen for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from robot_runtime.errors import Refused
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
    """

    kind: Kind
    num_actions: int
    sizes: tuple[int, ...] = ()

    @property
    def num_logits(self) -> int:
        """Numbers a head gives for the choices: the sum of `sizes`."""
        return sum(self.sizes)


def action_space_of(env: VecEnv) -> ActionSpace:
    """Return what an environment says of its actions; one that says nothing is continuous."""
    found = getattr(env, "action_space", None)
    if isinstance(found, ActionSpace):
        return found
    return ActionSpace(kind="continuous", num_actions=env.num_actions)


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
