"""Configurations for rsl_rl's `DistillationRunner` as settings of ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from robot_runtime.errors import BadInput
from trainer.compat.model_settings import ModelSettings, read_models
from trainer.compat.report import Reports, SettingReport
from trainer.config import DistillConfig, PPOConfig, TrainConfig

_ALGORITHM: dict[str, tuple[str, Any]] = {
    "num_learning_epochs": ("epochs", 1),
    "gradient_length": ("gradient_length", 15),
    "learning_rate": ("learning_rate", 1e-3),
    "max_grad_norm": ("max_grad_norm", None),
    "loss_type": ("loss", "mse"),
}
"""Settings of the algorithm, ours and release 5's defaults."""

_OFF = ("rnd_cfg", "symmetry_cfg", "multi_gpu_cfg")
"""What rsl_rl refuses in a distillation, or sets itself."""

_IGNORED = {
    "use_mixed_precision": "float32 is used",
    "grad_reduce_bucket_mb": "buckets have a size of their own",
    "optimizer": "Adam",
}

_OLD = ("StudentTeacher", "StudentTeacherRecurrent")
"""Classes of releases 2 and 3 that hold both networks."""

OLD_STD = 0.1
"""Deviation of a student's noise where releases 2 and 3 are told nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DistillationSettings:
    """What a configuration says.

    Attributes:
        student: The student's network, as that of an actor.
        distill: The algorithm; no teacher yet.
        num_steps: Steps per rollout.
        groups: Observation groups of the sets `policy`, which is the student's, and `teacher`; a
            set it says nothing of is absent.
        teacher_activation: Between the layers of the teacher.
        save_interval: Iterations between two files.
        seed: The seed; None where it does not say.
        logger: What it says about the logger.
        report: What became of each setting.
    """

    student: ModelSettings
    distill: DistillConfig
    num_steps: int
    groups: dict[str, Sequence[str]]
    teacher_activation: str
    save_interval: int
    seed: int | None
    logger: Any
    report: tuple[SettingReport, ...]

    def table(self) -> str:
        """Return the report as a table."""
        return "\n".join(str(row) for row in self.report)

    def train_config(
        self, teacher: str, *, num_envs: int, dims: Mapping[str, int], groups: tuple[str, ...],
        seed: int,
    ) -> TrainConfig:  # fmt: skip
        """Return the settings of a run.

        Args:
            teacher: File of the teacher.
            num_envs: Number of environments.
            dims: Length of each observation group of the environment.
            groups: Those the teacher sees.
            seed: Seed of the run.
        """
        network = self.student.network(dims["policy"], dims["policy"])
        # A minibatch of samples for as many steps as rsl_rl takes between two optimizer steps;
        # with a memory every piece is of all environments, as there.
        pieces = max(1, round(self.num_steps / self.distill.gradient_length))
        return TrainConfig(
            num_envs=num_envs,
            seed=seed,
            checkpoint_every=self.save_interval,
            random_episode_length=False,
            network=network,
            ppo=PPOConfig(num_steps=self.num_steps, minibatches=1),
            distill=dataclasses.replace(
                self.distill,
                teacher=teacher,
                teacher_groups=groups,
                teacher_activation=self.teacher_activation,
                minibatches=pieces if network.kind == "mlp" else 1,
            ),
        )


def read_distillation_settings(config: Mapping[str, Any]) -> DistillationSettings:
    """Read a configuration of rsl_rl 2 to 5.

    Raises:
        Refused: It asks for something that is not there; every such setting is named.
        BadInput: A value is missing, of the wrong kind or out of its range.
    """
    reports = Reports()
    for key in ("algorithm", "num_steps_per_env"):
        if config.get(key) is None:
            raise BadInput(f"the configuration has no '{key}'; it has {sorted(config)}")
    _demand_class(reports, "class_name", config.get("class_name"), "DistillationRunner")
    student, teacher = _sections(config, reports)
    models = _read_student(student, reports)
    algorithm = _read_algorithm(config["algorithm"], reports)
    groups = _read_groups(config, reports)
    interval, seed = int(config.get("save_interval") or 50), config.get("seed")
    num_steps, spec = int(config["num_steps_per_env"]), config.get("logger", "tensorboard")
    for key, value, note in (
        ("num_steps_per_env", num_steps, "ppo.num_steps"),
        ("save_interval", interval, "files model_N.pt"),
        ("seed", seed, "noise and minibatches"),
        ("logger", getattr(spec, "__name__", spec), "where metrics go"),
    ):
        reports.add(key, value, "default" if config.get(key) is None else "mapped", note)
    read = {row.key.split(".")[0] for row in reports.rows} | {"algorithm", "policy", "teacher"}
    for key, value in config.items():
        if key not in read:
            reports.add(key, value, "ignored", "nothing depends on it here")
    reports.demand()
    return DistillationSettings(
        student=models,
        distill=DistillConfig(std=models.init_std, **algorithm),
        num_steps=num_steps,
        groups=groups,
        teacher_activation=str(teacher.get("activation") or "elu"),
        save_interval=interval,
        seed=None if seed is None or int(seed) < 0 else int(seed),
        logger=spec,
        report=tuple(reports.rows),
    )


def _sections(
    config: Mapping[str, Any], reports: Reports
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return the sections `student` and `teacher` as release 5 has them."""
    if config.get("student") is not None:
        teacher = config.get("teacher") or {}
        _report_teacher(teacher, "teacher", reports)
        return dict(config["student"]), teacher
    if config.get("policy") is None:
        raise BadInput(f"the configuration has no 'student'; it has {sorted(config)}")
    both = dict(config["policy"])
    name = both.pop("class_name", None)
    _demand_class(reports, "policy.class_name", name, *_OLD)
    of_teacher = {key: both.pop(key) for key in list(both) if key.startswith("teacher_")}
    _report_teacher(of_teacher, "policy", reports)
    normalize = both.pop("student_obs_normalization", config.get("empirical_normalization"))
    if "empirical_normalization" in config:
        reports.add("empirical_normalization", config["empirical_normalization"], "mapped",
                    "network.normalize_obs")  # fmt: skip
    recurrent = str(getattr(name, "__name__", name)).endswith("Recurrent")
    student: dict[str, Any] = {
        "class_name": "RNNModel" if recurrent else "MLPModel",
        "hidden_dims": both.pop("student_hidden_dims", None),
        "activation": both.pop("activation", None),
        "obs_normalization": bool(normalize),
        "distribution_cfg": {
            "class_name": "GaussianDistribution",
            "init_std": both.pop("init_noise_std", None) or OLD_STD,
            "std_type": both.pop("noise_std_type", None),
        },
    }
    return student | both, {"activation": student["activation"]}


