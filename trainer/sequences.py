"""A rollout as sequences: split where episodes begin, padded to one length, masked, and back.

Backpropagation through time runs from the end of a sequence to its start, and is truncated at the
start of the rollout.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.networks.recurrent import State


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Where the sequences of a rollout of T steps of N environments lie; on the CPU.

    Attributes:
        row: The step's place in the rollout flattened to T N rows, int64, ``(L, M)``: L steps of M
            sequences; 0 where a sequence has ended.
        mask: True where there is a step, bool, ``(L, M)``.
        env: The environment of each sequence, int64, ``(M,)``.
        goes_on: Whether the sequence goes on with an episode that began before the rollout, bool,
            ``(M,)``.
    """

    row: Tensor
    mask: Tensor
    env: Tensor
    goes_on: Tensor

    def of_envs(self, envs: Tensor) -> Layout:
        """Return the layout of the sequences of some environments, int64, no longer than needed."""
        chosen = torch.isin(self.env, envs)
        mask = self.mask[:, chosen]
        length = int(mask.any(1).sum())
        return Layout(
            row=self.row[:length, chosen],
            mask=mask[:length],
            env=self.env[chosen],
            goes_on=self.goes_on[chosen],
        )


def split(starts: Tensor) -> Layout:
    """Split a rollout where episodes begin.

    Args:
        starts: Where an episode begins, bool, ``(T, N)``. What does not begin in row 0 goes on.
    """
    starts = starts.cpu()
    num_steps, num_envs = starts.shape
    begins = starts.clone()
    begins[0] = True
    # One environment after the other.
    begins = begins.T.reshape(-1)
    sequence = begins.cumsum(0) - 1
    first = begins.nonzero().squeeze(-1)
    place = torch.arange(begins.numel())
    step = place - first[sequence]
    length, count = int(step.max()) + 1, first.numel()
    row = torch.zeros(length, count, dtype=torch.int64)
    mask = torch.zeros(length, count, dtype=torch.bool)
    row[step, sequence] = place % num_steps * num_envs + place // num_steps
    mask[step, sequence] = True
    env = first // num_steps
    return Layout(row=row, mask=mask, env=env, goes_on=(first % num_steps == 0) & ~starts[0][env])


def pad(x: Tensor, layout: Layout) -> Tensor:
    """Return the rows of `x`, ``(T N, ...)``, as sequences ``(L, M, ...)``, zero where padded."""
    rows = x.index_select(0, layout.row.reshape(-1).to(x.device))
    padded = rows.reshape(*layout.row.shape, *x.shape[1:])
    ended = ~layout.mask.to(x.device)
    return padded.masked_fill(ended.reshape(*ended.shape, *[1] * (x.ndim - 1)), 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Padded:
    """The input of a recurrent network for some samples.

    Attributes:
        x: Normalized observations, ``(L, M, dim)``.
        state: The state before each sequence.
        step: Step of each sample in its sequence, int64, ``(rows,)``.
        column: Sequence of each sample, int64, ``(rows,)``.
    """

    x: Tensor
    state: State
    step: Tensor
    column: Tensor

    def head(self, count: int) -> Padded:
        """Return the first `count` samples, which are those of the first half of the sequences."""
        half = self.x.shape[1] // 2
        return Padded(
            x=self.x[:, :half],
            state=tuple(part[:, :half].contiguous() for part in self.state),
            step=self.step[:count],
            column=self.column[:count],
        )


def pick(state: State, layout: Layout) -> State:
    """Return the state before each sequence, of those before the rollout, ``(layers, N, ...)``."""
    kept = []
    for part in state:
        begins = ~layout.goes_on.to(part.device)
        rows = part.index_select(1, layout.env.to(part.device))
        kept.append(rows.masked_fill(begins.unsqueeze(-1), 0.0))
    return tuple(kept)
