"""What learns in a run: PPO, or a student of a teacher."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from robot_runtime.errors import BadInput
from trainer.checkpoint import Checkpoint
from trainer.config import TrainConfig
from trainer.distillation import Distillation
from trainer.distributed import Peers
from trainer.envs.action_space import action_space_of
from trainer.losses import Metrics
from trainer.networks.actor_critic import Actor
from trainer.networks.groups import Groups
from trainer.ppo import PPO
from trainer.rollout import Acted, Rollout
from trainer.tasks.base import TaskRun
from trainer.teacher import Teacher, load_teacher, teacher_from_state


class Agent(Protocol):
    """What the loop asks of whatever learns; see `trainer.ppo.PPO`.

    Attributes:
        actor: The policy that is learned.
        groups: Which observations its networks see.
        collected: Which ones `act` sees, and what else of a rollout the update needs.
        device: Where it lives.
        generator: Source of its draws.
        faults: How often each of its faults happened, 0-d tensors by name.
    """

    actor: Actor
    groups: Groups
    collected: Groups
    device: torch.device
    generator: torch.Generator
    faults: dict[str, Tensor]

    def act(self, obs: Tensor, *state: Tensor) -> Acted:
        """Act in every environment."""
        ...

    def anneal(self, iteration: int, iterations: int) -> None:
        """Set the learning rate of an iteration, counted from 0."""
        ...

    def limit_std(self, iteration: int, iterations: int) -> None:
        """Set the bound of the exploration for an iteration, before its rollout."""
        ...

    def update(self, rollout: Rollout, valid: Tensor | None = None) -> Metrics:
        """Learn from a rollout, and say what was measured."""
        ...

    def named_tensors(self) -> dict[str, Tensor]:
        """Return what must be equal in all processes, by name."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything the next update depends on."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was called."""
        ...


def make_agent(
    config: TrainConfig, task: TaskRun, resume: Checkpoint | None, peers: Peers
) -> PPO | Distillation:
    """Build what the settings ask for.

    Args:
        config: Settings of the run.
        task: The task.
        resume: The checkpoint to continue from; it holds its teacher, whose file need not be there
            any more.
        peers: Processes that learn together.

    Raises:
        BadInput: The teacher cannot be read, or does not fit the task; or one of the runs has a
            teacher and the one it goes on from has none, or another one.
        InvalidSetting: The networks do not fit the task.
    """
    space, device = action_space_of(task.env), torch.device(config.device)
    how: dict[str, Any] = {
        "network": config.network, "seed": config.seed, "device": device, "peers": peers
    }  # fmt: skip
    dims = task.env.obs_dims
    if resume is not None and ("teacher" in resume.agent) != config.distill.enabled:
        had, has = ("with", "is empty") if "teacher" in resume.agent else ("without", "names one")
        raise BadInput(f"the checkpoint is of a run {had} a teacher, and distill.teacher {has}")
    if not config.distill.enabled:
        return PPO(dims, space, config=config.ppo, symmetry=task.symmetry, **how)
    teacher = _teacher(config, task, resume)
    return Distillation(dims, space, config=config.distill, teacher=teacher, **how)


def _teacher(config: TrainConfig, task: TaskRun, resume: Checkpoint | None) -> Teacher:
    """Return the teacher: that of the run that goes on, or what the settings name.

    Raises:
        BadInput: They name another one, whose state would be that of the first.
    """
    if resume is not None:
        old, new = resume.config.distill, config.distill
        for name in ("teacher", "teacher_groups", "teacher_activation"):
            before, now = getattr(old, name), getattr(new, name)
            if before != now:
                raise BadInput(
                    f"distill.{name} = {now!r}: the run that goes on has {before!r}; another "
                    "teacher is for another run"
                )
        return teacher_from_state(resume.agent["teacher"])
    contract = task.deployment.contract_json() if task.deployment else None
    return load_teacher(config.distill, task.env, contract)
