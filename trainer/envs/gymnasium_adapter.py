"""Vector environments of gymnasium as `trainer.env.VecEnv`.

gymnasium knows three ways to begin the next episode, and states them in the metadata of a vector
environment (https://farama.org/Vector-Autoreset-Mode). Here every one gives the same samples:

- SAME_STEP: the step that ends an episode returns the next one's first observation, the last one
  is in ``info["final_obs"]``;
- NEXT_STEP: the step returns the last observation, and the step after it resets, whatever the
  action: that one is marked as no step (`StepResult.valid`);
- DISABLED: the step returns the last observation, and this adapter resets.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from robot_runtime.errors import Refused
from trainer.env import Observations, StepResult
from trainer.envs.spaces import ActionWriter, ObservationReader

logger = logging.getLogger(__name__)

Autoreset = Literal["NextStep", "SameStep", "Disabled"]

MODES: tuple[Autoreset, ...] = ("NextStep", "SameStep", "Disabled")
"""The autoreset modes, by gymnasium's values."""

NO_LIMIT = 2**31 - 1
"""`max_episode_length` of an environment whose limit is not known."""


class GymnasiumEnv:
    """`trainer.env.VecEnv` over a `gymnasium.vector.VectorEnv`.

    Attributes:
        env: The vector environment.
        autoreset: How it begins the next episode.
        action_space: What it takes as an action.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        *,
        seed: int = 0,
        device: str = "cpu",
        groups: Mapping[str, Sequence[str]] | None = None,
        bounds: Literal["clip", "rescale"] = "clip",
        autoreset: Autoreset | None = None,
        max_episode_length: int | None = None,
    ) -> None:
        """Read the spaces and the metadata.

        Args:
            env: The vector environment.
            seed: Seed of the first episodes; the later ones go on from there.
            device: Where tensors in and out live.
            groups: Names of the observation's parts for each group; see `ObservationReader`.
            bounds: What happens to actions at their bounds; see `ActionWriter`.
            autoreset: How it begins the next episode, for one whose metadata does not say.
            max_episode_length: Its time limit, for one whose specification does not say.

        Raises:
            Refused: A space cannot be handled, or the autoreset mode is not known.
        """
        self.env = env
        self.autoreset = _autoreset(env, autoreset)
        self.num_envs = env.num_envs
        self.device = torch.device(device)
        self.max_episode_length = max_episode_length or _time_limit(env)
        self._reader = ObservationReader(env.single_observation_space, groups)
        self._writer = ActionWriter(env.single_action_space, bounds)
        self.obs_dims: Mapping[str, int] = self._reader.obs_dims
        self.action_space = self._writer.space
        self.num_actions = self.action_space.num_actions
        self._seed = seed
        self._began = False
        self._ended = torch.zeros(self.num_envs, dtype=torch.bool)
        self._obs: Observations = {}
        self._said: set[str] = set()

    def reset(self, *, random_episode_length: bool = False) -> Observations:
        """Start every episode anew; see `VecEnv.reset`. Episodes always start at age 0."""
        if random_episode_length:
            self._say("gymnasium has no way to start episodes at random ages: they start at 0")
        obs, _ = self.env.reset(seed=None if self._began else self._seed)
        self._began = True
        self._ended = torch.zeros(self.num_envs, dtype=torch.bool)
        self._obs = self._read(obs)
        return self._obs

    def step(self, actions: Tensor) -> StepResult:
        """Advance every environment; see `VecEnv.step`."""
        obs, reward, terminated, truncated, info = self.env.step(self._writer.write(actions))
        terminated, truncated = _flags(terminated), _flags(truncated)
        idle, done = self._ended, terminated | truncated
        found, valid = self._read(obs), None
        if self.autoreset == "NextStep":
            final: Observations | None = found
            self._ended = done
            if bool(idle.any()):
                valid, truncated = ~idle, truncated | idle
        elif self.autoreset == "SameStep":
            final = self._final(found, info, done)
        else:
            final, found = found, self._reset_where(done, found)
        self._obs = found
        return StepResult(
            obs=found,
            reward=torch.as_tensor(np.array(reward, np.float32), device=self.device),
            terminated=terminated.to(self.device),
            truncated=truncated.to(self.device),
            final_obs=final,
            log={},
            valid=None if valid is None else valid.to(self.device),
        )

    def reset_rows(self, rows: Tensor) -> Observations:
        """Restart some environments, where the vector environment can; see `VecEnv.reset_rows`."""
        rows = rows.cpu()
        if not bool(rows.any()):
            return self._obs
        sync_or_async = isinstance(self.env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        if self.autoreset != "Disabled" and not sync_or_async:
            self._say(
                f"{type(self.env.unwrapped).__name__} cannot restart single environments: they go "
                "on until their episodes end"
            )
            return self._obs
        self._ended = self._ended & ~rows
        self._obs = self._reset_where(rows, self._obs)
        return self._obs

    def state_dict(self) -> dict[str, Any]:
        """Return what little there is: environments of gymnasium cannot be saved."""
        return {"num_envs": self.num_envs, "seed": self._seed}

    def load_state_dict(self, state: dict[str, Any]) -> Observations:
        """Begin every episode anew, from another seed than before; see `VecEnv.load_state_dict`."""
        if state.get("num_envs") != self.num_envs:
            raise ValueError(
                f"num_envs: the state has {state.get('num_envs')}, this has {self.num_envs}"
            )
        # A seed stands for as many as there are environments, from there on.
        self._seed = int(state["seed"]) + self.num_envs
        self._began = False
        return self.reset()

    def close(self) -> None:
        """Close the vector environment."""
        self.env.close()

    def _read(self, obs: Any) -> Observations:
        groups = self._reader.read(obs, self.num_envs)
        return {name: value.to(self.device) for name, value in groups.items()}

    def _reset_where(self, rows: Tensor, obs: Observations) -> Observations:
        """Restart the environments `rows` and return the observations with theirs replaced."""
        if not bool(rows.any()):
            return obs
        fresh, _ = self.env.reset(options={"reset_mask": rows.numpy().copy()})
        return _where(rows.to(self.device), self._read(fresh), obs)

    def _final(
        self, obs: Observations, info: Mapping[str, Any], done: Tensor
    ) -> Observations | None:
        """Return the last observations of what has ended, the given ones elsewhere."""
        if not bool(done.any()):
            return obs
        final = info.get("final_obs")
        if final is None:
            return None
        if isinstance(final, np.ndarray) and final.dtype == object:
            ended = np.flatnonzero(done.numpy())
            if any(final[i] is None for i in ended):
                return None
            rows = self._reader.read_rows([final[i] for i in ended])
            full = {name: value.clone() for name, value in obs.items()}
            for name, value in rows.items():
                full[name][done.to(self.device)] = value.to(self.device)
            return full
        return _where(done.to(self.device), self._read(final), obs)

    def _say(self, what: str) -> None:
        """Warn once."""
        if what not in self._said:
            self._said.add(what)
            logger.warning(what)


def _autoreset(env: VectorEnv[Any, Any, Any], stated: Autoreset | None) -> Autoreset:
    """Return the autoreset mode, from the metadata or as stated."""
    found = env.metadata.get("autoreset_mode")
    value = getattr(found, "value", found)
    if value is None:
        value = stated
    if value not in MODES or (stated is not None and value != stated):
        raise Refused(
            f"{type(env.unwrapped).__name__}: autoreset mode {value!r}"
            f"{f', stated as {stated!r}' if stated and stated != value else ''}; its metadata must "
            f"say, or autoreset= must state, one of {', '.join(MODES)}"
        )
    return value


def _time_limit(env: VectorEnv[Any, Any, Any]) -> int:
    """Return after how many steps an episode is truncated, as far as the environment tells."""
    specs = [env.spec]
    if isinstance(env.unwrapped, SyncVectorEnv):
        specs += [env.unwrapped.envs[0].spec]
    limits = [spec.max_episode_steps for spec in specs if spec is not None]
    return next((limit for limit in limits if limit), NO_LIMIT)


def _flags(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values.cpu().bool()
    array: NDArray[np.bool_] = np.array(values, dtype=np.bool_)
    return torch.from_numpy(array)


def _where(rows: Tensor, there: Observations, elsewhere: Observations) -> Observations:
    return {
        name: torch.where(rows.unsqueeze(-1), there[name], value)
        for name, value in elsewhere.items()
    }
