"""Models of rsl_rl as torch modules."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from robot_runtime.errors import BadInput
from trainer.compat.convolution import CnnHint, make_convolutions, width_of
from trainer.compat.layout import LOG_STD, MLP, SCALAR_STD
from trainer.networks.graph_spec import (
    DenseLayer,
    GraphSpec,
    NoGraphSpecError,
    Normalization,
    RecurrentLayer,
    Squash,
    dense_layers,
    recurrent_layers,
)

Head = Literal["gaussian", "state_dependent_std", "state_dependent_log_std", "beta", "none"]
"""What the last layer's numbers are: means alone, means and (log) deviations, or alpha and beta."""

WIDE_HEADS: tuple[Head, ...] = ("state_dependent_std", "state_dependent_log_std", "beta")
"""Heads with two numbers per action; no file says which of them it has."""

ANSWERS: tuple[Head, ...] = (*WIDE_HEADS, "none")
"""What a user may answer where a file leaves the head open."""

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "elu": nn.ELU,
    "selu": nn.SELU,
    "relu": nn.ReLU,
    "crelu": nn.CELU,
    "lrelu": nn.LeakyReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "gelu": nn.GELU,
    "swish": nn.SiLU,
    "silu": nn.SiLU,
    "mish": nn.Mish,
    "identity": nn.Identity,
}
"""Nonlinearities by the name rsl_rl's configurations give them."""

State = tuple[Tensor, ...]
"""Recurrent state, each ``(layers, B, hidden)``: (h, c) for LSTM, (h,) for GRU, () for neither."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hints:
    """What no checkpoint of rsl_rl says.

    Attributes:
        activation: Nonlinearity between the layers; all releases default to `elu`.
        head: What the last layer of a model without `std` gives; None: not known.
        action_range: Interval a Beta distribution is stretched to.
        norm_eps: What a normalizer adds to the deviation; 0.01 in all releases.
        cnn: Convolutions, by observation group; needed to build a model that has them.
    """

    activation: str = "elu"
    head: Head | None = None
    action_range: tuple[float, float] = (-1.0, 1.0)
    norm_eps: float = 0.01
    cnn: Mapping[str, CnnHint] = field(default_factory=dict[str, CnnHint])

    def __post_init__(self) -> None:
        """Check the names.

        Raises:
            BadInput: There is no such activation or head; the message lists those that exist.
        """
        if self.activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise BadInput(f"unknown activation '{self.activation}'; there are: {known}")
        if self.head is not None and self.head not in ANSWERS:
            raise BadInput(f"unknown head '{self.head}'; there are: {', '.join(ANSWERS)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """The shape of one model.

    Attributes:
        obs_dim: Length of the observation; without a normalizer a model with images does not say
            it, and it is 0.
        hidden: Widths of the hidden layers, from the input on.
        out_dim: Numbers the last layer gives.
        rnn: `lstm`, `gru` or empty.
        rnn_hidden: Width of the recurrent layers.
        rnn_layers: Number of recurrent layers.
        normalized: Whether observations are normalized.
        head: What the last layer gives.
        num_outputs: Actions, or 1 for a critic.
        images: Observation groups that are images, in the order in which they are joined.
    """

    obs_dim: int
    hidden: tuple[int, ...]
    out_dim: int
    rnn: Literal["lstm", "gru", ""]
    rnn_hidden: int
    rnn_layers: int
    normalized: bool
    head: Head
    num_outputs: int
    images: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return it in one line."""
        steps = [str(self.obs_dim)]
        if self.normalized:
            steps.append("normalizer")
        if self.rnn:
            steps.append(f"{self.rnn}({' x '.join([str(self.rnn_hidden)] * self.rnn_layers)})")
        if self.images:
            steps = [" -> ".join(steps), *(f"cnn({name})" for name in self.images)]
            steps = [f"[{', '.join(steps)}]"]
        steps += [str(width) for width in (*self.hidden, self.out_dim)]
        return " -> ".join(steps) + ("" if self.head == "none" else f", {self.head}")


