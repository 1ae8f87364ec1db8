"""The way back: any `trainer.env.VecEnv` as an environment of gymnasium.

`GymnasiumVectorEnv` is a vector environment that resets in the same step; `GymnasiumSingleEnv` is
a plain environment over one row, for trainers that only know those.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from robot_runtime.errors import Refused
from trainer.env import Observations, VecEnv

logger = logging.getLogger(__name__)

MakeEnv = Callable[[int], VecEnv]
"""Builds an environment from a seed."""


class GymnasiumVectorEnv(VectorEnv[Any, Any, Any]):
    """One of our environments as a vector environment with SAME_STEP autoreset.

    The last observations of what ended are in ``info["final_obs"]``, one entry per environment and
    None where nothing ended, with the mask ``info["_final_obs"]``, as gymnasium's own vector
    environments have it. What the environment reports is in ``info["log"]``, as floats.
    """

    def __init__(
        self,
        env: VecEnv | MakeEnv,
        *,
        groups: Sequence[str] = ("policy",),
        arrays: Literal["numpy", "torch"] = "numpy",
        action_bound: float = np.inf,
    ) -> None:
        """Take an environment, or how to build one.

        Args:
            env: The environment; or a function of a seed that builds it, which is what makes
                ``reset(seed=...)`` reproducible.
            groups: The observation groups to give. One is given as a Box, several as a Dict.
            arrays: What observations, rewards and flags are given as.
            action_bound: Bound of the action space, for trainers that want one. Actions are not
                clipped here.

        Raises:
            Refused: The environment has no such group; the message lists those it has.
        """
        # A function is told from an environment by what it lacks: a VecEnv may be callable too.
        self._make = None if hasattr(env, "step") else cast("MakeEnv", env)
        self._env = cast("VecEnv", env) if self._make is None else self._make(0)
        self._groups = tuple(groups)
        self._torch = arrays == "torch"
        missing = [group for group in groups if group not in self._env.obs_dims]
        if missing or not groups:
            raise Refused(
                f"no observation group '{missing[0] if missing else ''}'; there are: "
                f"{', '.join(self._env.obs_dims)}"
            )
        self.num_envs = self._env.num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = _observation_space(self._env, self._groups)
        shape = (self._env.num_actions,)
        self.single_action_space = gymnasium.spaces.Box(
            -action_bound, action_bound, shape, np.float32
        )
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._said_no_seed = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin every episode anew, or those where ``options["reset_mask"]`` is True.

        Args:
            seed: Seed to begin from; without a function to build with it changes nothing.
            options: May hold `reset_mask`, bool, ``(num_envs,)``.

        Returns:
            Observations and an empty info.
        """
        super().reset(seed=seed)
        mask = (options or {}).get("reset_mask")
        if mask is not None:
            rows = torch.as_tensor(np.asarray(mask, np.bool_), device=self._env.device)
            return self._give(self._env.reset_rows(rows)), {}
        if seed is not None and self._make is not None:
            self._env = self._make(seed)
        elif seed is not None and not self._said_no_seed:
            self._said_no_seed = True
            logger.warning(
                "%s took its seed when it was built: reset(seed=...) changes nothing; give a "
                "function that builds it from a seed",
                type(self._env).__name__,
            )
        return self._give(self._env.reset()), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Advance every environment.

        Args:
            actions: Raw actions, ``(num_envs, num_actions)``, array or tensor.

        Returns:
            Observations after resets, rewards, terminations, truncations and info.
        """
        actions = torch.as_tensor(actions, dtype=torch.float32, device=self._env.device)
        result = self._env.step(actions)
        ended = (result.terminated | result.truncated).cpu().numpy()
        info: dict[str, Any] = {"log": {name: float(x) for name, x in result.log.items()}}
        if ended.any() and result.final_obs is not None:
            info |= self._final(result.final_obs, ended)
        flags = (self._array(result.terminated), self._array(result.truncated))
        return self._give(result.obs), self._array(result.reward), *flags, info

    def _final(self, final_obs: Observations, ended: np.ndarray) -> dict[str, Any]:
        """Return the entries of info for what has ended."""
        obs, each = self._give(final_obs), np.full(self.num_envs, None, dtype=object)
        for i in np.flatnonzero(ended):
            each[i] = {k: v[i] for k, v in obs.items()} if isinstance(obs, dict) else obs[i]
        return {
            "final_obs": each,
            "_final_obs": ended,
            "final_info": {},
            "_final_info": ended.copy(),
        }

    def _give(self, obs: Observations) -> Any:
        """Return observations in the form of the observation space."""
        if len(self._groups) == 1:
            return self._array(obs[self._groups[0]])
        return {group: self._array(obs[group]) for group in self._groups}

    def _array(self, value: Tensor) -> Any:
        value = value.detach().clone()
        return value if self._torch else value.cpu().numpy()


class GymnasiumSingleEnv(gymnasium.Env[Any, Any]):
    """One row of one of our environments as a plain environment, without autoreset."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - gymnasium declares it so

    def __init__(
        self, make: MakeEnv, *, groups: Sequence[str] = ("policy",), action_bound: float = np.inf
    ) -> None:
        """Take how to build an environment with one row; see `GymnasiumVectorEnv`.

        Raises:
            Refused: It builds more than one row.
        """
        self._venv = GymnasiumVectorEnv(make, groups=groups, action_bound=action_bound)
        if self._venv.num_envs != 1:
            raise Refused(f"expected an environment with one row, this has {self._venv.num_envs}")
        self.observation_space = self._venv.single_observation_space
        self.action_space = self._venv.single_action_space
        self._waiting: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; the one that the last step has already begun, if it ended one."""
        super().reset(seed=seed)
        if seed is None and self._waiting is not None:
            obs, self._waiting = self._waiting, None
            return obs, {}
        self._waiting = None
        obs, info = self._venv.reset(seed=seed)
        return _row(obs), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step; the observation is the last one where the episode ends."""
        obs, reward, terminated, truncated, info = self._venv.step(np.asarray(action)[None])
        first = _row(obs)
        if bool(terminated[0] | truncated[0]):
            self._waiting = first
            first = info["final_obs"][0]
        return first, float(reward[0]), bool(terminated[0]), bool(truncated[0]), info["log"]


def _row(obs: Any) -> Any:
    return {name: value[0] for name, value in obs.items()} if isinstance(obs, dict) else obs[0]


def _observation_space(env: VecEnv, groups: Sequence[str]) -> gymnasium.Space[Any]:
    boxes: dict[str, gymnasium.Space[Any]] = {
        group: gymnasium.spaces.Box(-np.inf, np.inf, (env.obs_dims[group],), np.float32)
        for group in groups
    }
    return boxes[groups[0]] if len(groups) == 1 else gymnasium.spaces.Dict(boxes)
