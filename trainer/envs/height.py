"""Heights of a height field at any place, as MuJoCo collides with them, and scans of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from robot_runtime.errors import BadInput
from trainer.envs.terrain import HeightField


class HeightLookup:
    """Height and slope of a field, exact on MuJoCo's triangles.

    A cell between four heights is two triangles, cut from its lowest x and y to its highest; this
    is what MuJoCo's collisions and rays see (checked against `mj_ray`). Outside the field the
    height is that of its edge.
    """

    def __init__(self, field: HeightField) -> None:
        """Take the field; lookups are float32 on the CPU."""
        rows, columns = field.heights.shape
        self._columns = columns
        self._last = torch.tensor([columns - 2, rows - 2], dtype=torch.int64)
        self._size = torch.tensor([columns - 1, rows - 1], dtype=torch.float32)
        self._per_metre = 1.0 / field.resolution
        half_x, half_y = field.half_size
        self._origin = torch.tensor([field.center[0] - half_x, field.center[1] - half_y])
        self._heights = torch.tensor(field.heights.ravel(), dtype=torch.float32)

    def height(self, xy: Tensor) -> Tensor:
        """Return heights, [m], shape ``(...)``, at world ``xy``, [m], shape ``(..., 2)``."""
        return self.height_and_slope(xy)[0]

    def height_and_slope(self, xy: Tensor) -> tuple[Tensor, Tensor]:
        """Return heights and the slope there.

        Args:
            xy: World x and y, [m], float32, shape ``(..., 2)``.

        Returns:
            Heights, [m], shape ``(...)``, and rise over run along x and y, shape ``(..., 2)``.
        """
        # A robot whose physics broke may be nowhere at all: NaN counts as the first corner.
        place = ((xy - self._origin) * self._per_metre).nan_to_num(0.0)
        place = torch.minimum(place.clamp_min(0.0), self._size)
        cell = torch.minimum(place.long(), self._last)
        u, v = (place - cell).unbind(-1)
        first = cell[..., 1] * self._columns + cell[..., 0]
        # Heights at the corners: low or high in x, low or high in y.
        low, high = self._heights[first], self._heights[first + self._columns + 1]
        corner = torch.where(u >= v, first + 1, first + self._columns)
        middle = self._heights[corner]
        along_x = torch.where(u >= v, middle - low, high - middle)
        along_y = torch.where(u >= v, high - middle, middle - low)
        height = low + u * along_x + v * along_y
        return height, torch.stack([along_x, along_y], dim=-1) * self._per_metre


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanConfig:
    """A height scan: a grid around the base that turns with its heading and stays level.

    Attributes:
        length: Extent along the heading, [m], the base in the middle.
        width: Extent across, [m].
        spacing: Distance of two points, [m].
        clip: Largest number that is observed, [m].
    """

    length: float = 1.0
    width: float = 0.6
    spacing: float = 0.1
    clip: float = 0.5

    def __post_init__(self) -> None:
        """Refuse what is no grid.

        Raises:
            BadInput: Names the field and what is allowed.
        """
        for name in ("length", "width"):
            if getattr(self, name) < 0.0:
                raise BadInput(f"scan.{name} = {getattr(self, name)}: must not be negative")
        for name in ("spacing", "clip"):
            if not getattr(self, name) > 0.0:
                raise BadInput(f"scan.{name} = {getattr(self, name)}: must be above 0")

    @property
    def shape(self) -> tuple[int, int]:
        """Points along the heading and across it."""
        return (
            round(self.length / self.spacing) + 1,
            round(self.width / self.spacing) + 1,
        )

    @property
    def dim(self) -> int:
        """How many points there are."""
        return self.shape[0] * self.shape[1]


def scan_points(config: ScanConfig) -> Tensor:
    """Return the points of a scan in the heading frame, forward and left, [m], shape (dim, 2).

    Along the heading first: point ``i * across + j`` is the i-th from behind, the j-th from right.
    """
    forward, across = (
        (torch.arange(n, dtype=torch.float32) - (n - 1) / 2.0) * config.spacing
        for n in config.shape
    )
    return torch.cartesian_prod(forward, across)


def mirrored_points(config: ScanConfig) -> list[int]:
    """Return, for each point of a scan, the index of its image on the other side."""
    along, across = config.shape
    return [i * across + (across - 1 - j) for i in range(along) for j in range(across)]


def scan_places(points: Tensor, base_pos_w: Tensor, base_quat: Tensor) -> Tensor:
    """Return where the points of a scan are.

    Args:
        points: From `scan_points`, shape (dim, 2).
        base_pos_w: Position of the base, world frame, [m], shape (n, 3).
        base_quat: Orientation w, x, y, z, body to world, shape (n, 4).

    Returns:
        World x and y, [m], shape (n, dim, 2).
    """
    w, x, y, z = base_quat.unbind(-1)
    # The body's x axis on the ground, normalized: the heading.
    ahead = torch.stack([1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y + w * z)], dim=-1)
    ahead = ahead / ahead.norm(dim=-1, keepdim=True).clamp_min(1e-6)
    left = torch.stack([-ahead[:, 1], ahead[:, 0]], dim=-1)
    turned = points[:, :1] * ahead[:, None] + points[:, 1:] * left[:, None]
    return base_pos_w[:, None, :2] + turned
