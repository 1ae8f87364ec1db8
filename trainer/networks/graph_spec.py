"""What a network computes, as plain arrays: normalize, recurrent layers, dense layers, squash.

Whoever holds a `GraphSpec` can run or write the network without torch. A network of ours gives its
own by a method ``graph_spec()``, built with `normalization_of`, `recurrent_layers` and
`dense_layers`; one that is no such chain (convolutions, attention) has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from trainer.normalizer import RunningNormalizer

Floats = NDArray[np.float32]

ACTIVATIONS = ("", "elu", "gelu", "leakyrelu", "mish", "relu", "selu", "sigmoid", "silu", "tanh")
"""Nonlinearities with the parameters that torch gives them; the empty one is none."""


class NoGraphSpecError(Exception):
    """A network is no chain that a `GraphSpec` describes; the message names the part."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Normalization:
    """``(x - center) / scale``, bounded.

    Attributes:
        center: Shape ``(obs_dim,)``.
        scale: Shape ``(obs_dim,)``.
        clip: Bound of the absolute normalized value; 0 for none.
    """

    center: Floats
    scale: Floats
    clip: float


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RecurrentLayer:
    """One layer of torch's LSTM or GRU, in torch's gate order: i, f, g, o or r, z, n.

    Attributes:
        kind: Which one.
        weight_ih: Shape ``(gates * hidden, inputs)``.
        weight_hh: Shape ``(gates * hidden, hidden)``.
        bias_ih: Shape ``(gates * hidden,)``.
        bias_hh: Shape ``(gates * hidden,)``.
    """

    kind: Literal["lstm", "gru"]
    weight_ih: Floats
    weight_hh: Floats
    bias_ih: Floats
    bias_hh: Floats

    @property
    def hidden(self) -> int:
        """Length of the layer's state."""
        return self.weight_hh.shape[1]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DenseLayer:
    """``activation(weight @ x + bias)``.

    Attributes:
        weight: Shape ``(outputs, inputs)``.
        bias: Shape ``(outputs,)``.
        activation: One of `ACTIVATIONS`.
    """

    weight: Floats
    bias: Floats
    activation: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Squash:
    """From the last layer to the action: ``offset + scale * f(x)``.

    Attributes:
        kind: ``tanh``; or ``beta``, the mean a / (a + b) of a Beta distribution with
            a = 1 + softplus of the first half of x and b = 1 + softplus of the second.
        scale: Shape ``(num_actions,)``.
        offset: Shape ``(num_actions,)``.
    """

    kind: Literal["tanh", "beta"]
    scale: Floats
    offset: Floats


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GraphSpec:
    """A chain from raw observation to mean action.

    Attributes:
        normalization: None where the network takes raw observations.
        recurrent: Layers of one kind and width with a common state, or empty.
        layers: Dense layers after them.
        squash: None where the last layer gives the action.
    """

    normalization: Normalization | None
    recurrent: tuple[RecurrentLayer, ...]
    layers: tuple[DenseLayer, ...]
    squash: Squash | None

    def __post_init__(self) -> None:
        """Refuse layers that do not fit each other.

        Raises:
            NoGraphSpecError: The message names the layer.
        """
        if len({(layer.kind, layer.hidden) for layer in self.recurrent}) > 1:
            raise NoGraphSpecError("recurrent layers of several kinds or widths")
        if not self.layers:
            raise NoGraphSpecError("no dense layer")
        for layer in self.layers:
            if layer.activation not in ACTIVATIONS:
                raise NoGraphSpecError(f"activation {layer.activation!r}")
        width = None if self.normalization is None else len(self.normalization.center)
        for i, weight in enumerate(
            [layer.weight_ih for layer in self.recurrent] + [layer.weight for layer in self.layers]
        ):
            if width is not None and weight.shape[1] != width:
                raise NoGraphSpecError(f"layer {i} takes {weight.shape[1]} numbers of {width}")
            width = self.recurrent[i].hidden if i < len(self.recurrent) else weight.shape[0]

    @property
    def state_shapes(self) -> tuple[tuple[int, int, int], ...]:
        """Shapes of torch's states for a batch of one: h of a GRU, h and c of an LSTM."""
        if not self.recurrent:
            return ()
        shape = (len(self.recurrent), 1, self.recurrent[0].hidden)
        return (shape,) if self.recurrent[0].kind == "gru" else (shape, shape)


