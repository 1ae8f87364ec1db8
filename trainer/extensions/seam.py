"""What the loop asks of a reward beside the task's."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from trainer.losses import Metrics
from trainer.rollout import Rollout


class RewardExtension(Protocol):
    """Changes the reward that is learned from, and learns itself; PPO knows nothing of it.

    In every iteration the loop calls `mix` on the screened rollout, gives the result to PPO in
    place of the task's reward, and calls `update` after PPO's.

    Attributes:
        groups: The observation groups it looks at.
    """

    groups: tuple[str, ...]

    def mix(self, rollout: Rollout, valid: Tensor | None) -> tuple[Tensor, Metrics]:
        """Return the reward to learn from, ``(T, N)``, and what to log.

        Args:
            rollout: The rollout; its reward is the task's, or what an extension before made of it.
            valid: False where a sample is excluded, bool ``(T, N)``, its numbers then being
                anything; None: none is.
        """
        ...

    def update(self, rollout: Rollout, valid: Tensor | None) -> Metrics:
        """Learn from the rollout that `mix` was called on last."""
        ...

    def parameters(self) -> list[nn.Parameter]:
        """Return what `update` learns by gradient, always in the same order."""
        ...

    def named_tensors(self) -> dict[str, Tensor]:
        """Return what must be equal in all processes, by name."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next iteration depends on."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was called.

        Raises:
            RuntimeError, ValueError, KeyError: The state is of something else.
        """
        ...
