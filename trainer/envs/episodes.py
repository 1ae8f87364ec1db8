"""What the rows of an environment remember between control steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.envs.saved import check_shapes


@dataclass(kw_only=True, slots=True)
class Episodes:
    """What every row remembers between control steps.

    Attributes:
        number: Episodes begun before the current one, int64, shape (n,).
        step: Control steps since the episode began, int64, shape (n,).
        age: Steps that count as already done against the time limit, int64, shape (n,).
        asked: The command that was drawn, shape (n, num_commands).
        command: What the policy is told, within its ranges and rates, shape (n, num_commands).
        command_end: Step at which another command is drawn, int64, shape (n,).
        push_at: Step at which the robot is pushed, int64, shape (n,).
        raw_action: Last output of the policy, shape (n, num_actions).
        action: The same after clip and filter, shape (n, num_actions).
        last_action: The applied action before, shape (n, num_actions).
        mean_error: Averaged velocity minus command, see `RewardInputs`, shape (n, 3).
        foot_pos_w: Positions of the feet at the last step, [m], shape (n, num_feet, 3).
    """

    number: Tensor
    step: Tensor
    age: Tensor
    asked: Tensor
    command: Tensor
    command_end: Tensor
    push_at: Tensor
    raw_action: Tensor
    action: Tensor
    last_action: Tensor
    mean_error: Tensor
    foot_pos_w: Tensor

    @classmethod
    def empty(cls, num_envs: int, num_commands: int, num_actions: int, num_feet: int) -> Episodes:
        """Rows before their first episode."""
        zeros = torch.zeros(num_envs, dtype=torch.int64)
        return cls(
            number=zeros - 1,
            step=zeros.clone(),
            age=zeros.clone(),
            asked=torch.zeros(num_envs, num_commands),
            command=torch.zeros(num_envs, num_commands),
            command_end=zeros.clone(),
            push_at=zeros.clone(),
            raw_action=torch.zeros(num_envs, num_actions),
            action=torch.zeros(num_envs, num_actions),
            last_action=torch.zeros(num_envs, num_actions),
            mean_error=torch.zeros(num_envs, 3),
            foot_pos_w=torch.zeros(num_envs, num_feet, 3),
        )

    def begin(self, rows: NDArray[np.int64], values: Mapping[str, NDArray[Any]]) -> None:
        """Begin an episode in rows.

        Args:
            rows: Row numbers, shape (k,).
            values: Fields of the rows by name, leading shape (k,); the others are zero.
        """
        # Through NumPy, which writes a few rows in a third of the time that torch takes.
        for name in _FIELDS:
            getattr(self, name).numpy()[rows] = values.get(name, 0)

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of all fields."""
        return {field.name: getattr(self, field.name).clone() for field in fields(self)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue where `state_dict` was called.

        Raises:
            ValueError: A field is missing or has another shape.
        """
        check_shapes("episodes", state, self.state_dict())
        for field in fields(self):
            setattr(self, field.name, state[field.name].clone())


_FIELDS = tuple(field.name for field in fields(Episodes))
