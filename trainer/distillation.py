"""Distillation: a student learns to do what a teacher would, where the student itself gets to.

DAgger (Ross et al. 2011, arXiv:1011.0686) as rsl_rl has it: the student acts, the teacher says in
every step what it would have done, and the student learns that by regression. What the teacher sees
and the student does not, the student has to work out from what it sees, or remembers.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.config import InvalidSetting, NetworkConfig
from trainer.distillation_config import DistillConfig
from trainer.distributed import ALONE, Peers
from trainer.envs.action_space import ActionSpace
from trainer.guard import LastFinite
from trainer.losses import Metrics
from trainer.networks.actor_critic import Actor
from trainer.networks.body import features, recall
from trainer.networks.gaussian_heads import DiagonalGaussian
from trainer.networks.groups import Groups, groups_of, observed
from trainer.networks.recurrent import forget
from trainer.normalizer import RunningNormalizer
from trainer.rollout import Acted, Rollout
from trainer.schedules import LR_FLOOR, linear_lr
from trainer.teacher import Teacher

logger = logging.getLogger(__name__)

FAULTS = ("nonfinite/grad", "nonfinite/parameter")
"""What can go wrong in an update, by the name it is counted under."""


class Distillation:
    """A student, its teacher and an optimizer, and how the student learns from a rollout.

    Attributes:
        config: Settings.
        groups: Which observations the student sees.
        collected: Which ones a rollout needs: the student's, then the teacher's.
        device: Where everything lives.
        actor: The student.
        teacher: The teacher.
        generator: Source of noise, of who acts and of the minibatches.
        faults: How often each of `FAULTS` happened, 0-d int64 tensors.
    """

    def __init__(
        self,
        obs_dims: Mapping[str, int],
        actions: ActionSpace,
        *,
        config: DistillConfig,
        network: NetworkConfig,
        teacher: Teacher,
        seed: int,
        device: torch.device,
        peers: Peers = ALONE,
    ) -> None:
        """Build the student and its optimizer.

        Args:
            obs_dims: Length of each observation group.
            actions: What the environment takes.
            config: Settings.
            network: Shape of the student.
            teacher: The teacher.
            seed: Seed of the weights, the noise and the minibatches.
            device: Where everything lives.
            peers: Processes that learn together.

        Raises:
            InvalidSetting: The student has another head than a Gaussian with one deviation.
        """
        self.config, self.device, self._peers = config, device, peers
        seen = groups_of(network, obs_dims).actor
        self.groups = Groups(actor=seen, critic=seen)
        self.collected = Groups(actor=(*seen, *teacher.groups), critic=seen)
        self._obs_dim = sum(obs_dims[name] for name in seen)
        weights = torch.Generator().manual_seed(seed)
        dims = {name: obs_dims[name] for name in seen}
        self.actor = Actor(dims, actions, network, weights).to(device)
        head = self.actor.distribution
        if not isinstance(head, DiagonalGaussian):
            raise InvalidSetting(
                f"network.head = {network.head}: a student has the head gaussian, whose mean "
                "is what the teacher would do, whatever head the teacher has"
            )
        head.limit(config.std)
        head.project_()
        teacher.network.to(device)
        self.teacher = teacher
        self.generator = torch.Generator(device).manual_seed(peers.seed(seed) + 1)
        # What the head explores by is no part of the loss.
        self._parameters = [p for p in self.actor.parameters() if p is not head.param]
        self._optimizer = torch.optim.Adam(self._parameters, lr=config.learning_rate, fused=True)
        self.faults = {name: torch.zeros((), dtype=torch.int64, device=device) for name in FAULTS}
        self._labels: list[Tensor] = []
        self._last_finite = LastFinite(self._live_tensors)

    @torch.no_grad()
    def act(self, obs: Tensor, *state: Tensor) -> Acted:
        """Act, and ask the teacher what it would do.

        Args:
            obs: Raw observations of the groups `collected`, ``(N, dim)``.
            state: What student and teacher remember; nothing where all episodes begin.
        """
        rnn = self.actor.rnn
        parts = len(rnn.state_shapes) if rnn is not None and state else 0
        seen, of_teacher = obs[:, : self._obs_dim], obs[:, self._obs_dim :]
        outputs, after = self.actor.step(seen, state[:parts])
        label, remembered = self.teacher.act(of_teacher, state[parts:])
        self._labels.append(label)
        head = self.actor.distribution
        action = head.distribution(outputs, head.constants()).sample(self.generator)
        if self.config.teacher_share > 0.0:
            draw = torch.rand(len(obs), 1, generator=self.generator, device=self.device)
            action = torch.where(draw < self.config.teacher_share, label, action)
        return Acted(sample=action, outputs=outputs, action=action, state=(*after, *remembered))

    def anneal(self, iteration: int, iterations: int) -> None:
        """Set the learning rate of an iteration, counted from 0, if the linear schedule is on."""
        if self.config.lr_anneal == "linear":
            start = self.config.learning_rate
            (group,) = self._optimizer.param_groups
            group["lr"] = linear_lr(iteration, iterations, start=start, end=LR_FLOOR * start)

    def limit_std(self, iteration: int, iterations: int) -> None:
        """Do nothing: the noise is constant."""

    def update(self, rollout: Rollout, valid: Tensor | None = None) -> Metrics:
        """Learn from a rollout.

        Args:
            rollout: The rollout, collected by `act` since the last update.
            valid: False where a sample is excluded, bool ``(T, N)``; None: none is.

        Returns:
            0-d tensors by name: ``loss/distillation``, the mean over all optimizer steps;
            ``distill/error``, the distance of the student's action from the teacher's per joint,
            root mean square, raw action units, before the update. Empty if nothing was valid.
        """
        label = torch.stack(self._labels)
        self._labels.clear()
        used = torch.ones_like(rollout.reward, dtype=torch.bool) if valid is None else valid
        if not self._peers.any(bool(used.any())):
            return {}
        losses, norms = [], []
        batches = self._samples if self.actor.rnn is None else self._sequences
        for loss, weight in batches(rollout, label, used):
            norms.append(self._step(loss, weight))
            if loss is not None:
                losses.append(loss.detach())
        metrics = {"policy/grad_norm": torch.stack(norms).mean()}
        if losses:
            distance = (rollout.outputs - label)[used].square().mean().sqrt()
            metrics |= {"loss/distillation": torch.stack(losses).mean(), "distill/error": distance}
        self._update_normalizer(rollout, used)
        if not self._last_finite.keep_or_restore():
            self.faults["nonfinite/parameter"] += 1
            logger.warning("a weight was not finite after the update: took the last finite ones")
        return metrics

    def _samples(
        self, rollout: Rollout, label: Tensor, used: Tensor
    ) -> Iterator[tuple[Tensor | None, int]]:
        """Yield the loss of each minibatch of samples, and of how many it is the mean."""
        obs = self.actor.normalizer(observed(rollout.obs, self.groups.actor)[:-1][used])
        label = label[used]
        for units in self._minibatches(len(obs)):
            mean = self.actor.net(features(self.actor, obs[units])) if len(units) else None
            yield None if mean is None else self._loss(mean, label[units]), len(units)

    def _sequences(
        self, rollout: Rollout, label: Tensor, used: Tensor
    ) -> Iterator[tuple[Tensor | None, int]]:
        """Yield the loss of each piece of the steps of some environments, one after the other.

        The state goes on from piece to piece, its gradient does not: back-propagation through time
        truncated at `gradient_length` steps. It goes on with the weights as they have become.
        """
        assert self.actor.rnn is not None
        # What is not finite is not used either; the policy acted on zeros in its place.
        obs = observed(rollout.obs, self.groups.actor)[:-1].nan_to_num(0.0, 0.0, 0.0)
        obs, starts = self.actor.normalizer(obs), rollout.starts()
        before = rollout.state[: len(self.actor.rnn.state_shapes)]
        for envs in self._minibatches(obs.shape[1]):
            state = tuple(part[:, envs] for part in before)
            for steps in torch.arange(len(obs)).split(self.config.gradient_length):
                state = tuple(part.detach() for part in state)
                means: list[Tensor] = []
                for t in steps.tolist() if len(envs) else ():
                    state = forget(state, starts[t, envs])
                    seen, state = recall(self.actor, obs[t, envs], state)
                    means.append(self.actor.net(seen))
                chosen = used[steps][:, envs]
                if not bool(chosen.any()):
                    yield None, 0
                    continue
                learned = torch.stack(means)[chosen]
                yield self._loss(learned, label[steps][:, envs][chosen]), len(learned)

    def _loss(self, mean: Tensor, label: Tensor) -> Tensor:
        """Return the mean over samples and actions."""
        loss = functional.mse_loss if self.config.loss == "mse" else functional.huber_loss
        return loss(mean, label)

    def _minibatches(self, num_units: int) -> Iterator[Tensor]:
        """Yield the units of each minibatch of each epoch; every unit once per epoch."""
        for _ in range(self.config.epochs):
            order = torch.randperm(num_units, generator=self.generator, device=self.device)
            yield from order.tensor_split(self.config.minibatches)

    def _step(self, loss: Tensor | None, weight: int) -> Tensor:
        """Take one optimizer step, on what all processes have; return the gradient's norm."""
        self._optimizer.zero_grad()
        if loss is not None:
            loss.backward()
        zero = torch.zeros((), device=self.device)
        self._peers.average_gradients(self._parameters, zero, weight)
        limit = self.config.max_grad_norm
        limit = float("inf") if limit is None else limit
        # Of no gradient at all, where there is no sample, the norm would be on the CPU.
        norm = nn.utils.clip_grad_norm_(self._parameters, limit).to(self.device)
        unusable = ~norm.isfinite()
        self.faults["nonfinite/grad"] += unusable
        # Where it is 1, the fused kernel leaves weights, moments and step count alone.
        self._optimizer.found_inf = unusable.float()  # pyright: ignore[reportAttributeAccessIssue]
        self._optimizer.step()
        return norm

    def _update_normalizer(self, rollout: Rollout, used: Tensor) -> None:
        """Learn the observations' statistics, after everything else is done with the old ones."""
        normalizer = self.actor.normalizer
        if isinstance(normalizer, RunningNormalizer):
            obs = observed(rollout.obs, self.groups.actor)[:-1]
            normalizer.update(obs[used], None, self._peers)

    def _live_tensors(self) -> list[Tensor]:
        """Return every tensor that must stay finite: weights, statistics, moments."""
        moments = [t for slot in self._optimizer.state.values() for t in slot.values()]
        return [*self.actor.state_dict().values(), *moments]

    def named_tensors(self) -> dict[str, Tensor]:
        """Return what must be equal in all processes, by name: weights, statistics, moments."""
        moments = enumerate(self._optimizer.state.values())
        return {
            **{f"actor.{name}": value for name, value in self.actor.state_dict().items()},
            **{f"optimizer.{i}.{key}": t for i, slot in moments for key, t in slot.items()},
        }

    def state_dict(self) -> dict[str, Any]:
        """Return everything the next update depends on, as tensors and plain containers."""
        return {
            "actor": self.actor.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "faults": {name: int(count) for name, count in self.faults.items()},
            "states": {},
            "teacher": self.teacher.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was called; the teacher stays the one that is here.

        Raises:
            RuntimeError: The state is of a student with another shape.
        """
        self.actor.load_state_dict(state["actor"])
        # A copy: torch would go on with the very tensors of `state`.
        self._optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        (group,) = self._optimizer.param_groups
        group["lr"] = self.config.learning_rate
        self.generator.set_state(state["generator"].cpu())
        for name, count in state["faults"].items():
            self.faults[name].fill_(count)
        self._last_finite = LastFinite(self._live_tensors)
