"""The settings of the networks: frozen values that refuse nonsense when they are built."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from trainer.settings import InvalidSetting, check_range, check_widths


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderConfig:
    """What is done with an observation group before anything else."""

    group: str = "policy"
    """The observation group; actor and critic each encode it where they see it."""

    kind: str = "attention"
    """One of conv1d, conv2d, attention, an entry point of surefoot.networks or module:function."""

    shape: tuple[int, ...] = ()
    """How the numbers lie: (length, features), for conv2d (height, width) or (channels, ...)."""

    width: int = 64
    """Length of what the encoder gives."""

    channels: tuple[int, ...] = (32, 32)
    """Channels of each convolution."""

    kernel: int = 3
    """Width of each convolution, an odd number; it is padded at the edges."""

    stride: int = 2
    """Stride of each convolution."""

    heads: int = 4
    """Heads of the attention; they divide `width`."""

    queries: int = 1
    """Learned queries of the attention."""

    options: str = ""
    """Settings of an encoder of another package, in whatever form it reads them."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            InvalidSetting: Names the field, its value and what is allowed.
        """
        for name in ("width", "kernel", "stride", "heads", "queries"):
            check_range(self, name, low=1)
        check_widths(self, "channels")
        check_widths(self, "shape")
        if self.kernel % 2 == 0:
            raise InvalidSetting(f"kernel = {self.kernel}: must be odd")
        if self.width % self.heads:
            raise InvalidSetting(f"heads = {self.heads}: must divide width = {self.width}")


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkConfig:
    """Shape and start of the actor and the critic."""

    kind: str = "mlp"
    """Layers with a memory before the hidden ones: lstm, gru or an entry point; mlp: none."""

    rnn_hidden: int = 128
    """Width of each layer with a memory."""

    rnn_layers: int = 1
    """Number of layers with a memory."""

    critic_memory: bool = True
    """Whether the critic has layers with a memory where the actor has."""

    encoders: tuple[EncoderConfig, ...] = ()
    """What is done with single observation groups before anything else."""

    actor_groups: tuple[str, ...] = ()
    """Observation groups the actor sees, joined; none: policy."""

    critic_groups: tuple[str, ...] = ()
    """Observation groups the critic sees, joined; none: critic if it is there, else policy."""

    shared: bool = False
    """Whether the critic takes what the actor's encoders and memory give, for its own layers."""

    trunk_hidden: tuple[int, ...] = ()
    """Widths of layers after those that actor and critic share too; only where they share."""

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

    critic_normalize_obs: bool | None = None
    """Whether the critic's observations are normalized; None: where the actor's are."""

    obs_clip: float = 10.0
    """Bound of the normalized observations, in standard deviations; 0 switches it off."""

    raw_groups: tuple[str, ...] = ()
    """Observation groups that are left as they are, such as images."""

    norm_eps: float = 0.01
    """Added to the running deviation, so that a constant input is not blown up."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            InvalidSetting: Names the field, its value and what is allowed.
        """
        for name in ("actor_hidden", "critic_hidden", "trunk_hidden"):
            check_widths(self, name)
        self._check_sharing()
        for name in ("rnn_hidden", "rnn_layers"):
            check_range(self, name, low=1)
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

    def _check_sharing(self) -> None:
        """Refuse what contradicts itself about the parts of the networks."""
        groups = [encoder.group for encoder in self.encoders]
        for name in groups:
            if groups.count(name) > 1:
                raise InvalidSetting(f"encoders: the group '{name}' has more than one")
        if self.trunk_hidden and not self.shared:
            raise InvalidSetting(
                f"trunk_hidden = {self.trunk_hidden}: shared layers need shared = True"
            )
        if self.shared and self.critic_groups not in ((), self.actor_groups):
            raise InvalidSetting(
                f"critic_groups = {self.critic_groups}: with shared = True the critic sees what "
                "the actor sees"
            )
