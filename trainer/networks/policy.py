"""The policy without exploration, as it runs: it acts, remembers, and forgets where it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.spec import RecurrentState
from trainer.networks.actor_critic import Actor
from trainer.networks.recurrent import State, forget


class DeterministicPolicy:
    """An actor that keeps its own state, one row per robot."""

    def __init__(self, actor: Actor) -> None:
        """Take the actor; every episode is new."""
        self._actor = actor
        self._state: State = ()

    @torch.no_grad()
    def __call__(self, obs: Tensor) -> Tensor:
        """Act.

        Args:
            obs: What the actor sees, raw, float32 ``(N, dim)``.

        Returns:
            Raw actions, ``(N, num_actions)``.
        """
        if self._actor.rnn is None:
            return self._actor(obs)
        action, *state = self._actor(obs, *self._state)
        self._state = tuple(state)
        return action

    def reset(self, rows: Tensor | None = None) -> None:
        """Begin new episodes.

        Args:
            rows: Where, bool ``(N,)``; None: everywhere, and N may be another from now on.
        """
        if rows is None or bool(rows.all()):
            self._state = ()
        elif self._state:
            self._state = forget(self._state, rows.to(self._state[0].device))


def reset_policy(policy: Callable[[Tensor], Tensor], rows: Tensor | None = None) -> None:
    """Call the method `reset` of a policy that has one; see `DeterministicPolicy.reset`."""
    reset = getattr(policy, "reset", None)
    if callable(reset):
        reset(rows)


def with_states(contract: str, actor: Actor) -> str:
    """Return a contract as JSON with the state of the actor's network in it.

    A task states its contract before anybody knows which network will be trained.
    """
    if actor.rnn is None:
        return contract
    shapes = actor.rnn.state_shapes
    names = ("h", "c") if len(shapes) <= 2 else tuple(f"s{i}" for i in range(len(shapes)))
    states = tuple(
        RecurrentState(input=f"{name}_in", output=f"{name}_out", shape=(layers, 1, hidden))
        for name, (layers, hidden) in zip(names, shapes, strict=False)
    )
    whole = PolicyContract.from_json(contract)
    return replace(whole, network=replace(whole.network, states=states)).to_json()