class RslRlModel(nn.Module):
    """A model of rsl_rl with the parameter names of release 5.

    Attributes:
        architecture: Its shape.
        image_shapes: Channels, height and width of the images it sees, by observation group.
    """

    def __init__(
        self, architecture: Architecture, state: Mapping[str, Tensor], hints: Hints
    ) -> None:
        """Build the model.

        Args:
            architecture: Its shape.
            state: Its weights, by the names of release 5.
            hints: What the weights do not say.
        """
        super().__init__()
        self.architecture = architecture
        self.image_shapes: dict[str, tuple[int, int, int]] = {}
        self._low, high = hints.action_range
        self._span = high - self._low
        if architecture.normalized:
            self.obs_normalizer = _Normalizer(architecture.obs_dim, hints.norm_eps)
        if architecture.head == "gaussian":
            self.distribution = nn.Module()
            name = LOG_STD if LOG_STD in state else SCALAR_STD
            deviation = nn.Parameter(torch.zeros(architecture.num_outputs))
            self.distribution.register_parameter(name.removeprefix("distribution."), deviation)
        width = state[f"{MLP}0.weight"].shape[1]
        self._make_convolutions(state, hints, width)
        self.mlp = _make_mlp(width, architecture, hints.activation)
        if architecture.rnn:
            kind = nn.LSTM if architecture.rnn == "lstm" else nn.GRU
            self.rnn = nn.Module()
            sizes = (architecture.obs_dim, architecture.rnn_hidden, architecture.rnn_layers)
            self.rnn.rnn = kind(*sizes)
        self.load_state_dict({name: value.clone() for name, value in state.items()})
        self.eval().requires_grad_(False)

    def initial_state(self, batch: int) -> State:
        """Return the recurrent state an episode starts with, zeros."""
        shape = (self.architecture.rnn_layers, batch, self.architecture.rnn_hidden)
        count = {"lstm": 2, "gru": 1, "": 0}[self.architecture.rnn]
        return tuple(torch.zeros(shape) for _ in range(count))

    def _make_convolutions(self, state: Mapping[str, Tensor], hints: Hints, width: int) -> None:
        """Build what images go through, if there are any.

        Raises:
            BadInput: `hints` does not say what the file does not, or what it says does not fit.
        """
        shape = self.architecture
        if not shape.images:
            return
        missing = [name for name in shape.images if name not in hints.cnn]
        if missing:
            raise BadInput(
                "the network sees images, and no file says sizes, strides and padding of "
                f"{missing}: in code Hints(cnn={{group: CnnHint(size=(height, width))}}) names "
                "them; there is no policy file of it, because no contract describes images"
            )
        self.cnns = nn.ModuleDict()
        total = 0
        for name in shape.images:
            hint = hints.cnn[name]
            layers = make_convolutions(name, state, hint, ACTIVATIONS[hint.activation]())
            first = layers[0]
            assert isinstance(first, nn.Conv2d)
            self.image_shapes[name] = (first.in_channels, *hint.size)
            total += width_of(layers, first.in_channels, hint.size)
            self.cnns[name] = layers
        seen = width - total
        if seen < 0 or (shape.normalized and seen != shape.obs_dim):
            raise BadInput(
                f"with these hints the convolutions give {total} numbers and the other "
                f"observations are {shape.obs_dim}; 'mlp.0.weight' takes {width}"
            )
        self.architecture = dataclasses.replace(shape, obs_dim=seen)

    def forward(
        self, obs: Tensor, state: State = (), images: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, State]:
        """Take one step without exploration.

        Args:
            obs: Raw observations, ``(B, obs_dim)``.
            state: Recurrent state; empty for a fresh episode.
            images: Observation groups that are images, each ``(B, channels, height, width)``.

        Returns:
            The deterministic action, or the value, ``(B, num_outputs)``, and the next state.
        """
        out, state = self._last_layer(obs, state, images)
        head = self.architecture.head
        if head == "beta":
            alpha, beta = (functional.softplus(part) + 1.0 for part in out.chunk(2, dim=-1))
            return alpha / (alpha + beta) * self._span + self._low, state
        return out[..., : self.architecture.num_outputs], state

    def std(
        self, obs: Tensor, state: State = (), images: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Return the deviation of the action, ``(B, num_outputs)``; see `forward`.

        Raises:
            ValueError: The model has no distribution.
        """
        head = self.architecture.head
        if head == "none":
            raise ValueError("this model is deterministic")
        out, _ = self._last_layer(obs, state, images)
        if head == "gaussian":
            (param,) = self.distribution.parameters()
            std = param.exp() if hasattr(self.distribution, "log_std_param") else param
            return std.expand(out.shape)
        first, second = out.chunk(2, dim=-1)
        if head == "beta":
            alpha, beta = functional.softplus(first) + 1.0, functional.softplus(second) + 1.0
            total = alpha + beta
            return (alpha * beta / (total + 1.0)).sqrt() / total * self._span
        return second.exp() if head == "state_dependent_log_std" else second

    def graph_spec(self) -> GraphSpec:
        """Return what the model computes as plain arrays, for whoever writes or runs it elsewhere.

        Raises:
            NoGraphSpecError: Its activation is none that a `GraphSpec` has, or it sees images.
        """
        shape, normalization = self.architecture, None
        if shape.images:
            raise NoGraphSpecError(f"convolutions of {', '.join(shape.images)}")
        if shape.normalized:
            mean, std = (self.obs_normalizer.get_buffer(x).squeeze(0) for x in ("_mean", "_std"))
            scale = std + self.obs_normalizer.eps
            normalization = Normalization(center=mean.numpy(), scale=scale.numpy(), clip=0.0)
        recurrent: tuple[RecurrentLayer, ...] = ()
        if shape.rnn:
            rnn = self.rnn.get_submodule("rnn")
            assert isinstance(rnn, nn.LSTM | nn.GRU)
            recurrent = recurrent_layers(rnn)
        layers, squash = dense_layers(self.mlp), None
        if shape.head == "beta":
            ones = np.ones(shape.num_outputs, np.float32)
            squash = Squash(kind="beta", scale=self._span * ones, offset=self._low * ones)
        elif shape.out_dim != shape.num_outputs:
            # The rest of the last layer is the deviation, which no action depends on.
            last, count = layers[-1], shape.num_outputs
            head = DenseLayer(weight=last.weight[:count], bias=last.bias[:count], activation="")
            layers = (*layers[:-1], head)
        return GraphSpec(
            normalization=normalization, recurrent=recurrent, layers=layers, squash=squash
        )

    def _last_layer(
        self, obs: Tensor, state: State, images: Mapping[str, Tensor] | None
    ) -> tuple[Tensor, State]:
        """Return what the last layer gives, ``(B, out_dim)``, and the next recurrent state."""
        x = self.obs_normalizer(obs) if self.architecture.normalized else obs
        if self.architecture.rnn:
            start = (part.to(obs.device) for part in self.initial_state(obs.shape[0]))
            state = state or tuple(start)
            before = state if self.architecture.rnn == "lstm" else state[0]
            x, after = self.rnn.get_submodule("rnn")(x.unsqueeze(0), before)
            x, state = x.squeeze(0), after if isinstance(after, tuple) else (after,)
        if self.architecture.images:
            x = torch.cat([x, *self._seen(images or {})], dim=-1)
        return self.mlp(x), state

    def _seen(self, images: Mapping[str, Tensor]) -> list[Tensor]:
        """Return what the convolutions make of images.

        Raises:
            BadInput: One is missing.
        """
        missing = [name for name in self.architecture.images if name not in images]
        if missing:
            raise BadInput(f"the model sees the images {missing}, and none were given")
        return [self.cnns[name](images[name]) for name in self.architecture.images]


class _Normalizer(nn.Module):
    """``(x - mean) / (std + eps)`` with the buffers of rsl_rl's EmpiricalNormalization."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        for name in ("_mean", "_var", "_std"):
            self.register_buffer(name, torch.zeros(1, dim))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        mean, std = self.get_buffer("_mean"), self.get_buffer("_std")
        return (x - mean) / (std + self.eps)


def _make_mlp(width: int, architecture: Architecture, activation: str) -> nn.Sequential:
    layers: list[nn.Module] = []
    for hidden in architecture.hidden:
        layers += [nn.Linear(width, hidden), ACTIVATIONS[activation]()]
        width = hidden
    return nn.Sequential(*layers, nn.Linear(width, architecture.out_dim))
