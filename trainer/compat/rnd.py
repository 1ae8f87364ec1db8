"""The RND extension inside checkpoints of rsl_rl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from robot_runtime.errors import BadInput
from trainer.compat.adam import AdamState
from trainer.compat.infer import infer_architecture
from trainer.compat.layout import MLP, NORMALIZER
from trainer.compat.models import Hints, RslRlModel

NETS = ("predictor", "target")
STATE_NORMALIZER = "state_normalizer."
REWARD_NORMALIZER = "reward_normalizer.emp_norm."


@dataclass(frozen=True, kw_only=True, slots=True)
class RndWeights:
    """Predictor, frozen target and normalizers of random network distillation.

    Attributes:
        state: Weights and statistics by rsl_rl's names, which all releases share.
        optimizer: Adam of the predictor, names as in `state`; None if the file has none.
        num_states: Length of the observed state.
        num_outputs: Length of the embedding.
    """

    state: dict[str, Tensor]
    optimizer: AdamState | None
    num_states: int
    num_outputs: int

    def module(self, hints: Hints) -> RndModule:
        """Build the two networks."""
        return RndModule(self.state, hints)


class RndModule(nn.Module):
    """Raw states to the embeddings of predictor and target."""

    def __init__(self, state: Mapping[str, Tensor], hints: Hints) -> None:
        """Build both networks from weights by rsl_rl's names."""
        super().__init__()
        self.predictor, self.target = (_net(name, state, hints) for name in NETS)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings of the predictor and of the target, ``(B, num_outputs)`` each."""
        return self.predictor(x)[0], self.target(x)[0]

    def error(self, x: Tensor) -> Tensor:
        """Return the distance of the two, ``(B,)``: the intrinsic reward before scaling."""
        predicted, target = self(x)
        return torch.linalg.vector_norm(target - predicted, dim=-1)


def check_rnd(state: Mapping[str, Tensor], where: str) -> tuple[int, int]:
    """Return length of state and embedding, after checking that the weights fit each other.

    Raises:
        BadInput: They do not; the message names the key.
    """
    known = (*(f"{net}." for net in NETS), STATE_NORMALIZER, REWARD_NORMALIZER)
    strange = [key for key in state if not key.startswith(known)]
    if strange:
        raise BadInput(f"'{where}': keys {strange} are none of rsl_rl's; found: {list(state)}")
    shapes = {net: infer_architecture(net, _canonical(net, state), Hints(head="none"), None)
              for net in NETS}  # fmt: skip
    ends = {(shape.obs_dim, shape.out_dim) for shape in shapes.values()}
    if len(ends) != 1:
        raise BadInput(f"'{where}': predictor and target differ in input or output: {sorted(ends)}")
    return ends.pop()


def predictor_names(state: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return what the optimizer steps, in its order."""
    return tuple(key for key in state if key.startswith("predictor."))


def _canonical(net: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of one network, normalizer included, as those of a model."""
    named = {}
    for key, value in state.items():
        if key.startswith(f"{net}."):
            named[MLP + key.removeprefix(f"{net}.")] = value
        elif key.startswith(STATE_NORMALIZER):
            named[NORMALIZER + key.removeprefix(STATE_NORMALIZER)] = value
    return named


def _net(net: str, state: Mapping[str, Tensor], hints: Hints) -> RslRlModel:
    weights = _canonical(net, state)
    shape = infer_architecture(net, weights, Hints(head="none"), None)
    return RslRlModel(shape, weights, hints)
