"""Settings: out of range is refused with field and value; plain containers and back."""

import json
import re

import pytest

from robot_runtime.errors import BadInput
from trainer.config import (
    EvaluationConfig,
    InvalidSetting,
    NetworkConfig,
    PPOConfig,
    SymmetryConfig,
    TrainConfig,
    config_from_plain,
    config_to_plain,
)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (PPOConfig, "gamma", 1.01),
        (PPOConfig, "gamma", float("nan")),
        (PPOConfig, "epochs", 0),
        (PPOConfig, "clip", 0.0),
        (PPOConfig, "value_clip", -0.2),
        (PPOConfig, "kl_factor", 1.0),
        (PPOConfig, "learning_rate", 0.1),
        (PPOConfig, "max_grad_norm", float("inf")),
        (SymmetryConfig, "mirror_coef", -1.0),
        (NetworkConfig, "actor_hidden", (32, 0)),
        (NetworkConfig, "init_std", 20.0),
        (NetworkConfig, "obs_clip", -1.0),
        (TrainConfig, "iterations", 0),
        (TrainConfig, "seed", -1),
        (TrainConfig, "seed", 10**23),
        (TrainConfig, "num_envs", 99_999_999_999),
        (EvaluationConfig, "episodes", 99_999_999_999),
        (NetworkConfig, "actor_hidden", (99_999_999_999,)),
    ],
)
def test_out_of_range_names_field_and_value(kind: type, field: str, value: object) -> None:
    with pytest.raises(InvalidSetting, match=re.escape(f"{field} = {value}")):
        kind(**{field: value})


def test_an_invalid_setting_is_both_bad_input_and_a_value_error() -> None:
    assert issubclass(InvalidSetting, BadInput)
    assert issubclass(InvalidSetting, ValueError)


def test_a_rollout_too_small_for_its_minibatches() -> None:
    with pytest.raises(InvalidSetting, match="num_envs \\* num_steps = 6"):
        TrainConfig(num_envs=2, ppo=PPOConfig(num_steps=3, minibatches=4))


CONFIG = TrainConfig(
    seed=7,
    network=NetworkConfig(actor_hidden=(5, 6), obs_clip=0.0),
    ppo=PPOConfig(value_clip=None, symmetry=SymmetryConfig(mirror_coef=0.5)),
)


def test_plain_and_back_also_through_json() -> None:
    plain = config_to_plain(CONFIG)
    assert config_from_plain(plain) == CONFIG
    assert config_from_plain(json.loads(json.dumps(plain))) == CONFIG


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (("ppo", "gamma"), "'ppo.gamma' is missing"),
        (("ppo", "symmetry"), "'ppo.symmetry' is missing"),
        (("network", "init_std"), "'network.init_std' is missing"),
        (("seed",), "'seed' is missing"),
        (("network",), "'network' is missing"),
    ],
)
def test_a_missing_setting_is_named(path: tuple[str, ...], message: str) -> None:
    plain = config_to_plain(CONFIG)
    inner = plain
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    with pytest.raises(InvalidSetting, match=re.escape(message)):
        config_from_plain(plain)


def test_an_unknown_setting_is_named() -> None:
    plain = config_to_plain(CONFIG)
    plain["ppo"]["momentum"] = 0.9
    with pytest.raises(InvalidSetting, match=re.escape("'ppo.momentum' is unknown")):
        config_from_plain(plain)
