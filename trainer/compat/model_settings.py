"""The networks in configurations of rsl_rl: `policy` of 2 and 3, `actor`, `critic` of 4 and 5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from robot_runtime.errors import Refused
from trainer.compat.images import CnnSettings, encoder_of
from trainer.compat.report import Reports
from trainer.compat.sections import Memory, Section, read_cnns, read_memory
from trainer.config import NetworkConfig
from trainer.envs.rsl_rl_groups import ImageGroups

Head = Literal["gaussian", "state-gaussian", "beta"]

HEADS: dict[str, Head] = {
    "GaussianDistribution": "gaussian",
    "HeteroscedasticGaussianDistribution": "state-gaussian",
    "BetaDistribution": "beta",
}
"""rsl_rl's distributions and our heads."""

ACTIVATIONS: dict[str, Literal["elu", "relu", "silu", "tanh"]] = {
    "elu": "elu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
"""rsl_rl's names of the activations that networks of ours have."""

HIDDEN = (256, 256, 256)
"""Hidden layers where a configuration says nothing, in all releases."""

STD_RANGE = (1e-6, 1e6)
"""Bounds of the deviation in release 5."""

ACTION_RANGE = (-1.0, 1.0)
"""Where the actions of a Beta distribution lie in release 5, unless it says otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSettings:
    """Both networks.

    Attributes:
        actor_hidden: Widths of the actor's hidden layers; -1 stands for the observation's length.
        critic_hidden: The same of the critic.
        activation: Between the layers.
        normalize_obs: Whether observations of the actor are normalized.
        normalize_critic: The same of the critic.
        std_kind: What is learned, the deviation or its logarithm.
        init_std: Deviation at the start.
        std_range: Bounds of the deviation.
        head: The distribution of the actions.
        learn_std: Whether the deviation is learned; else it stays as it starts.
        action_range: Where the actions of a Beta distribution lie.
        memory: Recurrent layers; None where there are none.
        critic_memory: Whether the critic has them too.
        cnns: Convolutions by observation group; the group "" stands for all images.
        old: Whether the configuration is one of release 2 or 3.
    """

    actor_hidden: tuple[int, ...]
    critic_hidden: tuple[int, ...]
    activation: Literal["elu", "relu", "silu", "tanh"]
    normalize_obs: bool
    normalize_critic: bool
    std_kind: Literal["log", "scalar"]
    init_std: float
    std_range: tuple[float, float]
    head: Head
    learn_std: bool
    action_range: tuple[float, float]
    memory: Memory | None
    critic_memory: bool
    cnns: Mapping[str, CnnSettings]
    old: bool

    def network(
        self, actor_dim: int, critic_dim: int, images: ImageGroups | None = None
    ) -> NetworkConfig:
        """Return the settings of our networks.

        Args:
            actor_dim: Length of what the actor sees, without images.
            critic_dim: Length of what the critic sees, without images.
            images: The images that they see; None: none.

        Raises:
            Refused: There are images and nothing says how they are convolved, or the other way.
        """
        images = images or ImageGroups()
        if bool(images.shapes) != bool(self.cnns):
            raise Refused(
                f"cnn_cfg is of {sorted(self.cnns) or 'no groups'}; the networks see the images "
                f"{sorted(images.shapes) or 'of no group'}"
            )
        for name in images.shapes:
            if name not in self.cnns and "" not in self.cnns:
                raise Refused(f"cnn_cfg has no settings for '{name}'; it has {sorted(self.cnns)}")
        low, high = self.std_range
        memory = self.memory or Memory(kind="mlp", hidden=1, layers=1)
        return NetworkConfig(
            kind=memory.kind,
            rnn_hidden=memory.hidden,
            rnn_layers=memory.layers,
            critic_memory=self.critic_memory,
            encoders=tuple(
                encoder_of(name, self.cnns.get(name) or self.cnns[""], shape)
                for name, shape in images.shapes.items()
            ),
            actor_groups=images.actor,
            critic_groups=images.critic,
            raw_groups=tuple(images.shapes),
            actor_hidden=tuple(actor_dim if n == -1 else n for n in self.actor_hidden),
            critic_hidden=tuple(critic_dim if n == -1 else n for n in self.critic_hidden),
            activation=self.activation,
            head=self.head,
            action_range=self.action_range,
            init_std=self.init_std,
            min_std=max(low, STD_RANGE[0]),
            max_std=high,
            std_kind=self.std_kind,
            normalize_obs=self.normalize_obs,
            critic_normalize_obs=self.normalize_critic,
            # rsl_rl does not bound normalized observations, and files for it cannot say a bound.
            obs_clip=0.0,
            norm_eps=0.01,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Distribution:
    """The distribution of the actions as its section has it."""

    head: Head
    init_std: float
    kind: str
    std_range: tuple[float, float]
    action_range: tuple[float, float]
    learn_std: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class _Model:
    """One network as its section has it."""

    hidden: tuple[int, ...]
    activation: str
    normalize: bool
    memory: Memory | None
    cnns: Mapping[str, CnnSettings]


def read_models(config: Mapping[str, Any], reports: Reports) -> ModelSettings:
    """Read both networks.

    Args:
        config: The whole configuration.
        reports: Takes what became of each key.
    """
    if config.get("actor") is None and config.get("policy") is not None:
        return _read_policy(config, reports)
    if config.get("policy") is not None:
        note = "'actor' and 'critic' take its place"
        reports.add("policy", "...", "ignored", note)
    whole = config.get("empirical_normalization")
    if whole is not None:
        note = "obs_normalization of actor and critic takes its place"
        reports.add("empirical_normalization", whole, "ignored", note)
    return _read_actor_critic(config, reports)


def _read_policy(config: Mapping[str, Any], reports: Reports) -> ModelSettings:
    """Read the section of releases 2 and 3."""
    section = Section("policy", config["policy"], reports)
    name = section.pop("class_name") or "ActorCritic"
    reports.name_class("policy.class_name", name)
    actor_hidden = section.take("actor_hidden_dims", HIDDEN, "network.actor_hidden")
    critic_hidden = section.take("critic_hidden_dims", HIDDEN, "network.critic_hidden")
    activation = section.take("activation", "elu", "network.activation")
    init_std = section.take("init_noise_std", 1.0, "network.init_std")
    kind = section.take("noise_std_type", "scalar", "network.std_kind")
    head = _dependent(section, reports)
    # Release 2 normalizes in the runner, release 3 in the networks.
    whole = config.get("empirical_normalization")
    if whole is not None:
        reports.add("empirical_normalization", whole, "mapped", "network.normalize_obs")
    actor = section.take("actor_obs_normalization", bool(whole), "network.normalize_obs")
    critic = section.take("critic_obs_normalization", bool(whole), "network.normalize_obs")
    memory = read_memory(name, section)
    cnns = [read_cnns(name, section, f"{role}_cnn_cfg") for role in ("actor", "critic")]
    section.rest()
    models = [
        _Model(
            hidden=tuple(hidden), activation=activation, normalize=bool(norm), memory=memory, cnns=c
        )
        for hidden, norm, c in zip(
            (actor_hidden, critic_hidden), (actor, critic), cnns, strict=True
        )
    ]
    distribution = _Distribution(
        head=head, init_std=init_std, kind=kind, std_range=STD_RANGE, action_range=ACTION_RANGE
    )
    return _join(models, distribution, True, reports)


def _read_actor_critic(config: Mapping[str, Any], reports: Reports) -> ModelSettings:
    """Read the sections of releases 4 and 5."""
    models: list[_Model] = []
    actor: list[_Distribution] = []
    for role in ("actor", "critic"):
        section = Section(role, config.get(role) or {}, reports)
        name = section.pop("class_name") or "MLPModel"
        reports.name_class(f"{role}.class_name", name)
        hidden = section.take("hidden_dims", HIDDEN, f"network.{role}_hidden")
        activation = section.take("activation", "elu", "network.activation")
        normalize = section.take("obs_normalization", False, "network.normalize_obs")
        model = _Model(
            hidden=tuple(hidden),
            activation=activation,
            normalize=bool(normalize),
            memory=read_memory(name, section),
            cnns=read_cnns(name, section, "cnn_cfg"),
        )
        models.append(model)
        distribution = section.pop("distribution_cfg")
        old = {key: section.pop(key) for key in ("stochastic", "init_noise_std", "noise_std_type")}
        dependent = _dependent(section, reports)
        if role == "actor":
            actor.append(_distribution(distribution, {**old, "head": dependent}, reports))
        section.rest()
    return _join(models, actor[0], False, reports)


def _distribution(
    config: Mapping[str, Any] | None, old: Mapping[str, Any], reports: Reports
) -> _Distribution:
    """Read the actor's distribution: `distribution_cfg` of 5, or the settings of 4."""
    key = "actor.distribution_cfg"
    if config is None:
        stated = old["init_noise_std"] or old["noise_std_type"]
        if old["stochastic"] is False or (old["stochastic"] is None and not stated):
            reports.lack("deterministic", key, None)
        names = {head: name for name, head in HEADS.items()}
        config = {"class_name": names[old["head"]]}
        config |= {"init_std": old["init_noise_std"], "std_type": old["noise_std_type"]}
    section = Section(key, config, reports)
    name = section.pop("class_name") or "GaussianDistribution"
    reports.name_class(f"{key}.class_name", name)
    head = HEADS.get(str(getattr(name, "__name__", name)), "gaussian")
    learn_std = section.pop("learn_std") is not False
    if not learn_std:
        reports.add(f"{key}.learn_std", False, "mapped", "the deviation stays as it starts")
    action_range = section.pop("action_range") or ACTION_RANGE
    if head == "beta":
        reports.add(f"{key}.action_range", action_range, "mapped", "network.action_range")
        section.rest()
        return _Distribution(
            head=head, init_std=1.0, kind="log", std_range=STD_RANGE, action_range=action_range
        )
    found = _Distribution(
        head=head,
        init_std=section.take("init_std", 1.0, "network.init_std"),
        kind=section.take("std_type", "scalar", "network.std_kind"),
        std_range=section.take("std_range", STD_RANGE, "network.min_std, network.max_std"),
        action_range=action_range,
        learn_std=learn_std,
    )
    section.rest()
    return found


def _dependent(section: Section, reports: Reports) -> Head:
    """Return the head of releases 3 and 4."""
    dependent = section.pop("state_dependent_std")
    if dependent is not None:
        path = f"{section.name}.state_dependent_std"
        reports.add(path, dependent, "mapped", "network.head")
    return "state-gaussian" if dependent else "gaussian"


def _join(
    models: list[_Model], distribution: _Distribution, old: bool, reports: Reports
) -> ModelSettings:
    """Return the settings of both networks, refusing where they cannot differ."""
    actor, critic = models
    names = [str(model.activation).lower() for model in models]
    for name in dict.fromkeys(names):
        if name not in ACTIVATIONS:
            reports.lack("activation", "activation", name)
    if len(set(names)) > 1:
        reports.lack("two_activations", "actor.activation, critic.activation", names)
    if any(critic.cnns.get(name, cnn) != cnn for name, cnn in actor.cnns.items()):
        reports.lack("two_cnns", "actor and critic cnn_cfg", "...")
    memories = [model.memory for model in models]
    if critic.memory not in (None, actor.memory):
        reports.lack("two_memories", "actor and critic recurrent layers", memories)
    return ModelSettings(
        actor_hidden=actor.hidden,
        critic_hidden=critic.hidden,
        activation=ACTIVATIONS.get(names[0], "elu"),
        normalize_obs=actor.normalize,
        normalize_critic=critic.normalize,
        std_kind="log" if distribution.kind == "log" else "scalar",
        init_std=float(distribution.init_std),
        std_range=_pair(distribution.std_range),
        head=distribution.head,
        learn_std=distribution.learn_std,
        action_range=_pair(distribution.action_range),
        memory=actor.memory,
        critic_memory=critic.memory is not None,
        cnns={**critic.cnns, **actor.cnns},
        old=old,
    )


def _pair(values: Sequence[float]) -> tuple[float, float]:
    low, high = values
    return float(low), float(high)
