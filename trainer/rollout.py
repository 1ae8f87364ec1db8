"""Collecting a rollout: `num_steps` control steps of every environment, kept on the device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainer.env import Observations, VecEnv
from trainer.network_config import NetworkConfig
from trainer.networks.groups import Groups, groups_of, observed
from trainer.networks.recurrent import State, forget
from trainer.seam import conform_obs, conform_step

logger = logging.getLogger(__name__)


class Acted(NamedTuple):
    """What a policy did.

    Attributes:
        sample: What was drawn and is learned from, ``(N, num_actions)``.
        outputs: What the network said of its distribution, ``(N, num_outputs)``.
        action: What the environment gets, ``(N, num_actions)``.
        state: What it remembers; empty without a memory.
    """

    sample: Tensor
    outputs: Tensor
    action: Tensor
    state: State = ()


Act = Callable[..., Acted]
"""What the actor sees, ``(N, dim)``, and the state that it gave last time, one tensor after the
other, to what is done there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """What happened in T steps of N environments, as it came: not yet screened for NaN.

    Attributes:
        obs: The groups that actor, critic and reward extensions see, each float32
            ``(T + 1, N, dim)``; row t is what action t was computed from, row T what comes next.
        final_obs: What the critic sees at the end of an episode, its groups joined, float32
            ``(T, N, dim)``; valid where truncated.
        action: Samples, ``(T, N, num_actions)``: raw actions, or what a head makes them of
            (`trainer.networks.head.Head.action`).
        outputs: What the network said of the distribution they are from, ``(T, N, num_outputs)``:
            for a Gaussian its mean.
        reward: Unscaled rewards, ``(T, N)``.
        terminated: bool, ``(T, N)``.
        truncated: bool, ``(T, N)``.
        log: What the environment reported, averaged over the steps, 0-d each.
        valid: False where the environment did nothing but reset, bool, ``(T, N)``; None: nowhere.
        first: True where row 0 begins an episode, bool, ``(N,)``; None: everywhere.
        state: What the policy remembered before row 0; empty without a memory.
        last: What the groups of reward extensions showed at the end of an episode, by name, each
            ``(T, N, dim)``, valid where ended; empty if the environment cannot tell.
        unknown: True for steps of which the environment gave no final observations, bool ``(T,)``:
            `final_obs` is s_t there; None: none.
    """

    obs: dict[str, Tensor]
    final_obs: Tensor
    action: Tensor
    outputs: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    log: dict[str, Tensor]
    valid: Tensor | None = None
    first: Tensor | None = None
    state: State = ()
    last: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    unknown: Tensor | None = None

    @property
    def ended(self) -> Tensor:
        """Where an episode ended with the step, bool, ``(T, N)``."""
        return self.terminated | self.truncated

    def starts(self) -> Tensor:
        """Return where an episode begins with the step, bool, ``(T, N)``."""
        first = torch.ones_like(self.ended[0]) if self.first is None else self.first
        return torch.cat([first.unsqueeze(0), self.ended[:-1]])

    def reached(self, names: Sequence[str]) -> Tensor:
        """Return what each step led to, groups joined, ``(T, N, dim)``.

        That is s_{t+1} inside an episode and the final observation at its end, never the first one
        of the next episode. Where the environment gives no final observation, s_t stands in.
        """
        ended, parts = self.ended.unsqueeze(-1), []
        for name in names:
            obs = self.obs[name]
            parts.append(torch.where(ended, self.last.get(name, obs[:-1]), obs[1:]))
        return torch.cat(parts, dim=-1)


