"""Encoders: what a network does with an observation group before anything else.

An encoder is any module that maps ``(B, in_dim)`` to ``(B, out_dim)`` and says `out_dim`. Those of
other packages are found as entry points of the group `surefoot.networks`, each a `MakeEncoder`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from robot_runtime.entries import load_entry
from trainer.network_config import EncoderConfig, NetworkConfig
from trainer.networks.mlp import make_linear, plain_activation
from trainer.settings import InvalidSetting

NETWORKS = "surefoot.networks"
"""The entry-point group of encoders and of networks with a memory."""


class Encoder(Protocol):
    """A module from one observation group to features.

    Attributes:
        out_dim: Length of the features.
    """

    out_dim: int

    def __call__(self, x: Tensor) -> Tensor:
        """Map normalized observations, ``(B, in_dim)``, to features, ``(B, out_dim)``."""
        ...


class MakeEncoder(Protocol):
    """What an entry point loads to, for an encoder."""

    def __call__(self, in_dim: int, config: EncoderConfig, generator: torch.Generator) -> nn.Module:
        """Build a module that is an `Encoder`.

        Args:
            in_dim: Length of the group.
            config: Its settings.
            generator: Source of the random weights, on the CPU.
        """
        ...


class Convolution(nn.Module):
    """Convolutions over time or over a grid, then one layer; see `Encoder`.

    The numbers of a group lie as ``(length, features)``, frame after frame, or as ``(height,
    width)`` or ``(channels, height, width)``, row after row.
    """

    def __init__(
        self, shape: tuple[int, ...], config: EncoderConfig, activation: str, g: torch.Generator
    ) -> None:
        """Build the layers for numbers of the given shape."""
        super().__init__()
        self._flat = config.kind == "conv1d"
        length_last = (shape[1], shape[0]) if self._flat else (1, *shape)[-3:]
        self._shape = shape if self._flat else length_last
        channels, sizes = length_last[0], list(length_last[1:])
        layers: list[nn.Module] = []
        for width in config.channels:
            layers += [_convolution(self._flat, channels, width, config, g)]
            layers += [plain_activation(activation)]
            channels = width
            # With this padding every layer has at least one place.
            sizes = [(size - 1) // config.stride + 1 for size in sizes]
        self.layers = nn.Sequential(*layers)
        self.out_dim = config.width
        self.out = make_linear(channels * math.prod(sizes), config.width, math.sqrt(2.0), g)
        self.activation = plain_activation(activation)

    def forward(self, x: Tensor) -> Tensor:
        """See `Encoder`."""
        grid = x.reshape(-1, *self._shape)
        grid = grid.transpose(1, 2) if self._flat else grid
        return self.activation(self.out(self.layers(grid).flatten(1)))


class AttentionPool(nn.Module):
    """Learned queries that attend to tokens: frames of a history, or places of a height scan.

    Pooling by multi-head attention (Lee et al. 2019, "Set Transformer", eq. 11), with a learned
    embedding of the token's place; the cost is linear in the number of tokens. See `Encoder`.
    """

    def __init__(
        self, shape: tuple[int, ...], config: EncoderConfig, activation: str, g: torch.Generator
    ) -> None:
        """Build the layers for ``(tokens, features)``."""
        super().__init__()
        width = config.width
        self._shape, self._heads = shape, config.heads
        self.out_dim = width
        self.token = make_linear(shape[1], width, 1.0, g)
        self.place = nn.Parameter(0.1 * torch.randn(shape[0], width, generator=g))
        self.query = nn.Parameter(torch.randn(config.queries, width, generator=g))
        self.key_value = make_linear(width, 2 * width, 1.0, g)
        self.out = make_linear(config.queries * width, width, math.sqrt(2.0), g)
        self.activation = plain_activation(activation)

    def forward(self, x: Tensor) -> Tensor:
        """See `Encoder`."""
        tokens = self.activation(self.token(x.reshape(-1, *self._shape)) + self.place)
        key, value = (self._split(part) for part in self.key_value(tokens).chunk(2, dim=-1))
        query = self._split(self.query.unsqueeze(0)).expand(key.shape[0], -1, -1, -1)
        found = functional.scaled_dot_product_attention(query, key, value)
        return self.activation(self.out(found.transpose(1, 2).flatten(1)))

    def _split(self, x: Tensor) -> Tensor:
        """Return ``(B, tokens, width)`` by head, ``(B, heads, tokens, width / heads)``."""
        return x.unflatten(-1, (self._heads, -1)).transpose(1, 2)


class GroupEncoder(nn.Module):
    """Joined groups, some of them encoded, the others as they are.

    Attributes:
        out_dim: Length of what it gives.
    """

    def __init__(self, dims: Mapping[str, int], encoders: Mapping[str, nn.Module]) -> None:
        """Take the length of each group, in order, and the encoders by group."""
        super().__init__()
        self._dims = dict(dims)
        self.encoders = nn.ModuleDict(encoders)
        widths: dict[str, Any] = {name: module.out_dim for name, module in encoders.items()}
        self.out_dim = int(sum(widths.get(name, dim) for name, dim in dims.items()))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., dim)`` to ``(..., out_dim)``."""
        rows = x.reshape(-1, x.shape[-1])
        parts = rows.split(list(self._dims.values()), dim=-1)
        seen = [
            self.encoders[name](part) if name in self.encoders else part
            for name, part in zip(self._dims, parts, strict=True)
        ]
        return torch.cat(seen, dim=-1).reshape(*x.shape[:-1], self.out_dim)


