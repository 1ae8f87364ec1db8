"""Our agent under the names of rsl_rl 5, and back: weights, normalizers and Adam's moments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from robot_runtime.errors import BadInput, Refused
from trainer.compat.adam import AdamState, adam_of
from trainer.compat.images import KIND, settings_of
from trainer.compat.infer import infer_architecture
from trainer.compat.layout import CNN, LOG_STD, MLP, NORMALIZER, RNN, SCALAR_STD
from trainer.compat.models import Head, Hints
from trainer.config import NetworkConfig
from trainer.networks.actor_critic import Actor, Critic
from trainer.networks.gaussian_heads import DiagonalGaussian, StateGaussian
from trainer.normalizer import RunningNormalizer
from trainer.ppo import PPO
from trainer.rsl_rl_checkpoints import ForeignCheckpoint

ROLES = ("actor", "critic")

_PREFIXES = {"net.": MLP, "rnn.": RNN}
"""Prefixes of our parameters and of theirs; the deviation and the normalizer are apart."""

_ENCODERS = "encoder.encoders."
"""Prefix of our convolutions, by observation group."""

_STD = "distribution.param"


def hints_of(network: NetworkConfig) -> Hints:
    """Return what checkpoints of networks with these settings do not say.

    Raises:
        Refused: rsl_rl has no such head.
    """
    heads: dict[str, Head | None] = {
        "gaussian": None,
        "state-gaussian": "state_dependent_log_std"
        if network.std_kind == "log"
        else "state_dependent_std",
        "beta": "beta",
    }
    if network.head not in heads:
        raise Refused(f"rsl_rl has no head '{network.head}'; it has: {', '.join(heads)}")
    cnn = {
        one.group: settings_of(one).hint((one.shape[1], one.shape[2]))
        for one in network.encoders
        if one.kind == KIND
    }
    return Hints(
        activation=network.activation,
        head=heads[network.head],
        cnn=cnn,
        action_range=network.action_range,
        norm_eps=network.norm_eps,
    )


def foreign_of(agent: PPO, hints: Hints, *, iteration: int, infos: Any = None) -> ForeignCheckpoint:
    """Return the state of an agent as a checkpoint of rsl_rl 5.

    Args:
        agent: The agent.
        hints: What a checkpoint does not say; see `hints_of`.
        iteration: Index of its last iteration.
        infos: What to keep beside it.
    """
    weights = {role: foreign_weights(_module(agent, role)) for role in ROLES}
    shapes = {role: infer_architecture(role, state, hints, None) for role, state in weights.items()}
    return ForeignCheckpoint(
        layout="surefoot",
        weights=weights,
        shapes=shapes,
        hints=hints,
        iteration=iteration,
        infos=infos,
        optimizer=_adam_of(agent),
    )


def load_foreign(
    agent: PPO, checkpoint: ForeignCheckpoint, parts: frozenset[str], *, strict: bool
) -> None:
    """Put parts of a checkpoint into an agent, all of them or none.

    Args:
        agent: The agent.
        checkpoint: The checkpoint.
        parts: Among `actor`, `critic` and `optimizer`.
        strict: Whether both have to have the same parameters; else what is in both is taken.

    Raises:
        BadInput: A part is missing, names differ and `strict` is on, or shapes differ.
    """
    state = agent.state_dict()
    for role in ROLES:
        if role in parts:
            if role not in checkpoint.weights:
                raise BadInput(
                    f"the checkpoint has no {role}; it has: {', '.join(checkpoint.weights)}"
                )
            module = _module(agent, role)
            state[role] = own_weights(role, checkpoint.weights[role], module, strict)
    if "optimizer" in parts:
        if checkpoint.optimizer is None:
            raise BadInput("the checkpoint has no optimizer state")
        state["optimizer"] = _optimizer_state(agent, checkpoint.optimizer, strict)
    agent.load_state_dict(state)


def _module(agent: PPO, role: str) -> Actor | Critic:
    return agent.actor if role == "actor" else agent.critic


def foreign_name(name: str, module: nn.Module) -> str:
    """Return the name of one of our parameters in rsl_rl 5."""
    if name == _STD:
        assert isinstance(module, Actor)
        assert isinstance(module.distribution, DiagonalGaussian)
        return LOG_STD if module.distribution.kind == "log" else SCALAR_STD
    if name.startswith(_ENCODERS):
        group, _, layer = name.removeprefix(_ENCODERS).partition(".layers.")
        return f"{CNN}{group}.{layer}"
    for ours, theirs in _PREFIXES.items():
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    raise BadInput(f"parameter '{name}' has no counterpart in rsl_rl")


def foreign_weights(module: Actor | Critic) -> dict[str, Tensor]:
    """Return the weights and statistics of a network under their names."""
    state = {
        foreign_name(name, module): value.detach().cpu().clone()
        for name, value in module.named_parameters()
    }
    _shift_deviations(module, state, 1.0)
    normalizer = module.normalizer
    if isinstance(normalizer, RunningNormalizer):
        statistics = {
            "_mean": normalizer.mean[_learned(normalizer)].float().unsqueeze(0),
            "_var": normalizer.var[_learned(normalizer)].float().unsqueeze(0),
            "_std": normalizer.var[_learned(normalizer)].sqrt().float().unsqueeze(0),
            "count": normalizer.count.round().long(),
        }
        state |= {NORMALIZER + name: x.detach().cpu().clone() for name, x in statistics.items()}
    return state


def own_weights(
    role: str, theirs: Mapping[str, Tensor], module: Actor | Critic, strict: bool
) -> dict[str, Tensor]:
    """Return the state dict of a network of ours with their numbers in it."""
    theirs = {name: value.clone() for name, value in theirs.items()}
    _shift_deviations(module, theirs, -1.0)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    names = {foreign_name(name, module): name for name, _ in module.named_parameters()}
    normalizer = module.normalizer
    statistics = {key for key in theirs if key.startswith(NORMALIZER)}
    expected = set(names)
    if isinstance(normalizer, RunningNormalizer):
        expected |= {NORMALIZER + name for name in ("_mean", "_var", "_std", "count")}
    missing, strange = sorted(expected - set(theirs)), sorted(set(theirs) - expected)
    if strict and (missing or strange):
        raise BadInput(
            f"{role}: the checkpoint lacks {missing or 'nothing'} and has {strange or 'nothing'} "
            "that the configured network does not have (strict=False takes what both have)"
        )
    for key, name in names.items():
        if key in theirs:
            if theirs[key].shape != state[name].shape:
                raise BadInput(
                    f"{role}: '{key}' has shape {tuple(theirs[key].shape)} in the checkpoint and "
                    f"{tuple(state[name].shape)} in the configured network"
                )
            state[name] = theirs[key].to(state[name])
    if isinstance(normalizer, RunningNormalizer) and statistics:
        state |= _statistics(role, theirs, normalizer)
    return state


def _shift_deviations(module: nn.Module, theirs: dict[str, Tensor], sign: float) -> None:
    """Move state-dependent deviations: an output of 0 is the first deviation here, 0 there."""
    head = module.distribution if isinstance(module, Actor) else None
    if isinstance(head, StateGaussian):
        last = max(int(key.split(".")[1]) for key in theirs if key.startswith(MLP))
        bias = theirs[f"{MLP}{last}.bias"]
        bias[head.num_outputs // 2 :] += sign * head.start


def _statistics(
    role: str, theirs: Mapping[str, Tensor], normalizer: RunningNormalizer
) -> dict[str, Tensor]:
    mean, var, std = (
        theirs[f"{NORMALIZER}{name}"].squeeze(0) for name in ("_mean", "_var", "_std")
    )
    learned = _learned(normalizer)
    if len(mean) != int(learned.sum()):
        raise BadInput(
            f"{role}: the checkpoint's normalizer is {len(mean)} long, the configured network's "
            f"{int(learned.sum())}"
        )
    values = {
        "mean": mean,
        "var": var,
        "count": theirs[f"{NORMALIZER}count"],
        "center": mean,
        "scale": std + normalizer.eps,
    }
    own = {name: value.clone() for name, value in normalizer.state_dict().items()}
    for name, value in values.items():
        place = ... if name == "count" else learned
        own[name][place] = value.to(own[name])
    return {f"normalizer.{name}": value for name, value in own.items()}


def _learned(normalizer: RunningNormalizer) -> Tensor:
    """Return which numbers rsl_rl normalizes, bool: all but images."""
    raw = normalizer.raw
    return torch.ones_like(normalizer.mean, dtype=torch.bool) if raw is None else ~raw


def _names(agent: PPO) -> list[str]:
    """Return ``role/name`` of every parameter in the order of our optimizer."""
    return [
        f"{role}/{foreign_name(name, _module(agent, role))}"
        for role in ROLES
        for name, _ in _module(agent, role).named_parameters()
    ]


def _parameters(agent: PPO) -> list[nn.Parameter]:
    """Return what has those names."""
    return [p for role in ROLES for p in _module(agent, role).parameters()]


def _adam_of(agent: PPO) -> AdamState:
    adam = adam_of(agent.state_dict()["optimizer"], _names(agent))
    learned = zip(adam.names, (one.requires_grad for one in _parameters(agent)), strict=True)
    kept = {name for name, learns in learned if learns}
    return replace(adam, slots={k: slot for k, slot in adam.slots.items() if k in kept})


def _optimizer_state(agent: PPO, adam: AdamState, strict: bool) -> dict[str, Any]:
    """Return the state dict of our optimizer with their moments in it."""
    state, names = agent.state_dict()["optimizer"], _names(agent)
    if strict and set(adam.names) != set(names):
        differ = sorted(set(adam.names) ^ set(names))
        raise BadInput(f"optimizer: the checkpoint and the configured networks differ in {differ}")
    slots: dict[int, dict[str, Tensor]] = {}
    for i, (name, parameter) in enumerate(zip(names, _parameters(agent), strict=True)):
        slot = adam.slots.get(name)
        if slot is not None and slot.exp_avg.shape == parameter.shape:
            slots[i] = {
                "step": torch.tensor(slot.step, device=parameter.device),
                "exp_avg": slot.exp_avg.to(parameter),
                "exp_avg_sq": slot.exp_avg_sq.to(parameter),
            }
    # The settings of the group stay ours, but for the learning rate.
    (group,) = state["param_groups"]
    group = {**group, "lr": torch.tensor(adam.lr, device=agent.device)}
    return {"state": slots, "param_groups": [group]}
