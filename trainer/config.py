"""The settings of a training run: frozen values that refuse nonsense when they are built."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trainer.distillation_config import DistillConfig
from trainer.extensions.config import AmpConfig, RndConfig
from trainer.network_config import EncoderConfig, NetworkConfig
from trainer.schedules import LR_FLOOR
from trainer.settings import InvalidSetting, check_range

__all__ = [
    "GONE_LOGGERS",
    "LATER_SETTINGS",
    "LOGGERS",
    "AmpConfig",
    "DistillConfig",
    "EncoderConfig",
    "EvaluationConfig",
    "InvalidSetting",
    "NetworkConfig",
    "PPOConfig",
    "RndConfig",
    "SymmetryConfig",
    "TrainConfig",
    "config_from_plain",
    "config_to_plain",
]


MOST_ENVS = 2**20
"""More environments at once are a slip of the finger."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SymmetryConfig:
    """What is done with the mirror image of each sample; needs a task with a mirror table."""

    augment: bool = False
    """Whether every minibatch is doubled by its mirror image."""

    mirror_coef: float = 0.0
    """Weight of the mirror loss: squared distance of mean(mirrored obs) and mirrored mean(obs)."""

    mirror_normalizer: bool = True
    """Whether the normalizer also learns from the mirror images, so that it is symmetric too."""

    @property
    def enabled(self) -> bool:
        """Whether mirror images are used in the update."""
        return self.augment or self.mirror_coef > 0.0

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            InvalidSetting: Names the field, its value and what is allowed.
        """
        check_range(self, "mirror_coef", low=0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class PPOConfig:
    """Settings of proximal policy optimization (Schulman et al. 2017, arXiv:1707.06347)."""

    num_steps: int = 24
    """Control steps per environment and iteration."""

    epochs: int = 5
    """Passes over the rollout in each update."""

    minibatches: int = 4
    """Parts into which a rollout is split in each pass."""

    gamma: float = 0.99
    """Discount per control step."""

    gae_lambda: float = 0.95
    """Decay of the generalized advantage estimate."""

    clip: float = 0.2
    """Bound of the probability ratio's distance to 1 in the surrogate loss."""

    value_clip: float | None = 0.2
    """Bound of the value's distance to the old value in the value loss; None switches it off."""

    value_coef: float = 1.0
    """Weight of the value loss."""

    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""

    learning_rate: float = 1e-3
    """Adam's step size at the start."""

    desired_kl: float | None = 0.01
    """Target of the KL divergence that adapts the learning rate; None switches that off."""

    kl_factor: float = 1.5
    """By what the learning rate is divided or multiplied when the KL divergence leaves its band."""

    kl_band: float = 2.0
    """The band is desired_kl / kl_band ... desired_kl * kl_band."""

    min_lr: float | None = None
    """Floor of the learning rate; None: 1e-5, or with lr_anneal = linear 5 % of learning_rate."""

    max_lr: float = 1e-2
    """Ceiling of the adaptive learning rate."""

    lr_anneal: Literal["none", "linear"] = "none"
    """Linear: from learning_rate to its floor over the run. Excludes desired_kl."""

    final_std: float | None = None
    """Ceiling of the policy's deviation from 80 % of the run on, approached geometrically."""

    max_grad_norm: float = 1.0
    """Largest norm of a gradient; what is longer is scaled down."""

    grad_clip: Literal["separate", "joint"] = "separate"
    """Whether the norm is taken over actor and critic separately or over both."""

    normalize_advantage: Literal["rollout", "minibatch", "none"] = "rollout"
    """Over what the advantages get mean 0 and deviation 1."""

    adam_eps: float = 1e-8
    """Adam's epsilon."""

    reward_scale: float = 1.0
    """Factor on every reward before it is learned from; logged rewards stay as they are."""

    reuse_permutation: bool = False
    """Whether all epochs see the same minibatches, as in rsl_rl; False: a fresh draw for each."""

    prime_normalizer: bool = False
    """Whether the first rollout teaches the normalizers alone; learning begins with the second."""

    compile_backend: str = ""
    """Backend of torch.compile for both networks in the update ('inductor'); empty: off."""

    symmetry: SymmetryConfig = field(default_factory=SymmetryConfig)
    """What is done with mirror images."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            InvalidSetting: Names the field, its value and what is allowed.
        """
        for name in ("num_steps", "epochs", "minibatches"):
            check_range(self, name, low=1)
        for name in ("gamma", "gae_lambda"):
            check_range(self, name, low=0.0, high=1.0)
        for name in ("clip", "value_clip", "learning_rate", "desired_kl", "min_lr", "max_lr"):
            check_range(self, name, low=0.0, open_low=True)
        for name in ("max_grad_norm", "adam_eps", "reward_scale", "final_std"):
            check_range(self, name, low=0.0, open_low=True)
        for name in ("kl_factor", "kl_band"):
            check_range(self, name, low=1.0, open_low=True)
        for name in ("value_coef", "entropy_coef"):
            check_range(self, name, low=0.0)
        if self.desired_kl is not None and self.lr_anneal != "none":
            raise InvalidSetting(
                f"lr_anneal = {self.lr_anneal} and desired_kl = {self.desired_kl} both set the "
                "learning rate: choose one (desired_kl = None, or lr_anneal = none)"
            )
        high = self.max_lr if self.desired_kl is not None else math.inf
        if not self.lr_floor <= self.learning_rate <= high:
            raise InvalidSetting(
                f"learning_rate = {self.learning_rate}: must lie between min_lr = {self.lr_floor} "
                f"and max_lr = {high}"
            )

    @property
    def lr_floor(self) -> float:
        """The floor of the learning rate that is in effect."""
        if self.min_lr is not None:
            return self.min_lr
        return LR_FLOOR * self.learning_rate if self.lr_anneal == "linear" else 1e-5


