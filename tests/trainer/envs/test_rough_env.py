"""The environment on rough ground: what it stands on, what it scans, levels, and exact resume."""

import dataclasses
import functools
import math
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from robot_runtime.errors import BadInput, Refused
from robot_runtime.robots import load_model
from trainer.envs.config import RobotEnvConfig
from trainer.envs.ground import FlatGround, RoughGround
from trainer.envs.height import ScanConfig
from trainer.envs.levels import LevelConfig, TerrainLevels, next_level
from trainer.envs.mirror_check import check_mirror_table, make_mirror_table
from trainer.envs.model import build_model
from trainer.envs.recorder import RobotDeployment
from trainer.envs.robot_env import RobotEnv
from trainer.envs.terrain import HeightField, TerrainConfig, make_terrain
from trainer.symmetry import Mirror
from trainer.tasks import biped_flat, quadruped_flat, quadruped_rough
from trainer.tasks.extra_rewards import ExtraReward
from trainer.tasks.randomization import NOMINAL
from trainer.tasks.rewards import RewardInputs

SMALL = TerrainConfig(levels=3, tile=3.0, border=1.0, resolution=0.05)


@functools.cache
def config(**changes: Any) -> RobotEnvConfig:
    return dataclasses.replace(
        quadruped_rough.env_config(),
        **{"terrain": SMALL, "scan": ScanConfig(), "levels": LevelConfig(), **changes},
    )


def env_of(num_envs: int, made: RobotEnvConfig | None = None, seed: int = 0) -> RobotEnv:
    return RobotEnv(made or config(), num_envs=num_envs, seed=seed, num_threads=1)


def assert_equal(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=0.0, atol=0.0)


