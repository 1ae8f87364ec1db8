"""Several processes that learn one policy together: what they tell each other.

Every process collects with environments of its own and takes the same optimizer steps as all
others. For that, gradients and divergences are averaged and statistics merged, over all of their
samples: N processes of n environments learn what one process of N n environments would.

The methods of `Peers` are collective: all processes call the same ones in the same order. Those of
a single process return at once what they were given.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from robot_runtime.errors import ExitCode, Refused, SurefootError
from trainer.moments import Moments, merge_moments, moments, packed, unpacked

SEED_STRIDE = 4_000_037
"""What lies between the seeds of two ranks; the first one's is that of the run."""

BUCKET = 2**23
"""Numbers that one all-reduce of gradients takes at most."""


class PeerLost(SurefootError):
    """Another process is gone, or does not answer."""

    exit_code = ExitCode.FAILED


@dataclass(frozen=True, kw_only=True, slots=True)
class Peers:
    """The processes of a run, as one of them sees them.

    Attributes:
        rank: Which one this is, from 0.
        size: How many there are.
        local_size: How many of them are on this node.
    """

    rank: int = 0
    size: int = 1
    local_size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes, shows and evaluates."""
        return self.rank == 0

    def seed(self, seed: int) -> int:
        """Return the seed of this process: ``seed + rank * SEED_STRIDE``."""
        return seed + self.rank * SEED_STRIDE

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process. None leaves before all have asked."""
        return flag if self.size == 1 else any(self.gather(flag))

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, by rank, in all of them.

        Args:
            value: Tensors and plain containers; the tensors come back on the CPU.
        """
        return [value] if self.size == 1 else self._gather(value, everywhere=True)

    def gather_to_first(self, value: Any) -> list[Any]:
        """Return the values of all processes, by rank, in the first one; in the others nothing."""
        return [value] if self.size == 1 else self._gather(value, everywhere=False)

    def from_first(self, value: Any) -> Any:
        """Return the first process's value: tensors, on the CPU, and plain containers."""
        if self.size == 1:
            return value
        data = _to_bytes(value) if self.first else torch.empty(0, dtype=torch.uint8)
        length = torch.tensor([len(data)])
        with _talking(self.rank):
            dist.broadcast(length, 0)
            data = data if self.first else data.new_empty(int(length))
            dist.broadcast(data, 0)
        return value if self.first else _from_bytes(data)

    def moments(self, x: Tensor) -> Moments:
        """Return the moments of the samples of all processes, the same bits in all of them.

        Args:
            x: The samples of this one, shape ``(count, dim)``; there may be none.

        Returns:
            Mean and population variance, float64, shape ``(dim,)``, and count, 0-d. If there are
            no samples anywhere they are 0.
        """
        own = moments(x)
        if self.size == 1:
            return own
        vector = packed(own)
        parts = [torch.empty_like(vector) for _ in range(self.size)]
        with _talking(self.rank):
            dist.all_gather(parts, vector)
        merged, *others = [unpacked(part) for part in parts]
        for other in others:
            # Two empty samples would be merged to NaN.
            merged = other if int(merged[2]) == 0 else merge_moments(merged, other)
        return merged

    def average_gradients(
        self, parameters: Sequence[nn.Parameter], measured: Tensor, weight: int
    ) -> Tensor:
        """Give every parameter the mean of its gradients over all samples of all processes.

        All gradients travel as one vector, in buckets. If no process has a sample, they are NaN.

        Args:
            parameters: The parameters; one without a gradient counts as 0.
            measured: A number to average along with them, 0-d.
            weight: How many samples gradients and number are means over; 0 if there are none.

        Returns:
            The mean of the number.
        """
        if self.size == 1:
            return measured
        parameters = [p for p in parameters if p.requires_grad]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        pieces = [torch.stack([measured, torch.ones_like(measured)]), *gradients]
        flat = torch.cat([piece.reshape(-1) for piece in pieces])
        flat = flat * weight if weight else torch.zeros_like(flat)
        with _talking(self.rank):
            for bucket in flat.split(BUCKET):
                dist.all_reduce(bucket)
        flat = flat / flat[1]
        head, *means = flat.split([piece.numel() for piece in pieces])
        for parameter, mean in zip(parameters, means, strict=True):
            parameter.grad = mean.view_as(parameter).to(parameter.dtype)
        return head[0]

    def check_equal(self, tensors: Mapping[str, Tensor]) -> None:
        """Compare tensors over all processes, by their hashes.

        Raises:
            Refused: They differ; the message names ranks and tensor.
        """
        if self.size == 1:
            return
        hashes: list[dict[str, str]] = self.gather({k: _hash(v) for k, v in tensors.items()})
        # Whoever is with most others is taken for right, of two the first.
        known = Counter(tuple(of_rank.items()) for of_rank in hashes)
        right = dict(max(known, key=lambda items: known[items]))
        wrong = [rank for rank, of_rank in enumerate(hashes) if of_rank != right]
        if not wrong:
            return
        names = [name for name in right if hashes[wrong[0]].get(name) != right[name]]
        ranks = ", ".join(map(str, wrong))
        raise Refused(
            f"what rank {ranks} has learned differs from what rank {hashes.index(right)} has, in "
            f"{len(names)} of {len(right)} tensors, first in '{names[0] if names else '?'}': "
            "the processes do not learn the same policy any more"
        )

    def _gather(self, value: Any, *, everywhere: bool) -> list[Any]:
        data = _to_bytes(value)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with _talking(self.rank):
            dist.all_gather(lengths, torch.tensor([len(data)]))
            longest = max(int(length) for length in lengths)
            padded = torch.cat([data, data.new_zeros(longest - len(data))])
            takes = everywhere or self.first
            parts = [torch.empty_like(padded) for _ in range(self.size)] if takes else []
            if everywhere:
                dist.all_gather(parts, padded)
            else:
                dist.gather(padded, parts or None, dst=0)
        return [_from_bytes(part[: int(n)]) for part, n in zip(parts, lengths, strict=False)]


ALONE = Peers()
"""A single process."""


@contextlib.contextmanager
def _talking(rank: int) -> Generator[None]:
    """Say of a failed collective that the fault is another's."""
    try:
        yield
    except RuntimeError as error:
        text = " ".join(str(error).split())
        raise PeerLost(f"rank {rank} cannot reach the other processes: {text}") from error


def _to_bytes(value: Any) -> Tensor:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def _from_bytes(data: Tensor) -> Any:
    buffer = io.BytesIO(data.numpy().tobytes())
    return torch.load(buffer, map_location="cpu", weights_only=True)


def _hash(tensor: Tensor) -> str:
    data = tensor.detach().cpu().contiguous().numpy().tobytes()
    return hashlib.blake2b(data, digest_size=8).hexdigest()
