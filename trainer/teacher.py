"""The teacher of a distillation: the frozen policy of a checkpoint, and whether it fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robot_runtime.errors import BadInput
from trainer.checkpoint import (
    FORMAT,
    build_actor,
    find_checkpoint,
    load_checkpoint,
    read_archive,
)
from trainer.compat.models import Architecture, Hints, RslRlModel
from trainer.config import DistillConfig, TrainConfig, config_from_plain, config_to_plain
from trainer.contract_match import demand_same, stated
from trainer.env import VecEnv
from trainer.envs.action_space import ActionSpace, action_space_of
from trainer.networks.actor_critic import Actor
from trainer.networks.groups import groups_of
from trainer.networks.recurrent import State
from trainer.rsl_rl_checkpoints import read_rsl_rl_checkpoint

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
        num_actions: Length of an action.
        build: What its network is built from, as plain containers.
        network: Raw observations ``(N, dim)`` and state to raw actions without exploration and the
            next state; normalizer included.
    """

    name: str
    dims: dict[str, int]
    num_actions: int
    build: dict[str, Any]
    network: nn.Module

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
        return self.network(obs, state)

    def state_dict(self) -> dict[str, Any]:
        """Return it whole, as tensors and plain containers."""
        return {
            "name": self.name,
            "dims": dict(self.dims),
            "num_actions": self.num_actions,
            "build": self.build,
            "network": self.network.state_dict(),
        }


class _Ours(nn.Module):
    """An actor of ours as the network of a teacher."""

    def __init__(self, actor: Actor) -> None:
        super().__init__()
        self.actor = actor
        self.eval().requires_grad_(False)

    def forward(self, obs: Tensor, state: State) -> tuple[Tensor, State]:
        outputs, after = self.actor.step(obs, state)
        return self.actor.distribution.deterministic(outputs), after


def load_teacher(config: DistillConfig, env: VecEnv, contract: str | None) -> Teacher:
    """Read the policy of a checkpoint as a teacher for an environment.

    Args:
        config: Where it is, and what its file does not say.
        env: Where the student learns.
        contract: The contract of the student's task as JSON; None where it has none.

    Raises:
        BadInput: It cannot be read, or does not fit the environment or the contract; the message
            says in what.
    """
    path = find_checkpoint(Path(config.teacher))
    name = f"teacher '{path}'"
    content = read_archive(path)
    foreign = content.get("format") != FORMAT and "iter" in content
    read = _read_foreign if foreign else _read_own
    teacher, stated = read(name, path, config, env)
    if stated is not None and contract is not None:
        _demand_same_robot(name, stated, contract, teacher.dims)
    _demand_fit(teacher, env)
    return teacher


def teacher_from_state(state: Mapping[str, Any]) -> Teacher:
    """Build the teacher that `Teacher.state_dict` was called on.

    Raises:
        BadInput: The state is of something else.
    """
    try:
        build, dims, count = state["build"], dict(state["dims"]), int(state["num_actions"])
        if "architecture" in build:
            shape = Architecture(**build["architecture"])
            network = RslRlModel(shape, state["network"], Hints(**build["hints"]))
        else:
            space = ActionSpace(kind="continuous", num_actions=count)
            config = config_from_plain(build["config"]).network
            network = _Ours(Actor(dims, space, config, torch.Generator()))
            network.load_state_dict(state["network"])
    except (KeyError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        text = " ".join(str(error).split())
        raise BadInput(f"the teacher in the checkpoint cannot be read: {text}") from error
    return Teacher(
        name=str(state["name"]), dims=dims, num_actions=count, build=build, network=network
    )


def _read_own(
    name: str, path: Path, config: DistillConfig, env: VecEnv
) -> tuple[Teacher, str | None]:
    """Read a checkpoint of `surefoot train`, and its contract."""
    del env
    checkpoint = load_checkpoint(path)
    network, known = checkpoint.config.network, checkpoint.obs_dims
    if checkpoint.action_sizes:
        raise BadInput(f"{name} chooses from lists: only continuous actions can be distilled")
    if config.teacher_activation:
        raise BadInput(f"{name} says its activation: leave out distill.teacher_activation")
    seen, groups = groups_of(network, known).actor, config.teacher_groups
    if groups and len(groups) != len(seen):
        raise BadInput(
            f"{name} sees {len(seen)} observation groups ({', '.join(seen)}) and "
            f"distill.teacher_groups has {len(groups)}"
        )
    if groups and groups != seen and network.encoders:
        raise BadInput(f"{name} has encoders, which know their groups by name: {', '.join(seen)}")
    teacher = Teacher(
        name=name,
        dims=dict(zip(groups or seen, (known[one] for one in seen), strict=True)),
        num_actions=checkpoint.num_actions,
        build={"config": config_to_plain(TrainConfig(network=network))},
        network=_Ours(build_actor(checkpoint)),
    )
    return teacher, checkpoint.contract


def _read_foreign(
    name: str, path: Path, config: DistillConfig, env: VecEnv
) -> tuple[Teacher, None]:
    """Read a checkpoint of rsl_rl, which says nothing of groups, activation and robot."""
    if not config.teacher_groups or not config.teacher_activation:
        raise BadInput(
            f"{name} is of rsl_rl, whose files do not say what the policy sees and what is between "
            "its layers: set distill.teacher_groups (the environment gives: "
            f"{', '.join(env.obs_dims)}) and distill.teacher_activation (rsl_rl's default is elu)"
        )
    hints = Hints(activation=config.teacher_activation)
    foreign = read_rsl_rl_checkpoint(path, hints)
    # Whoever goes on with a distillation means its teacher.
    role = "teacher" if "teacher" in foreign.weights else foreign.policy_role
    shape = foreign.shapes[role]
    dims = {group: env.obs_dims.get(group, 0) for group in config.teacher_groups}
    if all(dims.values()) and sum(dims.values()) != shape.obs_dim:
        raise BadInput(
            f"{name} sees {shape.obs_dim} numbers; the environment gives {sum(dims.values())} in "
            f"{', '.join(dims)}"
        )
    teacher = Teacher(
        name=name,
        dims=dims,
        num_actions=shape.num_outputs,
        build={
            "architecture": dataclasses.asdict(shape),
            "hints": dataclasses.asdict(hints),
        },
        network=foreign.model(role),
    )
    return teacher, None


def _demand_fit(teacher: Teacher, env: VecEnv) -> None:
    """Refuse a teacher that sees or does something else than the environment offers."""
    name, num_actions = teacher.name, teacher.num_actions
    for group, dim in teacher.dims.items():
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
    free = _FREE if any(group in _OBSERVED for group in groups) else _FREE | {"observation"}
    there, here = (
        {part: value for part, value in stated(text).items() if part not in free}
        for text in (one, other)
    )
    demand_same(there, here, f"{name} was trained with another contract")
