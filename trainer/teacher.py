"""The teacher of a distillation: the frozen policy of a checkpoint, and whether it fits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robot_runtime.errors import BadInput
from trainer.checkpoint import build_actor, find_checkpoint, load_checkpoint
from trainer.config import NetworkConfig, TrainConfig, config_from_plain, config_to_plain
from trainer.env import VecEnv
from trainer.envs.action_space import ActionSpace, action_space_of
from trainer.networks.actor_critic import Actor
from trainer.networks.groups import groups_of
from trainer.networks.recurrent import State

_OBSERVED = ("policy", "critic")
"""Groups that follow from the observation of a contract."""

_FREE = frozenset({"schema", "name", "commands", "network"})
"""Parts of a contract in which a teacher may differ, like in the noise of its sensors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Teacher:
    """A policy that says what should be done; nothing in it learns.

    Attributes:
        name: Where it is from, for people.
        dims: Length of each observation group it sees, in order.
        config: Settings of its networks.
        actor: Its deterministic policy, normalizer included.
    """

    name: str
    dims: dict[str, int]
    config: NetworkConfig
    actor: Actor

    @property
    def groups(self) -> tuple[str, ...]:
        """The observation groups it sees, in order."""
        return tuple(self.dims)

    @torch.no_grad()
    def act(self, obs: Tensor, state: State) -> tuple[Tensor, State]:
        """Return raw actions without exploration, ``(N, num_actions)``, and the next state.

        Args:
            obs: Its groups joined, raw, ``(N, dim)``.
            state: What it remembers; empty without a memory and where all episodes begin.
        """
        outputs, after = self.actor.step(obs, state)
        return self.actor.distribution.deterministic(outputs), after

    def state_dict(self) -> dict[str, Any]:
        """Return it whole, as tensors and plain containers."""
        return {
            "name": self.name,
            "dims": dict(self.dims),
            "config": config_to_plain(TrainConfig(network=self.config)),
            "actor": self.actor.state_dict(),
        }


def load_teacher(path: Path, groups: tuple[str, ...], env: VecEnv, contract: str | None) -> Teacher:
    """Read the policy of a checkpoint as a teacher for an environment.

    Args:
        path: Checkpoint or run folder.
        groups: The observation groups it is to see; none: those it was trained with.
        env: Where the student learns.
        contract: The contract of the student's task as JSON; None where it has none.

    Raises:
        BadInput: It cannot be read, or does not fit the environment or the contract; the message
            says in what.
    """
    path = find_checkpoint(path)
    checkpoint = load_checkpoint(path)
    name = f"teacher '{path}'"
    network, known = checkpoint.config.network, checkpoint.obs_dims
    if checkpoint.action_sizes:
        raise BadInput(f"{name} chooses from lists: only continuous actions can be distilled")
    seen = groups_of(network, known).actor
    if groups and len(groups) != len(seen):
        raise BadInput(
            f"{name} sees {len(seen)} observation groups ({', '.join(seen)}) and "
            f"distill.teacher_groups has {len(groups)}"
        )
    if groups and groups != seen and network.encoders:
        raise BadInput(f"{name} has encoders, which know their groups by name: {', '.join(seen)}")
    dims = dict(zip(groups or seen, (known[one] for one in seen), strict=True))
    if checkpoint.contract is not None and contract is not None:
        _demand_same_robot(name, checkpoint.contract, contract, dims)
    _demand_fit(name, dims, checkpoint.num_actions, env)
    return Teacher(name=name, dims=dims, config=network, actor=build_actor(checkpoint))


def teacher_from_state(state: Mapping[str, Any], num_actions: int) -> Teacher:
    """Build the teacher that `Teacher.state_dict` was called on.

    Raises:
        BadInput: The state is of something else.
    """
    try:
        network = config_from_plain(state["config"]).network
        space = ActionSpace(kind="continuous", num_actions=num_actions)
        actor = Actor(state["dims"], space, network, torch.Generator())
        actor.load_state_dict(state["actor"])
    except (KeyError, RuntimeError, TypeError, AttributeError) as error:
        text = " ".join(str(error).split())
        raise BadInput(f"the teacher in the checkpoint cannot be read: {text}") from error
    return Teacher(
        name=str(state["name"]),
        dims=dict(state["dims"]),
        config=network,
        actor=actor.eval().requires_grad_(False),
    )


def _demand_fit(name: str, dims: Mapping[str, int], num_actions: int, env: VecEnv) -> None:
    """Refuse a teacher that sees or does something else than the environment offers."""
    for group, dim in dims.items():
        if group not in env.obs_dims:
            raise BadInput(
                f"{name} sees the observation group '{group}'; the environment gives: "
                f"{', '.join(env.obs_dims)} (distill.teacher_groups names others)"
            )
        if env.obs_dims[group] != dim:
            raise BadInput(
                f"{name} sees {dim} numbers in the observation group '{group}'; the environment "
                f"gives {env.obs_dims[group]}"
            )
    space = action_space_of(env)
    if space.kind != "continuous":
        raise BadInput("the environment's actions are choices: only continuous ones are distilled")
    if env.num_actions != num_actions:
        raise BadInput(f"{name} has {num_actions} actions; the environment has {env.num_actions}")


def _demand_same_robot(name: str, one: str, other: str, groups: Mapping[str, int]) -> None:
    """Refuse a teacher whose observations or actions mean something else."""
    parts: tuple[dict[str, Any], dict[str, Any]] = (json.loads(one), json.loads(other))
    if not any(group in _OBSERVED for group in groups):
        for part in parts:
            part.pop("observation", None)
    for where, of_teacher, of_task in _differences(*parts, ""):
        raise BadInput(
            f"{name} was trained with another contract: {where} is {of_teacher} there and "
            f"{of_task} in the task"
        )


def _differences(one: Any, other: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the places in which two values of JSON differ, and both sides."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys((*one, *other)):
            if key != "noise" and (where or key not in _FREE):
                inside = f"{where}.{key}" if where else str(key)
                yield from _differences(one.get(key), other.get(key), inside)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, pair in enumerate(zip(one, other, strict=True)):
            yield from _differences(*pair, f"{where}[{i}]")
    elif one != other:
        yield where, json.dumps(one), json.dumps(other)
