"""Terrain: what is generated, and lookups against MuJoCo's own rays and collisions."""

import math

import mujoco
import numpy as np
import pytest
import torch

from robot_runtime.errors import BadInput
from trainer.envs.height import (
    HeightLookup,
    ScanConfig,
    mirrored_points,
    scan_places,
    scan_points,
)
from trainer.envs.terrain import HeightField, Terrain, TerrainConfig, make_terrain, separable_field
from trainer.envs.terrain_kinds import TileConfig
from trainer.tasks.randomization import quat_from_euler

SMALL = TerrainConfig(levels=2, tile=3.0, border=1.0, resolution=0.05)


@pytest.fixture(scope="module")
def terrain() -> Terrain:
    return make_terrain(SMALL)


def tile(terrain: Terrain, kind: str, level: int) -> np.ndarray:
    """Heights of a tile, its edges included."""
    config, field = terrain.config, terrain.field
    x, y = terrain.centers[config.kinds.index(kind), level] - config.tile / 2.0  # type: ignore
    half_x, half_y = field.half_size
    column, row = (round(v / config.resolution) for v in (x + half_x, y + half_y))
    n = round(config.tile / config.resolution) + 1
    return field.heights[row : row + n, column : column + n]


def test_the_same_seed_gives_the_same_field_and_another_another(terrain: Terrain) -> None:
    again = make_terrain(SMALL)
    np.testing.assert_array_equal(again.field.heights, terrain.field.heights)
    other = make_terrain(TerrainConfig(levels=2, tile=3.0, border=1.0, resolution=0.05, seed=1))
    assert not np.array_equal(other.field.heights, terrain.field.heights)


def test_border_and_seams_are_flat_and_at_zero(terrain: Terrain) -> None:
    heights = terrain.field.heights
    assert heights.shape == (4 * 60 + 40 + 1, 2 * 60 + 40 + 1)
    edge = round(SMALL.border / SMALL.resolution)
    assert not heights[: edge + 1].any()
    assert not heights[-edge - 1 :].any()
    assert not heights[:, : edge + 1].any()
    assert not heights[:, -edge - 1 :].any()
    for i in range(1, 4):
        assert not heights[edge + 60 * i].any()


@pytest.mark.parametrize("kind", SMALL.kinds)
def test_tiles_have_a_flat_platform_and_get_harder(terrain: Terrain, kind: str) -> None:
    n = round(SMALL.hardest.platform / 2.0 / SMALL.resolution) - 1
    for level in range(2):
        heights = tile(terrain, kind, level)
        middle = heights.shape[0] // 2
        platform = heights[middle - n : middle + n + 1, middle - n : middle + n + 1]
        assert np.ptp(platform) == 0.0
    easy, hard = (np.abs(tile(terrain, kind, level)).max() for level in range(2))
    assert 0.0 < easy < hard


def test_what_the_hardest_tiles_are(terrain: Terrain) -> None:
    hardest, step = SMALL.hardest, SMALL.resolution
    slope = tile(terrain, "slope", 1)
    middle = slope.shape[0] // 2
    rises = np.abs(np.diff(slope[middle])) / step
    assert set(np.round(rises, 9)) == {0.0, hardest.slope}
    assert abs(slope[middle, middle]) == pytest.approx(hardest.slope * (1.5 - 0.6))
    assert set(np.round(np.unique(tile(terrain, "steps", 1)), 9)) == {0.0, hardest.step_height}
    stairs = np.abs(tile(terrain, "stairs", 1))
    rises = np.diff(stairs[middle, : middle + 1])
    # Two treads of 0.32 m fit between edge and platform, 0.9 m.
    assert set(np.round(rises, 9)) == {0.0, hardest.stair_rise}
    assert stairs[middle, middle] == pytest.approx(2 * hardest.stair_rise)
    rough = tile(terrain, "rough", 1)
    assert 0.5 * hardest.roughness < np.abs(rough).max() <= hardest.roughness


def hfield_model(field: HeightField) -> tuple[mujoco.MjModel, mujoco.MjData]:
    """The field in MuJoCo, written by hand."""
    low, high = field.heights.min(), field.heights.max()
    spec = mujoco.MjSpec()
    rows, columns = field.heights.shape
    spec.add_hfield(
        name="f", nrow=rows, ncol=columns, size=[*field.half_size, high - low, 0.1],
        userdata=((field.heights - low) / (high - low)).ravel().tolist(),
    )  # fmt: skip
    spec.worldbody.add_geom(
        type=mujoco.mjtGeom.mjGEOM_HFIELD, hfieldname="f", pos=[*field.center, low]
    )
    model = spec.compile()
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


