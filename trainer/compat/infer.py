"""The shape of a model of rsl_rl, read off its weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from robot_runtime.errors import BadInput
from trainer.compat.convolution import image_groups
from trainer.compat.layout import LOG_STD, MLP, NORMALIZER, RNN, SCALAR_STD
from trainer.compat.models import ANSWERS, WIDE_HEADS, Architecture, Head, Hints


def infer_architecture(
    role: str, state: Mapping[str, Tensor], hints: Hints, num_actions: int | None
) -> Architecture:
    """Read the shape of a model off its weights.

    Args:
        role: Which model it is (`actor`, ...), for messages and because critics have no head.
        state: Its weights, by the names of release 5.
        hints: What the weights do not say.
        num_actions: Number of actions, where another model of the file tells it.

    Raises:
        BadInput: The weights do not fit each other, or leave open what the head is; the message
            names the key, or the setting that would answer.
    """
    widths = _mlp_widths(role, state)
    obs_dim: int | None
    rnn, obs_dim, rnn_hidden, rnn_layers = _rnn_shape(role, state)
    if rnn and rnn_hidden != widths[0]:
        raise BadInput(
            f"{role}: the recurrent layers give {rnn_hidden} numbers and '{MLP}0.weight' takes "
            f"{widths[0]}"
        )
    images = image_groups(state)
    if images:
        # How many of the numbers come from images the weights do not say.
        mean = state.get(f"{NORMALIZER}_mean")
        obs_dim = mean.shape[-1] if mean is not None else None
    else:
        obs_dim = obs_dim or widths[0]
    normalized = any(key.startswith(NORMALIZER) for key in state)
    if normalized and obs_dim is not None:
        _check_normalizer(role, state, obs_dim)
    head = _head(role, state, widths[-1], hints, num_actions)
    return Architecture(
        obs_dim=obs_dim or 0,
        hidden=tuple(widths[1:-1]),
        out_dim=widths[-1],
        rnn=rnn,
        rnn_hidden=rnn_hidden,
        rnn_layers=rnn_layers,
        normalized=normalized,
        head=head,
        images=images,
        num_outputs=widths[-1] // 2 if head in WIDE_HEADS else widths[-1],
    )


def _mlp_widths(role: str, state: Mapping[str, Tensor]) -> list[int]:
    """Return the widths of the MLP, input and output included."""
    keys = [key.removeprefix(MLP) for key in state if key.startswith(MLP)]
    count = len(keys) // 2
    expected = {f"{2 * i}.{part}" for i in range(count) for part in ("weight", "bias")}
    if not keys or set(keys) != expected:
        raise BadInput(
            f"{role}: the MLP's keys are {sorted(keys)}; expected 0.weight, 0.bias, 2.weight, ... "
            "(linear layers with a nonlinearity between them)"
        )
    widths: list[int] = []
    for i in range(count):
        weight, bias = state[f"{MLP}{2 * i}.weight"], state[f"{MLP}{2 * i}.bias"]
        fits = weight.ndim == 2 and bias.shape == weight.shape[:1]
        if not fits or (widths and weight.shape[1] != widths[-1]):
            raise BadInput(
                f"{role}: '{MLP}{2 * i}.weight' has shape {tuple(weight.shape)} and its bias "
                f"{tuple(bias.shape)}, which does not follow a layer of {widths[-1:] or 'nothing'}"
            )
        widths += [*([] if widths else [weight.shape[1]]), weight.shape[0]]
    return widths


def _rnn_shape(
    role: str, state: Mapping[str, Tensor]
) -> tuple[Literal["lstm", "gru", ""], int, int, int]:
    """Return kind, input width, hidden width and number of layers; zeros where there is no RNN."""
    keys = {key.removeprefix(RNN) for key in state if key.startswith(RNN)}
    if not keys:
        return "", 0, 0, 0
    layers = len({key for key in keys if re.fullmatch(r"weight_hh_l\d+", key)})
    parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    if keys != {f"{part}_l{i}" for part in parts for i in range(layers)}:
        raise BadInput(f"{role}: the recurrent layers' keys are {sorted(keys)}: no LSTM, no GRU")
    hidden = state[f"{RNN}weight_hh_l0"].shape[1]
    gates, rest = divmod(state[f"{RNN}weight_hh_l0"].shape[0], hidden)
    if rest or gates not in (3, 4):
        shape = tuple(state[f"{RNN}weight_hh_l0"].shape)
        raise BadInput(f"{role}: '{RNN}weight_hh_l0' has shape {shape}: no LSTM, no GRU")
    obs_dim = state[f"{RNN}weight_ih_l0"].shape[1]
    for i in range(layers):
        width = hidden if i else obs_dim
        matrices = [(gates * hidden, width), (gates * hidden, hidden)]
        biases = [(gates * hidden,)] * 2
        for part, shape in zip(parts, [*matrices, *biases], strict=True):
            found = tuple(state[f"{RNN}{part}_l{i}"].shape)
            if found != shape:
                raise BadInput(f"{role}: '{RNN}{part}_l{i}' has shape {found}, expected {shape}")
    return "lstm" if gates == 4 else "gru", obs_dim, hidden, layers


def _check_normalizer(role: str, state: Mapping[str, Tensor], obs_dim: int) -> None:
    for name in ("_mean", "_var", "_std", "count"):
        shape = () if name == "count" else (1, obs_dim)
        found = state.get(NORMALIZER + name)
        if found is None or tuple(found.shape) != shape:
            what = "is missing" if found is None else f"has shape {tuple(found.shape)}"
            raise BadInput(f"{role}: '{NORMALIZER}{name}' {what}; expected shape {shape}")


def _head(
    role: str, state: Mapping[str, Tensor], width: int, hints: Hints, num_actions: int | None
) -> Head:
    """Return what the last layer gives."""
    found = [name for name in (SCALAR_STD, LOG_STD) if name in state]
    if found:
        if len(found) > 1 or tuple(state[found[0]].shape) != (width,):
            raise BadInput(f"{role}: {found} do not fit a last layer of {width} numbers")
        return "gaussian"
    if role == "critic" or (role != "actor" and width == num_actions):
        return "none"
    if width % 2 and role == "actor":
        raise BadInput(f"{role}: there is no std, and the last layer gives {width} numbers")
    if hints.head is None or (role == "actor" and hints.head == "none"):
        answers = WIDE_HEADS if role == "actor" else ANSWERS
        raise BadInput(
            f"{role}: the file has no std for a last layer of {width} numbers and does not say "
            f"what they are: name the head, one of {', '.join(answers)}"
        )
    return hints.head
