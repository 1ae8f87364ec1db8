"""A script for rsl_rl 5.5.1, run with its runner and, after one changed import, with ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from robot_runtime.errors import Refused
from tests.trainer.rsl_rl_scripts import MEMORIES, Points, config_5, images, script
from trainer.rsl_rl import OnPolicyRunner
from trainer.rsl_rl_checkpoints import ForeignCheckpoint, Hints, read_rsl_rl_checkpoint

TOLERANCE = 1e-4
"""What is promised; found are differences below 1e-6, sums of float32 in another order."""

PARITY = {"surefoot": {"parity": True}}


def gaussian(**changes: Any) -> dict[str, Any]:
    return {"distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 0.8, **changes}}


def spread(**changes: Any) -> dict[str, Any]:
    kind = {"class_name": "HeteroscedasticGaussianDistribution", "init_std": 0.8}
    return {"distribution_cfg": {**kind, **changes}}


def symmetric(augment: bool, loss: bool) -> dict[str, Any]:
    return config_5(
        symmetry_cfg={
            "data_augmentation_func": images,
            "use_data_augmentation": augment,
            "use_mirror_loss": loss,
            "mirror_loss_coeff": 0.3,
        }
    )


CONFIGS: dict[str, dict[str, Any]] = {
    "mlp": config_5(),
    "log-std": config_5(gaussian(std_type="log")),
    "fixed-std": config_5(gaussian(learn_std=False)),
    "state-std": config_5(spread()),
    "state-log-std": config_5(spread(std_type="log")),
    "normalized-actor": config_5(critic={"obs_normalization": False}),
    "normalized-critic": config_5({"obs_normalization": False}),
    "no-clip-of-values": config_5(use_clipped_value_loss=False, schedule="fixed"),
    "minibatch-advantages": config_5(normalize_advantage_per_mini_batch=True, gamma=0.95),
    **{name: config_5(memory, memory) for name, memory in MEMORIES.items()},
    "lstm-actor": config_5(MEMORIES["lstm1"]),
    "lstm-log-std": config_5(MEMORIES["lstm1"] | gaussian(std_type="log"), MEMORIES["lstm1"]),
    "gru-state-std": config_5(MEMORIES["gru1"] | spread(), MEMORIES["gru1"]),
    "augmentation": symmetric(augment=True, loss=False),
    "mirror-loss": symmetric(augment=False, loss=True),
    "augmentation-and-mirror-loss": symmetric(augment=True, loss=True),
    "symmetry-error": symmetric(augment=False, loss=False),
}


def read(path: Path, config: dict[str, Any]) -> ForeignCheckpoint:
    head = config["actor"]["distribution_cfg"]
    wide = head["class_name"].startswith("Hetero")
    kind: Any = "state_dependent_log_std" if head.get("std_type") == "log" else None
    return read_rsl_rl_checkpoint(
        path, Hints(head=(kind or "state_dependent_std") if wide else None)
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_in_parity_mode_the_weights_are_those_of_rsl_rl(name: str, tmp_path: Path) -> None:
    runners, config = pytest.importorskip("rsl_rl.runners"), CONFIGS[name]
    with torch.random.fork_rng():
        script(runners.OnPolicyRunner, config, tmp_path / "theirs.pt")
        script(OnPolicyRunner, config | PARITY, tmp_path / "ours.pt")
    theirs, ours = (read(tmp_path / f"{which}.pt", config) for which in ("theirs", "ours"))
    assert ours.weights.keys() == theirs.weights.keys()
    for role, state in theirs.weights.items():
        assert list(ours.weights[role]) == list(state)
        for key, value in state.items():
            torch.testing.assert_close(
                ours.weights[role][key], value, rtol=0, atol=TOLERANCE, msg=f"{role}/{key}"
            )
    assert theirs.optimizer is not None
    assert ours.optimizer is not None
    assert ours.optimizer.lr == pytest.approx(theirs.optimizer.lr, rel=1e-5)
    assert ours.optimizer.names == theirs.optimizer.names
    assert set(ours.optimizer.slots) == set(theirs.optimizer.slots)
    for key, slot in theirs.optimizer.slots.items():
        assert ours.optimizer.slots[key].step == slot.step
        torch.testing.assert_close(
            ours.optimizer.slots[key].exp_avg, slot.exp_avg, rtol=0, atol=TOLERANCE, msg=key
        )
    assert (ours.iteration, theirs.iteration) == (2, 2)


def test_without_it_the_same_script_learns_something_else(tmp_path: Path) -> None:
    """The comparison can fail."""
    with torch.random.fork_rng():
        script(OnPolicyRunner, config_5() | PARITY, tmp_path / "parity.pt")
        script(OnPolicyRunner, config_5(), tmp_path / "free.pt")
    key = "mlp.0.weight"
    parity, free = (
        read(tmp_path / f"{name}.pt", config_5()).weights["actor"][key]
        for name in ("parity", "free")
    )
    assert not torch.allclose(free, parity, atol=1e-3)


@pytest.mark.parametrize(("memory", "said"), [
    ({}, "8 environments x 10 steps do not divide into 7"),
    (MEMORIES["gru1"], "8 environments do not divide into 7"),
])  # fmt: skip
def test_parity_wants_minibatches_that_divide(memory: dict[str, Any], said: str) -> None:
    config = config_5(memory, memory, num_mini_batches=7) | PARITY
    with pytest.raises(Refused, match=said):
        OnPolicyRunner(Points(), config)
