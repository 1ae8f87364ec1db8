"""Augmentation functions of rsl_rl's users, read off as mirror tables."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from robot_runtime.errors import BadInput, Refused
from tests.trainer.adapters.rsl_rl_envs import Grouped, LeggedGym, Tuple
from tests.trainer.rsl_rl_scripts import MEMORIES, Points, config_5, images
from trainer.compat.symmetry import read_mirror_table
from trainer.envs.as_rsl_rl import RslRlVecEnv
from trainer.envs.rsl_rl_groups import ObsForm
from trainer.rsl_rl import OnPolicyRunner

CPU = torch.device("cpu")
SETS = {"policy": ["feet", "gravity"], "critic": ["gravity"]}
FORM = ObsForm(kind=dict, shapes={"feet": (4,), "gravity": (3,), "camera": (1, 8, 8)}, device=CPU)


def quadruped(env: Any, obs: Any = None, actions: Tensor | None = None) -> tuple[Any, Any]:
    """Left and right exchanged: feet FL FR RL RR, gravity with its y turned round."""
    assert env == "env"
    if obs is not None:
        assert obs["camera"].shape[1:] == (1, 8, 8)
        turned = obs["gravity"] * torch.tensor([1.0, -1.0, 1.0])
        obs = {
            "feet": torch.cat([obs["feet"], obs["feet"][:, [1, 0, 3, 2]]]),
            "gravity": torch.cat([obs["gravity"], turned]),
            "camera": torch.cat([obs["camera"], obs["camera"].flip(-1)]),
        }
    if actions is not None:
        actions = torch.cat([actions, -actions[:, [1, 0]]])
    return obs, actions


def read(function: Any) -> Any:
    return read_mirror_table(function, "env", SETS, FORM, 2)


def test_what_a_function_does_is_found_number_by_number() -> None:
    table = read(quadruped)
    assert table.obs["policy"].index.tolist() == [1, 0, 3, 2, 4, 5, 6]
    assert table.obs["policy"].sign.tolist() == [1, 1, 1, 1, 1, -1, 1]
    assert table.obs["critic"].sign.tolist() == [1, -1, 1]
    assert (table.action.index.tolist(), table.action.sign.tolist()) == ([1, 0], [-1, -1])


def changed(change: Any) -> Any:
    """The function with what it gives for `feet` changed."""

    def function(env: Any, obs: Any = None, actions: Any = None) -> tuple[Any, Any]:
        found, actions = quadruped(env, obs, actions)
        if found is not None:
            found["feet"] = change(obs["feet"])
        return found, actions

    return function


@pytest.mark.parametrize(("change", "said"), [
    (lambda x: torch.cat([x, x, x, x]), "gives 4 versions of 'feet' with the original"),
    (lambda x: torch.cat([x.flip(-1), x]), "does not return 'feet' itself first"),
    (lambda x: torch.cat([x, 0.5 * x]), "does to 'feet' is no exchange of numbers and signs"),
    (lambda x: torch.cat([x, x.square()]), "is no exchange of numbers and signs"),
    (lambda x: torch.cat([x, x[:, [1, 2, 3, 0]]]), "applied twice this is not the identity"),
    (lambda x: torch.cat([x, x[:, :2]], 0), "the augmentation function fails"),
    (lambda x: None, "gives no images of 'feet'"),
])  # fmt: skip
def test_what_is_no_reflection_is_refused(change: Any, said: str) -> None:
    with pytest.raises(Refused, match="symmetry: ") as caught:
        read(changed(change))
    assert said in str(caught.value)


def test_functions_are_found_by_name() -> None:
    config = config_5(symmetry_cfg={
        "data_augmentation_func": "tests.trainer.rsl_rl_scripts:images",
        "use_data_augmentation": True,
    })  # fmt: skip
    runner = OnPolicyRunner(RslRlVecEnv(Points()), config)
    runner.learn(1)
    config["algorithm"]["symmetry_cfg"]["data_augmentation_func"] = "nowhere:images"
    with pytest.raises(BadInput, match="no augmentation function 'nowhere:images'"):
        OnPolicyRunner(RslRlVecEnv(Points()), config)


@pytest.mark.parametrize("env", [Points, lambda: RslRlVecEnv(Points(), interface="tuple")])
def test_environments_of_ours_and_tuples(env: Any) -> None:
    """Up to release 2 functions get one tensor and are told which group it is."""

    def function(env: Any, obs: Any, actions: Any, obs_type: str = "") -> tuple[Any, Any]:
        if isinstance(obs, Tensor):
            assert obs_type in ("policy", "critic")
            obs = images(env, {"x": obs})[0]["x"]
            return obs, None
        return images(env, obs, actions)

    config = config_5(symmetry_cfg={"data_augmentation_func": function, "use_mirror_loss": True,
                                    "mirror_loss_coeff": 1.0})  # fmt: skip
    runner = OnPolicyRunner(env(), config)
    runner.learn(1)
    assert runner.alg.config.symmetry.mirror_coef == 1.0


def test_a_memory_is_no_hindrance() -> None:
    """rsl_rl refuses both at once."""
    chosen = {"data_augmentation_func": images, "use_data_augmentation": True}
    memory = MEMORIES["lstm1"]
    runner = OnPolicyRunner(RslRlVecEnv(Points()), config_5(memory, memory, symmetry_cfg=chosen))
    runner.learn(2)


@pytest.mark.parametrize(("env", "kind", "shapes"), [
    (Grouped, dict, {"proprio": (2,), "step": (1,)}),
    (Tuple, None, {"policy": (3,), "critic": (6,)}),
    (LeggedGym, None, {"policy": (3,), "critic": (6,)}),
])  # fmt: skip
def test_the_adapter_says_in_what_form_observations_come(env: Any, kind: Any, shapes: Any) -> None:
    from trainer.envs.rsl_rl_adapter import RslRlEnv

    groups = {"actor": ["proprio"], "critic": ["step"]} if kind else None
    form = RslRlEnv(env(), obs_groups=groups).form
    assert (form.kind, dict(form.shapes)) == (kind, shapes)
