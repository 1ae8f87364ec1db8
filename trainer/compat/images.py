"""Images behind rsl_rl's interface: its convolutions as an encoder of ours, and their settings."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from robot_runtime.errors import BadInput
from trainer.compat.convolution import CnnHint, make_convolutions, width_of
from trainer.compat.layout import CNN
from trainer.network_config import EncoderConfig
from trainer.networks.mlp import plain_activation

KIND = "trainer.compat.images:make_images"
"""The kind of the encoder, by which `trainer.networks.encoders` finds it."""

KEYS = {"output_channels", "kernel_size", "stride", "dilation", "padding", "norm", "activation",
        "max_pool", "global_pool", "flatten"}  # fmt: skip
"""Settings of rsl_rl's `CNN`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CnnSettings:
    """The convolutions of an observation group, `cnn_cfg` with every default filled in.

    Attributes:
        channels: Output channels of each layer.
        kernels: Kernel of each layer.
        norms: `none` or `layer` for each layer.
        pools: Whether each layer is followed by pooling.
        stride: Stride of each layer.
        dilation: Dilation of each layer.
        padding: See `trainer.compat.convolution.CnnHint`.
        activation: Nonlinearity after each layer.
        global_pool: See `trainer.compat.convolution.CnnHint`.
    """

    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    norms: tuple[str, ...]
    pools: tuple[bool, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: str
    activation: str
    global_pool: str

    def hint(self, size: tuple[int, int]) -> CnnHint:
        """Return what files of such a network do not say, for images of a size."""
        return CnnHint(
            size=size,
            stride=self.stride,
            dilation=self.dilation,
            padding=self.padding,
            activation=self.activation,
            max_pool=self.pools[-1],
            global_pool=self.global_pool,
        )


def read_cnn(config: Mapping[str, Any], where: str) -> CnnSettings:
    """Read a `cnn_cfg`.

    Raises:
        BadInput: A setting is missing, unknown, or one that is not there.
    """
    unknown = sorted(set(config) - KEYS)
    if unknown or not config.get("output_channels") or not config.get("kernel_size"):
        raise BadInput(
            f"{where}: unknown {unknown or 'nothing'}; needed are 'output_channels' and "
            f"'kernel_size', and there are: {', '.join(sorted(KEYS))}"
        )
    channels = tuple(int(n) for n in config["output_channels"])

    def each(name: str, default: Any) -> tuple[Any, ...]:
        value = config.get(name, default)
        listed = isinstance(value, list | tuple)
        return tuple(value)[: len(channels)] if listed else (value,) * len(channels)

    norms = tuple(str(norm) for norm in each("norm", "none"))
    if not set(norms) <= {"none", "layer"}:
        raise BadInput(f"{where}.norm = {config['norm']}: there are none and layer")
    if config.get("flatten") is False:
        raise BadInput(f"{where}.flatten = False: what follows takes numbers in a row")
    return CnnSettings(
        channels=channels,
        kernels=tuple(int(n) for n in each("kernel_size", 3)),
        norms=norms,
        pools=tuple(bool(pool) for pool in each("max_pool", False)),
        stride=tuple(int(n) for n in each("stride", 1)),
        dilation=tuple(int(n) for n in each("dilation", 1)),
        padding=str(config.get("padding", "none")),
        activation=str(config.get("activation", "elu")),
        global_pool=str(config.get("global_pool", "none")),
    )


def encoder_of(group: str, settings: CnnSettings, shape: tuple[int, ...]) -> EncoderConfig:
    """Return the settings of our encoder for an observation group of images.

    Args:
        group: The group.
        settings: Its convolutions.
        shape: Channels, height and width.
    """
    plain = {name: getattr(settings, name) for name in settings.__slots__}
    return EncoderConfig(group=group, kind=KIND, shape=shape, options=json.dumps(plain))


def settings_of(config: EncoderConfig) -> CnnSettings:
    """Return what `encoder_of` was given."""
    plain: dict[str, Any] = json.loads(config.options)
    plain = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}
    return CnnSettings(**plain)


def make_images(in_dim: int, config: EncoderConfig, generator: torch.Generator) -> nn.Module:
    """Build the encoder; see `trainer.networks.encoders.MakeEncoder`.

    Args:
        in_dim: Length of the group.
        config: Its settings, see `encoder_of`.
        generator: Source of the random weights, orthogonal ones as elsewhere.
    """
    del in_dim
    # Building a layer draws from torch's global generator, which nothing shall depend on.
    with torch.random.fork_rng(devices=[]):
        images = Images(settings_of(config), config.shape)
    for layer in images.layers:
        if isinstance(layer, nn.Conv2d):
            nn.init.orthogonal_(layer.weight, gain=math.sqrt(2.0), generator=generator)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return images


class Images(nn.Module):
    """Convolutions as rsl_rl has them, from flat images to flat features.

    Attributes:
        out_dim: Length of the features.
        layers: The layers, numbered as in rsl_rl's files.
    """

    def __init__(self, settings: CnnSettings, shape: tuple[int, ...]) -> None:
        """Build the layers for images of a shape: channels, height, width."""
        super().__init__()
        channels, height, width = shape
        self._shape = shape
        activation = plain_activation(settings.activation)
        hint = settings.hint((height, width))
        self.layers = make_convolutions("", _placeholders(settings, channels), hint, activation)
        self.out_dim = width_of(self.layers, channels, hint.size)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, channels height width)`` to ``(B, out_dim)``."""
        return self.layers(x.reshape(-1, *self._shape))


def _placeholders(settings: CnnSettings, channels: int) -> dict[str, Tensor]:
    """Return weights that say where each layer lies, as a file would."""
    state: dict[str, Tensor] = {}
    place = 0
    for out, kernel, norm, pool in zip(
        settings.channels, settings.kernels, settings.norms, settings.pools, strict=True
    ):
        state[f"{CNN}.{place}.weight"] = torch.zeros(out, channels, kernel, kernel)
        if norm == "layer":
            place += 1
            state[f"{CNN}.{place}.weight"] = torch.zeros(out, 1, 1)
        place += 2 + pool
        channels = out
    return state
