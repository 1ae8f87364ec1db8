"""The settings of the networks: frozen values that refuse nonsense when they are built."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from trainer.settings import InvalidSetting, check_range


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkConfig:
    """Shape and start of the actor and the critic."""

    actor_hidden: tuple[int, ...] = (128, 64)
    """Widths of the actor's hidden layers, from the input on."""

    critic_hidden: tuple[int, ...] = (128, 64)
    """Widths of the critic's hidden layers, from the input on."""

    activation: Literal["elu", "relu", "silu", "tanh"] = "elu"
    """Nonlinearity after every hidden layer."""

    head: Literal["gaussian", "state-gaussian", "beta", "tanh"] = "gaussian"
    """Distribution of continuous actions; the head of discrete ones is always categorical."""

    action_range: tuple[float, float] = (-1.0, 1.0)
    """Where the actions of the heads `beta` and `tanh` lie, in units of the raw action."""

    init_std: float = 1.0
    """Standard deviation of the exploration noise at the start, in units of the raw action."""

    min_std: float = 0.01
    """Floor of the standard deviation; the gradient stays alive at the floor."""

    max_std: float = 10.0
    """Ceiling of the standard deviation."""

    std_kind: Literal["log", "scalar"] = "log"
    """Whether the logarithm of the standard deviation or the deviation itself is learned."""

    normalize_obs: bool = True
    """Whether observations are normalized by their running mean and deviation."""

    obs_clip: float = 10.0
    """Bound of the normalized observations, in standard deviations; 0 switches it off."""

    norm_eps: float = 0.01
    """Added to the running deviation, so that a constant input is not blown up."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            InvalidSetting: Names the field, its value and what is allowed.
        """
        for name in ("actor_hidden", "critic_hidden"):
            widths = getattr(self, name)
            if any(width < 1 for width in widths):
                raise InvalidSetting(f"{name} = {widths}: every width must be at least 1")
        for name in ("init_std", "min_std", "max_std", "norm_eps"):
            check_range(self, name, low=0.0, open_low=True)
        check_range(self, "obs_clip", low=0.0)
        low, high = self.action_range
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InvalidSetting(
                f"action_range = {self.action_range}: must be finite, the lower bound first"
            )
        if not self.min_std <= self.init_std <= self.max_std:
            raise InvalidSetting(
                f"init_std = {self.init_std}: must lie between min_std = {self.min_std} "
                f"and max_std = {self.max_std}"
            )
