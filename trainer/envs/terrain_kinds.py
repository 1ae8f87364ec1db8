"""The kinds of rough ground, each a plain function of place, difficulty and draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

Kind = Literal["slope", "steps", "stairs", "rough"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TileConfig:
    """The hardest tile of each kind.

    Attributes:
        platform: Side of the flat square in the middle, [m].
        slope: Rise over run of slopes.
        step_height: Height of single steps, [m].
        step_side: Side of the blocks they are the edges of, [m].
        stair_rise: Height of a stair, [m].
        stair_tread: Depth of a stair, [m].
        roughness: Largest height of rough ground above and below its middle, [m].
        roughness_side: Distance of two draws of rough ground, [m].
    """

    platform: float = 1.2
    slope: float = 0.4
    step_height: float = 0.08
    step_side: float = 0.4
    stair_rise: float = 0.12
    stair_tread: float = 0.32
    roughness: float = 0.05
    roughness_side: float = 0.12


Tile = Callable[[FloatArray, FloatArray, float, TileConfig, float, np.random.Generator], FloatArray]
"""x and y of each node from the middle of the tile [m], difficulty in (0, 1], the hardest tile,
the distance of two nodes [m] and the source of draws, to heights [m] of the same shape."""


def slope(
    x: FloatArray, y: FloatArray, difficulty: float, hardest: TileConfig, resolution: float,
    rng: np.random.Generator,
) -> FloatArray:  # fmt: skip
    """A pyramid with its top cut off, or the pit of that shape."""
    rise = _inward(x, y, hardest.platform, resolution)
    return _up_or_down(rng) * difficulty * hardest.slope * rise


def steps(
    x: FloatArray, y: FloatArray, difficulty: float, hardest: TileConfig, resolution: float,
    rng: np.random.Generator,
) -> FloatArray:  # fmt: skip
    """Square blocks, half of them as much higher as a step is high."""
    del resolution
    column, row = (np.floor((v - v.min()) / hardest.step_side).astype(int) for v in (x, y))
    high = rng.integers(0, 2, (row.max() + 1, column.max() + 1))[row, column]
    return np.where(
        _outside(x, y, hardest.platform) > 0.0, difficulty * hardest.step_height * high, 0.0
    )


def stairs(
    x: FloatArray, y: FloatArray, difficulty: float, hardest: TileConfig, resolution: float,
    rng: np.random.Generator,
) -> FloatArray:  # fmt: skip
    """Square stairs up to the platform, or down to it, on all sides."""
    inward = _inward(x, y, hardest.platform, resolution)
    # A hair more: a node on the edge of a stair is on the higher one whatever the last bits say.
    stair = np.floor(inward / hardest.stair_tread + 1e-6)
    return _up_or_down(rng) * difficulty * hardest.stair_rise * stair


def rough(
    x: FloatArray, y: FloatArray, difficulty: float, hardest: TileConfig, resolution: float,
    rng: np.random.Generator,
) -> FloatArray:  # fmt: skip
    """Draws on a coarse grid, connected by lines along x and y, growing around the platform."""
    places = np.arange(x.min(), x.max() + hardest.roughness_side, hardest.roughness_side)
    drawn = rng.uniform(-1.0, 1.0, (len(places), len(places)))
    along_x = np.array([np.interp(x[0], places, row) for row in drawn])
    both = np.array([np.interp(y[:, 0], places, column) for column in along_x.T]).T
    # From flat to fully rough within eight nodes.
    share = np.clip(_outside(x, y, hardest.platform) / (8.0 * resolution), 0.0, 1.0)
    return difficulty * hardest.roughness * share * both


TILES: dict[Kind, Tile] = {"slope": slope, "steps": steps, "stairs": stairs, "rough": rough}
"""All kinds by name."""


def _outside(x: FloatArray, y: FloatArray, platform: float) -> FloatArray:
    """How far outside the platform each node is, in the maximum norm, [m]; 0 on it."""
    return np.maximum(np.maximum(np.abs(x), np.abs(y)) - platform / 2.0, 0.0)


def _inward(x: FloatArray, y: FloatArray, platform: float, resolution: float) -> FloatArray:
    """How far from the edge of the tile each node is, at most as far as the platform, [m]."""
    half = float(x.max()) + resolution
    return half - np.maximum(np.maximum(np.abs(x), np.abs(y)), platform / 2.0)


def _up_or_down(rng: np.random.Generator) -> float:
    return float(rng.choice([-1.0, 1.0]))
