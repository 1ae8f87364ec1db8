"""What the update needs of a rollout beside the networks' inputs, packed into one table."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.config import PPOConfig
from trainer.distributed import ALONE, Peers
from trainer.gae import generalized_advantages
from trainer.losses import explained_variance
from trainer.networks.head import Constants, Head, HeadMirror
from trainer.rollout import Rollout
from trainer.symmetry import Mirror
from trainer.values import Values

_SCALARS = frozenset({"old_log_prob", "old_value", "advantage", "returns"})
"""The columns that are one wide and shall come out as ``(rows,)``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Images:
    """How mirror images are made.

    Attributes:
        actor: The reflection of what the actor sees.
        critic: The reflection of what the critic sees.
        action: The reflection of actions.
        head: What that does to samples and to outputs of the actor's network.
    """

    actor: Mirror
    critic: Mirror
    action: Mirror
    head: HeadMirror


class Table:
    """Samples as rows.

    One row is one sample, so that a minibatch is a gather of rows. Values and log-probabilities
    are computed once per rollout, in large batches. With mirror images the table has a second half
    of the same length, row i + num_samples being the image of row i.

    Attributes:
        num_samples: Samples without their images.
        old_constants: `Head.constants` when the actions were sampled.
        explained_variance: How well the values explain the returns, 0-d.
    """

    def __init__(
        self,
        columns: dict[str, Tensor],
        num_samples: int,
        old_constants: Constants,
        explained_variance: Tensor,
        peers: Peers = ALONE,
    ) -> None:
        """Pack columns, each ``(rows, width)``, side by side."""
        self._peers = peers
        self.num_samples = num_samples
        self.old_constants = old_constants
        self.explained_variance = explained_variance
        self._packed = torch.cat(list(columns.values()), dim=-1)
        self._names = list(columns)
        self._widths = [column.shape[-1] for column in columns.values()]
        # A copy: minibatches that are standardized anew in each epoch write over the table.
        self._raw_advantage = columns["advantage"].squeeze(-1).clone()

    def standardize_advantage(self, rows: Tensor) -> None:
        """Give the advantages of the samples `rows` mean 0 and deviation 1, images included.

        With several processes the samples are those of all; this one may have none.
        """
        column = sum(self._widths[: self._names.index("advantage")])
        advantage = standardize(self._raw_advantage[rows], self._peers)
        for half in range(0, self._packed.shape[0], max(self.num_samples, 1)):
            self._packed[half + rows, column] = advantage

    def gather(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the columns of some rows, int64 ``(B,)``, by name."""
        parts = self._packed.index_select(0, rows).split(self._widths, dim=-1)
        columns = dict(zip(self._names, parts, strict=True))
        flat = {name: part.squeeze(-1) for name, part in columns.items() if name in _SCALARS}
        return {**columns, **flat}


def standardize(x: Tensor, peers: Peers = ALONE) -> Tensor:
    """Return `x` with mean 0 and (sample) standard deviation 1 over all samples of all processes.

    Args:
        x: The samples of this process, shape ``(B,)`` or ``(B, 1)``.
        peers: All processes.
    """
    if peers.size == 1:
        return (x - x.mean()) / (x.std() + 1e-8)
    mean, var, count = peers.moments(x.reshape(-1, 1))
    std = (var * count / (count - 1.0).clamp(min=1.0)).sqrt()
    return (x - mean.to(x.dtype)) / (std.to(x.dtype) + 1e-8)


def explained(value: Tensor, returns: Tensor, peers: Peers) -> Tensor:
    """Return how well values explain returns, both ``(B, 1)``, over all processes, 0-d."""
    if peers.size == 1:
        return explained_variance(value, returns)
    _, var, _ = peers.moments(torch.cat([returns, returns - value], dim=1))
    return (1.0 - var[1] / var[0].clamp(min=1e-12)).to(value.dtype)


@torch.no_grad()
def make_table(
    rollout: Rollout,
    values: Values,
    valid: Tensor | None,
    head: Head,
    *,
    config: PPOConfig,
    images: Images | None,
    peers: Peers = ALONE,
) -> Table:
    """Compute returns and pack a rollout, without the samples that are excluded.

    Args:
        rollout: The rollout.
        values: Its values.
        valid: False where a sample is excluded, bool ``(T, N)``; None: none is.
        head: The head of the actor that sampled it, unchanged since.
        config: Settings; discount, decay and reward scale are used.
        images: If given, the mirror images are packed too.
        peers: Processes that the statistics are taken over.
    """
    constants = head.constants()
    columns = _columns(rollout, values, valid, head, constants, config)
    columns = {name: kept(column, valid) for name, column in columns.items()}
    how_well = explained(columns["old_value"], columns["returns"], peers)
    if config.normalize_advantage == "rollout":
        columns["advantage"] = standardize(columns["advantage"], peers)
    num_samples = columns["action"].shape[0]
    if images is not None:
        mirrors = {"action": images.head.sample, "old_outputs": images.head.outputs}
        # Advantage, return, value and probability of an image are those of its sample.
        columns = {
            name: torch.cat([column, mirrors[name](column) if name in mirrors else column])
            for name, column in columns.items()
        }
    return Table(columns, num_samples, constants, how_well, peers)


def kept(x: Tensor, valid: Tensor | None) -> Tensor:
    """Return ``(T, N, ...)`` as rows, without those that are not valid, bool ``(T, N)``."""
    rows = x.flatten(0, 1)
    return rows if valid is None else rows[valid.flatten().nonzero().squeeze(-1)]


def _columns(
    rollout: Rollout,
    values: Values,
    valid: Tensor | None,
    head: Head,
    constants: Constants,
    config: PPOConfig,
) -> dict[str, Tensor]:
    """Return the columns, each ``(T, N, width)``."""
    value = values.value
    advantage, returns = generalized_advantages(
        rollout.reward * config.reward_scale,
        value[:-1],
        value[-1],
        values.final,
        rollout.terminated,
        rollout.truncated,
        gamma=config.gamma,
        lam=config.gae_lambda,
        valid=valid,
    )
    old = head.distribution(rollout.outputs, constants)
    return {
        "action": rollout.action,
        "old_outputs": rollout.outputs,
        "old_log_prob": old.log_prob(rollout.action).unsqueeze(-1),
        "old_value": value[:-1].unsqueeze(-1),
        "advantage": advantage.unsqueeze(-1),
        "returns": returns.unsqueeze(-1),
    }
