"""What comes before the last layers of an actor or a critic, and how it is run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from trainer.network_config import NetworkConfig
from trainer.networks.encoders import GroupEncoder, find_network
from trainer.networks.graph_spec import (
    DenseLayer,
    NoGraphSpecError,
    RecurrentLayer,
    dense_layers,
    recurrent_layers,
)
from trainer.networks.mlp import make_mlp, plain_activation
from trainer.networks.recurrent import Gru, Lstm, Recurrent, State, initial_state
from trainer.normalizer import RunningNormalizer
from trainer.sequences import Padded


class Body(Protocol):
    """From raw observations to features.

    Attributes:
        normalizer: Raw to normalized observations.
        encoder: What is done with single observation groups.
        rnn: Layers with a memory; None where there are none.
        trunk: Layers after them.
    """

    normalizer: nn.Module
    encoder: nn.Module
    rnn: Recurrent | None
    trunk: nn.Module


def features(body: Body, x: Tensor | Padded) -> Tensor:
    """Return what the last layers see of normalized observations.

    Args:
        body: The network.
        x: ``(..., dim)``; sequences where the network has a memory.

    Returns:
        ``(..., width)``; of sequences the samples in their order, ``(rows, width)``.
    """
    if isinstance(x, Tensor):
        return body.trunk(body.encoder(x))
    assert body.rnn is not None, "sequences are for a network with a memory"
    outputs, _ = body.rnn(body.encoder(x.x), x.state)
    return body.trunk(outputs[x.step, x.column])


def recall(body: Body, x: Tensor, state: State) -> tuple[Tensor, State]:
    """Take one step: what the last layers see, and the next state.

    Args:
        body: The network.
        x: Normalized observations, ``(N, dim)``.
        state: The state; empty where an episode begins, and for a network without a memory.
    """
    if body.rnn is None:
        return features(body, x), ()
    state = state or initial_state(body.rnn, x.shape[0], x)
    outputs, state = body.rnn(body.encoder(x).unsqueeze(0), state)
    return body.trunk(outputs.squeeze(0)), state


def body_layers(body: Body) -> tuple[tuple[RecurrentLayer, ...], tuple[DenseLayer, ...]]:
    """Return the recurrent layers and the trunk as plain arrays.

    Raises:
        NoGraphSpecError: A part has no plain form; the message names it.
    """
    if not isinstance(body.encoder, nn.Identity):
        raise NoGraphSpecError("an encoder")
    if not (body.rnn is None or isinstance(body.rnn, Lstm | Gru)):
        raise NoGraphSpecError(f"a memory of the kind {type(body.rnn).__name__}")
    recurrent = () if body.rnn is None else recurrent_layers(body.rnn)
    trunk = dense_layers(body.trunk) if isinstance(body.trunk, nn.Sequential) else ()
    return recurrent, trunk


def make_normalizer(dims: Mapping[str, int], config: NetworkConfig) -> nn.Module:
    """Build what stands between raw observations and a network."""
    if not config.normalize_obs:
        return nn.Identity()
    dim, raw = sum(dims.values()), set(config.raw_groups) & set(dims)
    normalizer = RunningNormalizer(dim, eps=config.norm_eps, clip=config.obs_clip)
    if raw:
        parts = [torch.full((n,), name in raw) for name, n in dims.items()]
        normalizer.leave_alone(torch.cat(parts))
    return normalizer


def make_recurrent(
    encoder: nn.Module, dims: Mapping[str, int], config: NetworkConfig, generator: torch.Generator
) -> tuple[Any, int]:
    """Build the layers with a memory, if there are any.

    Returns:
        The layers or None, and the length of what comes out.

    Raises:
        InvalidSetting: The kind is not known.
    """
    width = encoder.out_dim if isinstance(encoder, GroupEncoder) else sum(dims.values())
    if config.kind == "mlp":
        return None, width
    known = {"lstm": Lstm, "gru": Gru}
    make = known.get(config.kind) or find_network(config.kind, ("mlp", *known))
    rnn = make(width, config.rnn_hidden, config.rnn_layers, generator)
    return rnn, rnn.out_dim


def make_trunk(
    width: int, config: NetworkConfig, generator: torch.Generator
) -> tuple[nn.Module, int]:
    """Build the layers that actor and critic share after encoders and memory.

    Returns:
        The layers, and the length of what comes out.
    """
    if not config.trunk_hidden:
        return nn.Identity(), width
    *hidden, last = config.trunk_hidden
    layers = make_mlp(
        width, hidden, last, activation=config.activation, out_gain=2.0**0.5, generator=generator
    )
    # Several may read what comes out, and the gradient that comes back may be anybody's.
    return layers.append(plain_activation(config.activation)), last
