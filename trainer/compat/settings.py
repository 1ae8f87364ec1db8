"""Configuration dicts of rsl_rl 2 to 5 as settings of ours, with a report of every key."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from robot_runtime.errors import BadInput
from trainer.compat.model_settings import ModelSettings, read_models
from trainer.compat.report import Reports, SettingReport
from trainer.compat.rnd_settings import RndSettings, read_rnd
from trainer.config import PPOConfig, RndConfig, SymmetryConfig, TrainConfig
from trainer.envs.rsl_rl_groups import ImageGroups

_LR_LIMITS = (1e-5, 1e-2)
"""Floor and ceiling of the adaptive learning rate in all releases."""

_SIMPLE: dict[str, tuple[str, Any]] = {
    "num_learning_epochs": ("epochs", 5),
    "num_mini_batches": ("minibatches", 4),
    "clip_param": ("clip", 0.2),
    "gamma": ("gamma", 0.99),
    "lam": ("gae_lambda", 0.95),
    "value_loss_coef": ("value_coef", 1.0),
    "entropy_coef": ("entropy_coef", 0.01),
    "learning_rate": ("learning_rate", 1e-3),
    "max_grad_norm": ("max_grad_norm", 1.0),
}
"""Settings of the algorithm that ours has under another name, with release 5's defaults."""

_RUN_BY_THE_SCRIPT = "the training script's business, not the runner's"

