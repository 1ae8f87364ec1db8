"""The actor and the critic: a body from observations to features, and last layers of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from trainer.envs.action_space import ActionSpace
from trainer.network_config import NetworkConfig
from trainer.networks.body import (
    Body,
    body_layers,
    make_normalizer,
    make_recurrent,
    make_trunk,
    recall,
)
from trainer.networks.encoders import make_encoder
from trainer.networks.graph_spec import GraphSpec, dense_layers, normalization_of
from trainer.networks.groups import ACTOR_GROUP, critic_group
from trainer.networks.head import Head
from trainer.networks.heads import make_head
from trainer.networks.mlp import make_mlp
from trainer.networks.recurrent import State

__all__ = ["ACTOR_GROUP", "Actor", "Critic", "critic_group"]


class Actor(nn.Module):
    """Raw observations to the action without exploration; see `trainer.networks.body.Body`.

    Attributes:
        normalizer: Raw to normalized observations.
        encoder: What is done with single observation groups.
        rnn: Layers with a memory; None where there are none.
        trunk: Layers that a critic may share.
        width: Length of what comes out of them.
        net: What comes after them, to the numbers that the head reads. The update calls it
            directly, because the normalizer is frozen then and its output is computed once per
            rollout.
        distribution: The head: those numbers to a distribution of actions.
    """

    def __init__(
        self,
        obs: Mapping[str, int] | int,
        actions: ActionSpace | int,
        config: NetworkConfig,
        generator: torch.Generator,
    ) -> None:
        """Build the actor with small first actions.

        Args:
            obs: Length of each observation group it sees, in order; a number is that of `policy`.
            actions: What the environment takes; a number is the length of a continuous action.
            config: Shape and start.
            generator: Source of the random weights, on the CPU.
        """
        super().__init__()
        if isinstance(actions, int):
            actions = ActionSpace(kind="continuous", num_actions=actions)
        dims = {ACTOR_GROUP: obs} if isinstance(obs, int) else obs
        head = make_head(actions, config)
        self.num_actions = actions.num_actions
        self.normalizer = make_normalizer(dims, config)
        self.encoder = make_encoder(dims, config, generator)
        self.rnn, width = make_recurrent(self.encoder, dims, config, generator)
        self.trunk, self.width = make_trunk(width, config, generator)
        self.net = make_mlp(
            self.width,
            config.actor_hidden,
            head.num_outputs,
            activation=config.activation,
            out_gain=0.01,
            generator=generator,
        )
        self.distribution: Head = head

    def step(self, obs: Tensor, state: State = ()) -> tuple[Tensor, State]:
        """Return what the head reads, ``(N, num_outputs)``, and the next state.

        Args:
            obs: Raw observations, ``(N, obs_dim)``.
            state: The state; empty where an episode begins.
        """
        seen, state = recall(self, self.normalizer(obs), state)
        return self.net(seen), state

    def forward(self, obs: Tensor, *state: Tensor) -> Any:
        """Return actions without exploration, ``(N, num_actions)``, for raw ``(N, obs_dim)``.

        A network with a memory takes its state as well, one ``(layers, N, hidden)`` after the
        other, and gives the next one after the actions.
        """
        outputs, after = self.step(obs, state)
        action = self.distribution.deterministic(outputs)
        return (action, *after) if after else action

    def graph_spec(self) -> GraphSpec:
        """Return the deterministic policy as plain arrays.

        Raises:
            NoGraphSpecError: It is no chain that has a plain form; the message names the part.
        """
        squash, layers = self.distribution.squash(), dense_layers(self.net)
        if squash is None:
            # Whatever a head reads after the means is no part of the action.
            last, count = layers[-1], self.num_actions
            last = replace(last, weight=last.weight[:count], bias=last.bias[:count])
            layers = (*layers[:-1], last)
        recurrent, trunk = body_layers(self)
        return GraphSpec(
            normalization=normalization_of(self.normalizer),
            recurrent=recurrent,
            layers=(*trunk, *layers),
            squash=squash,
        )


class Critic(nn.Module):
    """Raw observations to the value of the state; see `Actor`.

    Attributes:
        body: What its last layers see: its own, or that of the actor it shares with.
    """

    def __init__(
        self,
        obs: Mapping[str, int] | int,
        config: NetworkConfig,
        generator: torch.Generator,
        trunk: Actor | None = None,
    ) -> None:
        """Build the critic.

        Args:
            obs: Length of each observation group it sees, in order.
            config: Shape and start.
            generator: Source of the random weights, on the CPU.
            trunk: The actor it shares with; None for none.
        """
        super().__init__()
        dims = {ACTOR_GROUP: obs} if isinstance(obs, int) else obs
        # In a tuple, so that torch does not take the actor's weights for the critic's.
        self._shared = (trunk,)
        if trunk is None:
            own = config.critic_normalize_obs
            if own is not None:
                config = replace(config, normalize_obs=own)
            self.normalizer = make_normalizer(dims, config)
            self.encoder = make_encoder(dims, config, generator)
            remembers = config if config.critic_memory else replace(config, kind="mlp")
            self.rnn, width = make_recurrent(self.encoder, dims, remembers, generator)
            self.trunk: nn.Module = nn.Identity()
        else:
            width = trunk.width
        self.net = make_mlp(
            width,
            config.critic_hidden,
            1,
            activation=config.activation,
            out_gain=1.0,
            generator=generator,
        )

    @property
    def body(self) -> Body:
        """See the class."""
        (trunk,) = self._shared
        return self if trunk is None else trunk

    def forward(self, obs: Tensor) -> Tensor:
        """Return values, shape ``(...)``, for raw observations ``(..., obs_dim)``.

        It is for a critic without a memory; `trainer.values` is for both.
        """
        body = self.body
        return self.net(body.trunk(body.encoder(body.normalizer(obs)))).squeeze(-1)