def graph_spec_of(actor: nn.Module) -> GraphSpec:
    """The spec of an actor: its own, or that of the parts ``normalizer`` and ``net``.

    Raises:
        NoGraphSpecError: It is no such chain; the message names the part.
    """
    own = getattr(actor, "graph_spec", None)
    if callable(own):
        spec = own()
        assert isinstance(spec, GraphSpec)
        return spec
    normalizer, net = getattr(actor, "normalizer", None), getattr(actor, "net", None)
    if not isinstance(net, nn.Sequential):
        raise NoGraphSpecError(f"{type(actor).__name__} has no graph_spec() and no plain net")
    return GraphSpec(
        normalization=normalization_of(normalizer), recurrent=(), layers=dense_layers(net),
        squash=None,
    )  # fmt: skip


def normalization_of(normalizer: object) -> Normalization | None:
    """What a normalizer of ours does; None for `torch.nn.Identity`.

    Raises:
        NoGraphSpecError: It is neither.
    """
    if isinstance(normalizer, nn.Identity):
        return None
    if not isinstance(normalizer, RunningNormalizer):
        raise NoGraphSpecError(f"normalizer {type(normalizer).__name__}")
    if normalizer.raw is not None:
        raise NoGraphSpecError("observations that are not normalized beside others that are")
    return Normalization(
        center=_array(normalizer.center), scale=_array(normalizer.scale), clip=normalizer.clip
    )


def dense_layers(net: nn.Sequential) -> tuple[DenseLayer, ...]:
    """The layers of a multi-layer perceptron.

    Raises:
        NoGraphSpecError: Something in it is neither linear nor a known nonlinearity.
    """
    layers: list[tuple[nn.Linear, str]] = []
    for module in net:
        if isinstance(module, nn.Linear):
            layers.append((module, ""))
        elif not isinstance(module, nn.Identity):
            name = _activation(module)
            if not layers or layers[-1][1]:
                raise NoGraphSpecError(f"{type(module).__name__} without a linear layer before it")
            layers[-1] = (layers[-1][0], name)
    return tuple(
        DenseLayer(
            weight=_array(linear.weight),
            bias=np.zeros(linear.out_features, np.float32)
            if linear.bias is None
            else _array(linear.bias),
            activation=name,
        )
        for linear, name in layers
    )


def recurrent_layers(rnn: nn.LSTM | nn.GRU) -> tuple[RecurrentLayer, ...]:
    """The layers of an LSTM or GRU of torch.

    Raises:
        NoGraphSpecError: It runs in both directions, projects its state or has no biases.
    """
    if rnn.bidirectional or rnn.proj_size or not rnn.bias:
        raise NoGraphSpecError(f"{type(rnn).__name__} in both directions, projected or unbiased")
    kind = "lstm" if isinstance(rnn, nn.LSTM) else "gru"
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return tuple(
        RecurrentLayer(kind=kind, **{name: _array(getattr(rnn, f"{name}_l{i}")) for name in names})
        for i in range(rnn.num_layers)
    )


def _activation(module: nn.Module) -> str:
    name = type(module).__name__.strip("_").lower()
    usual = {"elu": ("alpha", 1.0), "gelu": ("approximate", "none"),
             "leakyrelu": ("negative_slope", 0.01)}  # fmt: skip
    if name not in ACTIVATIONS[1:]:
        raise NoGraphSpecError(f"layer {type(module).__name__}")
    field, value = usual.get(name, ("", None))
    if getattr(module, field or "__name__", value) != value:
        raise NoGraphSpecError(f"{type(module).__name__} with {field} {getattr(module, field)}")
    return name


def _array(values: Tensor) -> Floats:
    return values.detach().cpu().numpy().astype(np.float32)
