"""Running normalization of observations, frozen while a policy acts and learns."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.distributed import ALONE, Peers
from trainer.moments import merge_moments
from trainer.symmetry import Mirror


class RunningNormalizer(nn.Module):
    """``(x - mean) / (std + eps)``, bounded; mean and deviation of all that `update` has seen.

    It is a module of the actor and of the critic, so it is saved, exported and checked with them.
    `update` is called once per iteration, after the optimizer's steps: statistics that change
    between acting and learning change the policy behind the probability ratio's back.
    """

    def __init__(self, dim: int, *, eps: float = 0.01, clip: float = 10.0) -> None:
        """Start as ``x / (1 + eps)``.

        Args:
            dim: Length of an observation.
            eps: Added to the deviation.
            clip: Bound of the normalized values; 0 switches it off.
        """
        super().__init__()
        self.eps = eps
        self.clip = clip
        # float64 sums: float32 forgets a sample's weight after some 1e7 of them.
        self.mean: Tensor
        self.var: Tensor
        self.count: Tensor
        self.center: Tensor
        self.scale: Tensor
        self.register_buffer("mean", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("var", torch.ones(dim, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.raw: Tensor | None
        # Not in state dicts: it follows from the settings.
        self.register_buffer("raw", None, persistent=False)
        self.register_buffer("center", torch.zeros(dim))
        self.register_buffer("scale", torch.full((dim,), 1.0 + eps))

    def leave_alone(self, raw: Tensor) -> None:
        """Leave some numbers as they are, bool ``(dim,)``; statistics are kept of them too."""
        self.raw = raw

    def forward(self, x: Tensor) -> Tensor:
        """Normalize observations, shape ``(..., dim)``, float32."""
        normalized = (x - self.center) / self.scale
        if self.clip > 0.0:
            normalized = normalized.clamp(-self.clip, self.clip)
        return normalized if self.raw is None else torch.where(self.raw, x, normalized)

    @torch.no_grad()
    def update(self, x: Tensor, mirror: Mirror | None = None, peers: Peers = ALONE) -> None:
        """Learn from a rollout.

        Args:
            x: Raw finite observations, shape ``(num_samples, dim)``; an empty one changes nothing.
            mirror: If given, the mirror images count as samples too, which makes the statistics
                invariant under the mirror.
            peers: Processes whose rollouts are learned from as well.
        """
        if x.shape[0] == 0 and peers.size == 1:
            return
        mean, var, count = peers.moments(x)
        if peers.size > 1 and int(count) == 0:
            return
        if mirror is not None:
            # The moments of the mirror images follow from those of the samples. Equal halves are
            # merged by a formula in which both stand alike, so the result is symmetric to the bit.
            image = mirror.apply(mean)
            var = 0.5 * (var + var[mirror.index]) + 0.25 * (mean - image).square()
            mean = 0.5 * (mean + image)
            count = 2.0 * count
        merged = merge_moments((self.mean, self.var, self.count), (mean, var, count))
        for buffer, value in zip((self.mean, self.var, self.count), merged, strict=True):
            buffer.copy_(value)
        self.center.copy_(self.mean)
        self.scale.copy_(self.var.sqrt() + self.eps)
