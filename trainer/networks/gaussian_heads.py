"""Heads with a Gaussian: one deviation for all states, squashed, or one for each state."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from trainer.distributions import Gaussian, SquashedGaussian
from trainer.networks.graph_spec import Squash
from trainer.networks.head import Constants, HeadMirror, Interval, live_clamp
from trainer.symmetry import Mirror


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
        self.num_outputs = dim
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

    def constants(self) -> Constants:
        """See `Head`: the deviations."""
        return (self.std(),)

    def distribution(self, outputs: Tensor, constants: Constants) -> Gaussian:
        """See `Head`."""
        return Gaussian(outputs, constants[0])

    def action(self, sample: Tensor) -> Tensor:
        """See `Head`."""
        return sample

    def deterministic(self, outputs: Tensor) -> Tensor:
        """See `Head`: the mean."""
        return outputs

    def reflection(self, mirror: Mirror) -> HeadMirror:
        """See `Head`."""
        return HeadMirror(mirror.apply, mirror.apply)

    def squash(self) -> None:
        """See `Head`."""

    def limit(self, max_std: float) -> None:
        """Set the ceiling of the deviation."""
        self.high = max(self.low, math.log(max_std) if self.kind == "log" else max_std)

    @torch.no_grad()
    def project_(self) -> None:
        """Bring the parameter back into its bounds; a NaN stays one, for the guard to find."""
        self.param.clamp_(self.low, self.high)


class TanhGaussian(nn.Module):
    """A diagonal Gaussian that tanh squashes into an interval; deviations are those before it.

    Attributes:
        inner: The Gaussian.
    """

    def __init__(self, inner: DiagonalGaussian, interval: Interval) -> None:
        """Take the Gaussian and where actions lie."""
        super().__init__()
        self.num_outputs = inner.num_outputs
        self.inner = inner
        self._interval = interval
        self._scale = 0.5 * (interval.high - interval.low)
        self._offset = 0.5 * (interval.high + interval.low)

    def constants(self) -> Constants:
        """See `Head`: the deviations."""
        return self.inner.constants()

    def distribution(self, outputs: Tensor, constants: Constants) -> SquashedGaussian:
        """See `Head`."""
        return SquashedGaussian(self.inner.distribution(outputs, constants), self._scale)

    def action(self, sample: Tensor) -> Tensor:
        """See `Head`."""
        return self._offset + self._scale * torch.tanh(sample)

    def deterministic(self, outputs: Tensor) -> Tensor:
        """See `Head`: the squashed mean, which is the median."""
        return self.action(outputs)

    def reflection(self, mirror: Mirror) -> HeadMirror:
        """See `Head`."""
        self._interval.check(mirror)
        return HeadMirror(mirror.apply, mirror.apply)

    def squash(self) -> Squash:
        """See `Head`."""
        return self._interval.squash("tanh", self.num_outputs)

    def project_(self) -> None:
        """See `Head`."""
        self.inner.project_()


class StateGaussian(nn.Module):
    """A Gaussian whose deviation depends on the state: outputs are means, then raw deviations.

    Floor and ceiling are clamps whose gradient still passes where it leads back inside. (One that
    always passed would let the outputs run away outside, where nothing brings them back.)

    Attributes:
        start: The raw deviation that an output of 0 stands for.
    """

    def __init__(
        self,
        dim: int,
        *,
        init_std: float,
        min_std: float,
        max_std: float,
        kind: Literal["log", "scalar"],
    ) -> None:
        """Take the bounds; an output of 0 stands for `init_std`. See `DiagonalGaussian`."""
        super().__init__()
        self.num_outputs = 2 * dim
        self._log = kind == "log"
        raw = math.log if self._log else float
        self._low, self.start, self._high = raw(min_std), raw(init_std), raw(max_std)

    def constants(self) -> Constants:
        """See `Head`: nothing."""
        return ()

    def distribution(self, outputs: Tensor, constants: Constants) -> Gaussian:
        """See `Head`."""
        del constants
        mean, raw = outputs.chunk(2, dim=-1)
        bounded = live_clamp(raw + self.start, self._low, self._high)
        return Gaussian(mean, bounded.exp() if self._log else bounded)

    def action(self, sample: Tensor) -> Tensor:
        """See `Head`."""
        return sample

    def deterministic(self, outputs: Tensor) -> Tensor:
        """See `Head`: the mean."""
        return outputs[..., : self.num_outputs // 2]

    def reflection(self, mirror: Mirror) -> HeadMirror:
        """See `Head`."""

        def outputs(x: Tensor) -> Tensor:
            mean, raw = x.chunk(2, dim=-1)
            return torch.cat([mirror.apply(mean), raw[..., mirror.index]], dim=-1)

        return HeadMirror(outputs, mirror.apply)

    def squash(self) -> None:
        """See `Head`."""

    def project_(self) -> None:
        """See `Head`: there are no parameters."""
