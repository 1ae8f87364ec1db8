"""Proximal policy optimization: the update (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainer.batch import Batch, Minibatch, make_batch
from trainer.config import InvalidSetting, NetworkConfig, PPOConfig
from trainer.distributions import Distribution
from trainer.envs.action_space import ActionSpace
from trainer.guard import LastFinite
from trainer.losses import (
    Metrics,
    entropy_loss,
    mirror_loss,
    surrogate_loss,
    value_loss,
)
from trainer.networks.actor_critic import ACTOR_GROUP, Actor, Critic, critic_group
from trainer.networks.gaussian_heads import DiagonalGaussian
from trainer.normalizer import RunningNormalizer
from trainer.rollout import Acted, Rollout
from trainer.schedules import adaptive_kl_lr, linear_lr, std_ceiling
from trainer.symmetry import MirrorTable

logger = logging.getLogger(__name__)

FAULTS = ("nonfinite/grad", "nonfinite/kl", "nonfinite/parameter")
"""What can go wrong in an update, by the name it is counted under."""


class PPO:
    """Actor, critic and optimizer, and how they learn from a rollout.

    Nothing in an update waits for the device: the learning rate is a tensor that the KL rule
    changes in place, a step with a gradient that is not finite is skipped by the optimizer's
    kernel, and metrics stay tensors.

    Attributes:
        config: Settings.
        actor: The actor.
        critic: The critic.
        lr: Learning rate, 0-d tensor.
        generator: Source of the exploration noise and of the minibatches.
        faults: How often each of `FAULTS` happened, 0-d int64 tensors.
    """

    def __init__(
        self,
        obs_dims: Mapping[str, int],
        actions: ActionSpace | int,
        *,
        config: PPOConfig,
        network: NetworkConfig,
        seed: int,
        device: torch.device,
        symmetry: MirrorTable | None = None,
    ) -> None:
        """Build networks and optimizer.

        Args:
            obs_dims: Length of each observation group.
            actions: What the environment takes; a number is the length of a continuous action.
            config: Settings.
            network: Shape and start of the networks.
            seed: Seed of the weights, the exploration and the minibatches.
            device: Where everything lives.
            symmetry: The mirror table of the task, needed if the settings use one.

        Raises:
            InvalidSetting: The settings ask for symmetry and there is no mirror table.
            ValueError: The mirror table does not fit the environment.
        """
        if config.symmetry.enabled and symmetry is None:
            raise InvalidSetting(
                "ppo.symmetry is switched on and the task has no mirror table: set "
                "augment = False and mirror_coef = 0"
            )
        self.config = config
        self.device = device
        self._critic_group = critic_group(obs_dims)
        self._mirror = symmetry.to(device) if symmetry and config.symmetry.enabled else None
        self._init_std = network.init_std
        weights = torch.Generator().manual_seed(seed)
        self.actor = Actor(obs_dims[ACTOR_GROUP], actions, network, weights).to(device)
        self.critic = Critic(obs_dims[self._critic_group], network, weights).to(device)
        if self._mirror is not None:
            seen = {name: obs_dims[name] for name in (ACTOR_GROUP, self._critic_group)}
            length = actions if isinstance(actions, int) else actions.num_actions
            self._mirror.check(seen, length)
            # A head that cannot mirror its actions says so now, not after the first rollout.
            self.actor.distribution.reflection(self._mirror.action)
        self.generator = torch.Generator(device).manual_seed(seed + 1)
        self.lr = torch.tensor(config.learning_rate, device=device)
        parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self._optimizer = torch.optim.Adam(parameters, lr=self.lr, eps=config.adam_eps, fused=True)
        self.faults = {name: torch.zeros((), dtype=torch.int64, device=device) for name in FAULTS}
        self._actor_net, self._critic_net = self.actor.net, self.critic.net
        if config.compile_backend:
            # Only the handles are compiled: the modules keep their names in every checkpoint.
            self._actor_net = torch.compile(self.actor.net, backend=config.compile_backend)
            self._critic_net = torch.compile(self.critic.net, backend=config.compile_backend)
        self._last_finite = LastFinite(self._live_tensors)

    @torch.no_grad()
    def act(self, obs: Tensor) -> Acted:
        """Sample actions.

        Args:
            obs: Raw observations of the group `policy`, ``(N, dim)``.
        """
        head = self.actor.distribution
        outputs = self.actor.outputs(obs)
        sample = head.distribution(outputs, head.constants()).sample(self.generator)
        return Acted(sample=sample, outputs=outputs, action=head.action(sample))

    def anneal(self, iteration: int, iterations: int) -> None:
        """Set the learning rate of an iteration, counted from 0, if the linear schedule is on."""
        config = self.config
        if config.lr_anneal == "linear":
            start, end = config.learning_rate, config.min_lr
            self.lr.fill_(linear_lr(iteration, iterations, start=start, end=end))

    def limit_std(self, iteration: int, iterations: int) -> None:
        """Set the ceiling of the deviation for an iteration, before its rollout is collected."""
        head, end = self.actor.distribution, self.config.final_std
        if end is not None and isinstance(head, DiagonalGaussian):
            head.limit(std_ceiling(iteration, iterations, start=self._init_std, end=end))

    def update(self, rollout: Rollout, valid: Tensor | None = None) -> Metrics:
        """Learn from a rollout.

        Args:
            rollout: The rollout, sampled by `act` since the last update.
            valid: False where a sample is excluded, bool ``(T, N)``; None: none is.

        Returns:
            Means over all minibatches, 0-d tensors by name; empty if next to nothing was valid,
            in which case nothing is learned.
        """
        batch = make_batch(
            rollout,
            valid,
            self.actor,
            self.critic,
            config=self.config,
            critic_group=self._critic_group,
            mirror=self._mirror,
        )
        if batch.num_samples < 2 * self.config.minibatches:
            return {}
        steps = [self._step(batch, rows) for rows in self._minibatches(batch.num_samples)]
        metrics = {name: torch.stack([step[name] for step in steps]).mean() for name in steps[0]}
        metrics["value/explained_variance"] = batch.explained_variance
        self._update_normalizers(rollout, valid)
        if not self._last_finite.keep_or_restore():
            self.faults["nonfinite/parameter"] += 1
            logger.warning("a weight was not finite after the update: took the last finite ones")
        return metrics

    def _minibatches(self, num_samples: int) -> Iterator[Tensor]:
        """Yield the rows of each minibatch of each epoch; every sample once per epoch."""
        order = None
        for _ in range(self.config.epochs):
            if order is None or not self.config.reuse_permutation:
                order = torch.randperm(num_samples, generator=self.generator, device=self.device)
            yield from order.tensor_split(self.config.minibatches)

    def _step(self, batch: Batch, rows: Tensor) -> Metrics:
        """Take one optimizer step on the samples `rows`."""
        if self.config.normalize_advantage == "minibatch":
            batch.standardize_advantage(rows)
        self._optimizer.zero_grad()
        loss, metrics = self._loss(batch, rows)
        loss.backward()
        metrics["policy/lr"] = self._adapt_lr(metrics["policy/kl"])
        metrics["policy/grad_norm"] = self._descend()
        return metrics

    def _loss(self, batch: Batch, rows: Tensor) -> tuple[Tensor, Metrics]:
        """Return the loss of the samples `rows` and, with symmetry, of their images."""
        config, mirror, count = self.config, self._mirror, rows.shape[0]
        if mirror is not None:
            rows = torch.cat([rows, rows + batch.num_samples])
        data = batch.take(rows)
        head = self.actor.distribution
        outputs, constants = self._actor_net(data.actor_in), head.constants()
        with torch.no_grad():
            old = head.distribution(data.old_outputs[:count], batch.old_constants)
            new = head.distribution(outputs[:count], constants)
            metrics = {"policy/kl": old.kl(new).mean(), **new.shown()}
        # Outputs for the images are at hand for the mirror loss even where nothing else uses them.
        learned = data if config.symmetry.augment else data.head(count)
        policy = head.distribution(outputs[: learned.action.shape[0]], constants)
        loss = self._ppo_loss(learned, policy, metrics)
        if mirror is not None:
            action = head.deterministic(outputs)
            term, more = mirror_loss(action[:count], action[count:], mirror.action)
            metrics |= more
            loss = loss + config.symmetry.mirror_coef * term
        return loss, metrics

    def _ppo_loss(self, data: Minibatch, policy: Distribution, metrics: Metrics) -> Tensor:
        """Return the sum of PPO's losses, eq. 9 of the paper, and add to `metrics`."""
        config = self.config
        log_prob = policy.log_prob(data.action)
        value = self._critic_net(data.critic_in).squeeze(-1)
        surrogate, of_surrogate = surrogate_loss(
            log_prob, data.old_log_prob, data.advantage, clip=config.clip
        )
        error, of_value = value_loss(value, data.old_value, data.returns, clip=config.value_clip)
        disorder, of_entropy = entropy_loss(policy.entropy())
        metrics |= of_surrogate | of_value | of_entropy
        return surrogate + config.value_coef * error + config.entropy_coef * disorder

    def _adapt_lr(self, kl: Tensor) -> Tensor:
        """Let the measured divergence move the learning rate, and return a copy of it."""
        config = self.config
        self.faults["nonfinite/kl"] += ~kl.isfinite()
        if config.desired_kl is not None:
            lr = adaptive_kl_lr(
                self.lr,
                kl,
                desired_kl=config.desired_kl,
                factor=config.kl_factor,
                band=config.kl_band,
                min_lr=config.min_lr,
                max_lr=config.max_lr,
            )
            self.lr.copy_(lr)
        return self.lr.clone()

    def _descend(self) -> Tensor:
        """Clip the gradients and step; skip the step where they are not finite.

        Returns:
            Norm of all gradients before they were clipped, 0-d.
        """
        config = self.config
        groups = [list(self.actor.parameters()), list(self.critic.parameters())]
        if config.grad_clip == "joint":
            groups = [groups[0] + groups[1]]
        norms = [nn.utils.clip_grad_norm_(group, config.max_grad_norm) for group in groups]
        norm = torch.stack(norms).norm()
        unusable = ~norm.isfinite()
        self.faults["nonfinite/grad"] += unusable
        # What torch.amp.GradScaler hands to a fused optimizer: where it is 1, the kernel leaves
        # weights, moments and step count alone, and the host need not know.
        self._optimizer.found_inf = unusable.float()  # pyright: ignore[reportAttributeAccessIssue]
        self._optimizer.step()
        self.actor.distribution.project_()
        return norm

    def _update_normalizers(self, rollout: Rollout, valid: Tensor | None) -> None:
        """Learn the observations' statistics, after everything else is done with the old ones."""
        use_mirror = self._mirror is not None and self.config.symmetry.mirror_normalizer
        for module, group in ((self.actor, ACTOR_GROUP), (self.critic, self._critic_group)):
            if isinstance(module.normalizer, RunningNormalizer):
                obs = rollout.obs[group][:-1].flatten(0, 1)
                rows = obs if valid is None else obs[valid.flatten()]
                mirror = self._mirror.obs[group] if self._mirror and use_mirror else None
                module.normalizer.update(rows, mirror)

    def _live_tensors(self) -> list[Tensor]:
        """Return every tensor that must stay finite: weights, statistics, moments."""
        state = [*self.actor.state_dict().values(), *self.critic.state_dict().values()]
        moments = [t for slot in self._optimizer.state.values() for t in slot.values()]
        return state + moments

    def state_dict(self) -> dict[str, Any]:
        """Return everything the next update depends on, as tensors and plain containers."""
        return {
            "actor": self.actor.state_dict(),
            "critic": self.critic.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "faults": {name: int(count) for name, count in self.faults.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was called.

        Raises:
            RuntimeError: The state is of networks with another shape.
        """
        self.actor.load_state_dict(state["actor"])
        self.critic.load_state_dict(state["critic"])
        # A copy: torch would go on with the very tensors of `state`.
        self._optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        # The optimizer has replaced its tensor by the loaded one; keep ours, which the KL rule
        # changes, and give it the loaded value.
        (group,) = self._optimizer.param_groups
        self.lr.copy_(group["lr"])
        group["lr"] = self.lr
        self.generator.set_state(state["generator"].cpu())
        for name, count in state["faults"].items():
            self.faults[name].fill_(count)
        self._last_finite = LastFinite(self._live_tensors)