class Collector:
    """Steps the environment with a policy and keeps what happened.

    The storage is allocated once and overwritten by each rollout. The loop never waits for the
    device: whatever needs a decision on the host is decided once, after the last step.

    Attributes:
        env: The environment.
    """

    def __init__(
        self,
        env: VecEnv,
        *,
        num_steps: int,
        device: torch.device,
        num_outputs: int | None = None,
        groups: Groups | None = None,
        extra: Sequence[str] = (),
        random_episode_length: bool = False,
    ) -> None:
        """Allocate the storage and reset the environment.

        Args:
            env: The environment.
            num_steps: Steps per rollout.
            device: Where the learner lives; the environment may live elsewhere.
            num_outputs: How many numbers the policy's network gives; None: one per action.
            groups: Which observations actor and critic see; None: as with default settings.
            extra: Groups that reward extensions see.
            random_episode_length: Whether the first episodes start at random ages.
        """
        self.env = env
        self._device = device
        self._groups = groups or groups_of(NetworkConfig(), env.obs_dims)
        seen = {*self._groups.all, *extra}
        self._dims = {name: dim for name, dim in env.obs_dims.items() if name in seen}
        self._final_groups = tuple(dict.fromkeys((*self._groups.critic, *extra)))
        t, n, a = num_steps, env.num_envs, env.num_actions

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._storage = Rollout(
            obs={name: empty(t + 1, n, dim) for name, dim in self._dims.items()},
            final_obs=empty(t, n, sum(self._dims[name] for name in self._groups.critic)),
            action=empty(t, n, a),
            outputs=empty(t, n, num_outputs or a),
            reward=empty(t, n),
            terminated=empty(t, n, dtype=torch.bool),
            truncated=empty(t, n, dtype=torch.bool),
            log={},
            valid=empty(t, n, dtype=torch.bool),
            first=empty(n, dtype=torch.bool),
            last={name: empty(t, n, self._dims[name]) for name in extra},
            unknown=empty(t, dtype=torch.bool),
        )
        self._state: State = ()
        self._said_no_final_obs = False
        self.restart(random_episode_length=random_episode_length)

    @torch.no_grad()
    def collect(self, act: Act) -> Rollout:
        """Run every environment for `num_steps` and return what happened.

        The returned tensors are overwritten by the next call.

        Args:
            act: The policy. It never sees a NaN or an infinity: such numbers reach it as 0, and
                `trainer.guard.screen` excludes the samples.
        """
        store = replace(self._storage, state=self._state)
        assert store.first is not None
        store.first.copy_(self._starts)
        logs: list[dict[str, Tensor]] = []
        for t in range(store.reward.shape[0]):
            self._write_obs(t)
            seen = observed(self._obs, self._groups.actor).nan_to_num(0.0, 0.0, 0.0)
            if self._state:
                before = (store.terminated[t - 1], store.truncated[t - 1])
                fresh = self._starts if t == 0 else before[0] | before[1]
                self._state = forget(self._state, fresh)
            acted = act(seen, *self._state)
            # The sampled action is stored, whatever the environment makes of it: the probability
            # ratio is one of what the policy did.
            store.action[t] = acted.sample
            store.outputs[t] = acted.outputs
            self._state = acted.state
            result = conform_step(
                self.env.step(acted.action.to(self.env.device)),
                self._dims,
                self.env.num_envs,
                self._device,
                final_groups=self._final_groups,
            )
            store.reward[t] = result.reward
            store.terminated[t] = result.terminated
            store.truncated[t] = result.truncated
            store.final_obs[t] = self._final_obs(result.final_obs)
            if store.unknown is not None:
                store.unknown[t] = result.final_obs is None
            for name, last in store.last.items():
                if result.final_obs is not None:
                    last[t] = result.final_obs[name]
            if store.valid is not None:
                store.valid[t] = True if result.valid is None else result.valid
            logs.append({name: torch.as_tensor(value) for name, value in result.log.items()})
            self._obs = result.obs
        self._starts = store.ended[-1]
        self._write_obs(store.reward.shape[0])
        store.log.clear()
        store.log.update(_average(logs))
        return replace(store, last={}) if self._said_no_final_obs else store

    def reset_rows(self, rows: Tensor) -> None:
        """Restart environments, bool ``(N,)``, so that the next rollout begins with them fresh."""
        fresh = self._conform(self.env.reset_rows(rows.to(self.env.device)))
        for name, obs in fresh.items():
            self._obs[name] = torch.where(rows.unsqueeze(-1), obs, self._obs[name])
        self._starts = self._starts | rows

    def state_dict(self) -> dict[str, Any]:
        """Return the environment's state and all else that the next action depends on."""
        return {
            "obs": dict(self._obs),
            "starts": self._starts,
            "state": list(self._state),
            "env": self.env.state_dict(),
        }

    def restart(self, *, random_episode_length: bool = False) -> None:
        """Begin every episode anew; optionally at a random age."""
        self._begin(self.env.reset(random_episode_length=random_episode_length))

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Continue where `state_dict` was called.

        Returns:
            Whether the episodes go on; an environment that cannot restore them begins anew.

        Raises:
            ValueError: The state belongs to another environment.
        """
        fresh = self.env.load_state_dict(state["env"])
        if fresh is not None:
            self._begin(fresh)
            return False
        self._obs = self._conform(state["obs"])
        # Files from before there were policies with a memory have neither.
        if "state" in state:
            self._starts = state["starts"].to(self._device)
            self._state = tuple(part.to(self._device) for part in state["state"])
        return True

    def _begin(self, obs: Observations) -> None:
        """Go on from the first observations of new episodes."""
        self._obs = self._conform(obs)
        self._starts = torch.ones(self.env.num_envs, dtype=torch.bool, device=self._device)

    def _conform(self, obs: Observations) -> Observations:
        return conform_obs(obs, self._dims, self.env.num_envs, self._device)

    def _write_obs(self, t: int) -> None:
        for name, obs in self._obs.items():
            self._storage.obs[name][t] = obs

    def _final_obs(self, final_obs: Observations | None) -> Tensor:
        """Return the critic's last observations, or s_t where the environment cannot tell."""
        if final_obs is not None:
            return observed(final_obs, self._groups.critic)
        if not self._said_no_final_obs:
            self._said_no_final_obs = True
            logger.warning(
                "the environment gives no final observations: "
                "V(s_t) stands in for their value at truncated steps"
            )
        return observed(self._obs, self._groups.critic)


def _average(logs: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Average scalars over the steps that reported them."""
    names = dict.fromkeys(name for log in logs for name in log)
    return {
        name: torch.stack([log[name].float() for log in logs if name in log]).mean()
        for name in names
    }
