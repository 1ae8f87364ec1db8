"""The section `rnd_cfg` of configurations for rsl_rl as settings of ours."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from robot_runtime.errors import BadInput
from trainer.compat.report import Reports
from trainer.extensions.config import RndConfig

logger = logging.getLogger(__name__)

SET = "rnd_state"
"""The observation set of rsl_rl whose novelty is rewarded."""

_KEY = "algorithm.rnd_cfg"

_WIDTHS = {"predictor_hidden_dims": "predictor_hidden", "target_hidden_dims": "target_hidden"}

_SIMPLE: dict[str, tuple[str, Any]] = {
    "weight": ("weight", 0.0),
    "num_outputs": ("num_outputs", 1),
    "activation": ("activation", "elu"),
    "state_normalization": ("normalize_states", False),
    "learning_rate": ("learning_rate", 1e-3),
}
"""Settings that ours have under another name, with rsl_rl's defaults."""

_SCHEDULE = ("mode", "initial_step", "final_step", "final_value")

_RESOLVED = frozenset({"num_states", "obs_groups", "device"})
"""What rsl_rl itself adds to a configuration."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RndSettings:
    """What a configuration says of random network distillation.

    Attributes:
        config: Our settings, but for what depends on the environment.
        widths: Hidden widths as rsl_rl has them, -1 standing for the length of the state.
    """

    config: RndConfig
    widths: dict[str, tuple[int, ...]]

    def resolve(self, dims: Mapping[str, int], step_dt: float | None) -> RndConfig:
        """Return the settings for an environment.

        As in rsl_rl the weight is multiplied by the duration of a step, and `final_value` is not.

        Args:
            dims: Length of each observation group.
            step_dt: Duration of a step, [s]; None where the environment does not tell, in which
                case the weight stays as it is (rsl_rl fails there).
        """
        if step_dt is None:
            logger.warning(
                "%s.weight: the environment has no step_dt, so that the weight is taken as that "
                "of a step, not of a second", _KEY
            )  # fmt: skip
        group = SET if SET in dims else "policy"
        widths = {
            ours: tuple(dims[group] if width == -1 else width for width in self.widths[theirs])
            for theirs, ours in _WIDTHS.items()
        }
        weight = self.config.weight * (1.0 if step_dt is None else step_dt)
        return dataclasses.replace(self.config, weight=weight, groups=(group,), **widths)


def read_rnd(
    section: Mapping[str, Any] | None, epochs: int, minibatches: int, reports: Reports
) -> RndSettings | None:
    """Read the section; None where it is off.

    Args:
        section: The value of `rnd_cfg`.
        epochs: Passes of PPO over a rollout, which the predictor takes along with it.
        minibatches: Parts of a pass.
        reports: Takes what became of each setting.

    Raises:
        BadInput: A value is of the wrong kind or out of its range.
    """
    if not section:
        reports.add(_KEY, section, "mapped", "off")
        return None
    found = {key: value for key, value in section.items() if key not in _RESOLVED}
    # rsl_rl: the norm of the error, no bound on states, and the deviation of the discounted sum.
    ours: dict[str, Any] = {
        "error": "norm", "state_clip": 0.0, "epochs": epochs, "minibatches": minibatches
    }  # fmt: skip
    for key, (name, default) in _SIMPLE.items():
        value = found.pop(key, None)
        status = "default" if value is None else "mapped"
        ours[name] = default if value is None else value
        reports.add(f"{_KEY}.{key}", ours[name], status, f"rnd.{name}")
    if ours["activation"] not in ("elu", "relu", "silu", "tanh"):
        reports.lack("activation", f"{_KEY}.activation", ours["activation"])
        ours["activation"] = "elu"
    normalize = bool(found.pop("reward_normalization", False))
    ours["normalize_reward"] = "return" if normalize else "none"
    reports.add(f"{_KEY}.reward_normalization", normalize, "mapped", "rnd.normalize_reward")
    ours |= _read_schedule(found.pop("weight_schedule", None), reports)
    widths: dict[str, tuple[int, ...]] = {}
    for key, name in _WIDTHS.items():
        if key not in found:
            raise BadInput(f"{_KEY} has no '{key}'")
        widths[key] = tuple(int(width) for width in found.pop(key))
        reports.add(f"{_KEY}.{key}", widths[key], "mapped", f"rnd.{name}")
    for key, value in found.items():
        reports.add(f"{_KEY}.{key}", value, "refused", "no release of rsl_rl has this setting")
    return RndSettings(config=RndConfig(**ours), widths=widths)


def _read_schedule(section: Mapping[str, Any] | None, reports: Reports) -> dict[str, Any]:
    """Return the fields of the weight's schedule."""
    if not section:
        return {}
    key = f"{_KEY}.weight_schedule"
    mode = section.get("mode")
    if mode not in ("constant", "step", "linear"):
        raise BadInput(f"{key}.mode = {mode!r}: there are constant, step and linear")
    needed = {"constant": (), "step": _SCHEDULE[2:], "linear": _SCHEDULE[1:]}[mode]
    missing = [name for name in needed if name not in section]
    if missing:
        raise BadInput(f"{key}: the mode '{mode}' needs {', '.join(missing)}")
    for name in section:
        if name not in _SCHEDULE:
            reports.add(f"{key}.{name}", section[name], "ignored", "rsl_rl does not look at it")
    reports.add(key, dict(section), "mapped", "rnd.schedule")
    steps = {name: int(section[name]) for name in needed if name.endswith("_step")}
    value = {"final_weight": float(section["final_value"])} if "final_value" in needed else {}
    return {"schedule": mode, **steps, **value}
