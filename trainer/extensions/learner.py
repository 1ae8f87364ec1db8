"""How the networks of extensions learn: Adam that skips what is not finite."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from trainer.distributed import ALONE, Peers
from trainer.guard import LastFinite
from trainer.losses import Metrics

logger = logging.getLogger(__name__)


class Learner:
    """A network, its Adam and the source of its minibatches.

    A step with a gradient that is not finite is skipped and counted; weights that are not finite
    after an update are taken back.

    Attributes:
        net: The network.
        peers: Processes that learn together.
        generator: Source of the minibatches.
    """

    def __init__(
        self, name: str, net: nn.Module, *, lr: float, seed: int, peers: Peers = ALONE
    ) -> None:
        """Build the optimizer.

        Args:
            name: What faults are counted under.
            net: The network; it stays on its device.
            lr: Step size.
            seed: Seed of the minibatches.
            peers: Processes that learn together.
        """
        self.net, self.peers = net, peers
        self._name = name
        parameters = self.parameters()
        self._device = parameters[0].device
        self.generator = torch.Generator(self._device).manual_seed(peers.seed(seed))
        self._optimizer = torch.optim.Adam(parameters, lr=lr, fused=True)
        self._skipped = torch.zeros((), dtype=torch.int64, device=self._device)
        self._restored = 0
        self._last_finite = LastFinite(self._live_tensors)

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the network, in its order."""
        return list(self.net.parameters())

    def minibatches(self, rows: int, *, epochs: int, minibatches: int) -> Iterator[Tensor]:
        """Yield the rows of each minibatch of each epoch, int64; every row once per epoch.

        Of several processes all take the same number of steps, some maybe without a row.
        """
        parts = min(minibatches, rows) if self.peers.size == 1 else minibatches
        for _ in range(epochs):
            order = torch.randperm(rows, generator=self.generator, device=self._device)
            yield from order.tensor_split(parts)

    def step(self, loss: Tensor, rows: int) -> Tensor:
        """Take a step down a loss, and return the norm of its gradient.

        Args:
            loss: The mean over the rows of this process, 0-d.
            rows: How many there are; with several processes there may be none.
        """
        self._optimizer.zero_grad()
        loss.backward()
        parameters = self.parameters()
        self.peers.average_gradients(parameters, loss.detach(), rows)
        norm = torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm()
        unusable = ~norm.isfinite()
        self._skipped += unusable
        # Where it is 1 the fused kernel leaves weights and moments alone, and the host need not
        # know.
        self._optimizer.found_inf = unusable.float()  # pyright: ignore[reportAttributeAccessIssue]
        self._optimizer.step()
        return norm

    def finish(self) -> Metrics:
        """End an update, and return how often something was not finite so far."""
        if not self._last_finite.keep_or_restore():
            self._restored += 1
            logger.warning("a weight of %s was not finite: took the last finite ones", self._name)
        restored = torch.tensor(self._restored, device=self._device)
        return {
            f"nonfinite/{self._name}_grad": self._skipped.clone(),
            f"nonfinite/{self._name}_parameter": restored,
        }

    def named_tensors(self) -> dict[str, Tensor]:
        """Return what must be equal in all processes, by name: weights and moments."""
        moments = enumerate(self._optimizer.state.values())
        return {
            **{f"net.{name}": value for name, value in self.net.state_dict().items()},
            **{f"optimizer.{i}.{key}": t for i, slot in moments for key, t in slot.items()},
        }

    def state_dict(self) -> dict[str, Any]:
        """Return network, optimizer, random state and counts."""
        return {
            "net": self.net.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "faults": [int(self._skipped), self._restored],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was called.

        Raises:
            RuntimeError: The network has another shape.
        """
        self.net.load_state_dict(state["net"])
        self._optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.generator.set_state(state["generator"].cpu())
        skipped, self._restored = state["faults"]
        self._skipped.fill_(skipped)
        self._last_finite = LastFinite(self._live_tensors)

    def _live_tensors(self) -> list[Tensor]:
        return list(self.named_tensors().values())
