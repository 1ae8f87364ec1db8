"""What an environment returns is brought to one shape, dtype and device, or refused by name."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robot_runtime.errors import Refused
from trainer.env import StepResult
from trainer.seam import conform_step

N = 5
CPU = torch.device("cpu")


def result(**changes: object) -> StepResult:
    plain = StepResult(
        obs={"policy": torch.zeros(N, 3)},
        reward=torch.arange(N, dtype=torch.float32),
        terminated=torch.tensor([0, 1, 0, 0, 1], dtype=torch.bool),
        truncated=torch.tensor([0, 0, 1, 0, 1], dtype=torch.bool),
        final_obs={"policy": torch.ones(N, 3)},
        log={},
    )
    return replace(plain, **changes)  # pyright: ignore[reportArgumentType]


def conform(step: StepResult) -> StepResult:
    return conform_step(step, {"policy": 3}, N, CPU, final_groups=("policy",))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
@pytest.mark.parametrize("shape", [(N,), (N, 1)])
def test_rewards_of_any_dtype_and_with_a_spare_axis(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    got = conform(result(reward=torch.arange(N).to(dtype).reshape(shape))).reward
    assert (got.dtype, got.shape) == (torch.float32, (N,))
    assert got.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
@pytest.mark.parametrize("shape", [(N,), (N, 1)])
def test_flags_of_any_dtype_and_with_a_spare_axis(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    raw = torch.tensor([0, 1, 0, 0, 1]).to(dtype).reshape(shape)
    got = conform(result(terminated=raw, truncated=raw))
    for flags in (got.terminated, got.truncated):
        assert (flags.dtype, flags.shape) == (torch.bool, (N,))
        assert flags.tolist() == [False, True, False, False, True]


def test_observations_of_another_dtype() -> None:
    got = conform(result(obs={"policy": torch.ones(N, 3, dtype=torch.float64)}))
    assert got.obs["policy"].dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": torch.zeros(N, N)}, r"reward has shape \(5, 5\)"),
        ({"reward": torch.zeros(1)}, r"reward has shape \(1,\)"),
        ({"reward": torch.tensor(0.0)}, r"reward has shape \(\)"),
        ({"terminated": torch.zeros(1, N)}, r"terminated has shape \(1, 5\)"),
        ({"truncated": torch.zeros(N + 1)}, r"truncated has shape \(6,\)"),
        ({"obs": {"policy": torch.zeros(N, 4)}}, r"'policy' has shape \(5, 4\)"),
        ({"obs": {"state": torch.zeros(N, 3)}}, r"no observation group 'policy', only \['state'\]"),
        ({"final_obs": {"policy": torch.zeros(1, 3)}}, r"'policy' has shape \(1, 3\)"),
        ({"reward": torch.zeros(N, dtype=torch.complex64)}, "complex"),
        ({"reward": np.zeros(N)}, r"reward is a numpy\.ndarray; expected a torch tensor"),
        ({"truncated": [False] * N}, r"truncated is a builtins\.list; expected a torch tensor"),
        ({"obs": {"policy": np.zeros((N, 3))}}, r"'policy' is a numpy\.ndarray"),
        ({"obs": torch.zeros(N, 3)}, "observations are a Tensor, not tensors by group: policy"),
        ({"final_obs": (torch.zeros(N, 3), {})}, "observations are a tuple"),
    ],
)
def test_everything_else_is_refused_and_never_broadcast(
    changes: dict[str, Tensor], message: str
) -> None:
    with pytest.raises(Refused, match=message):
        conform(result(**changes))


def test_a_step_as_in_gymnasium_is_refused() -> None:
    step = result()
    five: Any = (step.obs, step.reward, step.terminated, step.truncated, {})
    with pytest.raises(Refused, match="step gives a tuple, not a StepResult"):
        conform(five)


def test_an_environment_on_another_device() -> None:
    # "meta" stands for a GPU: tensors there have a shape, a dtype and a device, and no numbers.
    elsewhere = torch.device("meta")
    step = result(truncated=torch.tensor([0, 0, 1, 0, 1], dtype=torch.uint8))
    got = conform_step(step, {"policy": 3}, N, elsewhere, final_groups=("policy",))
    assert got.final_obs is not None
    tensors = (
        got.reward,
        got.terminated,
        got.truncated,
        got.obs["policy"],
        got.final_obs["policy"],
    )
    assert {tensor.device.type for tensor in tensors} == {"meta"}
