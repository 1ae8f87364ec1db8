"""What comes from an environment, checked and cast at the door.

An array of shape ``(num_envs, 1)`` where ``(num_envs,)`` was meant broadcasts without a word to
``(num_envs, num_envs)`` and still trains, badly. So everything is brought to one shape, dtype and
device here, or refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from robot_runtime.errors import Refused
from trainer.env import Observations, StepResult


def conform_obs(
    obs: Mapping[str, Tensor], obs_dims: Mapping[str, int], num_envs: int, device: torch.device
) -> Observations:
    """Return the observation groups as float32 of shape ``(num_envs, dim)`` on `device`.

    Raises:
        Refused: A group is missing or has another shape; the message names it.
    """
    conformed: Observations = {}
    if not isinstance(obs, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise Refused(
            f"the environment's observations are a {type(obs).__name__}, not tensors by group: "
            f"{', '.join(obs_dims)}"
        )
    for group, dim in obs_dims.items():
        if group not in obs:
            raise Refused(
                f"the environment gives no observation group '{group}', only {sorted(obs)}"
            )
        value = obs[group]
        _demand_shape(f"observation group '{group}'", value, (num_envs, dim))
        conformed[group] = value.to(device=device, dtype=torch.float32)
    return conformed


def conform_step(
    result: StepResult,
    obs_dims: Mapping[str, int],
    num_envs: int,
    device: torch.device,
    *,
    final_groups: Iterable[str],
) -> StepResult:
    """Return the step with every tensor in its one shape, dtype and device.

    Rewards may come as any real dtype, flags as bool, integers or floats (0 is False), both with
    shape ``(num_envs,)`` or ``(num_envs, 1)``.

    Args:
        result: What the environment returned.
        obs_dims: Length of each observation group.
        num_envs: Number of environments.
        device: Where the learner lives.
        final_groups: The groups that are needed of `final_obs`.

    Raises:
        Refused: A shape is wrong or a group is missing; the message names it.
    """
    if not isinstance(result, StepResult):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise Refused(f"the environment's step gives a {type(result).__name__}, not a StepResult")
    final_obs = result.final_obs
    if final_obs is not None:
        dims = {group: obs_dims[group] for group in final_groups}
        final_obs = conform_obs(final_obs, dims, num_envs, device)
    return StepResult(
        obs=conform_obs(result.obs, obs_dims, num_envs, device),
        reward=_column("reward", result.reward, num_envs).to(device=device, dtype=torch.float32),
        terminated=_flags("terminated", result.terminated, num_envs).to(device),
        truncated=_flags("truncated", result.truncated, num_envs).to(device),
        final_obs=final_obs,
        log=result.log,
        valid=None if result.valid is None else _flags("valid", result.valid, num_envs).to(device),
    )


def _flags(name: str, value: Tensor, num_envs: int) -> Tensor:
    """Return flags of any dtype as bool of shape ``(num_envs,)``."""
    flags = _column(name, value, num_envs)
    return flags if flags.dtype == torch.bool else flags != 0


def _column(name: str, value: Tensor, num_envs: int) -> Tensor:
    """Return ``(num_envs,)`` for that or for ``(num_envs, 1)``; refuse everything else."""
    _demand_tensor(name, value)
    if tuple(value.shape) == (num_envs, 1):
        return value.squeeze(1)
    _demand_shape(name, value, (num_envs,))
    return value


def _demand_shape(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse a tensor of another shape, a complex one, and what is none."""
    _demand_tensor(name, value)
    if tuple(value.shape) != shape or value.is_complex():
        raise Refused(
            f"the environment's {name} has shape {tuple(value.shape)} and dtype {value.dtype}; "
            f"expected {shape} and real numbers"
        )


def _demand_tensor(name: str, value: Tensor) -> None:
    if not isinstance(value, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
        kind = f"{type(value).__module__}.{type(value).__name__}"
        raise Refused(f"the environment's {name} is a {kind}; expected a torch tensor")
