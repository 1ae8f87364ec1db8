"""Heads that are no Gaussian, and the choice of a head."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.distributions import Beta, Choices, likeliest
from trainer.envs.action_space import ActionSpace
from trainer.network_config import NetworkConfig
from trainer.networks.gaussian_heads import DiagonalGaussian, StateGaussian, TanhGaussian
from trainer.networks.graph_spec import NoGraphSpecError, Squash
from trainer.networks.head import Constants, HeadMirror, Interval, live_clamp
from trainer.settings import InvalidSetting
from trainer.symmetry import Mirror

_LOWEST = -8.0
"""Below it softplus would have next to no gradient left: 1 + softplus(-8) is 1.0003."""


class BetaHead(nn.Module):
    """A Beta distribution on an interval: outputs are alphas, then betas, before 1 + softplus.

    Both are at least 1, so that the density has one peak, and at most what gives a deviation of
    `min_std` in the middle; both bounds let the gradient through that leads back inside.
    """

    def __init__(self, dim: int, interval: Interval, *, min_std: float) -> None:
        """Take where actions lie and the floor of the deviation, raw action units."""
        super().__init__()
        self.num_outputs = 2 * dim
        self._interval = interval
        self._low, self._span = interval.low, interval.high - interval.low
        # The deviation of alpha = beta = c on the unit interval is 1 / (2 sqrt(2 c + 1)).
        self._most = max(1.0, 0.5 * ((self._span / (2.0 * min_std)) ** 2 - 1.0))

    def constants(self) -> Constants:
        """See `Head`: nothing."""
        return ()

    def distribution(self, outputs: Tensor, constants: Constants) -> Beta:
        """See `Head`."""
        del constants
        raw = live_clamp(outputs, _LOWEST, self._most)
        alpha, beta = (1.0 + functional.softplus(part) for part in raw.chunk(2, dim=-1))
        return Beta(alpha, beta, self._span)

    def action(self, sample: Tensor) -> Tensor:
        """See `Head`."""
        return self._low + self._span * sample

    def deterministic(self, outputs: Tensor) -> Tensor:
        """See `Head`: the mean."""
        alpha, beta = (1.0 + functional.softplus(part) for part in outputs.chunk(2, dim=-1))
        return self._low + self._span * (alpha / (alpha + beta))

    def reflection(self, mirror: Mirror) -> HeadMirror:
        """See `Head`: turning an action round swaps alpha and beta."""
        self._interval.check(mirror)
        same = mirror.sign > 0.0

        def outputs(x: Tensor) -> Tensor:
            alpha, beta = (part[..., mirror.index] for part in x.chunk(2, dim=-1))
            swapped = torch.where(same, alpha, beta), torch.where(same, beta, alpha)
            return torch.cat(swapped, dim=-1)

        def sample(x: Tensor) -> Tensor:
            x = x[..., mirror.index]
            return torch.where(same, x, 1.0 - x)

        return HeadMirror(outputs, sample)

    def squash(self) -> Squash:
        """See `Head`."""
        return self._interval.squash("beta", self.num_outputs // 2)

    def project_(self) -> None:
        """See `Head`: there are no parameters."""


class CategoricalHead(nn.Module):
    """Choices from lists: outputs are logits, actions are indices as float32."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        """Take how many there are to choose from, for each index."""
        super().__init__()
        self.num_outputs = sum(sizes)
        self._sizes = sizes

    def constants(self) -> Constants:
        """See `Head`: nothing."""
        return ()

    def distribution(self, outputs: Tensor, constants: Constants) -> Choices:
        """See `Head`."""
        del constants
        return Choices.of(outputs, self._sizes)

    def action(self, sample: Tensor) -> Tensor:
        """See `Head`."""
        return sample

    def deterministic(self, outputs: Tensor) -> Tensor:
        """See `Head`: the likeliest choices."""
        return likeliest(outputs, self._sizes)

    def reflection(self, mirror: Mirror) -> HeadMirror:
        """See `Head`: refuses."""
        raise InvalidSetting("ppo.symmetry is switched on, and discrete actions have no mirror")

    def squash(self) -> None:
        """See `Head`: refuses."""
        raise NoGraphSpecError("a choice of the likeliest")

    def project_(self) -> None:
        """See `Head`: there are no parameters."""


Heads = DiagonalGaussian | TanhGaussian | StateGaussian | BetaHead | CategoricalHead
"""The heads there are; each is a `trainer.networks.head.Head`."""


def make_head(space: ActionSpace, config: NetworkConfig) -> Heads:
    """Build the head for an environment's actions.

    Raises:
        InvalidSetting: The settings ask for a continuous head and the actions are discrete.
    """
    if space.kind == "discrete":
        if config.head != "gaussian":
            raise InvalidSetting(
                f"network.head = {config.head}: the actions are discrete (choices: "
                f"{list(space.sizes)}), and their head is categorical"
            )
        return CategoricalHead(space.sizes)
    interval, dim = Interval(*config.action_range), space.num_actions
    if config.head == "beta":
        return BetaHead(dim, interval, min_std=config.min_std)
    kind = StateGaussian if config.head == "state-gaussian" else DiagonalGaussian
    gaussian = kind(
        dim,
        init_std=config.init_std,
        min_std=config.min_std,
        max_std=config.max_std,
        kind=config.std_kind,
    )
    if config.head == "tanh":
        assert isinstance(gaussian, DiagonalGaussian)
        return TanhGaussian(gaussian, interval)
    return gaussian