_TOP_IGNORED: dict[str, str] = {
    "max_iterations": "`learn` is told",
    "experiment_name": _RUN_BY_THE_SCRIPT,
    "run_name": _RUN_BY_THE_SCRIPT,
    "resume": _RUN_BY_THE_SCRIPT,
    "load_run": _RUN_BY_THE_SCRIPT,
    "load_checkpoint": _RUN_BY_THE_SCRIPT,
    "device": "the runner is told",
    "clip_actions": "the environment's wrapper clips",
    "check_for_nan": "what is not finite is always caught, and costs its sample, not the run",
    "wandb_project": "for Weights & Biases, where `logger` names it",
    "neptune_project": "Neptune's service ended in March 2026",
    "multi_gpu": "set by rsl_rl itself",
    "upload_model": "files stay in the log folder",
    "wandb_tags": "runs have no tags",
}
"""Settings at the top that change nothing here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunnerSettings:
    """What a configuration of rsl_rl says.

    Attributes:
        ppo: The algorithm.
        models: The networks.
        obs_groups: Observation groups by set; None where it does not say.
        save_interval: Iterations between two files.
        seed: The seed; None where it does not say.
        logger: What it says about the logger.
        symmetry: The augmentation function or its name; None where there is none.
        rnd: What it says of random network distillation; None where it is off.
        parity: Whether to follow rsl_rl 5.5.1 number by number, faults included.
        report: What became of each setting.
    """

    ppo: PPOConfig
    models: ModelSettings
    obs_groups: dict[str, Sequence[str]] | None
    save_interval: int
    seed: int | None
    logger: Any
    symmetry: Any
    rnd: RndSettings | None
    parity: bool
    report: tuple[SettingReport, ...]

    def train_config(
        self,
        *,
        num_envs: int,
        dims: Mapping[str, int],
        seed: int,
        step_dt: float | None = None,
        images: ImageGroups | None = None,
    ) -> TrainConfig:
        """Return the settings of a run.

        Args:
            num_envs: Number of environments.
            dims: Length of each observation group.
            seed: Seed of the run.
            step_dt: Duration of a step, [s]; None where the environment does not tell.
            images: The images that the networks see; None: none.
        """
        actor = dims["policy"]
        return TrainConfig(
            num_envs=num_envs,
            seed=seed,
            checkpoint_every=self.save_interval,
            random_episode_length=False,
            network=self.models.network(actor, dims.get("critic", actor), images),
            ppo=self.ppo,
            rnd=RndConfig() if self.rnd is None else self.rnd.resolve(dims, step_dt),
        )

    def table(self) -> str:
        """Return the report as a table."""
        return "\n".join(str(row) for row in self.report)


def read_settings(config: Mapping[str, Any]) -> RunnerSettings:
    """Read a configuration of rsl_rl 2 to 5.

    Beside rsl_rl's keys it may hold ``surefoot: {"parity": bool}``.

    Raises:
        Refused: It asks for something that is not there; every such setting is named.
        BadInput: A value is of the wrong kind or out of its range.
    """
    config = _plain(config)
    reports = Reports()
    own = dict(config.get("surefoot") or {})
    parity = bool(own.pop("parity", False))
    for key in own:
        raise BadInput(f"unknown setting 'surefoot.{key}'; there is: parity")
    try:
        for key in ("algorithm",):
            if not isinstance(config.get(key), Mapping):
                raise BadInput(f"the configuration has no section '{key}'; it has {sorted(config)}")
        models = read_models(config, reports)
        ppo = _read_algorithm(config, models, parity, reports)
        symmetry = ppo.pop("function")
        rnd = ppo.pop("rnd")
        rest = _read_top(config, reports)
        reports.demand()
        return RunnerSettings(
            ppo=PPOConfig(**ppo),
            models=models,
            symmetry=symmetry,
            rnd=rnd,
            parity=parity,
            report=tuple(reports.rows),
            **rest,
        )
    except (TypeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        text = " ".join(str(error).split())
        raise BadInput(f"the configuration cannot be read: {text}") from error


def _read_algorithm(
    config: Mapping[str, Any], models: ModelSettings, parity: bool, reports: Reports
) -> dict[str, Any]:
    """Read the section `algorithm` into the fields of `PPOConfig`."""
    found = dict(config["algorithm"])
    reports.name_class("algorithm.class_name", found.pop("class_name", "PPO"))
    ppo: dict[str, Any] = {}

    def take(key: str, default: Any, note: str) -> Any:
        value = found.pop(key, None)
        status = "default" if value is None else "mapped"
        value = default if value is None else value
        reports.add(f"algorithm.{key}", value, status, note)
        return value

    for key, (ours, default) in _SIMPLE.items():
        ppo[ours] = take(key, default, f"ppo.{ours}")
    clipped = take("use_clipped_value_loss", True, "ppo.value_clip")
    ppo["value_clip"] = ppo["clip"] if clipped else None
    schedule = take("schedule", "adaptive", "ppo.desired_kl")
    desired = take("desired_kl", 0.01, "ppo.desired_kl")
    ppo["desired_kl"] = desired if schedule == "adaptive" else None
    per_minibatch = take("normalize_advantage_per_mini_batch", False, "ppo.normalize_advantage")
    ppo["normalize_advantage"] = "minibatch" if per_minibatch else "rollout"
    low, high = _LR_LIMITS
    ppo["min_lr"] = min(low, ppo["learning_rate"])
    ppo["max_lr"] = max(high, ppo["learning_rate"])
    # Releases 2 and 3 clip both networks by one norm, 4 and 5 each by its own.
    ppo["grad_clip"] = "joint" if models.old else "separate"
    reports.add("(gradient clipping)", ppo["grad_clip"], "mapped", "ppo.grad_clip, by the release")
    ppo["reuse_permutation"] = parity
    take_num_steps = config.get("num_steps_per_env")
    if take_num_steps is None:
        raise BadInput("the configuration has no 'num_steps_per_env'")
    ppo["num_steps"] = int(take_num_steps)
    reports.add("num_steps_per_env", take_num_steps, "mapped", "ppo.num_steps")
    ppo["compile_backend"] = _compile_backend(config.get("torch_compile_mode"), reports)
    ppo["function"], ppo["symmetry"] = _read_symmetry(
        found.pop("symmetry_cfg", None), parity, reports
    )
    section = found.pop("rnd_cfg", None)
    ppo["rnd"] = read_rnd(section, ppo["epochs"], ppo["minibatches"], reports)
    _read_extensions(found, reports)
    return ppo


def _read_symmetry(
    config: Mapping[str, Any] | None, parity: bool, reports: Reports
) -> tuple[Any, SymmetryConfig]:
    """Return the augmentation function and what is done with mirror images."""
    key = "algorithm.symmetry_cfg"
    if not config:
        reports.add(key, config, "mapped", "off")
        return None, SymmetryConfig()
    names = {"data_augmentation_func", "use_data_augmentation", "use_mirror_loss"}
    for name in config:
        if name not in names | {"mirror_loss_coeff", "_env", "env"}:
            reports.add(f"{key}.{name}", config[name], "refused", "no release has this setting")
    function = config.get("data_augmentation_func")
    if function is None:
        raise BadInput(f"{key} has no 'data_augmentation_func'")
    augment = bool(config.get("use_data_augmentation", False))
    coef = float(config.get("mirror_loss_coeff") or 0.0) if config.get("use_mirror_loss") else 0.0
    what = "ppo.symmetry, the function read as a mirror table"
    reports.add(key, dict(config), "mapped", what if augment or coef else "the error is logged")
    # rsl_rl's normalizers do not learn from images, so that no policy is symmetric with them.
    return function, SymmetryConfig(augment=augment, mirror_coef=coef, mirror_normalizer=not parity)


def _read_extensions(found: dict[str, Any], reports: Reports) -> None:
    """Read what is left of the section `algorithm`."""
    checks: dict[str, Callable[[Any], str]] = {
        "amp_cfg": lambda _: "amp",
        "multi_gpu_cfg": lambda _: "multi_gpu",
        "optimizer": lambda value: "" if str(value).lower() == "adam" else "optimizer",
        "share_cnn_encoders": lambda _: "shared_cnns",
    }
    ignored = {
        "use_mixed_precision": "float32 is used",
        "grad_reduce_bucket_mb": "gradients stay in one process",
        "min_policy_std": "network.min_std is the floor",
    }
    for key, value in found.items():
        path = f"algorithm.{key}"
        if key in checks:
            feature = checks[key](value) if value else ""
            if feature:
                reports.lack(feature, path, value)
            else:
                reports.add(path, value, "mapped", "off" if not value else "")
        elif key in ignored:
            reports.add(path, value, "ignored", ignored[key])
        elif value is None or value is False:
            reports.add(path, value, "ignored", "switched off")
        else:
            reports.add(path, value, "refused", "no release of rsl_rl has this setting")


def _compile_backend(mode: str | None, reports: Reports) -> str:
    if mode is None:
        return ""
    if mode in ("reduce-overhead", "max-autotune"):
        reports.lack("cuda_graphs", "torch_compile_mode", mode)
        return ""
    reports.add("torch_compile_mode", mode, "mapped", "ppo.compile_backend = inductor")
    return "inductor"


def _read_top(config: Mapping[str, Any], reports: Reports) -> dict[str, Any]:
    """Read what stands beside the sections."""
    reports.name_class("class_name", config.get("class_name") or "OnPolicyRunner")
    groups = config.get("obs_groups")
    if groups:
        reports.add("obs_groups", groups, "mapped", "what each network sees")
    interval = int(config.get("save_interval") or 50)
    reports.add("save_interval", interval, "mapped", "files model_N.pt")
    seed = config.get("seed")
    if seed is not None:
        reports.add("seed", seed, "mapped", "exploration and minibatches")
    spec = config.get("logger", "tensorboard")
    named = spec.get("class_name") if isinstance(spec, Mapping) else spec
    reports.add("logger", getattr(named, "__name__", named), "mapped", "where metrics go")
    sections = ("algorithm", "policy", "actor", "critic", "student", "teacher", "surefoot")
    done = {"class_name", "obs_groups", "save_interval", "seed", "num_steps_per_env", "logger",
            "torch_compile_mode", "empirical_normalization", *sections}  # fmt: skip
    for key, value in config.items():
        if key in ("student", "teacher") and value is not None:
            reports.lack("distillation", key, "...")
        elif key not in done:
            note = _TOP_IGNORED.get(key, "no release of rsl_rl has this setting")
            reports.add(key, value, "ignored", note)
    return {
        "obs_groups": dict(groups) if groups else None,
        "save_interval": interval,
        "seed": None if seed is None or int(seed) < 0 else int(seed),
        "logger": spec,
    }


def _plain(config: Any) -> dict[str, Any]:
    """Return a configuration as a dict, without what Isaac Lab marks as missing."""
    if not isinstance(config, Mapping) and hasattr(config, "to_dict"):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        raise BadInput(f"the configuration is a {type(config).__name__}; expected a dict")

    def clean(value: Any) -> Any:
        if isinstance(value, Mapping):
            kept = {key: clean(item) for key, item in value.items()}
            return {key: item for key, item in kept.items() if item is not dataclasses.MISSING}
        return value

    return clean(config)
