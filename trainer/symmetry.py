"""Left-right symmetry: signed permutations of observations and actions.

Mittal et al., "Symmetry Considerations for Learning Task Symmetric Robot Policies", ICRA 2024:
the mirror image of a sample is a sample as well, and the mirror image of an action is the right
action in the mirrored state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Mirror:
    """One reflection of a vector: ``mirrored[i] = sign[i] * vector[index[i]]``.

    Attributes:
        index: Where each entry of the image comes from, int64, shape ``(dim,)``.
        sign: Sign of each entry of the image, +1 or -1, float32, shape ``(dim,)``.
    """

    index: Tensor
    sign: Tensor

    def __post_init__(self) -> None:
        """Check that this is a reflection.

        Raises:
            ValueError: Wrong shapes, no permutation, a sign other than +1 or -1, or two
                reflections are not the identity; the message names the first entry.
        """
        if self.index.ndim != 1 or self.index.shape != self.sign.shape:
            raise ValueError(
                f"index has shape {tuple(self.index.shape)} and sign {tuple(self.sign.shape)}; "
                "both must be (dim,)"
            )
        index, sign = self.index.tolist(), self.sign.tolist()
        for i, (source, s) in enumerate(zip(index, sign, strict=True)):
            if not 0 <= source < len(index):
                raise ValueError(f"index[{i}] = {source} is outside 0 ... {len(index) - 1}")
            if s not in (1.0, -1.0):
                raise ValueError(f"sign[{i}] = {s}; must be +1 or -1")
            if index[source] != i or sign[source] != s:
                raise ValueError(
                    f"entry {i} comes from {source}, which comes from {index[source]}, with signs "
                    f"{s:+g} and {sign[source]:+g}: applied twice this is not the identity"
                )

    @classmethod
    def of(cls, index: Sequence[int], sign: Sequence[float]) -> Mirror:
        """Build a reflection from plain sequences or arrays."""
        return cls(
            index=torch.as_tensor(index, dtype=torch.int64),
            sign=torch.as_tensor(sign, dtype=torch.float32),
        )

    @classmethod
    def joined(cls, parts: Sequence[Mirror]) -> Mirror:
        """Return the reflection of a concatenation."""
        starts = [sum(len(part.index) for part in parts[:i]) for i in range(len(parts))]
        index = [part.index + start for part, start in zip(parts, starts, strict=True)]
        return cls(index=torch.cat(index), sign=torch.cat([part.sign for part in parts]))

    def apply(self, x: Tensor) -> Tensor:
        """Return the mirror image of `x`, shape ``(..., dim)``."""
        return x[..., self.index] * self.sign

    def to(self, device: torch.device) -> Mirror:
        """Return the same reflection on another device."""
        return Mirror(index=self.index.to(device), sign=self.sign.to(device))


@dataclass(frozen=True, kw_only=True, slots=True)
class MirrorTable:
    """The reflections that belong to one robot and task.

    Attributes:
        obs: One reflection per observation group, by its name (`policy`, `critic`).
        action: The reflection of actions.
    """

    obs: Mapping[str, Mirror]
    action: Mirror

    def check(self, obs_dims: Mapping[str, int], num_actions: int) -> None:
        """Check that the table fits an environment.

        Raises:
            ValueError: A group is missing or has another length; the message names it.
        """
        for group, dim in obs_dims.items():
            if group not in self.obs:
                raise ValueError(
                    f"observation group '{group}' has no mirror; there are {sorted(self.obs)}"
                )
            if len(self.obs[group].index) != dim:
                raise ValueError(
                    f"the mirror of observation group '{group}' has {len(self.obs[group].index)} "
                    f"entries and the environment {dim}"
                )
        if len(self.action.index) != num_actions:
            raise ValueError(
                f"the mirror of the action has {len(self.action.index)} entries and the "
                f"environment {num_actions}"
            )

    def to(self, device: torch.device) -> MirrorTable:
        """Return the same table on another device."""
        obs = {group: mirror.to(device) for group, mirror in self.obs.items()}
        return MirrorTable(obs=obs, action=self.action.to(device))
