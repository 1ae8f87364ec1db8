"""The settings of reward extensions: frozen values that refuse nonsense when they are built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer.settings import InvalidSetting, check_range, check_widths


@dataclass(frozen=True, kw_only=True, slots=True)
class RndConfig:
    """Random network distillation (Burda et al. 2018, arXiv:1810.12894): a reward for novelty."""

    weight: float = 0.0
    """Weight of the intrinsic reward at the start; 0, with a constant schedule: off."""

    schedule: Literal["constant", "step", "linear"] = "constant"
    """Constant; or to final_weight at final_step; or on a line from initial_step to final_step."""

    initial_step: int = 0
    """Control step of every environment at which the linear schedule begins."""

    final_step: int = 0
    """Control step of every environment at which final_weight is reached."""

    final_weight: float = 0.0
    """Weight that step and linear schedules end at."""

    groups: tuple[str, ...] = ("policy",)
    """Observation groups whose novelty is rewarded, joined."""

    error: Literal["mean-square", "norm"] = "mean-square"
    """What novelty is: mean square or Euclidean norm of the predictor's error."""

    normalize_states: bool = True
    """Whether both networks see observations normalized by their running mean and deviation."""

    state_clip: float = 5.0
    """Bound of the normalized observations, in standard deviations; 0 switches it off."""

    normalize_reward: Literal["return", "reward", "none"] = "return"
    """By whose running deviation the reward is divided: of its discounted sum, or its own."""

    gamma: float = 0.99
    """Discount of that sum, which goes on across the ends of episodes."""

    num_outputs: int = 32
    """Length of what the target gives and the predictor learns to say."""

    predictor_hidden: tuple[int, ...] = (64, 64)
    """Widths of the predictor's hidden layers."""

    target_hidden: tuple[int, ...] = (64,)
    """Widths of the target's hidden layers; it is random and stays as it is."""

    activation: Literal["elu", "relu", "silu", "tanh"] = "elu"
    """Nonlinearity after every hidden layer."""

    learning_rate: float = 1e-3
    """Step size of the predictor's own Adam."""

    epochs: int = 1
    """Passes over the rollout in each update."""

    minibatches: int = 4
    """Parts into which a rollout is split in each pass."""

    @property
    def enabled(self) -> bool:
        """Whether there is, or will be, an intrinsic reward."""
        return self.weight > 0.0 or (self.schedule != "constant" and self.final_weight > 0.0)

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            InvalidSetting: Names the field, its value and what is allowed.
        """
        for name in ("weight", "final_weight", "state_clip"):
            check_range(self, name, low=0.0)
        for name in ("initial_step", "final_step"):
            check_range(self, name, low=0)
        for name in ("num_outputs", "epochs", "minibatches"):
            check_range(self, name, low=1)
        check_range(self, "gamma", low=0.0, high=1.0)
        check_range(self, "learning_rate", low=0.0, open_low=True)
        for name in ("predictor_hidden", "target_hidden"):
            check_widths(self, name)
        if not self.groups:
            raise InvalidSetting("rnd.groups is empty: name an observation group, such as policy")
        if self.schedule == "linear" and self.initial_step >= self.final_step:
            raise InvalidSetting(
                f"rnd.final_step = {self.final_step}: must be above initial_step = "
                f"{self.initial_step} for a linear schedule"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class AmpConfig:
    """Adversarial motion priors (Peng et al. 2021, arXiv:2104.02180): a reward for moving alike."""

    motion: str = ""
    """File of the reference motion, see trainer.extensions.motion; empty: off."""

    group: str = "amp"
    """Observation group that is compared with the motion, feature by feature."""

    task_weight: float = 1.0
    """Factor on the task's reward."""

    style_weight: float = 0.2
    """Factor on the style reward, which lies between 0 and 1 in every step."""

    hidden: tuple[int, ...] = (128, 64)
    """Widths of the discriminator's hidden layers."""

    activation: Literal["elu", "relu", "silu", "tanh"] = "elu"
    """Nonlinearity after every hidden layer of the discriminator."""

    learning_rate: float = 3e-4
    """Step size of the discriminator's own Adam."""

    gradient_penalty: float = 10.0
    """Weight of the squared gradient at the reference motion, w_gp of the paper."""

    clip: float = 10.0
    """Bound of the normalized features, in standard deviations; 0 switches it off."""

    norm_eps: float = 0.01
    """Added to the running deviation of each feature."""

    replay: int = 0
    """Transitions of earlier policies kept and trained against as well; 0: the rollout's only."""

    epochs: int = 1
    """Passes over the rollout in each update."""

    minibatches: int = 4
    """Parts into which a rollout is split in each pass."""

    @property
    def enabled(self) -> bool:
        """Whether there is a motion to be like."""
        return bool(self.motion)

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            InvalidSetting: Names the field, its value and what is allowed.
        """
        for name in ("task_weight", "style_weight", "gradient_penalty", "clip"):
            check_range(self, name, low=0.0)
        for name in ("learning_rate", "norm_eps"):
            check_range(self, name, low=0.0, open_low=True)
        for name in ("epochs", "minibatches"):
            check_range(self, name, low=1)
        check_range(self, "replay", low=0)
        check_widths(self, "hidden")
        if not self.group:
            raise InvalidSetting("amp.group is empty: name an observation group")
