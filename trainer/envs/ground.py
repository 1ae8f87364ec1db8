"""What is under a robot: flat ground, or a height field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from trainer.envs.height import HeightLookup, ScanConfig, scan_places, scan_points
from trainer.envs.terrain import HeightField, Terrain, TerrainConfig, make_terrain


class Ground(Protocol):
    """Heights under points; arrays are float32 on the CPU."""

    def height(self, pos_w: Tensor) -> Tensor:
        """Return the height of the ground under points, [m], shape ``(...)`` for ``(..., 3)``."""
        ...

    def rest(self, pos_w: Tensor, radius: Tensor) -> Tensor:
        """Return the height at which spheres would touch the ground.

        Args:
            pos_w: Where they are, world frame, [m], shape ``(..., 3)``.
            radius: Their radii, [m], shape ``(...)`` or one that broadcasts.
        """
        ...

    def clearance(self, pos_w: Tensor, radius: Tensor) -> Tensor:
        """Return the distance of spheres from the ground, [m]; see `rest`."""
        ...

    def base_height(self, base_pos_w: Tensor, foot_pos_w: Tensor) -> Tensor:
        """Return how high bases are above what their feet are over.

        Args:
            base_pos_w: World frame, [m], shape ``(n, 3)``.
            foot_pos_w: World frame, [m], shape ``(n, num_feet, 3)``.

        Returns:
            [m], shape ``(n,)``.
        """
        ...


class FlatGround:
    """The plane z = 0."""

    def height(self, pos_w: Tensor) -> Tensor:
        """Return zeros; see `Ground.height`."""
        return torch.zeros_like(pos_w[..., 2])

    def rest(self, pos_w: Tensor, radius: Tensor) -> Tensor:
        """Return the radii; see `Ground.rest`."""
        return radius

    def clearance(self, pos_w: Tensor, radius: Tensor) -> Tensor:
        """Return the height of the lowest points; see `Ground.clearance`."""
        return pos_w[..., 2] - radius

    def base_height(self, base_pos_w: Tensor, foot_pos_w: Tensor) -> Tensor:
        """Return the height of the bases; see `Ground.base_height`."""
        return base_pos_w[:, 2]


class RoughGround:
    """A height field; under a sphere it is taken for the plane of the triangle there."""

    def __init__(self, field: HeightField) -> None:
        """Take the field."""
        self._lookup = HeightLookup(field)

    def height(self, pos_w: Tensor) -> Tensor:
        """Return heights of the field; see `Ground.height`."""
        return self._lookup.height(pos_w[..., :2])

    def rest(self, pos_w: Tensor, radius: Tensor) -> Tensor:
        """Return the height at which spheres touch that plane; see `Ground.rest`."""
        height, secant = self._plane(pos_w)
        return height + radius * secant

    def clearance(self, pos_w: Tensor, radius: Tensor) -> Tensor:
        """Return the distance from that plane; see `Ground.clearance`."""
        height, secant = self._plane(pos_w)
        return (pos_w[..., 2] - height) / secant - radius

    def base_height(self, base_pos_w: Tensor, foot_pos_w: Tensor) -> Tensor:
        """Return the height above the mean ground under the feet; see `Ground.base_height`."""
        return base_pos_w[:, 2] - self.height(foot_pos_w).mean(-1)

    def _plane(self, pos_w: Tensor) -> tuple[Tensor, Tensor]:
        """Height, and one over the cosine of the incline."""
        height, slope = self._lookup.height_and_slope(pos_w[..., :2])
        return height, (1.0 + slope.square().sum(-1)).sqrt()


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Where robots are.

    Attributes:
        ground: What is under them.
        field: Its heights; None for the floor of the robot's model.
        terrain: Its tiles; None where there are none.
    """

    ground: Ground
    field: HeightField | None = None
    terrain: Terrain | None = None


def make_site(terrain: TerrainConfig | HeightField | None) -> Site:
    """Return flat ground for None, the heights themselves, or the terrain of a config."""
    if terrain is None:
        return Site(ground=FlatGround())
    if isinstance(terrain, HeightField):
        return Site(ground=RoughGround(terrain), field=terrain)
    made = make_terrain(terrain)
    return Site(ground=RoughGround(made.field), field=made.field, terrain=made)


class HeightScan:
    """The ground around a base, relative to where a standing robot expects it."""

    def __init__(self, config: ScanConfig, ground: Ground, base_height: float) -> None:
        """Take the grid.

        Args:
            config: The grid.
            ground: What is scanned.
            base_height: Height of the base in the home pose, [m].
        """
        self._config = config
        self._ground = ground
        self._points = scan_points(config)
        self._base_height = base_height

    def __call__(self, base_pos_w: Tensor, base_quat: Tensor) -> Tensor:
        """Scan.

        Args:
            base_pos_w: World frame, [m], shape ``(n, 3)``.
            base_quat: Orientation w, x, y, z, body to world, shape ``(n, 4)``.

        Returns:
            How much higher the ground is than the home pose has it, [m], within the clip, shape
            ``(n, dim)``. Zero where a robot stands on flat ground.
        """
        places = scan_places(self._points, base_pos_w, base_quat)
        height = self._ground.height(torch.nn.functional.pad(places, (0, 1)))
        expected = base_pos_w[:, 2:] - self._base_height
        return (height - expected).clamp(-self._config.clip, self._config.clip)