def _report_teacher(values: Mapping[str, Any], section: str, reports: Reports) -> None:
    for key, value in values.items():
        if key == "activation":
            reports.add(f"{section}.{key}", value, "mapped", "distill.teacher_activation")
        else:
            reports.add(f"{section}.{key}", value, "ignored", "the teacher's file says it")


def _read_student(section: Mapping[str, Any], reports: Reports) -> ModelSettings:
    """Read the student as the actor that it becomes."""
    own = Reports()
    other = {key: value for key, value in section.items() if key != "distribution_cfg"}
    models = read_models({"actor": section, "critic": other}, own)
    for row in own.rows:
        if not row.key.startswith("critic."):
            key = row.key.replace("actor.", "student.", 1)
            reports.rows.append(dataclasses.replace(row, key=key))
    return models


def _read_algorithm(section: Mapping[str, Any], reports: Reports) -> dict[str, Any]:
    """Read the section `algorithm` into fields of `DistillConfig`."""
    found = dict(section)
    _demand_class(reports, "algorithm.class_name", found.pop("class_name", None), "Distillation")
    settings: dict[str, Any] = {}
    for key, (ours, default) in _ALGORITHM.items():
        value = found.pop(key, None)
        status = "default" if value is None else "mapped"
        # rsl_rl takes 0 for no bound.
        value = default if value is None or (key == "max_grad_norm" and not value) else value
        reports.add(f"algorithm.{key}", value, status, f"distill.{ours}")
        settings[ours] = value
    if settings["loss"] not in ("mse", "huber"):
        raise BadInput(f"algorithm.loss_type = {settings['loss']!r}: there are: mse, huber")
    for key, value in found.items():
        path = f"algorithm.{key}"
        if key == "optimizer" and str(value).lower() != "adam":
            reports.lack("optimizer", path, value)
        elif key in _IGNORED:
            reports.add(path, value, "ignored", _IGNORED[key])
        elif value is None or value is False:
            reports.add(path, value, "ignored", "switched off")
        else:
            note = "rsl_rl refuses it too" if key in _OFF else "no release has this setting"
            reports.add(path, value, "refused", note)
    return settings


def _read_groups(config: Mapping[str, Any], reports: Reports) -> dict[str, Sequence[str]]:
    """Return the observation groups of both, by the names of our sets."""
    stated = config.get("obs_groups") or {}
    groups: dict[str, Sequence[str]] = {}
    for name, members in stated.items():
        ours = {"student": "policy", "policy": "policy", "teacher": "teacher"}.get(name)
        if ours is None:
            reports.add(f"obs_groups.{name}", members, "ignored", "neither of them sees it")
        elif ours not in groups or name == "student":
            reports.add(f"obs_groups.{name}", members, "mapped", f"what the {name} sees")
            groups[ours] = list(members)
    return groups


def _demand_class(reports: Reports, key: str, value: Any, *known: str) -> None:
    """Refuse another class than those of a distillation."""
    name = known[0] if value is None else getattr(value, "__name__", str(value))
    simple = name.replace(":", ".").rpartition(".")[2]
    if simple in known:
        reports.add(key, name, "mapped", "")
    else:
        reports.add(key, name, "refused", f"expected {' or '.join(known)}")
