"""The settings of distillation: a frozen value that refuses nonsense when it is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer.settings import InvalidSetting, check_range


@dataclass(frozen=True, kw_only=True, slots=True)
class DistillConfig:
    """A student learns to do what a teacher would: DAgger (Ross et al. 2011, arXiv:1011.0686)."""

    teacher: str = ""
    """Checkpoint, of rsl_rl too, or run folder whose policy teaches in place of PPO; empty: off."""

    teacher_groups: tuple[str, ...] = ()
    """Observation groups the teacher sees, joined; none: those it was trained with."""

    teacher_activation: str = ""
    """Nonlinearity of a teacher of rsl_rl, whose files do not say it; elu is its default."""

    teacher_share: float = 0.0
    """Share of the steps in which the teacher acts; in the others the student does."""

    std: float = 0.1
    """Deviation of the noise on the student's own actions, in units of the raw action."""

    loss: Literal["mse", "huber"] = "mse"
    """Squared distance of the actions without exploration, or Huber's, linear beyond 1."""

    epochs: int = 2
    """Passes over the rollout in each update."""

    minibatches: int = 4
    """Parts into which a rollout is split in each pass; with a memory, of whole environments."""

    gradient_length: int = 15
    """Steps between two optimizer steps of a student with a memory; no gradient goes further."""

    learning_rate: float = 1e-3
    """Adam's step size at the start."""

    lr_anneal: Literal["none", "linear"] = "none"
    """Linear: from learning_rate to 5 % of it over the run."""

    max_grad_norm: float | None = 1.0
    """Largest norm of a gradient; what is longer is scaled down; None: nothing is."""

    @property
    def enabled(self) -> bool:
        """Whether there is a teacher."""
        return bool(self.teacher)

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            InvalidSetting: Names the field, its value and what is allowed.
        """
        check_range(self, "teacher_share", low=0.0, high=1.0)
        for name in ("std", "learning_rate", "max_grad_norm"):
            check_range(self, name, low=0.0, open_low=True)
        for name in ("epochs", "minibatches", "gradient_length"):
            check_range(self, name, low=1)
        for name in ("teacher_groups", "teacher_activation"):
            if getattr(self, name) and not self.teacher:
                raise InvalidSetting(f"distill.{name} is set and distill.teacher is not")
