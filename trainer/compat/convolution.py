"""Convolutions inside models of rsl_rl: what weights say of them, and what has to be said."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from robot_runtime.errors import BadInput
from trainer.compat.layout import CNN

PADDINGS = ("none", "zeros", "reflect", "replicate", "circular")
POOLS = ("none", "max", "avg")


@dataclass(frozen=True, kw_only=True, slots=True)
class CnnHint:
    """What no file says of the convolutions of an observation group; names as in `cnn_cfg`.

    Channels, kernels, normalization and pooling between layers are read off the weights.

    Attributes:
        size: Height and width of the images.
        stride: Stride of every layer, or of each.
        dilation: Dilation of every layer, or of each.
        padding: How images are padded to keep their size: `none`, `zeros`, `reflect`,
            `replicate` or `circular`.
        activation: Nonlinearity after every layer, whatever that of the other layers is.
        max_pool: Whether the last layer is followed by pooling; of the others the file tells.
        global_pool: What is taken over the whole image at the end: `none`, `max` or `avg`.
    """

    size: tuple[int, int]
    stride: int | tuple[int, ...] = 1
    dilation: int | tuple[int, ...] = 1
    padding: str = "none"
    activation: str = "elu"
    max_pool: bool = False
    global_pool: str = "none"

    def __post_init__(self) -> None:
        """Check the names.

        Raises:
            BadInput: One is unknown; the message lists those that exist.
        """
        for name, known in (("padding", PADDINGS), ("global_pool", POOLS)):
            if getattr(self, name) not in known:
                raise BadInput(
                    f"unknown {name} '{getattr(self, name)}'; there are: {', '.join(known)}"
                )


def image_groups(state: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return the observation groups that a model convolves, in its order."""
    names = [key.removeprefix(CNN).split(".")[0] for key in state if key.startswith(CNN)]
    return tuple(dict.fromkeys(names))


def make_convolutions(
    group: str, state: Mapping[str, Tensor], hint: CnnHint, activation: nn.Module
) -> nn.Sequential:
    """Build the convolutions of a group, numbered as in the file, from images to a flat vector.

    Args:
        group: The observation group.
        state: The model's weights, by the names of release 5.
        hint: What they do not say.
        activation: The nonlinearity.

    Raises:
        BadInput: The weights do not fit the hint.
    """
    prefix = f"{CNN}{group}."
    kernels = {
        int(key.removeprefix(prefix).split(".")[0]): value
        for key, value in state.items()
        if key.startswith(prefix) and key.endswith(".weight") and value.ndim == 4
    }
    places, size = sorted(kernels), hint.size
    if not places or places[0] != 0:
        raise BadInput(f"'{prefix}': there are no convolutions from layer 0 on")
    layers: list[nn.Module] = []
    for i, place in enumerate(places):
        convolution = _convolution(kernels[place], i, size, hint)
        layers.append(convolution)
        norm = state.get(f"{prefix}{place + 1}.weight")
        size = _size_after(convolution, size)
        if norm is not None and place + 1 not in kernels:
            shape = (convolution.out_channels, *size)
            layers.append(nn.BatchNorm2d(shape[0]) if norm.ndim == 1 else nn.LayerNorm(list(shape)))
        layers.append(activation)
        last = i + 1 == len(places)
        if hint.max_pool if last else len(layers) < places[i + 1]:
            layers.append(nn.MaxPool2d(kernel_size=3, stride=2, padding=1))
            size = (math.ceil(size[0] / 2), math.ceil(size[1] / 2))
    if hint.global_pool != "none":
        pools = {"max": nn.AdaptiveMaxPool2d, "avg": nn.AdaptiveAvgPool2d}
        layers.append(pools[hint.global_pool]((1, 1)))
    return nn.Sequential(*layers, nn.Flatten(start_dim=1))


def width_of(convolutions: nn.Sequential, channels: int, size: tuple[int, int]) -> int:
    """Return how many numbers come out for images of a size.

    Raises:
        BadInput: Nothing comes out: the images are too small.
    """
    try:
        with torch.no_grad():
            return int(convolutions.eval()(torch.zeros(1, channels, *size)).shape[-1])
    except RuntimeError as error:
        raise BadInput(f"images of {size} do not fit: {' '.join(str(error).split())}") from error


def _convolution(weight: Tensor, i: int, size: tuple[int, int], hint: CnnHint) -> nn.Conv2d:
    out_channels, in_channels, kernel, other = weight.shape
    if kernel != other:
        raise BadInput(f"a convolution has a kernel of {kernel} x {other}; expected a square")
    stride, dilation = (
        value if isinstance(value, int) else value[i] for value in (hint.stride, hint.dilation)
    )
    reach = dilation * (kernel - 1) + 1
    height, width = (
        math.ceil((stride * (side // stride) - side - stride + reach) / 2) for side in size
    )
    padding = (0, 0) if hint.padding == "none" else (height, width)
    mode: Any = "zeros" if hint.padding == "none" else hint.padding
    return nn.Conv2d(
        in_channels,
        out_channels,
        kernel,
        stride=stride,
        dilation=dilation,
        padding=padding,
        padding_mode=mode,
    )


def _size_after(convolution: nn.Conv2d, size: tuple[int, int]) -> tuple[int, int]:
    """Return height and width of what a convolution gives; Dumoulin and Visin 2016, eq. 7."""
    parts = (convolution.kernel_size, convolution.stride, convolution.dilation)
    (height, width) = (
        (side + 2 * int(convolution.padding[axis]) - d[axis] * (k[axis] - 1) - 1) // s[axis] + 1
        for axis, side in enumerate(size)
        for k, s, d in [parts]
    )
    return height, width