def actions(env: RobotEnv, k: int, size: float = 0.3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(k)
    return size * torch.randn(env.num_envs, env.num_actions, generator=generator)


def stand_anywhere(model: mujoco.MjModel, seed: int) -> np.ndarray:
    """Accelerations of a robot in motion, its feet in level ground by some centimetres."""
    rng = np.random.default_rng(seed)
    data = mujoco.MjData(model)
    data.qpos[:] = model.key_qpos[0]
    data.qpos[:3] += rng.uniform((-1.0, -1.0, -0.04), (1.0, 1.0, -0.01))
    data.qpos[7:] += rng.uniform(-0.1, 0.1, model.nu)
    data.qvel[:] = rng.standard_normal(model.nv)
    data.ctrl[:] = data.qpos[7:]
    mujoco.mj_forward(model, data)
    assert data.ncon > 0
    return data.qacc.copy()


@pytest.mark.parametrize("task", [quadruped_rough, biped_flat])
def test_contacts_have_converged_when_the_solver_stops(task: Any) -> None:
    """Against the same step with no end of iterations.

    On a plane three are enough for a quadruped; on a height field its feet have several contacts.
    """
    made = task.env_config()
    rough = made.terrain is not None
    field = HeightField(heights=np.zeros((101, 101)), resolution=0.04) if rough else None
    endless = dataclasses.replace(made.solver, iterations=200, ls_iterations=100)
    model, reference = (
        build_model(made.robot.xml_path, made.contract, solver, field)
        for solver in (made.solver, endless)
    )
    for seed in range(100):
        want = stand_anywhere(reference, seed)
        # Newton stops by itself at a relative improvement of 1e-8.
        np.testing.assert_allclose(
            stand_anywhere(model, seed), want, rtol=0.0, atol=1e-4 * np.abs(want).max()
        )


def test_mujoco_stands_on_the_very_heights_that_are_looked_up() -> None:
    field = make_terrain(SMALL).field
    made = quadruped_flat.env_config()
    model = build_model(made.robot.xml_path, made.contract, made.solver, field)
    data = mujoco.MjData(model)
    data.qpos[2] = 50.0
    mujoco.mj_forward(model, data)
    ground = RoughGround(field)
    floor = model.geom("floor")
    assert floor.friction[0] == pytest.approx(0.8)
    half = np.array(field.half_size)
    for x, y in np.random.default_rng(0).uniform(-0.95, 0.95, (50, 2)) * half:
        start = np.array([x, y, 10.0])
        found = np.zeros(1, dtype=np.int32)
        down = np.array([0.0, 0.0, -1.0])
        distance = mujoco.mj_ray(model, data, start, down, None, 1, -1, found, None)
        assert found[0] == floor.id
        height = float(ground.height(torch.tensor([x, y, 0.0], dtype=torch.float32)))
        assert 10.0 - distance == pytest.approx(height, abs=1e-5)


def test_a_model_without_a_floor_is_refused(tmp_path: Any) -> None:
    made = quadruped_flat.env_config()
    text = made.robot.xml_path.read_text()
    bare = tmp_path / "robot.xml"
    bare.write_text(text.replace('type="plane" size="0 0 0.05"', 'type="box" size="9 9 0.05"'))
    field = HeightField(heights=np.zeros((3, 3)), resolution=1.0)
    with pytest.raises(BadInput, match="has no floor"):
        build_model(bare, made.contract, made.solver, field)


def test_spheres_rest_on_a_slope_where_the_ground_says() -> None:
    # A plane z = 0.3 x + 0.2 y: the distance of a point from it by the textbook.
    places = np.arange(-10, 11) * 0.1
    field = HeightField(heights=0.3 * places[None, :] + 0.2 * places[:, None], resolution=0.1)
    ground = RoughGround(field)
    pos = torch.tensor([[0.13, -0.21, 0.5], [-0.4, 0.7, 0.2]])
    radius = torch.tensor(0.05)
    normal = torch.tensor([-0.3, -0.2, 1.0]) / math.sqrt(1.0 + 0.3**2 + 0.2**2)
    torch.testing.assert_close(ground.clearance(pos, radius), pos @ normal - radius)
    resting = pos.clone()
    resting[:, 2] = ground.rest(pos, radius)
    torch.testing.assert_close(ground.clearance(resting, radius), torch.zeros(2), atol=1e-6, rtol=0)
    feet = torch.tensor([[[0.1, 0.0, 0.0], [-0.1, 0.2, 0.0]]])
    height = ground.base_height(torch.tensor([[0.0, 0.0, 0.5]]), feet)
    assert height.tolist() == pytest.approx([0.5 - (0.03 + 0.01) / 2.0])


def test_flat_ground_is_the_plane_at_zero() -> None:
    pos, radius = torch.rand(5, 3), torch.rand(5)
    flat, field = FlatGround(), RoughGround(HeightField(heights=np.zeros((5, 5)), resolution=1.0))
    for name in ("rest", "clearance"):
        assert_equal(getattr(flat, name)(pos, radius), getattr(field, name)(pos, radius))
    assert_equal(flat.height(pos), field.height(pos))
    assert_equal(flat.base_height(pos, pos[:, None]), field.base_height(pos, pos[:, None]))


def test_robots_start_on_their_platforms_and_stay_sane() -> None:
    env = env_of(24)
    obs = env.reset()
    assert set(obs) == set(env.obs_dims) == {"policy", "critic", "scan"}
    centers = make_terrain(SMALL).centers
    for row in range(24):
        kind, level = row % 4, row // 4 % LevelConfig().first
        expected = centers[kind, level]
        place = env.physics.read().base_pos_w[row]
        np.testing.assert_allclose(place[:2], expected, atol=1e-6)
    for k in range(60):
        result = env.step(actions(env, k))
        for values in (*result.obs.values(), result.reward):
            assert bool(values.isfinite().all())
        assert float(result.log["nonfinite/state"]) == 0.0
        assert 0.0 <= float(result.log["terrain/level"]) <= 2.0
    # Friction, mass, gains and delay differ from robot to robot here as well.
    params = env.physics.params
    assert len(params.friction.unique()) > 20
    assert len(params.base_mass.unique()) > 20


def test_a_standing_robot_scans_zeros_on_its_platform_and_heights_around_it() -> None:
    made = config(
        terrain=dataclasses.replace(SMALL, kinds=("stairs",), levels=1),
        randomization=NOMINAL, scan=ScanConfig(length=2.0, width=0.2, spacing=0.2),
    )  # fmt: skip
    env = env_of(1, made)
    scan = env.reset()["scan"].reshape(made.scan.shape)  # type: ignore[union-attr]
    base = env.physics.read().base_pos_w[0]
    field = RoughGround(make_terrain(made.terrain).field)  # type: ignore[arg-type]
    for i in range(scan.shape[0]):
        for j in range(scan.shape[1]):
            place = torch.tensor([-1.0 + 0.2 * i, -0.1 + 0.2 * j, 0.0])
            height = float(field.height(base * torch.tensor([1.0, 1.0, 0.0]) + place))
            expected = height - (float(base[2]) - made.robot.profile.base_height)
            assert float(scan[i, j]) == pytest.approx(expected, abs=1e-6)
    middle = scan[4:7]
    assert float(middle.abs().max()) < 2e-3
    # The stairs begin 0.6 m from the middle.
    assert float(scan[0].abs().min()) > 0.05


def test_resume_continues_bit_for_bit_levels_included() -> None:
    env = env_of(16)
    env.reset(random_episode_length=True)
    for k in range(30):
        env.step(actions(env, k, 1.5))
    state = env.state_dict()
    other = env_of(16, seed=9)
    other.reset()
    other.load_state_dict(state)
    assert_equal(other.state_dict(), state)
    for k in range(30, 60):
        one, two = env.step(actions(env, k, 1.5)), other.step(actions(other, k, 1.5))
        for name in ("obs", "reward", "terminated", "truncated", "final_obs"):
            assert_equal(getattr(one, name), getattr(two, name))
    assert_equal(env.state_dict(), other.state_dict())
    assert int(env.episodes.number.sum()) > 16, "some episodes have ended, and levels moved"
    with pytest.raises(ValueError, match="'levels' is missing"):
        env.load_state_dict({k: v for k, v in state.items() if k != "levels"})


def test_levels_go_up_down_and_around() -> None:
    level = torch.tensor([0, 1, 2, 2, 1])
    managed = torch.tensor([True, False, True, False, True])
    fell = torch.tensor([False, True, False, False, True])
    u = torch.tensor([0.9, 0.9, 0.4, 0.9, 0.9])
    # Up; down; managed the hardest and begins anew at 0.4 of three; stays; a fall counts.
    assert next_level(level, managed, fell, u, 3).tolist() == [1, 0, 1, 2, 0]
    alone = next_level(torch.tensor([0]), managed[1:2], fell[1:2], u[:1], 3)
    assert alone.tolist() == [0], "there is nothing easier than the easiest"


def levels_of(num_envs: int = 8) -> TerrainLevels:
    return TerrainLevels(make_terrain(SMALL), LevelConfig(distance=1.0), num_envs)


def test_what_counts_as_managed() -> None:
    levels = levels_of()
    rows = torch.arange(8)
    start = torch.cat([levels.origin(rows), torch.zeros(8, 1)], dim=-1)
    before = levels.level.clone()
    far, near = torch.tensor([1.2, 0.0, 0.0]), torch.tensor([0.5, 0.0, 0.0])
    small, large = torch.tensor([0.1, 0.1]), torch.tensor([0.5, 0.0])
    places = torch.stack([far, near, far, far, far, near, far, far])
    errors = torch.stack([small, small, large, small, small, small, large, small])
    for share in (0.5, 1.0, 0.1):
        assert not bool(levels.track(start + share * places, errors).any())
    fell = rows == 3
    done = rows != 4
    levels.finish(done, fell, np.arange(8, dtype=np.uint64))
    # Far with a small error goes up, a fall goes down, who goes on stays.
    expected = before + torch.tensor([1, 0, 0, -1, 0, 0, 0, 1])
    assert levels.level.tolist() == expected.clamp_min(0).tolist()


def test_resets_alone_move_no_level() -> None:
    env = env_of(12)
    assert env._levels is not None
    before = env._levels.level.clone()
    env.reset(random_episode_length=True)
    env.reset_rows(torch.arange(12) < 6)
    env.reset()
    assert_equal(env._levels.level, before)


def test_who_leaves_the_field_is_truncated() -> None:
    levels = levels_of(4)
    half_x, half_y = make_terrain(SMALL).field.half_size
    inside = torch.tensor([[half_x - 0.6, 0.0, 0.0], [0.0, 0.6 - half_y, 0.0]])
    outside = torch.tensor([[half_x - 0.4, 0.0, 0.0], [0.0, 0.4 - half_y, 0.0]])
    left = levels.track(torch.cat([inside, outside]), torch.zeros(4, 2))
    assert left.tolist() == [False, False, True, True]


def test_an_evaluation_has_as_many_robots_on_every_tile_and_leaves_them_there() -> None:
    levels = levels_of(24)
    levels.spread()
    tiles = {tuple(place) for place in levels.origin(torch.arange(24)).tolist()}
    assert len(tiles) == 4 * 3
    before = levels.level.clone()
    levels.finish(torch.ones(24) > 0, torch.ones(24) > 0, np.arange(24, dtype=np.uint64))
    assert_equal(levels.level, before)


def test_shares_scale_commands_and_pushes() -> None:
    made = config(commands=dataclasses.replace(config().commands, stand_probability=0.0))
    env = env_of(64, made)
    env.set_command_share(0.25)
    env.reset()
    limit = 0.25 * torch.tensor([c.upper for c in made.contract.commands])
    asked = env.episodes.asked.abs()
    assert bool((asked <= limit + 1e-6).all())
    assert bool((asked.amax(0) > 0.8 * limit).all())
    env.set_command_share(1.0)
    env.reset()
    assert bool((env.episodes.asked.abs().amax(0) > limit).all())


def test_the_scan_has_a_mirror_image_that_is_tried() -> None:
    made = config()
    table = make_mirror_table(made)
    wrong = Mirror.of(list(range(ScanConfig().dim)), [1.0] * ScanConfig().dim)
    with pytest.raises(Refused, match=r"'scan\[0\]' of the group 'scan'"):
        check_mirror_table(made, dataclasses.replace(table, obs={**table.obs, "scan": wrong}))


def test_a_policy_for_rough_ground_is_recorded_like_any_other() -> None:
    arrays = RobotDeployment(config()).record_trace(lambda obs: 0.1 * torch.tanh(obs[:, :12]))
    assert all(np.isfinite(a).all() for a in arrays.values() if a.dtype.kind == "f")


def test_terms_of_the_tasks_own_count_and_are_logged() -> None:
    def forward(x: RewardInputs) -> torch.Tensor:
        return x.base_lin_vel_b[:, 0]

    extra = ExtraReward(name="forward", term=forward, weight=2.0)
    made = quadruped_flat.env_config()
    rewards = dataclasses.replace(made.rewards, only_positive=False)
    plain = env_of(4, dataclasses.replace(made, rewards=rewards))
    more = env_of(4, dataclasses.replace(made, rewards=rewards, extra_rewards=(extra,)))
    plain.reset()
    more.reset()
    one, other = plain.step(actions(plain, 0)), more.step(actions(more, 0))
    velocity = torch.as_tensor(more.robot_state.base_lin_vel_b)[:, 0]
    control_dt = made.contract.timing.control_dt
    torch.testing.assert_close(other.reward - one.reward, 2.0 * control_dt * velocity)
    logged = float(other.log["reward/forward"])
    assert logged == pytest.approx(2.0 * float(velocity.mean()), abs=1e-6)
    with pytest.raises(BadInput, match="two reward terms called 'torque'"):
        dataclasses.replace(made, extra_rewards=(dataclasses.replace(extra, name="torque"),))


def test_a_clock_that_restarts_is_refused() -> None:
    made = quadruped_flat.env_config()
    assert made.contract.phase is not None
    clock = dataclasses.replace(made.contract.phase, restart=0.0)
    with pytest.raises(BadInput, match=r"phase\.restart = 0\.0"):
        dataclasses.replace(made, contract=dataclasses.replace(made.contract, phase=clock))


def test_feet_that_are_no_spheres_are_refused() -> None:
    made = quadruped_flat.env_config()
    profile = dataclasses.replace(
        made.robot.profile, foot_geoms=("FL_calf", "FR_foot", "RL_foot", "RR_foot")
    )
    robot = dataclasses.replace(load_model("quadruped"), profile=profile)
    with pytest.raises(BadInput, match="foot 'FL_calf' is a capsule"):
        env_of(1, dataclasses.replace(made, robot=robot))
