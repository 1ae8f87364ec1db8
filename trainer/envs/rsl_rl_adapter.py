"""Environments in the style of rsl_rl as `trainer.env.VecEnv`: Isaac Lab, mjlab, legged_gym, ...

Duck-typed: needs neither rsl_rl nor a simulator, and tensordict only where the environment itself
uses it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_runtime.errors import Refused
from trainer.env import Observations, StepResult
from trainer.envs.rsl_rl_groups import (
    CRITIC,
    Groups,
    ImageGroups,
    ObsForm,
    compose,
    final_groups,
    groups_of,
    is_dict,
    resolve_sets,
    split_images,
)

logger = logging.getLogger(__name__)

COUNTER = "common_step_counter"
"""What Isaac Lab and mjlab count, and what their curricula go by."""


class RslRlEnv:
    """`trainer.env.VecEnv` over what the runners of rsl_rl take.

    An episode that is done is truncated where ``extras["time_outs"]`` says so and terminated
    elsewhere. Last observations are taken from the extras in any form in use
    (`trainer.envs.rsl_rl_groups.final_groups`); where there are none, V(s_t) stands in for their
    value, which the collector says once.

    Attributes:
        env: The environment.
        sets: Which of its observation groups each network sees.
        form: In what form it gives observations.
        images: The images that the networks see.
    """

    def __init__(
        self,
        env: Any,
        *,
        obs_groups: Mapping[str, Sequence[str]] | None = None,
        needed: Sequence[str] = (),
        use_final_obs: bool = True,
    ) -> None:
        """Look at the environment once; like rsl_rl's runner this calls `get_observations`.

        Args:
            env: The environment, or its wrapper.
            obs_groups: Which groups each network sees, as rsl_rl's configurations have it.
            needed: Further sets that have to be there, configured or not.
            use_final_obs: False: last observations are not looked for, as in rsl_rl.

        Raises:
            Refused: It lacks an attribute, or the groups cannot be resolved.
        """
        for name in ("num_envs", "num_actions", "max_episode_length", "device", "step"):
            if not hasattr(env, name):
                raise Refused(f"{type(env).__name__} is no environment for rsl_rl: no '{name}'")
        self.env = env
        self.num_envs = int(env.num_envs)
        self.num_actions = int(env.num_actions)
        limit = env.max_episode_length
        self.max_episode_length = int(limit.max() if isinstance(limit, Tensor) else limit)
        self.device = torch.device(env.device)
        self._use_final_obs = use_final_obs
        self._gives_final: bool | None = None if use_final_obs else False
        self._said: set[str] = set()
        groups = self._look(first=True)
        self.form = ObsForm(
            kind=self._kind,
            shapes={k: tuple(x.shape[1:]) for k, x in groups.items() if isinstance(x, Tensor)},
            device=self.device,
        )
        self.images: ImageGroups
        self.sets, self.images = split_images(resolve_sets(groups, obs_groups, needed), groups)
        self._first: Observations | None = self._compose(groups)
        self.obs_dims: Mapping[str, int] = {
            name: value.shape[-1] for name, value in self._first.items()
        }
        self._obs = self._first

    @property
    def step_dt(self) -> float | None:
        """Duration of a step, [s], where the environment tells it."""
        found = getattr(getattr(self.env, "unwrapped", self.env), "step_dt", None)
        return None if found is None else float(found)

    def reset(self, *, random_episode_length: bool = False) -> Observations:
        """Return the observations to begin with; see `VecEnv.reset`.

        The environment has reset itself when it was built, and there is no call for it in this
        interface: only ages are set, through `episode_length_buf`.
        """
        if random_episode_length:
            self._draw_ages()
        # Looking twice would advance an environment's observation history twice.
        if self._first is None or random_episode_length:
            self._obs = self._compose(self._look())
        self._first = None
        return self._obs

    def step(self, actions: Tensor) -> StepResult:
        """Advance every environment; see `VecEnv.step`."""
        self._first = None
        before, returned = self._obs, self.env.step(actions)
        if len(returned) == 5:
            obs, privileged, reward, dones, extras = returned
        else:
            (obs, reward, dones, extras), privileged = returned, None
        groups = groups_of(obs, extras, privileged)
        self._obs = self._compose(groups)
        done = _flags(dones)
        time_outs = extras.get("time_outs")
        truncated = torch.zeros_like(done) if time_outs is None else done & _flags(time_outs)
        return StepResult(
            obs=self._obs,
            reward=reward,
            terminated=done & ~truncated,
            truncated=truncated,
            final_obs=self._final(before, extras, groups, done, truncated),
            log=_log(extras),
        )

    def reset_rows(self, rows: Tensor) -> Observations:
        """Let episodes run into their time limit with the next step: there is no other way."""
        if bool(rows.any()):
            ages = getattr(self.env, "episode_length_buf", None)
            if isinstance(ages, Tensor):
                limit = torch.as_tensor(self.env.max_episode_length, device=ages.device)
                rows = rows.to(ages.device)
                self.env.episode_length_buf = torch.where(rows, limit.to(ages.dtype), ages)
            else:
                self._say("no 'episode_length_buf': single environments cannot be restarted")
        return self._obs

    def state_dict(self) -> dict[str, Any]:
        """Return the environment's own state if it has one, else the counters of its curricula."""
        state: dict[str, Any] = {"num_envs": self.num_envs}
        if hasattr(self.env, "state_dict"):
            return state | {"env": self.env.state_dict()}
        counter = getattr(getattr(self.env, "unwrapped", self.env), COUNTER, None)
        return state if counter is None else state | {COUNTER: int(counter)}

    def load_state_dict(self, state: dict[str, Any]) -> Observations | None:
        """Continue where `state_dict` was called, as far as that goes; see `VecEnv`."""
        if state.get("num_envs") != self.num_envs:
            raise ValueError(
                f"num_envs: the state has {state.get('num_envs')}, this has {self.num_envs}"
            )
        if "env" in state:
            if not hasattr(self.env, "load_state_dict"):
                raise ValueError(f"{type(self.env).__name__} takes no state, and there is one")
            self.env.load_state_dict(state["env"])
            return None
        if COUNTER in state:
            setattr(getattr(self.env, "unwrapped", self.env), COUNTER, state[COUNTER])
        self._obs = self._compose(self._look())
        return self._obs

    def _look(self, *, first: bool = False) -> Groups:
        """Return the current observation groups."""
        found = self.env.get_observations()
        self._kind = type(found) if is_dict(found) else None
        if isinstance(found, tuple):
            return groups_of(found[0], found[1])
        if is_dict(found):
            return groups_of(found, None)
        if first:
            # rsl_rl 1.x: its runner resets, which steps once, and the first observations are stale.
            self.env.reset()
            found = self.env.get_observations()
        privileged = getattr(self.env, "get_privileged_observations", lambda: None)()
        return groups_of(found, getattr(self.env, "extras", None), privileged)

    def _compose(self, groups: Groups) -> Observations:
        composed = compose(groups, self.sets)
        for name, members in self.sets.items():
            if name not in composed:
                missing = [group for group in members if group not in groups]
                raise Refused(
                    f"observation set '{name}': group '{missing[0]}' is not there; the groups are "
                    f"{sorted(groups)}"
                )
        return composed

    def _final(
        self,
        before: Observations,
        extras: Mapping[str, Any],
        groups: Groups,
        done: Tensor,
        truncated: Tensor,
    ) -> Observations | None:
        """Return the last observations, None where the environment gives none."""
        if not self._use_final_obs:
            return None
        found = final_groups(extras, groups, done)
        if found is not None:
            self._gives_final = True
            composed = compose(found, self.sets)
            self._check_final(composed)
            return composed
        if self._gives_final is None and bool(truncated.any()):
            # The first time limit: whoever gives last observations would have given them here.
            self._gives_final = False
        if self._gives_final is False:
            return None
        cut = done.unsqueeze(-1)
        # Where nothing ended the last observations are those of the step.
        return {name: torch.where(cut, before[name], obs) for name, obs in self._obs.items()}

    def _check_final(self, final: Observations) -> None:
        needed = CRITIC if CRITIC in self.sets else "policy"
        found, expected = final.get(needed), self._obs[needed].shape
        if found is None or found.shape != expected:
            what = "no" if found is None else f"shape {tuple(found.shape)} for"
            raise Refused(
                f"the environment's last observations give {what} observation set '{needed}'; "
                f"expected groups {self.sets[needed]} and shape {tuple(expected)}"
            )

    def _draw_ages(self) -> None:
        """Let the episodes begin at random ages."""
        ages = getattr(self.env, "episode_length_buf", None)
        if not isinstance(ages, Tensor):
            self._say("no 'episode_length_buf': episodes cannot begin at random ages")
            return
        limit = self.env.max_episode_length
        if isinstance(limit, Tensor):
            drawn = torch.rand(ages.shape, device=ages.device) * limit.to(ages.device)
            self.env.episode_length_buf = drawn.to(ages.dtype)
        else:
            self.env.episode_length_buf = torch.randint_like(ages, high=int(limit))

    def _say(self, what: str) -> None:
        """Warn once."""
        if what not in self._said:
            self._said.add(what)
            logger.warning("%s: %s", type(self.env).__name__, what)


def _flags(values: Tensor) -> Tensor:
    """Return flags of any dtype and of shape ``(num_envs,)`` or ``(num_envs, 1)`` as bool."""
    flags = values if values.dtype == torch.bool else values > 0
    return flags.squeeze(-1) if flags.ndim == 2 else flags


def _log(extras: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return what the environment reports, as 0-d tensors under rsl_rl's names."""
    report = extras.get("episode") or extras.get("log") or {}
    log = {}
    for name, value in report.items():
        if not isinstance(value, Tensor | np.ndarray | np.number | int | float):
            continue
        number = torch.as_tensor(value, dtype=torch.float32)
        if number.numel():
            log[name if "/" in name else f"Episode/{name}"] = number.mean()
    return log
