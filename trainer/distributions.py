"""The diagonal Gaussian of a continuous policy, in closed form.

No `torch.distributions` objects: they check, expand and cache on every call, which costs more
than the arithmetic for action vectors of a robot.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

_LOG_2PI = math.log(2.0 * math.pi)


def gaussian_log_prob(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return the log-density of `x` under independent normal distributions.

    Args:
        x: Where, shape ``(..., dim)``.
        mean: Means, shape ``(..., dim)``.
        std: Standard deviations above 0, shape ``(dim,)`` or ``(..., dim)``.

    Returns:
        Log-density summed over the last axis, shape ``(...)``.
    """
    z = (x - mean) / std
    log_norm = std.log().sum(-1) + 0.5 * x.shape[-1] * _LOG_2PI
    return -0.5 * z.square().sum(-1) - log_norm


def gaussian_entropy(std: Tensor) -> Tensor:
    """Return the differential entropy, [nat], summed over the last axis of `std`."""
    return std.log().sum(-1) + 0.5 * std.shape[-1] * (1.0 + _LOG_2PI)


def gaussian_kl(mean_p: Tensor, std_p: Tensor, mean_q: Tensor, std_q: Tensor) -> Tensor:
    """Return the divergence KL(p || q), [nat].

    Args:
        mean_p: Means of p, shape ``(..., dim)``.
        std_p: Standard deviations of p, shape ``(dim,)`` or ``(..., dim)``.
        mean_q: Means of q, shape ``(..., dim)``.
        std_q: Standard deviations of q, shape ``(dim,)`` or ``(..., dim)``.

    Returns:
        Divergence summed over the last axis, shape ``(...)``. Exactly 0 for p = q.
    """
    spread = ((std_p / std_q).square() - 1.0) * 0.5 + (std_q / std_p).log()
    shift = ((mean_p - mean_q) / std_q).square()
    return 0.5 * shift.sum(-1) + spread.sum(-1)


class DiagonalGaussian(nn.Module):
    """A learned standard deviation per action, the same in every state.

    The deviation lies between a floor and a ceiling, and its gradient passes through both: a plain
    clamp has zero gradient outside, so a deviation that once fell below the floor would never come
    back and exploration would be dead for good. After each optimizer step `project_` brings the
    parameter itself back into its bounds.
    """

    def __init__(
        self,
        dim: int,
        *,
        init_std: float = 1.0,
        min_std: float = 0.01,
        max_std: float = 10.0,
        kind: Literal["log", "scalar"] = "log",
    ) -> None:
        """Start every deviation at `init_std`.

        Args:
            dim: Number of actions.
            init_std: Deviation at the start, raw action units.
            min_std: Floor of the deviation.
            max_std: Ceiling of the deviation.
            kind: Whether the parameter is the deviation or its logarithm.
        """
        super().__init__()
        self.kind = kind
        raw = math.log if kind == "log" else float
        self.low, self.high = raw(min_std), raw(max_std)
        self.param = nn.Parameter(torch.full((dim,), raw(init_std)))

    def std(self) -> Tensor:
        """Return the standard deviations, shape ``(dim,)``, inside the bounds, differentiable."""
        # Value of the clamp, gradient of the identity ("straight through").
        inside = self.param.detach().clamp(self.low, self.high)
        bounded = inside + (self.param - self.param.detach())
        return bounded.exp() if self.kind == "log" else bounded

    @torch.no_grad()
    def project_(self) -> None:
        """Bring the parameter back into its bounds; a NaN stays one, for the guard to find."""
        self.param.clamp_(self.low, self.high)