def make_encoder(
    dims: Mapping[str, int], config: NetworkConfig, generator: torch.Generator
) -> nn.Module:
    """Build what the settings say for a network that sees these groups.

    Raises:
        InvalidSetting: An encoder does not fit its group, or is not known.
    """
    encoders = {
        one.group: _encoder(dims[one.group], one, config.activation, generator)
        for one in config.encoders
        if one.group in dims
    }
    return GroupEncoder(dims, encoders) if encoders else nn.Identity()


def find_network(kind: str, known: tuple[str, ...]) -> Any:
    """Return what the entry point `kind` of the group `surefoot.networks` loads to.

    A kind ``module:function`` is that function.

    Raises:
        InvalidSetting: There is none; the message lists those that exist.
    """
    module, colon, name = kind.partition(":")
    if colon:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise InvalidSetting(f"no kind of network '{kind}': {error}") from error
    found = {entry.name: entry for entry in entry_points(group=NETWORKS)}
    if kind not in found:
        raise InvalidSetting(
            f"unknown kind of network '{kind}'; there are: {', '.join([*known, *sorted(found)])}"
        )
    return load_entry(found[kind])


def _encoder(
    dim: int, config: EncoderConfig, activation: str, generator: torch.Generator
) -> nn.Module:
    known = {"conv1d": (Convolution, (2,)), "conv2d": (Convolution, (2, 3)),
             "attention": (AttentionPool, (2,))}  # fmt: skip
    if config.kind not in known:
        make: MakeEncoder = find_network(config.kind, tuple(known))
        return make(dim, config, generator)
    kind, axes = known[config.kind]
    if len(config.shape) not in axes or math.prod(config.shape) != dim:
        raise InvalidSetting(
            f"network.encoders: shape = {config.shape} of the group '{config.group}': "
            f"{config.kind} takes {' or '.join(map(str, axes))} axes, and the group has {dim} "
            "numbers"
        )
    return kind(config.shape, config, activation, generator)


def _convolution(
    flat: bool, channels: int, width: int, config: EncoderConfig, generator: torch.Generator
) -> nn.Module:
    """Build one layer, orthogonal weights and zero biases."""
    kind = nn.Conv1d if flat else nn.Conv2d
    sizes: dict[str, Any] = {"stride": config.stride, "padding": config.kernel // 2}
    layer = kind(channels, width, config.kernel, **sizes, device="meta").to_empty(device="cpu")
    nn.init.orthogonal_(layer.weight, gain=math.sqrt(2.0), generator=generator)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
