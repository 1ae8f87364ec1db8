"""A rollout as the update sees it: one packed table, one row per sample."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.config import PPOConfig
from trainer.gae import generalized_advantages
from trainer.losses import explained_variance
from trainer.networks.actor_critic import ACTOR_GROUP, Actor, Critic
from trainer.networks.head import Constants, HeadMirror
from trainer.rollout import Rollout
from trainer.symmetry import MirrorTable

_INPUTS = frozenset({"actor_in", "critic_in"})
"""The columns that go into a network."""

_SCALARS = frozenset({"old_log_prob", "old_value", "advantage", "returns"})
"""The columns of the table that are one wide and shall come out as ``(rows,)``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Minibatch:
    """Some samples: views into one gathered table of B rows, or of 2 B with mirror images.

    Attributes:
        actor_in: Normalized observations of the actor.
        critic_in: Normalized observations of the critic.
        action: Samples that the actions were made of.
        old_outputs: What the actor's network gave when they were sampled.
        old_log_prob: Log-probability of the actions when they were sampled, ``(rows,)``.
        old_value: V(s_t) when the rollout was taken, ``(rows,)``.
        advantage: Advantages, ``(rows,)``.
        returns: Targets of the value, ``(rows,)``.
    """

    actor_in: Tensor
    critic_in: Tensor
    action: Tensor
    old_outputs: Tensor
    old_log_prob: Tensor
    old_value: Tensor
    advantage: Tensor
    returns: Tensor

    def head(self, count: int) -> Minibatch:
        """Return the first `count` rows."""
        fields = (item.name for item in dataclasses.fields(self))
        return Minibatch(**{name: getattr(self, name)[:count] for name in fields})


class Batch:
    """Everything the update needs of a rollout, packed into one table.

    One row is one sample, so that a minibatch is a gather of rows. Values, log-probabilities and
    normalized inputs are computed once per rollout, in large batches. With mirror images
    the table has a second half of the same length, row i + num_samples being the image of row i.

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
    ) -> None:
        """Pack columns, each ``(rows, width)``, side by side."""
        self.num_samples = num_samples
        self.old_constants = old_constants
        self.explained_variance = explained_variance
        # Inputs stay apart, so that a gathered minibatch has them dense, as matrix products want.
        self._inputs = {name: columns[name] for name in columns if name in _INPUTS}
        packed = {name: column for name, column in columns.items() if name not in _INPUTS}
        self._table = torch.cat(list(packed.values()), dim=-1)
        self._names = list(packed)
        self._widths = [column.shape[-1] for column in packed.values()]
        # A copy: minibatches that are standardized anew in each epoch write over the table.
        self._raw_advantage = columns["advantage"].squeeze(-1).clone()

    def standardize_advantage(self, rows: Tensor) -> None:
        """Give the advantages of the samples `rows` mean 0 and deviation 1, images included."""
        column = sum(self._widths[: self._names.index("advantage")])
        for half in range(0, self._table.shape[0], self.num_samples):
            self._table[half + rows, column] = standardize(self._raw_advantage[rows])

    def take(self, rows: Tensor) -> Minibatch:
        """Gather rows, int64 ``(B,)``."""
        inputs = {name: column.index_select(0, rows) for name, column in self._inputs.items()}
        inputs.setdefault("critic_in", inputs["actor_in"])
        parts = self._table.index_select(0, rows).split(self._widths, dim=-1)
        packed = dict(zip(self._names, parts, strict=True))
        flat = {name: part.squeeze(-1) for name, part in packed.items() if name in _SCALARS}
        return Minibatch(**{**inputs, **packed, **flat})


def standardize(x: Tensor) -> Tensor:
    """Return `x`, shape ``(B,)``, with mean 0 and (sample) standard deviation 1."""
    return (x - x.mean()) / (x.std() + 1e-8)


@torch.no_grad()
def make_batch(
    rollout: Rollout,
    valid: Tensor | None,
    actor: Actor,
    critic: Critic,
    *,
    config: PPOConfig,
    critic_group: str,
    mirror: MirrorTable | None,
) -> Batch:
    """Compute returns and pack a rollout, without the samples that are excluded.

    Args:
        rollout: The rollout.
        valid: False where a sample is excluded, bool ``(T, N)``; None: none is.
        actor: The actor that sampled the rollout, unchanged since.
        critic: The critic, unchanged since the rollout.
        config: Settings; discount, decay and reward scale are used.
        critic_group: Which observations the critic sees.
        mirror: If given, the mirror images are packed too.
    """
    value, final_value = _values(rollout, critic, critic_group)
    advantage, returns = generalized_advantages(
        rollout.reward * config.reward_scale,
        value[:-1],
        value[-1],
        final_value,
        rollout.terminated,
        rollout.truncated,
        gamma=config.gamma,
        lam=config.gae_lambda,
        valid=valid,
    )
    head = actor.distribution
    constants = head.constants()
    old = head.distribution(rollout.outputs, constants)
    columns = {
        "actor_in": rollout.obs[ACTOR_GROUP][:-1],
        "critic_in": rollout.obs[critic_group][:-1],
        "action": rollout.action,
        "old_outputs": rollout.outputs,
        "old_log_prob": old.log_prob(rollout.action).unsqueeze(-1),
        "old_value": value[:-1].unsqueeze(-1),
        "advantage": advantage.unsqueeze(-1),
        "returns": returns.unsqueeze(-1),
    }
    if critic_group == ACTOR_GROUP:
        # Both normalizers have seen the same, so one normalized input serves both networks.
        del columns["critic_in"]
    columns = {name: column.flatten(0, 1) for name, column in columns.items()}
    if valid is not None:
        rows = valid.flatten().nonzero().squeeze(-1)
        columns = {name: column[rows] for name, column in columns.items()}
    explained = explained_variance(columns["old_value"], columns["returns"])
    if config.normalize_advantage == "rollout":
        columns["advantage"] = standardize(columns["advantage"])
    num_samples = columns["action"].shape[0]
    if mirror is not None:
        columns = _with_images(columns, mirror, head.reflection(mirror.action), critic_group)
    columns["actor_in"] = actor.normalizer(columns["actor_in"])
    if "critic_in" in columns:
        columns["critic_in"] = critic.normalizer(columns["critic_in"])
    return Batch(columns, num_samples, constants, explained)


def _values(rollout: Rollout, critic: Critic, group: str) -> tuple[Tensor, Tensor]:
    """Return V(s_t), shape ``(T + 1, N)``, and V(final observation) where truncated, ``(T, N)``."""
    value = critic(rollout.obs[group])
    final_value = torch.zeros_like(rollout.reward)
    cut = rollout.truncated & ~rollout.terminated
    final_value[cut] = critic(rollout.final_obs[cut])
    return value, final_value


def _with_images(
    columns: dict[str, Tensor], mirror: MirrorTable, head: HeadMirror, critic_group: str
) -> dict[str, Tensor]:
    """Append the mirror image of every sample; its value and probability are the sample's."""
    mirrors = {
        "actor_in": mirror.obs[ACTOR_GROUP].apply,
        "critic_in": mirror.obs[critic_group].apply,
        "action": head.sample,
        "old_outputs": head.outputs,
    }
    return {
        name: torch.cat([column, mirrors[name](column) if name in mirrors else column])
        for name, column in columns.items()
    }
