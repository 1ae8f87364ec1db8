"""What of an extension several processes compare: all of its state that is not of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.extensions.test_amp import make_prior, rollout_of
from tests.trainer.extensions.test_rnd import make_rnd, random_rollout
from trainer.config import RndConfig
from trainer.extensions.seam import RewardExtension

OWN = {"rnd": {"sums", "learner.generator"}, "amp": {"replay", "learner.generator"}}
"""Running sums and remembered transitions are of a process's environments, draws its own."""


def learned(name: str) -> RewardExtension:
    """An extension that has learned once, so that it has moments."""
    if name == "rnd":
        extension, rollout = make_rnd(RndConfig(weight=1.0)), random_rollout()
    else:
        extension, rollout = (
            make_prior(),
            rollout_of(torch.tensor([[[3.0], [0.0]], [[0.0], [0.0]]])),
        )
    extension.mix(rollout, None)
    extension.update(rollout, None)
    return extension


def leaves(value: Any, path: str = "") -> dict[str, Tensor]:
    if isinstance(value, Tensor):
        return {path: value}
    if not isinstance(value, dict | list):
        return {}
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    found: dict[str, Tensor] = {}
    for key, part in pairs:
        found |= leaves(part, f"{path}.{key}" if path else str(key))
    return found


@pytest.mark.parametrize("name", OWN)
def test_all_that_is_learned_or_measured_is_compared(name: str) -> None:
    extension = learned(name)
    compared = {tensor.data_ptr() for tensor in extension.named_tensors().values()}
    state = leaves(extension.state_dict())
    assert {path for path, x in state.items() if x.data_ptr() not in compared} == OWN[name]
    assert len(compared) == len(state) - len(OWN[name])
