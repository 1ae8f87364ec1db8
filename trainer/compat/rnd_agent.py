"""Our random network distillation under the names of rsl_rl, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from robot_runtime.errors import BadInput
from trainer.compat.adam import AdamState, adam_of
from trainer.compat.rnd import REWARD_NORMALIZER, STATE_NORMALIZER, RndWeights, predictor_names
from trainer.extensions.rnd import RandomNetworkDistillation
from trainer.normalizer import RunningNormalizer


def rnd_weights(rnd: RandomNetworkDistillation) -> RndWeights:
    """Return networks, statistics and Adam's moments as a file of rsl_rl holds them."""
    state = {
        f"{net}.{name}": value.detach().cpu().clone()
        for net, module in (("predictor", rnd.predictor), ("target", rnd.target))
        for name, value in module.state_dict().items()
    }
    for prefix, statistics in _normalizers(rnd).items():
        # Of states theirs are (1, dim), of rewards (1,).
        shape = (1, -1) if prefix == STATE_NORMALIZER else (1,)
        state |= {prefix + name: value for name, value in _theirs(statistics, shape).items()}
    names = predictor_names(state)
    adam = adam_of(rnd.state_dict()["learner"]["optimizer"], names)
    shape = state[f"{names[0]}"].shape[1], rnd.config.num_outputs
    return RndWeights(state=state, optimizer=adam, num_states=shape[0], num_outputs=shape[1])


def load_rnd(rnd: RandomNetworkDistillation, weights: RndWeights) -> None:
    """Go on from a file of rsl_rl, which does not say how far the weight's schedule is.

    Raises:
        BadInput: The file has other networks or other normalizers; the message names the first key
            that differs.
    """
    expected = rnd_weights(rnd).state
    differing = [
        key
        for key in sorted(set(expected) | set(weights.state))
        if key not in expected
        or key not in weights.state
        or expected[key].shape != weights.state[key].shape
    ]
    if differing:
        raise BadInput(
            f"rnd_state_dict: '{differing[0]}' is not in both, or has another shape, in the file "
            "and in the configured networks"
        )
    state = rnd.state_dict()
    device = rnd.parameters()[0].device
    state["learner"]["net"], state["target"] = (
        {
            key.removeprefix(net): value.to(device)
            for key, value in weights.state.items()
            if key.startswith(net)
        }
        for net in ("predictor.", "target.")
    )
    for name, prefix, statistics in (
        ("states", STATE_NORMALIZER, rnd.states),
        ("rewards", REWARD_NORMALIZER, rnd.rewards),
    ):
        if prefix in _normalizers(rnd):
            state[name] = _ours(weights.state, prefix, statistics)
    if weights.optimizer is not None:
        state["learner"]["optimizer"] = _adam(rnd, weights.optimizer, device)
    rnd.load_state_dict(state)


def _normalizers(rnd: RandomNetworkDistillation) -> dict[str, RunningNormalizer]:
    """Return the statistics that are used, by their prefix in a file of rsl_rl."""
    found: dict[str, RunningNormalizer] = {}
    if rnd.config.normalize_states:
        found[STATE_NORMALIZER] = rnd.states
    if rnd.config.normalize_reward != "none":
        found[REWARD_NORMALIZER] = rnd.rewards
    return found


def _theirs(normalizer: RunningNormalizer, shape: tuple[int, ...]) -> dict[str, Tensor]:
    values = {
        "_mean": normalizer.mean.float().reshape(shape),
        "_var": normalizer.var.float().reshape(shape),
        "_std": normalizer.var.sqrt().float().reshape(shape),
        "count": normalizer.count.round().long(),
    }
    return {name: value.detach().cpu().clone() for name, value in values.items()}


def _ours(
    state: Mapping[str, Tensor], prefix: str, normalizer: RunningNormalizer
) -> dict[str, Tensor]:
    mean, var, std = (state[f"{prefix}{name}"].flatten() for name in ("_mean", "_var", "_std"))
    values = {
        "mean": mean,
        "var": var,
        "count": state[f"{prefix}count"],
        "center": mean,
        "scale": std + normalizer.eps,
    }
    own = normalizer.state_dict()
    return {name: value.to(own[name]) for name, value in values.items()}


def _adam(rnd: RandomNetworkDistillation, adam: AdamState, device: torch.device) -> dict[str, Any]:
    """Return the state dict of the predictor's optimizer with their moments in it."""
    (group,) = rnd.state_dict()["learner"]["optimizer"]["param_groups"]
    state = adam.to_torch(adam.names)["state"]
    moved = {i: {name: x.to(device) for name, x in slot.items()} for i, slot in state.items()}
    return {"state": moved, "param_groups": [group]}
