"""Which tile of a terrain each robot starts on, and how it moves on: the terrain's curriculum.

After Rudin et al., "Learning to Walk in Minutes Using Massively Parallel Deep Reinforcement
Learning" (CoRL 2021), section 3.3: robots that manage their tile go on to a harder one, those that
do not go back, and who has managed the hardest begins at a random one, so that none is forgotten.
A tile counts as managed here where an episode ended without a fall, off the platform, and with a
small error of the velocity: with commands that turn and stop, the distance that the paper measures
says little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.envs.random import Stream, UInt64Array, uniform
from trainer.envs.saved import check_shapes
from trainer.envs.terrain import Terrain


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelConfig:
    """How robots move between the tiles of a terrain.

    Attributes:
        first: Levels that are begun with, from the easiest on.
        largest_error: Mean error of the horizontal velocity with which a tile counts as managed,
            [m/s].
        distance: How far from its start a robot must have been, [m].
    """

    first: int = 2
    largest_error: float = 0.35
    distance: float = 1.5


def next_level(level: Tensor, managed: Tensor, fell: Tensor, u: Tensor, num_levels: int) -> Tensor:
    """Return the level after an episode.

    Args:
        level: The level before, int64, shape (k,).
        managed: Who managed its tile, bool, shape (k,).
        fell: Who fell, bool, shape (k,).
        u: Draws in [0, 1), shape (k,).
        num_levels: How many there are.

    Returns:
        int64, shape (k,).
    """
    moved = level + (managed & ~fell).long() - fell.long()
    again = (u * num_levels).long()
    return torch.where(moved >= num_levels, again, moved.clamp_min(0))


class TerrainLevels:
    """The tile of every row, and what its episode has shown so far.

    Attributes:
        level: Level of every row, int64, shape (num_envs,).
    """

    def __init__(self, terrain: Terrain, config: LevelConfig, num_envs: int) -> None:
        """Spread the rows over the kinds, and over the first levels."""
        kinds, self._num_levels = terrain.centers.shape[:2]
        rows = torch.arange(num_envs)
        self._config = config
        self._kind = rows % kinds
        self.level = rows // kinds % min(config.first, self._num_levels)
        self._moves = True
        self._centers = torch.tensor(terrain.centers, dtype=torch.float32)
        half_x, half_y = terrain.field.half_size
        self._half = torch.tensor([half_x, half_y]) - 0.5
        self._error = torch.zeros(num_envs)
        self._steps = torch.zeros(num_envs)
        self._farthest = torch.zeros(num_envs)

    def spread(self) -> None:
        """Spread the rows over all levels, and leave them there: for evaluation."""
        rows = torch.arange(len(self.level))
        self.level = rows // len(self._centers) % self._num_levels
        self._moves = False

    def origin(self, rows: Tensor) -> Tensor:
        """World x and y of the middle of the rows' tiles, [m], shape (k, 2)."""
        return self._centers[self._kind[rows], self.level[rows]]

    def track(self, base_pos_w: Tensor, error: Tensor) -> Tensor:
        """Take in a control step.

        Args:
            base_pos_w: World frame, [m], shape (num_envs, 3).
            error: Horizontal velocity minus command, [m/s], shape (num_envs, 2).

        Returns:
            Who has left the field, bool, shape (num_envs,).
        """
        start = self._centers[self._kind, self.level]
        gone = (base_pos_w[:, :2] - start).norm(dim=-1)
        self._farthest = torch.maximum(self._farthest, gone)
        self._error = self._error + error.norm(dim=-1)
        self._steps = self._steps + 1.0
        return (base_pos_w[:, :2].abs() > self._half).any(-1)

    def finish(self, done: Tensor, fell: Tensor, keys: UInt64Array) -> None:
        """Move the rows whose episode has ended, before the next one begins.

        Args:
            done: Whose episode has ended, bool, shape (num_envs,).
            fell: Who fell, bool, shape (num_envs,).
            keys: Keys of the episodes that end, shape (num_envs,).
        """
        rows = torch.nonzero(done)[:, 0]
        if self._moves and len(rows):
            error = self._error[rows] / self._steps[rows].clamp_min(1.0)
            managed = (error < self._config.largest_error) & (
                self._farthest[rows] > self._config.distance
            )
            u = uniform(keys[rows.numpy()], Stream.TERRAIN, 0, 1)[:, 0]
            self.level[rows] = next_level(
                self.level[rows], managed, fell[rows], u, self._num_levels
            )

    def begin(self, rows: NDArray[np.int64]) -> Tensor:
        """Begin episodes: nothing is shown yet.

        Args:
            rows: Row numbers, shape (k,).

        Returns:
            World x and y of the starts, [m], shape (k, 2).
        """
        index = torch.from_numpy(rows)
        for values in (self._error, self._steps, self._farthest):
            values[index] = 0.0
        return self.origin(index)

    def state_dict(self) -> dict[str, Tensor]:
        """Levels, and what the running episodes have shown."""
        return {
            "level": self.level.clone(),
            "error": self._error.clone(),
            "steps": self._steps.clone(),
            "farthest": self._farthest.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue where `state_dict` was called.

        Raises:
            ValueError: A field is missing or has another shape.
        """
        check_shapes("terrain levels", state, self.state_dict())
        self.level = state["level"].clone()
        self._error = state["error"].clone()
        self._steps = state["steps"].clone()
        self._farthest = state["farthest"].clone()
