"""Values of a rollout: of every state, and of what an episode ended with where it was cut short."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trainer.networks.actor_critic import Critic
from trainer.networks.body import Body, recall
from trainer.networks.groups import observed
from trainer.networks.recurrent import State, forget
from trainer.rollout import Rollout


class Values(NamedTuple):
    """What the critic says of a rollout.

    Attributes:
        value: V(s_t), ``(T + 1, N)``.
        final: V(final observation) where truncated and not terminated, else 0, ``(T, N)``.
        state: The critic's state after the rollout; empty without a memory.
    """

    value: Tensor
    final: Tensor
    state: State


@torch.no_grad()
def rollout_values(
    rollout: Rollout, critic: Critic, groups: tuple[str, ...], state: State = ()
) -> Values:
    """Return the values of a rollout.

    Args:
        rollout: The rollout.
        critic: The critic.
        groups: Which observations it sees.
        state: Its state before the rollout; empty for a fresh one.
    """
    body, obs = critic.body, observed(rollout.obs, groups)
    cut = rollout.truncated & ~rollout.terminated
    final = torch.zeros_like(rollout.reward)
    if body.rnn is None:
        value = critic(obs)
        final[cut] = critic(rollout.final_obs[cut])
        return Values(value, final, ())
    x = body.normalizer(finite(obs))
    seen, states = unroll(body, x[:-1], rollout.starts(), state)
    fresh = forget(states[-1], rollout.ended[-1])
    last, _ = recall(body, x[-1], fresh)
    value = critic.net(torch.cat([seen, last.unsqueeze(0)])).squeeze(-1)
    if rollout.unknown is not None:
        # V(s_t) is that of the memory before it saw s_t, not of one that has seen it twice.
        stands_in = cut & rollout.unknown.unsqueeze(-1)
        final = torch.where(stands_in, value[:-1], final)
        cut = cut & ~stands_in
    step, env = cut.nonzero(as_tuple=True)
    if len(step):
        # What a final observation is worth depends on all that the episode has shown before it.
        before = [torch.stack(parts)[step, :, env] for parts in zip(*states, strict=True)]
        at_end = tuple(part.transpose(0, 1).contiguous() for part in before)
        x = body.normalizer(finite(rollout.final_obs[step, env]))
        final[step, env] = critic.net(recall(body, x, at_end)[0]).squeeze(-1)
    return Values(value, final, states[-1])


@torch.no_grad()
def unroll(body: Body, x: Tensor, starts: Tensor, state: State) -> tuple[Tensor, list[State]]:
    """Run a network with a memory through a rollout, step by step as the policy acts.

    Args:
        body: The network.
        x: Normalized observations, ``(T, N, dim)``.
        starts: Where episodes begin, bool, ``(T, N)``.
        state: The state before the rollout; empty for a fresh one.

    Returns:
        What the last layers see, ``(T, N, width)``, and the state after each step.
    """
    outputs: list[Tensor] = []
    states: list[State] = []
    for now, fresh in zip(x, starts, strict=True):
        seen, state = recall(body, now, forget(state, fresh))
        outputs.append(seen)
        states.append(state)
    return torch.stack(outputs), states


def finite(x: Tensor) -> Tensor:
    """Return observations as the policy sees them: what is not finite is 0."""
    return x.nan_to_num(0.0, 0.0, 0.0)
