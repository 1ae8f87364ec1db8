"""Spaces of gymnasium: observations as named groups of vectors, actions as vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from robot_runtime.errors import Refused
from trainer.env import Observations
from trainer.envs.action_space import ActionSpace
from trainer.networks.actor_critic import ACTOR_GROUP

spaces = gymnasium.spaces


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaf:
    """One vector-like part of an observation.

    Attributes:
        name: Its keys, joined by a slash; empty where the observation has no parts.
        path: The keys that lead to it.
        space: Its space.
        sizes: Choices of each index, for what is one-hot; empty for numbers.
        starts: Lowest value of each index.
        dim: Length as a vector.
    """

    name: str
    path: tuple[str | int, ...]
    space: gymnasium.Space[Any]
    sizes: tuple[int, ...]
    starts: tuple[int, ...]
    dim: int

    def vector(self, obs: Any, num: int) -> Tensor:
        """Return this part of a batch of observations, float32, ``(num, dim)``."""
        for key in self.path:
            obs = obs[key]
        if not isinstance(obs, Tensor):
            # A copy: vector environments may hand out the buffer they write to.
            kind = np.int64 if self.sizes else np.float32
            obs = torch.from_numpy(np.array(obs, dtype=kind))
        flat = obs.reshape(num, -1)
        if not self.sizes:
            return flat.to(torch.float32, copy=True)
        indices = flat.long() - torch.tensor(self.starts, device=flat.device)
        hot = [functional.one_hot(i, n) for i, n in zip(indices.T, self.sizes, strict=True)]
        return torch.cat(hot, dim=-1).to(torch.float32)


class ObservationReader:
    """Turns batches of observations into the groups of `trainer.env.VecEnv`.

    Numbers of any shape are flattened; what is discrete becomes one-hot. The parts of a Dict or
    Tuple are put into groups by name.

    Attributes:
        groups: The parts of each group, in order.
        obs_dims: Length of each group.
    """

    def __init__(
        self, space: gymnasium.Space[Any], groups: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """Find the parts and sort them into groups.

        Args:
            space: The space of one environment's observation.
            groups: For each group the names of its parts (``goal``, ``arm/pos``; a name stands for
                everything below it). None: if a Dict has the key ``policy``, each of its keys is a
                group; else all parts together, in the order of the space, are the group `policy`.

        Raises:
            Refused: A part is of a kind that is no vector, a name is not there, or no group is
                called `policy`; the message names it.
        """
        leaves = list(_leaves(space, ()))
        self.groups = _group(space, leaves, groups)
        self.obs_dims = {
            name: sum(leaf.dim for leaf in parts) for name, parts in self.groups.items()
        }

    def read(self, obs: Any, num: int) -> Observations:
        """Return the groups of a batch of `num` observations."""
        return {
            name: torch.cat([leaf.vector(obs, num) for leaf in parts], dim=-1)
            for name, parts in self.groups.items()
        }

    def read_rows(self, rows: Sequence[Any]) -> Observations:
        """Return the groups of observations that come one by one."""
        read = [self.read(obs, 1) for obs in rows]
        return {name: torch.cat([one[name] for one in read]) for name in self.groups}


def _leaves(space: gymnasium.Space[Any], path: tuple[str | int, ...]) -> Iterator[Leaf]:
    """Yield the parts of a space, depth first."""
    name = "/".join(map(str, path))
    sizes: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaves(part, (*path, key))
        return
    if isinstance(space, spaces.Tuple):
        for i, part in enumerate(space.spaces):
            yield from _leaves(part, (*path, i))
        return
    if isinstance(space, spaces.Discrete):
        sizes, starts = (int(space.n),), (int(space.start),)
    elif isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(int(n) for n in space.nvec.ravel())
        starts = tuple(int(n) for n in space.start.ravel())
    elif not isinstance(space, spaces.Box | spaces.MultiBinary):
        raise Refused(
            f"observation '{name or 'of the environment'}' is a {type(space).__name__}; there are "
            "vectors only of Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these"
        )
    shape = space.shape or ()
    dim = sum(sizes) if sizes else int(np.prod(shape))
    yield Leaf(name=name, path=path, space=space, sizes=sizes, starts=starts, dim=dim)


def _group(
    space: gymnasium.Space[Any], leaves: list[Leaf], groups: Mapping[str, Sequence[str]] | None
) -> dict[str, list[Leaf]]:
    """Sort parts into groups."""
    if groups is None and isinstance(space, spaces.Dict) and ACTOR_GROUP in space.spaces:
        groups = {key: [key] for key in space.spaces}
    if groups is None:
        return {ACTOR_GROUP: leaves}
    if ACTOR_GROUP not in groups:
        raise Refused(f"no observation group is called '{ACTOR_GROUP}'; there are {list(groups)}")
    sorted_in: dict[str, list[Leaf]] = {}
    for group, names in groups.items():
        sorted_in[group] = []
        for name in names:
            found = [x for x in leaves if x.name == name or x.name.startswith(f"{name}/")]
            if not found:
                there = ", ".join(leaf.name or "(no parts)" for leaf in leaves)
                raise Refused(f"observation group '{group}': no part '{name}'; there are: {there}")
            sorted_in[group] += found
    return sorted_in


class ActionWriter:
    """Turns actions of a policy into those of a vector environment.

    Attributes:
        space: What the environment takes.
    """

    def __init__(self, space: gymnasium.Space[Any], bounds: Literal["clip", "rescale"]) -> None:
        """Read the space of one environment's action.

        Args:
            space: The space.
            bounds: What happens to numbers that have bounds. `clip`: they are cut off there, and
                lie in the units of the environment. `rescale`: -1 ... 1 becomes low ... high.

        Raises:
            Refused: The space is of another kind, or `rescale` meets a bound at infinity.
        """
        self._single = space
        self._rescale = bounds == "rescale"
        self._low = self._high = np.zeros(0, np.float32)
        if isinstance(space, spaces.Box):
            self._low, self._high = space.low.ravel(), space.high.ravel()
            if self._rescale and not (np.isfinite(self._low) & np.isfinite(self._high)).all():
                raise Refused(f"actions cannot be rescaled to {space}: a bound is infinite")
            ones = np.ones_like(self._low)
            low, high = (-ones, ones) if self._rescale else (self._low, self._high)
            self.space = ActionSpace(
                kind="continuous",
                num_actions=self._low.size,
                bounds=(tuple(low.tolist()), tuple(high.tolist())),
            )
        elif isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            sizes = _choices(space)
            self.space = ActionSpace(kind="discrete", num_actions=len(sizes), sizes=sizes)
        else:
            raise Refused(
                f"the environment's action is a {type(space).__name__}; there are actions for: "
                "Box, Discrete, MultiDiscrete, MultiBinary"
            )

    def write(self, actions: Tensor) -> NDArray[Any]:
        """Return a batch in the form of the environment.

        Args:
            actions: Raw actions, or indices from 0 on, float32, ``(num_envs, num_actions)``.
        """
        values = actions.detach().to("cpu", torch.float32).numpy()
        space = self._single
        if isinstance(space, spaces.Box):
            if self._rescale:
                share = 0.5 * (np.clip(values, -1.0, 1.0) + 1.0)
                values = self._low + share * (self._high - self._low)
            values = np.clip(values, self._low, self._high)
            return values.astype(space.dtype).reshape(-1, *space.shape)
        indices = np.rint(values).astype(np.int64)
        if isinstance(space, spaces.Discrete):
            return indices[:, 0] + space.start
        if isinstance(space, spaces.MultiDiscrete):
            indices = indices.reshape(-1, *space.nvec.shape) + space.start
        return indices.reshape(-1, *(space.shape or ())).astype(space.dtype)


def _choices(space: gymnasium.Space[Any]) -> tuple[int, ...]:
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(int(n) for n in space.nvec.ravel())
    return (2,) * int(np.prod(space.shape or ()))
