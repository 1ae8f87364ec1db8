"""Learning-rate schedules as pure functions."""

from __future__ import annotations

import torch
from torch import Tensor

_ZERO_KL = 1e-9
"""Two evaluations of one float32 policy differ by less than this, [nat]."""


def adaptive_kl_lr(
    lr: Tensor,
    kl: Tensor,
    *,
    desired_kl: float,
    factor: float = 1.5,
    band: float = 2.0,
    min_lr: float = 1e-5,
    max_lr: float = 1e-2,
) -> Tensor:
    """Return the learning rate that follows from a measured KL divergence.

    The rule of rsl_rl: too far from the old policy (``kl > desired_kl * band``) divides by
    `factor`, too near (``0 < kl < desired_kl / band``) multiplies by it. A divergence of 0 up to
    rounding says that no step was taken yet, and changes nothing; rsl_rl asks for exactly 0, which
    depends on how a processor adds. One that is not finite changes nothing either. Tensors in,
    tensor out: the host never waits for the device.

    Args:
        lr: Learning rate, 0-d.
        kl: Mean divergence of old and new policy, [nat], 0-d.
        desired_kl: Middle of the band, [nat].
        factor: What to divide or multiply by.
        band: How far the band reaches, as a factor.
        min_lr: Floor.
        max_lr: Ceiling.
    """
    too_far = torch.isfinite(kl) & (kl > desired_kl * band)
    too_near = (kl > _ZERO_KL) & (kl < desired_kl / band)
    slower = (lr / factor).clamp(min=min_lr)
    faster = (lr * factor).clamp(max=max_lr)
    return torch.where(too_far, slower, torch.where(too_near, faster, lr))


LR_FLOOR = 0.05
"""Share of the first learning rate that a linear schedule ends at, unless told."""


def linear_lr(iteration: int, iterations: int, *, start: float, end: float) -> float:
    """Return the learning rate of an iteration on the line from `start` (at 0) to `end`.

    Args:
        iteration: The iteration about to run, counted from 0.
        iterations: Iterations of the whole run.
        start: Learning rate of iteration 0.
        end: Learning rate that would be reached after the last one; also the floor beyond it.
    """
    left = max(0.0, 1.0 - iteration / iterations)
    return end + (start - end) * left


def std_ceiling(iteration: int, iterations: int, *, start: float, end: float) -> float:
    """Return the largest deviation of the policy in an iteration, on a geometric path.

    What ships is the mean of the policy, and a gait that was learned with noise is another one
    without: its noise brakes the robot, which walks too fast when the noise is gone. So the noise
    is taken away over the first four fifths of a run, and the last one learns without it.

    Args:
        iteration: The iteration about to run, counted from 0.
        iterations: Iterations of the whole run.
        start: Ceiling in iteration 0.
        end: Ceiling from four fifths of the run on.
    """
    done = min(1.0, iteration / (0.8 * iterations))
    return start * (end / start) ** done
