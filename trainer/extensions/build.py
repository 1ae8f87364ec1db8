"""Which reward extensions a run has."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from robot_runtime.errors import BadInput
from trainer.config import InvalidSetting, TrainConfig
from trainer.distributed import ALONE, Peers
from trainer.env import VecEnv
from trainer.extensions.amp import MotionPrior
from trainer.extensions.config import AmpConfig
from trainer.extensions.motion import load_motion
from trainer.extensions.rnd import RandomNetworkDistillation
from trainer.extensions.seam import RewardExtension


def make_extensions(
    config: TrainConfig, env: VecEnv, device: torch.device, peers: Peers = ALONE
) -> dict[str, RewardExtension]:
    """Build the extensions that the settings ask for, by name, in the order they mix rewards in.

    Args:
        config: Settings of the run.
        env: The environment; groups that it gives on request are asked for.
        device: Where the learner lives.
        peers: Processes that learn together.

    Raises:
        InvalidSetting: The environment does not give an observation group.
        BadInput: The motion does not fit the environment.
    """
    extensions: dict[str, RewardExtension] = {}
    if config.amp.enabled:
        demand_groups(env, (config.amp.group,), "amp.group")
        # Other streams than the weights and the exploration, which have `seed` and `seed + 1`.
        extensions["amp"] = _make_amp(config.amp, env, config.seed + 3, device, peers)
    if config.rnd.enabled:
        demand_groups(env, config.rnd.groups, "rnd.groups")
        where: dict[str, Any] = {"device": device, "peers": peers}
        extensions["rnd"] = RandomNetworkDistillation(
            config.rnd, env.obs_dims, num_envs=env.num_envs, seed=config.seed + 2, **where
        )
    return extensions


def demand_groups(env: VecEnv, names: Iterable[str], setting: str) -> None:
    """Make sure that an environment gives some observation groups.

    One that gives further groups on request has `offers`, their names, and a method
    ``offer(name)`` after which `obs_dims` has the group and every observation too.

    Raises:
        InvalidSetting: It does not give one; the message names those that it gives.
    """
    offers: tuple[str, ...] = tuple(getattr(env, "offers", ()))
    for name in names:
        if name not in env.obs_dims and name in offers:
            env.offer(name)  # pyright: ignore[reportAttributeAccessIssue]
        if name not in env.obs_dims:
            raise InvalidSetting(
                f"{setting} names the observation group '{name}'; the environment gives: "
                f"{', '.join((*env.obs_dims, *offers))}"
            )


def _make_amp(
    config: AmpConfig, env: VecEnv, seed: int, device: torch.device, peers: Peers
) -> MotionPrior:
    names = getattr(env, "feature_names", {}).get(config.group)
    dt = getattr(env, "step_dt", None)
    if names is None or dt is None:
        raise BadInput(
            f"amp.motion: {type(env).__name__} does not say what is in its observation group "
            f"'{config.group}' (feature_names) and how long a step lasts (step_dt), so that no "
            "motion can be compared with it"
        )
    motion = load_motion(Path(config.motion))
    try:
        motion = motion.select(names, f"observation group '{config.group}'").resample(float(dt))
    except BadInput as error:
        raise BadInput(f"'{config.motion}': {error}") from error
    return MotionPrior(config, motion, seed=seed, device=device, peers=peers)