def test_heights_are_those_that_a_ray_of_mujoco_meets(terrain: Terrain) -> None:
    # One cell out of four, with rough heights: any other cut into triangles would show.
    rng = np.random.default_rng(0)
    field = HeightField(
        heights=rng.uniform(-0.3, 0.5, (9, 13)), resolution=0.25, center=(0.4, -0.2)
    )
    for this in (field, terrain.field):
        model, data = hfield_model(this)
        half = np.array(this.half_size)
        xy = rng.uniform(-0.999, 0.999, (400, 2)) * half + this.center
        lookup = HeightLookup(this)
        found = lookup.height(torch.tensor(xy, dtype=torch.float32))
        geom = np.zeros(1, dtype=np.int32)
        for place, height in zip(xy, found.tolist(), strict=True):
            start = np.array([*place, 5.0])
            distance = mujoco.mj_ray(
                model, data, start, np.array([0.0, 0.0, -1.0]), None, 1, -1, geom, None
            )
            # float32 places: an error of 1e-6 m on ground as steep as 3.2.
            assert 5.0 - distance == pytest.approx(height, abs=1e-5)


def test_slopes_are_differences_of_heights() -> None:
    field = HeightField(
        heights=np.random.default_rng(1).uniform(0.0, 0.2, (20, 20)), resolution=0.1
    )
    lookup = HeightLookup(field)
    xy = torch.rand(500, 2, generator=torch.Generator().manual_seed(0)) * 1.6 - 0.8
    height, slope = lookup.height_and_slope(xy)
    for axis in range(2):
        step = torch.zeros(2)
        step[axis] = 1e-3
        ahead, slope_ahead = lookup.height_and_slope(xy + step)
        # Within one triangle the slope is the same at both ends.
        same = (slope_ahead == slope).all(-1)
        assert same.float().mean() > 0.9
        measured = (ahead - height)[same] / 1e-3
        # float32 heights of 0.2 m, over 1 mm.
        torch.testing.assert_close(measured, slope[same][:, axis], atol=1e-3, rtol=1e-3)


def test_outside_the_field_the_height_is_that_of_its_edge() -> None:
    field = HeightField(heights=np.arange(12.0).reshape(3, 4), resolution=1.0)
    lookup = HeightLookup(field)
    xy = torch.tensor([[-9.0, -9.0], [9.0, 9.0], [9.0, -9.0], [0.0, 50.0]])
    assert lookup.height(xy).tolist() == [0.0, 11.0, 3.0, 9.5]


def test_the_scan_turns_with_the_heading_and_stays_level() -> None:
    config = ScanConfig(length=0.4, width=0.2, spacing=0.2)
    points = scan_points(config)
    assert config.shape == (3, 2)
    expected = [[-0.2, -0.1], [-0.2, 0.1], [0.0, -0.1], [0.0, 0.1], [0.2, -0.1], [0.2, 0.1]]
    torch.testing.assert_close(points, torch.tensor(expected))
    roll, pitch = torch.tensor([0.0, 0.3, 0.0]), torch.tensor([0.0, 0.0, -0.4])
    yaw = torch.full((3,), math.pi / 2.0)
    base = torch.tensor([[1.0, 2.0, 0.5]]).repeat(3, 1)
    places = scan_places(points, base, quat_from_euler(roll, pitch, yaw))
    # Turned to the left: forward is y, left is -x. Tilts change nothing.
    expected = base[:, None, :2] + torch.stack([-points[:, 1], points[:, 0]], dim=-1)
    torch.testing.assert_close(places, expected, atol=1e-6, rtol=0.0)


def test_mirrored_points_are_the_points_on_the_other_side() -> None:
    for config in (ScanConfig(), ScanConfig(width=0.5, spacing=0.1)):
        points = scan_points(config)
        assert points.shape == (config.dim, 2)
        image = points[mirrored_points(config)] * torch.tensor([1.0, -1.0])
        torch.testing.assert_close(image, points, atol=1e-6, rtol=0.0)


def test_cells_of_a_separable_field_are_planes() -> None:
    field = separable_field(np.sin, np.abs, half_size=1.0, resolution=0.25)
    h = field.heights
    twist = h[1:, 1:] - h[1:, :-1] - h[:-1, 1:] + h[:-1, :-1]
    np.testing.assert_allclose(twist, 0.0, atol=1e-15)
    assert field.half_size == (1.0, 1.0)
    assert h[4, 4] == 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kinds": ("slope", "lava")}, "'lava'.*there are: slope, steps"),
        ({"kinds": ()}, "none"),
        ({"levels": 0}, "levels = 0"),
        ({"resolution": 1.0}, "resolution = 1.0"),
        ({"border": -1.0}, "border = -1.0"),
        ({"hardest": TileConfig(platform=9.0)}, r"platform = 9\.0.*tile = 6\.0"),
    ],
)
def test_what_is_no_field_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        TerrainConfig(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["length", "width", "spacing", "clip"])
def test_what_is_no_scan_is_refused(field: str) -> None:
    with pytest.raises(BadInput, match=rf"scan\.{field} = -1\.0"):
        ScanConfig(**{field: -1.0})
