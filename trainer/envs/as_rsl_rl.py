"""The way back: any `trainer.env.VecEnv` as an environment for rsl_rl's own runners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from robot_runtime.errors import MissingExtra
from trainer.env import Observations, VecEnv


class RslRlVecEnv:
    """What rsl_rl's `OnPolicyRunner` takes, over one of our environments.

    Last observations are given as ``extras["final_obs"]``, time limits as ``extras["time_outs"]``,
    what the environment reports as ``extras["log"]``.

    Attributes:
        num_envs: Environments stepped together.
        num_actions: Length of an action.
        max_episode_length: Steps after which an episode is truncated.
        device: Where tensors live.
        cfg: What rsl_rl's loggers store as the environment's configuration.
        step_dt: Duration of a step, [s], by which rsl_rl's RND weighs its reward.
    """

    def __init__(
        self,
        env: VecEnv,
        *,
        interface: Literal["tensordict", "tuple"] = "tensordict",
        cfg: dict[str, Any] | None = None,
        step_dt: float = 1.0,
    ) -> None:
        """Reset the environment, because runners never do.

        Args:
            env: The environment.
            interface: `tensordict` for rsl_rl 3 to 5, `tuple` for 2.
            cfg: The environment's configuration, for loggers.
            step_dt: Duration of a step, [s].

        Raises:
            MissingExtra: The interface needs tensordict, and it is not installed.
        """
        self._env = env
        self._tensordict = _tensordict_type() if interface == "tensordict" else None
        self.num_envs = env.num_envs
        self.num_actions = env.num_actions
        self.max_episode_length = env.max_episode_length
        self.device = env.device
        self.cfg: dict[str, Any] = cfg or {}
        self.step_dt = step_dt
        # rsl_rl 2 asks for the lengths.
        self.num_obs = env.obs_dims["policy"]
        self.num_privileged_obs = env.obs_dims.get("critic")
        self._ages = torch.zeros(env.num_envs, dtype=torch.long, device=env.device)
        self._obs = env.reset()

    @property
    def unwrapped(self) -> RslRlVecEnv:
        """Itself; rsl_rl looks for `step_dt` there."""
        return self

    @property
    def episode_length_buf(self) -> Tensor:
        """Steps since each episode began, int64, ``(num_envs,)``.

        Setting it is how a runner asks for random ages. Our environments draw these themselves:
        what is set is kept as the count, and the episodes begin anew at ages of their own.
        """
        return self._ages

    @episode_length_buf.setter
    def episode_length_buf(self, ages: Tensor) -> None:
        self._ages = ages.to(self._ages)
        self._obs = self._env.reset(random_episode_length=True)

    def reset(self) -> Any:
        """Begin every episode anew and return what `get_observations` does."""
        self._ages = torch.zeros_like(self._ages)
        self._obs = self._env.reset()
        return self.get_observations()

    def get_observations(self) -> Any:
        """Return the observations as a TensorDict, or as ``(tensor, extras)``."""
        if self._tensordict is None:
            return self._obs["policy"], {"observations": self._others()}
        return self._groups(self._obs)

    def step(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, dict[str, Any]]:
        """Advance every environment.

        Args:
            actions: Raw actions, ``(num_envs, num_actions)``.

        Returns:
            Observations, rewards, dones (0 or 1, int64) and extras.
        """
        result = self._env.step(actions.to(self.device))
        self._obs = result.obs
        done = result.terminated | result.truncated
        self._ages = torch.where(done, 0, self._ages + 1)
        # A step that is both is terminated; rsl_rl would bootstrap from every time-out.
        extras: dict[str, Any] = {
            "time_outs": result.truncated & ~result.terminated,
            "log": dict(result.log),
        }
        if result.final_obs is not None:
            extras["final_obs"] = self._groups(result.final_obs)
        obs: Any = self._groups(result.obs)
        if self._tensordict is None:
            obs, extras["observations"] = result.obs["policy"], self._others()
        return obs, result.reward, done.long(), extras

    def state_dict(self) -> dict[str, Any]:
        """Return the environment's state."""
        return {"env": self._env.state_dict(), "obs": dict(self._obs), "ages": self._ages}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called, as far as the environment can."""
        fresh = self._env.load_state_dict(state["env"])
        self._obs = dict(state["obs"]) if fresh is None else fresh
        self._ages = state["ages"].to(self._ages)

    def close(self) -> None:
        """Do nothing: our environments hold nothing open."""

    def _others(self) -> Observations:
        return {name: value for name, value in self._obs.items() if name != "policy"}

    def _groups(self, obs: Observations) -> Any:
        if self._tensordict is None:
            return dict(obs)
        return self._tensordict(dict(obs), batch_size=[self.num_envs], device=self.device)


def _tensordict_type() -> Any:
    try:
        from tensordict import TensorDict  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtra(
            "rsl_rl 3 and later take observations as TensorDicts: pip install tensordict, or "
            "choose interface='tuple'"
        ) from error
    return TensorDict
