"""Random network distillation (Burda et al. 2018, arXiv:1810.12894): a reward for novelty.

A predictor learns to say what a random network, the target, makes of a state. Where it was often,
it errs little; so its error is a reward for being where it was rarely.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainer.distributed import ALONE, Peers
from trainer.extensions.config import RndConfig
from trainer.extensions.learner import Learner
from trainer.losses import Metrics
from trainer.networks.mlp import make_mlp
from trainer.normalizer import RunningNormalizer
from trainer.rollout import Rollout
from trainer.table import kept
from trainer.values import finite


class RandomNetworkDistillation:
    """Adds an intrinsic reward; a `trainer.extensions.seam.RewardExtension`.

    The reward of a step is the novelty of the state that it led to: at the end of an episode its
    final observation, never the first one of the next. The statistics of states and rewards learn
    from a rollout before its rewards are computed, so that the first ones are normalized as well.

    Attributes:
        groups: The observation groups whose novelty is rewarded.
        target: The random network.
        states: Statistics of the states.
        rewards: Statistics of the intrinsic rewards, or of their discounted sum.
        steps: Control steps of every environment so far, by which the weight goes.
    """

    def __init__(
        self,
        config: RndConfig,
        obs_dims: Mapping[str, int],
        *,
        num_envs: int,
        seed: int,
        device: torch.device,
        peers: Peers = ALONE,
    ) -> None:
        """Build both networks.

        Args:
            config: Settings.
            obs_dims: Length of each observation group.
            num_envs: Number of environments.
            seed: Seed of the networks and of the minibatches.
            device: Where everything lives.
            peers: Processes that learn together.
        """
        self._peers = peers
        self.config, self.groups, self.steps = config, config.groups, 0
        dim = sum(obs_dims[name] for name in config.groups)
        weights = torch.Generator().manual_seed(seed)
        shape: dict[str, Any] = {"activation": config.activation, "out_gain": 2.0**0.5}
        shape["generator"] = weights
        target = make_mlp(dim, config.target_hidden, config.num_outputs, **shape)
        self.target = target.to(device).requires_grad_(False)
        predictor = make_mlp(dim, config.predictor_hidden, config.num_outputs, **shape)
        self._learner = Learner(
            "rnd", predictor.to(device), lr=config.learning_rate, seed=seed, peers=peers
        )
        self.states = RunningNormalizer(dim, clip=config.state_clip).to(device)
        self.rewards = RunningNormalizer(1).to(device)
        self._sums = torch.zeros(num_envs, device=device)

    @property
    def predictor(self) -> nn.Module:
        """The network that learns."""
        return self._learner.net

    @torch.no_grad()
    def mix(self, rollout: Rollout, valid: Tensor | None) -> tuple[Tensor, Metrics]:
        """Return the task's reward plus the weighted intrinsic one; see `RewardExtension.mix`."""
        reached = finite(rollout.reached(self.groups))
        if self.config.normalize_states:
            self.states.update(kept(reached, valid), peers=self._peers)
        raw = self.novelty(reached)
        reward = raw / self._deviation(raw, valid)
        weight = self._weights(len(raw), raw)
        self.steps += len(raw)
        metrics = {
            "rnd/novelty": kept(raw.unsqueeze(-1), valid).mean(),
            "rnd/reward": kept(reward.unsqueeze(-1), valid).mean(),
            "rnd/weight": weight[-1],
        }
        return rollout.reward + weight.unsqueeze(-1) * reward, metrics

    def update(self, rollout: Rollout, valid: Tensor | None) -> Metrics:
        """Train the predictor on the states that were rewarded; see `RewardExtension.update`."""
        config, learner = self.config, self._learner
        with torch.no_grad():
            x = self._normalized(kept(finite(rollout.reached(self.groups)), valid))
            wanted = self.target(x)
        if not self._peers.any(len(x) > 0):
            return {}
        losses, norms = [], []
        for rows in learner.minibatches(
            len(x), epochs=config.epochs, minibatches=config.minibatches
        ):
            loss = (learner.net(x[rows]) - wanted[rows]).square().mean()
            norms.append(learner.step(loss, len(rows)))
            losses.append(loss.detach())
        metrics = {
            "loss/rnd": torch.stack(losses).mean(),
            "rnd/grad_norm": torch.stack(norms).mean(),
        }
        return metrics | learner.finish()

    @torch.no_grad()
    def novelty(self, obs: Tensor) -> Tensor:
        """Return the predictor's error before normalization, ``(...)``.

        Args:
            obs: Raw finite observations, ``(..., dim)``.
        """
        x = self._normalized(obs)
        error = self.target(x) - self.predictor(x)
        if self.config.error == "norm":
            return torch.linalg.vector_norm(error, dim=-1)
        return error.square().mean(-1)

    def parameters(self) -> list[nn.Parameter]:
        """Return the predictor's parameters."""
        return self._learner.parameters()

    def named_tensors(self) -> dict[str, Tensor]:
        """Return networks, moments and statistics; the running sums are of the environments."""
        modules = {"target": self.target, "states": self.states, "rewards": self.rewards}
        return self._learner.named_tensors() | {
            f"{name}.{key}": value
            for name, module in modules.items()
            for key, value in module.state_dict().items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimizer, statistics, running sums and the counter."""
        return {
            "target": self.target.state_dict(),
            "learner": self._learner.state_dict(),
            "states": self.states.state_dict(),
            "rewards": self.rewards.state_dict(),
            "sums": self._sums,
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was called; see `RewardExtension.load_state_dict`."""
        self.target.load_state_dict(state["target"])
        self._learner.load_state_dict(state["learner"])
        self.states.load_state_dict(state["states"])
        self.rewards.load_state_dict(state["rewards"])
        if state["sums"].shape == self._sums.shape:
            self._sums = state["sums"].to(self._sums.device)
        self.steps = int(state["steps"])

    def _normalized(self, obs: Tensor) -> Tensor:
        return self.states(obs) if self.config.normalize_states else obs

    def _deviation(self, raw: Tensor, valid: Tensor | None) -> Tensor:
        """Learn from the rewards of a rollout, ``(T, N)``, and return what to divide them by."""
        config = self.config
        if config.normalize_reward == "none":
            return torch.ones_like(raw[0, 0])
        seen = raw if config.normalize_reward == "reward" else self._discounted(raw, valid)
        self.rewards.update(kept(seen.unsqueeze(-1), valid), peers=self._peers)
        deviation = self.rewards.var.sqrt().squeeze().float()
        # Rewards that are all the same have no deviation to be divided by.
        return torch.where(deviation > 0.0, deviation, torch.ones_like(deviation))

    def _discounted(self, raw: Tensor, valid: Tensor | None) -> Tensor:
        """Return the discounted sum of all rewards up to each step; excluded steps change none.

        The sum looks back, ``c_t = gamma c_{t-1} + r_t``, and does not end with an episode:
        curiosity is not episodic (sec. 2.3 and 2.4 of the paper).
        """
        sums = torch.empty_like(raw)
        for t, reward in enumerate(raw):
            after = self.config.gamma * self._sums + reward
            self._sums = after if valid is None else torch.where(valid[t], after, self._sums)
            sums[t] = self._sums
        return sums

    def _weights(self, steps: int, like: Tensor) -> Tensor:
        """Return the weight of each of the next steps, ``(steps,)``."""
        first = self.steps + 1
        weights = [scheduled_weight(first + t, self.config) for t in range(steps)]
        return torch.tensor(weights, dtype=like.dtype, device=like.device)


def scheduled_weight(step: int, config: RndConfig) -> float:
    """Return the weight of the intrinsic reward at a control step, counted from 1 as in rsl_rl."""
    start, end = config.weight, config.final_weight
    if config.schedule == "step":
        return start if step < config.final_step else end
    if config.schedule == "linear":
        length = config.final_step - config.initial_step
        done = min(1.0, max(0.0, (step - config.initial_step) / length))
        return start + (end - start) * done
    return start
