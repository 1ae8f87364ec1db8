"""A rollout as the update of a network with a memory sees it: whole environments, as sequences.

Samples that are excluded are run through the memory as they were when the policy acted, and are
in no loss. With mirror images the mirrored observations are a second stream with a state of its
own: what the network would remember had it seen the mirrored world all along.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.batch import Minibatch
from trainer.config import PPOConfig
from trainer.distributed import ALONE, Peers
from trainer.networks.actor_critic import Actor, Critic
from trainer.networks.body import Body
from trainer.networks.groups import Groups, observed
from trainer.networks.recurrent import State, initial_state
from trainer.rollout import Rollout
from trainer.sequences import Layout, Padded, pick, split
from trainer.symmetry import Mirror
from trainer.table import Images, Table, make_table
from trainer.values import finite, rollout_values, unroll

States = dict[str, State]
"""States before a rollout that the collector does not know, by the name of their stream."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """What one network sees of a rollout, or would see of its mirror image.

    Attributes:
        x: Normalized observations, ``(T N, dim)``.
        state: The network's state before the rollout; None for one without a memory.
    """

    x: Tensor
    state: State | None


class SequenceBatch:
    """Samples by environment; see `trainer.batch.Samples`."""

    def __init__(
        self,
        table: Table,
        layout: Layout,
        streams: Mapping[str, list[Stream]],
        valid: Tensor | None,
        num_envs: int,
        peers: Peers = ALONE,
    ) -> None:
        """Take the parts.

        Args:
            table: The samples that are not excluded.
            layout: Where the sequences lie.
            streams: By `actor_in` and `critic_in`: the stream, and with images the mirrored one.
            valid: False where a sample is excluded, bool ``(T, N)``; None: none is.
            num_envs: Number of environments.
            peers: Processes that the statistics are taken over.
        """
        self.num_samples, self.num_units = table.num_samples, num_envs
        self.old_constants = table.old_constants
        self.explained_variance = table.explained_variance
        self._table, self._layout, self._streams = table, layout, streams
        self._alone = peers.size == 1
        self._valid = None if valid is None else valid.flatten().cpu()
        self._row = None if self._valid is None else self._valid.cumsum(0) - 1

    def minibatch(self, units: Tensor, *, images: bool, standardize: bool) -> Minibatch | None:
        """See `trainer.batch.Samples`; units are environments."""
        layout = self._layout.of_envs(units.cpu())
        step, column = layout.mask.nonzero(as_tuple=True)
        rows = layout.row[step, column]
        if self._valid is not None and self._row is not None:
            valid = self._valid[rows]
            step, column, rows = step[valid], column[valid], self._row[rows[valid]]
        few, rows = len(rows) < 2, rows.to(units.device)
        # Other processes may have more, and all of them are needed for the statistics.
        if standardize and not (few and self._alone):
            self._table.standardize_advantage(rows)
        if few:
            return None
        if images:
            rows = torch.cat([rows, rows + self.num_samples])
        inputs = {
            name: _input(streams if images else streams[:1], layout, step, column)
            for name, streams in self._streams.items()
        }
        inputs.setdefault("critic_in", inputs["actor_in"])
        return Minibatch(**inputs, **self._table.gather(rows))


@torch.no_grad()
def make_sequence_batch(
    rollout: Rollout,
    valid: Tensor | None,
    actor: Actor,
    critic: Critic,
    *,
    config: PPOConfig,
    groups: Groups,
    images: Images | None,
    states: States,
    peers: Peers = ALONE,
) -> tuple[SequenceBatch, States]:
    """Compute values and returns and lay a rollout out in sequences.

    Args:
        rollout: The rollout.
        valid: False where a sample is excluded, bool ``(T, N)``; None: none is.
        actor: The actor that sampled the rollout, unchanged since.
        critic: The critic, unchanged since the rollout.
        config: Settings.
        groups: Which observations actor and critic see.
        images: If given, the mirror images are packed too.
        states: The states before the rollout, as this function returned them; empty at first.
        peers: Processes that the statistics are taken over.

    Returns:
        The batch, and the states before the next rollout.
    """
    shared = critic.body is actor
    before = {**states, "actor": rollout.state}
    values = rollout_values(
        rollout, critic, groups.critic, before.get("actor" if shared else "critic", ())
    )
    how = {"config": config, "images": images, "peers": peers}
    table = make_table(rollout, values, valid, actor.distribution, **how)
    after: States = {} if shared else {"critic": values.state}
    bodies: Mapping[str, Body] = {"actor": actor} if shared else {"actor": actor, "critic": critic}
    streams: dict[str, list[Stream]] = {}
    for name, body in bodies.items():
        obs = finite(observed(rollout.obs, getattr(groups, name))[:-1])
        streams[f"{name}_in"] = [_stream(body, obs, before.get(name, ()))]
        if images is not None:
            mirror: Mirror = getattr(images, name)
            image = _stream(body, mirror.apply(obs), before.get(f"{name}_image", ()))
            streams[f"{name}_in"].append(image)
            after[f"{name}_image"] = _after(body, image, rollout.starts())
    num_envs = rollout.reward.shape[1]
    layout = split(rollout.starts())
    return SequenceBatch(table, layout, streams, valid, num_envs, peers), after


def _stream(body: Body, obs: Tensor, state: State) -> Stream:
    """Return a stream of raw observations, ``(T, N, dim)``."""
    x = body.normalizer(obs).flatten(0, 1)
    if body.rnn is None:
        return Stream(x=x, state=None)
    return Stream(x=x, state=state or initial_state(body.rnn, obs.shape[1], x))


def _after(body: Body, stream: Stream, starts: Tensor) -> State:
    """Return the state after a stream."""
    if stream.state is None:
        return ()
    x = stream.x.reshape(*starts.shape, -1)
    return unroll(body, x, starts, stream.state)[1][-1]


def _input(streams: list[Stream], layout: Layout, step: Tensor, column: Tensor) -> Tensor | Padded:
    """Gather the input of a network: of the samples, then of their images."""
    device = streams[0].x.device
    if streams[0].state is None:
        rows = layout.row[step, column].to(device)
        return torch.cat([stream.x.index_select(0, rows) for stream in streams])
    rows, count = layout.row.reshape(-1).to(device), layout.row.shape[1]
    shape = (*layout.row.shape, -1)
    # Where a sequence has ended, any row is as good as another: nothing follows from it.
    x = [stream.x.index_select(0, rows).reshape(shape) for stream in streams]
    picked = [pick(stream.state or (), layout) for stream in streams]
    return Padded(
        x=torch.cat(x, dim=1),
        state=tuple(torch.cat(parts, dim=1) for parts in zip(*picked, strict=True)),
        step=step.repeat(len(streams)).to(device),
        column=torch.cat([column + i * count for i in range(len(streams))]).to(device),
    )
