"""A rollout as the update of a network without a memory sees it: any samples, in any order."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from trainer.config import PPOConfig
from trainer.distributed import ALONE, Peers
from trainer.networks.actor_critic import Actor, Critic
from trainer.networks.groups import Groups, observed
from trainer.networks.head import Constants
from trainer.rollout import Rollout
from trainer.sequences import Padded
from trainer.table import Images, Table, kept, make_table
from trainer.values import rollout_values


@dataclass(frozen=True, kw_only=True, slots=True)
class Minibatch:
    """Some samples: views into one gathered table of B rows, or of 2 B with mirror images.

    Attributes:
        actor_in: Normalized observations of the actor; sequences if it has a memory.
        critic_in: Normalized observations of the critic; sequences if it has a memory. Where it
            shares the actor's body, they are the actor's.
        action: Samples that the actions were made of.
        old_outputs: What the actor's network gave when they were sampled.
        old_log_prob: Log-probability of the actions when they were sampled, ``(rows,)``.
        old_value: V(s_t) when the rollout was taken, ``(rows,)``.
        advantage: Advantages, ``(rows,)``.
        returns: Targets of the value, ``(rows,)``.
    """

    actor_in: Tensor | Padded
    critic_in: Tensor | Padded
    action: Tensor
    old_outputs: Tensor
    old_log_prob: Tensor
    old_value: Tensor
    advantage: Tensor
    returns: Tensor

    def head(self, count: int) -> Minibatch:
        """Return the first `count` rows: the samples without their images."""
        cut: dict[str, Any] = {}
        for item in dataclasses.fields(self):
            part = getattr(self, item.name)
            cut[item.name] = part.head(count) if isinstance(part, Padded) else part[:count]
        return Minibatch(**cut)


class Samples(Protocol):
    """What an update goes through, in minibatches of units: samples, or whole environments.

    Attributes:
        num_samples: Samples without their images.
        num_units: What is divided into minibatches.
        old_constants: `Head.constants` when the actions were sampled.
        explained_variance: How well the values explain the returns, 0-d.
    """

    num_samples: int
    num_units: int
    old_constants: Constants
    explained_variance: Tensor

    def minibatch(self, units: Tensor, *, images: bool, standardize: bool) -> Minibatch | None:
        """Gather a minibatch.

        Args:
            units: Which units, int64.
            images: Whether the images of the samples follow after them.
            standardize: Whether their advantages get mean 0 and deviation 1 among themselves.

        Returns:
            The minibatch; None if it would have fewer than two samples.
        """
        ...


class Batch:
    """Samples one by one; see `Samples` and `trainer.table.Table`."""

    def __init__(self, table: Table, inputs: dict[str, Tensor]) -> None:
        """Take the table and the networks' inputs, each ``(rows, width)``, images included.

        Inputs stay apart, so that a gathered minibatch has them dense, as matrix products want.
        """
        self.num_samples = self.num_units = table.num_samples
        self.old_constants = table.old_constants
        self.explained_variance = table.explained_variance
        self.standardize_advantage = table.standardize_advantage
        self._table, self._inputs = table, inputs

    def take(self, rows: Tensor) -> Minibatch:
        """Gather rows, int64 ``(B,)``."""
        inputs = {name: column.index_select(0, rows) for name, column in self._inputs.items()}
        inputs.setdefault("critic_in", inputs["actor_in"])
        return Minibatch(**inputs, **self._table.gather(rows))

    def minibatch(self, units: Tensor, *, images: bool, standardize: bool) -> Minibatch | None:
        """See `Samples`."""
        if standardize:
            self.standardize_advantage(units)
        if len(units) < 2:
            return None
        return self.take(torch.cat([units, units + self.num_samples]) if images else units)


@torch.no_grad()
def make_batch(
    rollout: Rollout,
    valid: Tensor | None,
    actor: Actor,
    critic: Critic,
    *,
    config: PPOConfig,
    groups: Groups,
    images: Images | None,
    peers: Peers = ALONE,
) -> Batch:
    """Compute values and returns and pack a rollout, without the samples that are excluded.

    Args:
        rollout: The rollout.
        valid: False where a sample is excluded, bool ``(T, N)``; None: none is.
        actor: The actor that sampled the rollout, unchanged since.
        critic: The critic, unchanged since the rollout.
        config: Settings.
        groups: Which observations actor and critic see.
        images: If given, the mirror images are packed too.
        peers: Processes that the statistics are taken over.
    """
    values = rollout_values(rollout, critic, groups.critic)
    how = {"config": config, "images": images, "peers": peers}
    table = make_table(rollout, values, valid, actor.distribution, **how)
    inputs = {"actor_in": kept(observed(rollout.obs, groups.actor)[:-1], valid)}
    if groups.critic != groups.actor:
        inputs["critic_in"] = kept(observed(rollout.obs, groups.critic)[:-1], valid)
    # Where both see the same, both normalizers have too: one normalized input serves both.
    if images is not None:
        mirrors = {"actor_in": images.actor, "critic_in": images.critic}
        inputs = {name: torch.cat([x, mirrors[name].apply(x)]) for name, x in inputs.items()}
    networks = {"actor_in": actor, "critic_in": critic}
    return Batch(table, {name: networks[name].normalizer(x) for name, x in inputs.items()})
