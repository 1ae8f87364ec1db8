"""Rough ground: a height field of tiles, one kind per strip and harder from level to level.

Tiles as legged locomotion commonly trains on (Rudin et al., "Learning to Walk in Minutes Using
Massively Parallel Deep Reinforcement Learning", CoRL 2021): slopes, steps, stairs and rough ground,
each around a flat platform on which the robot starts. Everything follows from one seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from robot_runtime.errors import BadInput
from trainer.envs.terrain_kinds import TILES, Kind, TileConfig

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class TerrainConfig:
    """A field of tiles.

    Attributes:
        kinds: Kinds of ground, one strip of tiles along x each.
        levels: Tiles in a strip; level k is ``(k + 1) / levels`` as hard as the hardest.
        tile: Side of a tile, [m].
        border: Flat ground around all tiles, [m]; an episode is truncated when its robot leaves
            the field.
        resolution: Distance of two heights, [m]. A step is a ramp of this length.
        seed: Seed of everything that is drawn.
        hardest: The hardest tile of each kind.
    """

    kinds: tuple[Kind, ...] = ("slope", "steps", "stairs", "rough")
    levels: int = 6
    tile: float = 6.0
    border: float = 3.0
    resolution: float = 0.04
    seed: int = 0
    hardest: TileConfig = field(default_factory=TileConfig)

    def __post_init__(self) -> None:
        """Refuse what is no field.

        Raises:
            BadInput: Names the field and what is allowed.
        """
        unknown = [kind for kind in self.kinds if kind not in get_args(Kind)]
        if unknown or not self.kinds:
            raise BadInput(
                f"terrain.kinds: {unknown or 'none'}; there are: {', '.join(get_args(Kind))}"
            )
        if self.levels < 1:
            raise BadInput(f"terrain.levels = {self.levels}: must be at least 1")
        if not 0.0 < self.resolution <= self.tile / 8.0:
            raise BadInput(
                f"terrain.resolution = {self.resolution}: must be above 0 and at most an eighth of "
                f"tile = {self.tile}"
            )
        if not self.hardest.platform < self.tile:
            raise BadInput(
                f"terrain.hardest.platform = {self.hardest.platform}: must be smaller than "
                f"tile = {self.tile}"
            )
        if self.border < 0.0:
            raise BadInput(f"terrain.border = {self.border}: must not be negative")


@dataclass(frozen=True, kw_only=True, slots=True)
class HeightField:
    """Heights on a grid, and between them as MuJoCo has it: two triangles per cell.

    Attributes:
        heights: [m], float64, shape ``(rows, columns)``; rows along y, columns along x.
        resolution: Distance of two heights, [m].
        center: World x and y of the middle of the field, [m].
    """

    heights: FloatArray
    resolution: float
    center: tuple[float, float] = (0.0, 0.0)

    @property
    def half_size(self) -> tuple[float, float]:
        """Half of the field's extent along x and y, [m]."""
        rows, columns = self.heights.shape
        return (columns - 1) * self.resolution / 2.0, (rows - 1) * self.resolution / 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Terrain:
    """A field and where its tiles are.

    Attributes:
        config: What it was made from.
        field: The heights.
        centers: World x and y of the tiles' middles, [m], float64, shape (kinds, levels, 2).
    """

    config: TerrainConfig
    field: HeightField
    centers: FloatArray


def make_terrain(config: TerrainConfig) -> Terrain:
    """Generate a field; the same config gives the same field.

    Between tiles the height is 0, and so it is in the border.
    """
    cells = round(config.tile / config.resolution)
    edge = math.ceil(config.border / config.resolution)
    rows, columns = len(config.kinds) * cells, config.levels * cells
    heights = np.zeros((rows + 2 * edge + 1, columns + 2 * edge + 1))
    # Nodes of a tile, its edges left out: two neighbours meet in the nodes between them.
    inside = np.arange(1, cells, dtype=np.float64) * config.resolution - config.tile / 2.0
    x, y = np.meshgrid(inside, inside)
    centers = np.empty((len(config.kinds), config.levels, 2))
    seeds = np.random.SeedSequence(config.seed).spawn(len(config.kinds) * config.levels)
    for i, kind in enumerate(config.kinds):
        for level in range(config.levels):
            rng = np.random.default_rng(seeds[i * config.levels + level])
            difficulty = (level + 1) / config.levels
            tile = TILES[kind](x, y, difficulty, config.hardest, config.resolution, rng)
            row, column = edge + i * cells + 1, edge + level * cells + 1
            heights[row : row + cells - 1, column : column + cells - 1] = tile
            centers[i, level] = (level + 0.5) * config.tile, (i + 0.5) * config.tile
    centers -= np.array([config.levels, len(config.kinds)]) * config.tile / 2.0
    return Terrain(
        config=config,
        field=HeightField(heights=heights, resolution=config.resolution),
        centers=centers,
    )


def separable_field(
    along_x: Callable[[FloatArray], FloatArray],
    along_y: Callable[[FloatArray], FloatArray],
    *,
    half_size: float,
    resolution: float,
) -> HeightField:
    """A square field of heights ``along_x(x) + along_y(y)``.

    Every cell of it is a plane, so that nothing depends on how cells are cut into triangles.

    Args:
        along_x: Heights at x, [m], shape ``(n,)`` for ``(n,)``.
        along_y: Heights at y, [m], shape ``(n,)`` for ``(n,)``.
        half_size: Half of the side, [m].
        resolution: Distance of two heights, [m].
    """
    n = round(half_size / resolution)
    places: FloatArray = np.arange(-n, n + 1, dtype=np.float64) * resolution
    return HeightField(
        heights=along_x(places)[None, :] + along_y(places)[:, None], resolution=resolution
    )
