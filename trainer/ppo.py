"""Proximal policy optimization: the update (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from trainer.adam import Adam, clip_gradients
from trainer.batch import Minibatch, Samples, make_batch
from trainer.beginning import begin_with
from trainer.checkpoint import Checkpoint
from trainer.config import InvalidSetting, NetworkConfig, PPOConfig
from trainer.distributed import ALONE, Peers
from trainer.envs.action_space import ActionSpace
from trainer.guard import LastFinite
from trainer.losses import Metrics
from trainer.networks.actor_critic import Actor, Critic
from trainer.networks.gaussian_heads import DiagonalGaussian
from trainer.networks.groups import groups_of, joined_mirror, observed
from trainer.networks.head import Constants
from trainer.normalizer import RunningNormalizer
from trainer.objective import Objective
from trainer.rollout import Acted, Rollout
from trainer.schedules import adaptive_kl_lr, linear_lr, std_ceiling
from trainer.sequence_batch import States, make_sequence_batch
from trainer.symmetry import MirrorTable
from trainer.table import Images

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
        groups: Which observations they see.
        collected: The same: what a rollout needs.
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
        peers: Peers = ALONE,
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
            peers: Processes that learn together: exploration and minibatches have seeds of their
                own in each.

        Raises:
            InvalidSetting: The settings ask for symmetry and there is no mirror table.
            ValueError: The mirror table does not fit the environment.
        """
        self.config = config
        self.device = device
        self._peers = peers
        self.groups = self.collected = groups_of(network, obs_dims)
        self._init_std = network.init_std
        weights = torch.Generator().manual_seed(seed)
        of_actor, of_critic = (
            {name: obs_dims[name] for name in names}
            for names in (self.groups.actor, self.groups.critic)
        )
        self.actor = Actor(of_actor, actions, network, weights).to(device)
        trunk = self.actor if network.shared else None
        self.critic = Critic(of_critic, network, weights, trunk).to(device)
        self._images = self._make_images(symmetry, obs_dims) if config.symmetry.enabled else None
        self._states: States = {}
        self.generator = torch.Generator(device).manual_seed(peers.seed(seed) + 1)
        self.lr = torch.tensor(config.learning_rate, device=device)
        parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self._optimizer = Adam(parameters, lr=self.lr, eps=config.adam_eps)
        split = len(list(self.actor.parameters()))
        self._clipped = [parameters] if config.grad_clip == "joint" else [
            parameters[:split], parameters[split:]
        ]  # fmt: skip
        self.faults = {name: torch.zeros((), dtype=torch.int64, device=device) for name in FAULTS}
        mirror = self._images.action if self._images else None
        self._loss = Objective(self.actor, self.critic, config=config, mirror=mirror)
        self._last_finite = LastFinite(self._live_tensors)

    def begin_with(self, checkpoint: Checkpoint, contract: str | None) -> None:
        """Take over what another run's actor has learned; see `trainer.beginning.begin_with`."""
        begin_with(self.actor, checkpoint, contract)
        self._last_finite = LastFinite(self._live_tensors)

    @torch.no_grad()
    def act(self, obs: Tensor, *state: Tensor) -> Acted:
        """Sample actions.

        Args:
            obs: Raw observations of the group `policy`, ``(N, dim)``.
            state: What the policy remembers; nothing where an episode begins.
        """
        head = self.actor.distribution
        outputs, after = self.actor.step(obs, state)
        sample = head.distribution(outputs, head.constants()).sample(self.generator)
        return Acted(sample=sample, outputs=outputs, action=head.action(sample), state=after)

    def anneal(self, iteration: int, iterations: int) -> None:
        """Set the learning rate of an iteration, counted from 0, if the linear schedule is on."""
        config = self.config
        if config.lr_anneal == "linear":
            start, end = config.learning_rate, config.lr_floor
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
            Means over all minibatches, 0-d tensors by name; empty if nothing was learned: next to
            nothing was valid, or this first rollout is for the normalizers.
        """
        batch = self._batch(rollout, valid)
        if not self._peers.any(batch.num_samples >= 2 * self.config.minibatches):
            return {}
        if self.config.prime_normalizer and self._nothing_seen():
            self._update_normalizers(rollout, valid)
            return {}
        steps = [
            step
            for units in self._minibatches(batch.num_units)
            if (step := self._step(self._minibatch(batch, units), batch.old_constants))
        ]
        names = steps[0] if steps else ()
        metrics = {name: torch.stack([step[name] for step in steps]).mean() for name in names}
        metrics["value/explained_variance"] = batch.explained_variance
        self._update_normalizers(rollout, valid)
        if not self._last_finite.keep_or_restore():
            self.faults["nonfinite/parameter"] += 1
            logger.warning("a weight was not finite after the update: took the last finite ones")
        return metrics

    def _batch(self, rollout: Rollout, valid: Tensor | None) -> Samples:
        """Prepare a rollout for the update."""
        parts = (rollout, valid, self.actor, self.critic)
        how: dict[str, Any] = {
            "config": self.config, "groups": self.groups, "images": self._images,
            "peers": self._peers,
        }  # fmt: skip
        if self.actor.rnn is None:
            return make_batch(*parts, **how)
        batch, self._states = make_sequence_batch(*parts, **how, states=self._states)
        return batch

    def _minibatches(self, num_units: int) -> Iterator[Tensor]:
        """Yield the units of each minibatch of each epoch; every unit once per epoch."""
        order = None
        for _ in range(self.config.epochs):
            if self.config.reuse_permutation and self.actor.rnn is not None:
                order = torch.arange(num_units, device=self.device)
            elif order is None or not self.config.reuse_permutation:
                order = torch.randperm(num_units, generator=self.generator, device=self.device)
            yield from order.tensor_split(self.config.minibatches)

    def _minibatch(self, batch: Samples, units: Tensor) -> Minibatch | None:
        """Gather a minibatch; None if there is next to nothing in it."""
        standardize = self.config.normalize_advantage == "minibatch"
        return batch.minibatch(units, images=self._images is not None, standardize=standardize)

    def _step(self, data: Minibatch | None, old_constants: Constants) -> Metrics:
        """Take one optimizer step on a minibatch, which is made of those of all processes.

        Args:
            data: That of this one; None if it has next to nothing, and others may have more.
            old_constants: `Head.constants` when the actions were sampled.

        Returns:
            What was measured here; empty without a minibatch.
        """
        if data is None and self._peers.size == 1:
            return {}
        self._optimizer.zero_grad()
        metrics: Metrics = {}
        if data is not None:
            loss, metrics = self._loss(data, old_constants)
            loss.backward()
        kl = metrics["policy/kl"] if data is not None else torch.zeros_like(self.lr)
        weight = 0 if data is None else data.action.shape[0]
        kl = self._peers.average_gradients(self._optimizer.parameters, kl, weight)
        lr, norm = self._adapt_lr(kl), self._descend()
        merged = {"policy/kl": kl, "policy/lr": lr, "policy/grad_norm": norm}
        return metrics | merged if metrics else {}

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
                min_lr=config.lr_floor,
                max_lr=config.max_lr,
            )
            self.lr.copy_(lr)
        return self.lr.clone()

    def _descend(self) -> Tensor:
        """Clip the gradients and step; skip the step where they are not finite.

        Returns:
            Norm of all gradients before they were clipped, 0-d.
        """
        norms = [clip_gradients(part, self.config.max_grad_norm) for part in self._clipped]
        norm = torch.stack(norms).norm()
        unusable = ~norm.isfinite()
        self.faults["nonfinite/grad"] += unusable
        self._optimizer.step(skip=unusable)
        self.actor.distribution.project_()
        return norm

    def _nothing_seen(self) -> bool:
        """Return whether there is a normalizer and it still lets observations through."""
        normalizer = self.actor.normalizer
        return isinstance(normalizer, RunningNormalizer) and not bool(normalizer.count)

    def _update_normalizers(self, rollout: Rollout, valid: Tensor | None) -> None:
        """Learn the observations' statistics, after everything else is done with the old ones."""
        images = self._images if self.config.symmetry.mirror_normalizer else None
        for normalizer, names, mirror in (
            (self.actor.normalizer, self.groups.actor, images and images.actor),
            (self.critic.body.normalizer, self.groups.critic, images and images.critic),
        ):
            if isinstance(normalizer, RunningNormalizer):
                obs = observed(rollout.obs, names)[:-1].flatten(0, 1)
                rows = obs if valid is None else obs[valid.flatten()]
                normalizer.update(rows, mirror, self._peers)
            if self.critic.body is self.actor:
                break

    def _make_images(
        self, symmetry: MirrorTable | None, obs_dims: Mapping[str, int]
    ) -> Images | None:
        """Return how mirror images are made; a head that cannot make them says so now."""
        if symmetry is None:
            raise InvalidSetting(
                "ppo.symmetry is switched on and the task has no mirror table: set "
                "augment = False and mirror_coef = 0"
            )
        symmetry.check({name: obs_dims[name] for name in self.groups.all}, self.actor.num_actions)
        table, head = symmetry.to(self.device), self.actor.distribution
        return Images(
            actor=joined_mirror(table.obs, self.groups.actor),
            critic=joined_mirror(table.obs, self.groups.critic),
            action=table.action,
            head=head.reflection(table.action),
        )

    def _live_tensors(self) -> list[Tensor]:
        """Return every tensor that must stay finite: weights, statistics, moments."""
        state = [*self.actor.state_dict().values(), *self.critic.state_dict().values()]
        return [*state, *self._optimizer.moments().values()]

    def named_tensors(self) -> dict[str, Tensor]:
        """Return what must be equal in all processes, by name: weights, statistics, moments."""
        return {
            **{f"actor.{name}": value for name, value in self.actor.state_dict().items()},
            **{f"critic.{name}": value for name, value in self.critic.state_dict().items()},
            **{f"optimizer.{name}": value for name, value in self._optimizer.moments().items()},
            "learning_rate": self.lr,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return everything the next update depends on, as tensors and plain containers."""
        return {
            "actor": self.actor.state_dict(),
            "critic": self.critic.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "faults": {name: int(count) for name, count in self.faults.items()},
            "states": {name: list(state) for name, state in self._states.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was called.

        Raises:
            RuntimeError: The state is of networks with another shape.
        """
        self.actor.load_state_dict(state["actor"])
        self.critic.load_state_dict(state["critic"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"].cpu())
        for name, count in state["faults"].items():
            self.faults[name].fill_(count)
        # Files from before there were networks with a memory have none.
        self._states = {
            name: tuple(part.to(self.device) for part in parts)
            for name, parts in state.get("states", {}).items()
        }
        self._last_finite = LastFinite(self._live_tensors)
