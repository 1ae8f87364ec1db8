"""What a head is: from the numbers at a network's end to a distribution of actions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer.distributions import Distribution
from trainer.networks.graph_spec import Squash
from trainer.settings import InvalidSetting
from trainer.symmetry import Mirror

Constants = tuple[Tensor, ...]
"""What a distribution has in common in all states: a deviation, or nothing."""


@dataclass(frozen=True, slots=True)
class HeadMirror:
    """What the reflection of actions does to the outputs and samples of a head.

    Attributes:
        outputs: Outputs to those of the mirrored distribution.
        sample: Samples to mirrored samples.
    """

    outputs: Callable[[Tensor], Tensor]
    sample: Callable[[Tensor], Tensor]


class Head(Protocol):
    """From outputs of a network, ``(..., num_outputs)``, to distributions and actions.

    Attributes:
        num_outputs: How many numbers the network gives.
    """

    num_outputs: int

    def constants(self) -> Constants:
        """Return the learned part that no state changes, with its gradient."""
        ...

    def distribution(self, outputs: Tensor, constants: Constants) -> Distribution:
        """Return the distributions that outputs stand for."""
        ...

    def action(self, sample: Tensor) -> Tensor:
        """Return the raw actions of samples, ``(..., num_actions)``."""
        ...

    def deterministic(self, outputs: Tensor) -> Tensor:
        """Return the raw action without exploration, ``(..., num_actions)``."""
        ...

    def reflection(self, mirror: Mirror) -> HeadMirror:
        """Return what a reflection of actions means here.

        Raises:
            InvalidSetting: The mirror image of an action may be none.
        """
        ...

    def squash(self) -> Squash | None:
        """Return what `deterministic` does to the first `num_actions` outputs; None: nothing.

        Raises:
            NoGraphSpecError: It is something else.
        """
        ...

    def project_(self) -> None:
        """Bring parameters back into their bounds, after each optimizer step."""
        ...


@dataclass(frozen=True, slots=True)
class Interval:
    """Where every action lies, raw action units.

    Attributes:
        low: Lower bound.
        high: Upper bound.
    """

    low: float
    high: float

    def check(self, mirror: Mirror) -> None:
        """Check that the mirror image of every action lies inside.

        Raises:
            InvalidSetting: It may not.
        """
        if self.low != -self.high and bool((mirror.sign < 0.0).any()):
            raise InvalidSetting(
                f"ppo.symmetry is switched on, and action_range = {self.low} to {self.high} is not "
                "symmetric: the mirror image of an action may lie outside"
            )

    def squash(self, kind: Literal["tanh", "beta"], dim: int) -> Squash:
        """Return the map from -1 ... 1 (`tanh`) or 0 ... 1 (`beta`) as plain arrays."""
        ones, span = np.ones(dim, np.float32), self.high - self.low
        if kind == "beta":
            return Squash(kind=kind, scale=span * ones, offset=self.low * ones)
        return Squash(
            kind=kind, scale=0.5 * span * ones, offset=0.5 * (self.high + self.low) * ones
        )


def live_clamp(x: Tensor, low: float, high: float) -> Tensor:
    """Clamp `x`; outside, its gradient passes where descending it leads back inside."""
    return _LiveClamp.apply(x, low, high)


class _LiveClamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bounds = low, high
        return x.clamp(low, high)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - the decorator drops names
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor, None, None]:
        (x,), (low, high), (grad,) = ctx.saved_tensors, ctx.bounds, grad_outputs
        outward = ((x < low) & (grad > 0.0)) | ((x > high) & (grad < 0.0))
        return grad.masked_fill(outward, 0.0), None, None