LOGGERS = ("tensorboard", "wandb", "mlflow")
"""Writers of metrics that can be named; JSON lines are always written."""

GONE_LOGGERS = {
    "neptune": "the service of Neptune ended in March 2026; pass your own writer, any object with "
    "add_scalar(name, value, step), to trainer.train.train(writers=...)"
}
"""Writers that others offer and that cannot be had any more, and what to do instead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """Evaluation of the deterministic policy while it learns, in environments of its own.

    Nothing here changes what is learned; only the two rules that end a run change how long.
    """

    every: int = 0
    """Iterations between two evaluations; 0: none."""

    episodes: int = 32
    """Episodes of an evaluation, one in each of as many environments, the same ones every time."""

    average: int = 5
    """Evaluations in the moving average of the return."""

    patience: int = 0
    """Evaluations without a new highest moving average after which the run ends; 0: it goes on."""

    target: float | None = None
    """Moving average at which the run ends, once it is one of `average` evaluations."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            InvalidSetting: Names the field, its value and what is allowed.
        """
        for name in ("every", "patience"):
            check_range(self, name, low=0)
        # Every episode has an environment of its own.
        check_range(self, "episodes", low=1, high=MOST_ENVS)
        check_range(self, "average", low=1)
        if self.target is not None and not math.isfinite(self.target):
            raise InvalidSetting(f"target = {self.target}: must be finite")
        if not self.every and (self.patience or self.target is not None):
            raise InvalidSetting(
                "patience and target end a run by its evaluations, and there are none: "
                "set evaluation.every"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Everything that makes a run, apart from the environment."""

    num_envs: int = 256
    """Environments stepped together, in each process."""

    iterations: int = 500
    """Iterations of the whole run; a resumed run counts those that are already done."""

    seed: int = 0
    """The one seed: networks, exploration, minibatches and environment follow from it."""

    device: Literal["cpu", "cuda"] = "cpu"
    """Where the networks learn and, if it can, the environment runs."""

    checkpoint_every: int = 50
    """Iterations between two checkpoints; there is always one at the end."""

    compare_every: int = 50
    """Iterations between two comparisons of what several processes have learned; 0: none."""

    random_episode_length: bool = True
    """Whether the first episodes start at random ages, so that time limits do not coincide."""

    torch_threads: int = 1
    """Threads torch computes with on the CPU: small networks are fastest with one."""

    sim_threads: int = 0
    """Threads the environment may simulate with; 0: as many as there are cores."""

    loggers: tuple[str, ...] = ("tensorboard",)
    """Where metrics go beside metrics.jsonl: any of tensorboard, wandb and mlflow."""

    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Evaluation while training."""

    network: NetworkConfig = field(default_factory=NetworkConfig)
    """Shape and start of the networks."""

    ppo: PPOConfig = field(default_factory=PPOConfig)
    """Settings of the algorithm."""

    rnd: RndConfig = field(default_factory=RndConfig)
    """A reward for novelty."""

    amp: AmpConfig = field(default_factory=AmpConfig)
    """A reward for moving like a reference motion."""

    distill: DistillConfig = field(default_factory=DistillConfig)
    """Learning from a teacher instead of from rewards."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            InvalidSetting: Names the field, its value and what is allowed.
        """
        check_range(self, "num_envs", low=1, high=MOST_ENVS)
        # What torch takes as a seed, with room for those that are derived from it.
        check_range(self, "seed", low=0, high=2**62)
        for name in ("iterations", "checkpoint_every", "torch_threads"):
            check_range(self, name, low=1)
        for name in ("sim_threads", "compare_every"):
            check_range(self, name, low=0)
        _check_loggers(self.loggers)
        samples = self.num_envs * self.ppo.num_steps
        # What learns from a teacher has minibatches of its own, and PPO's do not count.
        of = "distill" if self.distill.enabled else "ppo"
        parts = self.distill.minibatches if self.distill.enabled else self.ppo.minibatches
        if samples < 2 * parts:
            raise InvalidSetting(
                f"{of}.minibatches = {parts}: each needs two samples or more, and a "
                f"rollout has num_envs * num_steps = {samples}"
            )
        if self.network.kind != "mlp" and self.num_envs < parts:
            raise InvalidSetting(
                f"{of}.minibatches = {parts}: with network.kind = {self.network.kind} "
                f"they are made of whole environments, and there are num_envs = {self.num_envs}"
            )
        if self.distill.enabled and (self.rnd.enabled or self.amp.enabled):
            raise InvalidSetting(
                "distill.teacher is set, and rnd or amp change a reward that nobody learns from"
            )


def config_to_plain(config: TrainConfig) -> dict[str, Any]:
    """Turn a config into plain containers, as a checkpoint holds them."""
    return dataclasses.asdict(config)


def config_from_plain(plain: Mapping[str, Any]) -> TrainConfig:
    """Build the config that `config_to_plain` was given.

    Raises:
        InvalidSetting: A field is missing, unknown or out of its range; the message names it.
    """
    rest = dict(_fields_of(TrainConfig, plain, ""))
    network = dict(_fields_of(NetworkConfig, rest.pop("network"), "network."))
    encoders = [_fields_of(EncoderConfig, one, "encoder.") for one in network.pop("encoders")]
    ppo = dict(_fields_of(PPOConfig, rest.pop("ppo"), "ppo."))
    symmetry = _fields_of(SymmetryConfig, ppo.pop("symmetry"), "ppo.symmetry.")
    evaluation = _fields_of(EvaluationConfig, rest.pop("evaluation"), "evaluation.")
    rnd = _fields_of(RndConfig, rest.pop("rnd"), "rnd.")
    amp = _fields_of(AmpConfig, rest.pop("amp"), "amp.")
    distill = _fields_of(DistillConfig, rest.pop("distill"), "distill.")
    return TrainConfig(
        **_with_tuples(rest),
        evaluation=EvaluationConfig(**evaluation),
        network=NetworkConfig(
            **_with_tuples(network),
            encoders=tuple(EncoderConfig(**_with_tuples(one)) for one in encoders),
        ),
        ppo=PPOConfig(**ppo, symmetry=SymmetryConfig(**symmetry)),
        rnd=RndConfig(**_with_tuples(rnd)),
        amp=AmpConfig(**_with_tuples(amp)),
        distill=DistillConfig(**_with_tuples(distill)),
    )


def _fields_of(kind: type, plain: Mapping[str, Any], prefix: str) -> Mapping[str, Any]:
    """Return `plain` after checking that it has exactly the fields of the dataclass `kind`."""
    expected = {item.name for item in dataclasses.fields(kind)}
    lacking = [name for name in expected - set(plain) if prefix + name in LATER_SETTINGS]
    plain = {**plain, **{name: LATER_SETTINGS[prefix + name] for name in lacking}}
    for name in sorted(expected ^ set(plain)):
        what = "is missing" if name in expected else "is unknown"
        raise InvalidSetting(f"setting '{prefix}{name}' {what}")
    return plain


def _with_tuples(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Turn lists, which JSON and some loaders make of tuples, back into tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}


def _check_loggers(names: tuple[str, ...]) -> None:
    """Refuse loggers that do not exist, or do not any more."""
    for name in names:
        if name in GONE_LOGGERS:
            raise InvalidSetting(f"logger '{name}': {GONE_LOGGERS[name]}")
        if name not in LOGGERS:
            raise InvalidSetting(f"unknown logger '{name}'; there are: {', '.join(LOGGERS)}")


LATER_SETTINGS: dict[str, Any] = {
    "loggers": ("tensorboard",),
    "compare_every": 50,
    "evaluation": dataclasses.asdict(EvaluationConfig()),
    "rnd": dataclasses.asdict(RndConfig()),
    "amp": dataclasses.asdict(AmpConfig()),
    "distill": dataclasses.asdict(DistillConfig()),
    "distill.lr_anneal": "none",
    "encoder.options": "",
    "network.encoders": (),
    "network.raw_groups": (),
    "network.critic_normalize_obs": None,
    "network.actor_groups": (),
    "network.critic_groups": (),
    "network.shared": False,
    "network.trunk_hidden": (),
    "network.kind": "mlp",
    "network.rnn_hidden": 128,
    "network.rnn_layers": 1,
    "network.critic_memory": True,
    "network.head": "gaussian",
    "network.action_range": (-1.0, 1.0),
    "ppo.prime_normalizer": False,
}
"""Settings by their full names that older checkpoints of this schema lack, and what they did."""
