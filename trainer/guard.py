"""Finite checks: bad samples are excluded, bad environments restarted, bad weights taken back.

A NaN or an infinity never reaches a loss, a statistic or a weight, and whatever it was is counted
and named. Everything is decided from whole rollouts, so the host waits for the device once per
iteration and not once per step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.rollout import Rollout

logger = logging.getLogger(__name__)

Faults = dict[str, int]
"""How often each fault happened since the start of the run (``nonfinite/reward``...)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Screening:
    """Which samples of a rollout can be learned from.

    Attributes:
        valid: bool, shape ``(T, N)``; None when all are. What the environment itself called no
            step is not valid either, and no fault.
        rows: Environments to restart, bool, shape ``(N,)``.
        faults: How many numbers or vectors were not finite, by name; only what happened.
        culprits: One line per fault: what, environment, step and first feature.
    """

    valid: Tensor | None
    rows: Tensor
    faults: Faults
    culprits: list[str]


def screen(rollout: Rollout) -> Screening:
    """Find the samples whose reward or observations are not finite.

    A sample (s_t, a_t, r_t, what follows) is excluded when s_t or r_t is not finite, or when what
    follows is needed and is not: s_{t+1} inside an episode, the final observation at a truncated
    step. What follows a terminated step is worth 0 whatever it is; reward extensions look at the
    last observation of their groups wherever an episode ends.
    """
    bad_reward = ~rollout.reward.isfinite()
    bad_obs = {name: _bad_vectors(obs) for name, obs in rollout.obs.items()}
    ended = rollout.terminated | rollout.truncated
    bad_final = _bad_vectors(rollout.final_obs) & rollout.truncated & ~rollout.terminated
    any_obs = torch.stack(list(bad_obs.values())).any(0)
    bad_last = {name: _bad_vectors(last) & ended for name, last in rollout.last.items()}
    invalid = bad_reward | any_obs[:-1] | (any_obs[1:] & ~ended) | bad_final
    for bad in bad_last.values():
        invalid = invalid | bad
    # The next rollout starts from row T: an environment that is bad there is restarted as well.
    rows = invalid.any(0) | any_obs[-1]
    valid = ~invalid if rollout.valid is None else rollout.valid & ~invalid
    if not bool(rows.any()):
        all_valid = rollout.valid is None or bool(rollout.valid.all())
        return Screening(valid=None if all_valid else valid, rows=rows, faults={}, culprits=[])
    found: dict[str, tuple[Tensor, Tensor | None]] = {"reward": (bad_reward, None)}
    found |= {f"obs:{name}": (bad_obs[name], rollout.obs[name]) for name in bad_obs}
    found["final_obs"] = (bad_final, rollout.final_obs)
    found |= {f"last:{name}": (bad_last[name], rollout.last[name]) for name in bad_last}
    found = {name: pair for name, pair in found.items() if bool(pair[0].any())}
    return Screening(
        valid=valid,
        rows=rows,
        faults={f"nonfinite/{name}": int(mask.sum()) for name, (mask, _) in found.items()},
        culprits=[_culprit(name, mask, values) for name, (mask, values) in found.items()],
    )


class LastFinite:
    """Keeps a copy of the last finite weights, and brings them back when a bad one turns up."""

    def __init__(self, tensors: Callable[[], list[Tensor]]) -> None:
        """Take the first copy.

        Args:
            tensors: Returns the live tensors, always in the same order; later ones may join at
                the end (an optimizer's moments), and count as 0 before.

        Raises:
            ValueError: The tensors are not finite to begin with.
        """
        self._tensors = tensors
        self._kept: list[Tensor] = []
        if not self.keep_or_restore():
            raise ValueError("the weights to start from are not finite")

    @torch.no_grad()
    def keep_or_restore(self) -> bool:
        """Copy the tensors if all are finite, else overwrite them with the last copy.

        Returns:
            Whether they were finite.
        """
        live = self._tensors()
        # A sum of squares is finite only if every number is (or is absurdly large).
        norms = torch.stack([tensor.detach().float().norm() for tensor in live])
        if bool(norms.isfinite().all()):
            self._kept = [tensor.detach().clone() for tensor in live]
            return True
        for i, tensor in enumerate(live):
            if i < len(self._kept):
                tensor.copy_(self._kept[i])
            else:
                tensor.zero_()
        return False


def _bad_vectors(x: Tensor) -> Tensor:
    """Return where a vector along the last axis has an entry that is not finite."""
    return ~x.isfinite().all(-1)


def _culprit(name: str, mask: Tensor, values: Tensor | None) -> str:
    """Name the first fault of a kind; `mask` is ``(T, N)``, `values` ``(T, N, dim)``."""
    step, env = mask.nonzero()[0].tolist()
    where = f"environment {env}, step {step} of the rollout"
    if values is None:
        return f"{name} of {where}"
    feature = int((~values[step, env].isfinite()).nonzero()[0])
    return f"{name} of {where}, feature {feature} = {float(values[step, env, feature])}"
