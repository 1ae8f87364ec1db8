"""The plain functions a task is made of: draws, gait and reward, by hand and by MuJoCo."""

import dataclasses
import math

import mujoco
import numpy as np
import pytest
import torch

from robot_runtime.policy.gait import gait_phase
from robot_runtime.robots import load_model
from trainer.tasks.commands import CommandConfig, draw_commands, draw_steps
from trainer.tasks.gait import GaitConfig, GaitTable, gait_target
from trainer.tasks.quadruped_flat import env_config, make_contract
from trainer.tasks.randomization import (
    NOMINAL,
    RandomizationConfig,
    draw_robots,
    draw_starts,
    num_robot_draws,
    num_start_draws,
    quat_from_euler,
)
from trainer.tasks.rewards import RewardConfig, total_reward

JOINTS = 12


def _uniform(rows: int, columns: int) -> torch.Tensor:
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(0))


def test_euler_angles_are_those_of_mujoco() -> None:
    angles = (2.0 * _uniform(50, 3) - 1.0) * math.pi
    got = quat_from_euler(*angles.double().unbind(-1))
    for row, quat in zip(angles.double().numpy(), got.numpy(), strict=True):
        want = np.zeros(4)
        # Capital letters: about the fixed axes of the world, one after the other.
        mujoco.mju_euler2Quat(want, row, "XYZ")
        # q and -q are the same rotation.
        assert min(np.abs(quat - want).max(), np.abs(quat + want).max()) < 1e-12


def test_robots_are_drawn_from_the_whole_of_every_range() -> None:
    config = RandomizationConfig()
    robots = draw_robots(_uniform(4000, num_robot_draws(JOINTS)), config, JOINTS)
    for name, field in (
        ("friction", "friction"),
        ("payload", "payload_kg"),
        ("kp_scale", "kp"),
        ("kd_scale", "kd"),
        ("strength", "strength"),
        ("latency", "latency_s"),
    ):
        low, high = getattr(config, field)
        values = getattr(robots, name)
        assert low <= float(values.min()) < low + 0.02 * (high - low)
        assert high - 0.02 * (high - low) < float(values.max()) <= high
    assert robots.kp_scale.shape == robots.strength.shape == (4000, JOINTS)
    # Gains differ from joint to joint; the strength is the battery's, common to all.
    assert float((robots.kp_scale[:, 0] - robots.kp_scale[:, 1]).abs().max()) > 0.2
    assert torch.equal(robots.strength[:, 0], robots.strength[:, 11])


def test_nominal_robots_are_as_written() -> None:
    robots = draw_robots(_uniform(5, num_robot_draws(JOINTS)), NOMINAL, JOINTS)
    assert robots.friction is None
    for values in (robots.payload, robots.latency):
        assert (values == 0.0).all()
    for values in (robots.kp_scale, robots.kd_scale, robots.strength):
        assert (values == 1.0).all()
    start = draw_starts(_uniform(5, num_start_draws(JOINTS)), NOMINAL)
    assert torch.equal(start.quat, torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(5, 1))
    for values in (start.lin_vel_w, start.ang_vel_b, start.joint_offset):
        assert (values == 0.0).all()


def test_starts_stay_within_their_ranges() -> None:
    config = RandomizationConfig()
    start = draw_starts(_uniform(2000, num_start_draws(JOINTS)), config)
    for values, bound in (
        (start.lin_vel_w, config.start_lin_vel),
        (start.ang_vel_b, config.start_ang_vel),
        (start.joint_offset, config.start_joint_pos),
    ):
        assert 0.98 * bound < float(values.abs().max()) <= bound
    np.testing.assert_allclose(start.quat.norm(dim=-1), 1.0, atol=1e-6)
    # Tilted by roll and pitch together, at most.
    w, x, y, z = start.quat.unbind(-1)
    cos_tilt = 1.0 - 2.0 * (x * x + y * y)
    assert float(cos_tilt.min()) >= math.cos(2.0**0.5 * config.start_tilt) - 1e-6
    yaw = torch.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
    assert float(yaw.min()) < -3.0
    assert float(yaw.max()) > 3.0


def test_commands_by_hand() -> None:
    config = CommandConfig(stand_probability=0.25, zero_probability=0.4, dead_zone=0.1)
    u = torch.tensor(
        [
            [0.3, 0.5, 0.4, 0.9, 0.0, 1.0, 0.5],  # the corners of the ranges
            [0.2, 0.5, 0.4, 0.9, 0.0, 1.0, 0.5],  # asked to stand
            [0.9, 0.5, 0.5, 0.5, 0.52, 0.5, 0.5],  # 0.04 m/s: too slow to count as walking
            [0.9, 0.5, 0.3, 0.1, 1.0, 1.0, 1.0],  # forward alone
        ]
    )
    lower, upper = torch.tensor([-1.0, -0.5, -1.0]), torch.tensor([1.0, 0.5, 1.0])
    got = draw_commands(u, lower, upper, config)
    want = torch.tensor([[-1.0, 0.5, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    torch.testing.assert_close(got, want)
    steps = draw_steps(torch.tensor([0.0, 0.5, 1.0]), (3.0, 5.0), 0.02)
    assert steps.tolist() == [150, 200, 250]
    assert draw_steps(torch.tensor([0.0]), (0.0, 0.0), 0.02).tolist() == [1]


def test_trot_by_hand() -> None:
    config = GaitConfig(offsets=(0.0, 0.5, 0.5, 0.0), duty=0.5, swing_height=0.08)
    phase = torch.tensor([[0.1], [0.75], [0.6], [0.75]], dtype=torch.float64)
    standing = torch.tensor([False, False, False, True])
    target = gait_target(phase, standing, config, torch.tensor(config.offsets))
    assert target.stance.tolist() == [
        [True, False, False, True],
        [False, True, True, False],
        [False, True, True, False],
        [True, True, True, True],
    ]
    assert target.height.dtype == torch.float32
    # The middle of the swing is the top; a fifth of the way, sin^2(36 deg) of it.
    assert float(target.height[1, 0]) == pytest.approx(0.08)
    assert float(target.height[2, 0]) == pytest.approx(0.08 * math.sin(math.radians(36.0)) ** 2)
    assert (target.height[target.stance] == 0.0).all()


@pytest.mark.parametrize("stand", ["zero", "fixed"])
def test_the_gait_from_the_table_is_the_gait_of_the_clock(stand: str) -> None:
    """At steps it holds and at steps it does not hold yet, walking and standing."""
    base = env_config().contract
    assert base.phase is not None
    clock = dataclasses.replace(base.phase, stand=stand, stand_phase=0.3)
    contract = dataclasses.replace(base, phase=clock)
    config = GaitConfig(offsets=(0.0, 0.5, 0.5, 0.0))
    table = GaitTable(contract, config)
    for steps in ([0, 3, 17], [511, 512, 5000], [5, 9999, 10001]):
        commands = torch.tensor([[0.5, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, -0.4]])
        step, standing = np.array(steps), np.array([False, True, False])
        elapsed = torch.from_numpy(step * contract.timing.control_dt)
        phase = gait_phase(clock, elapsed, commands, torch)
        want = gait_target(
            phase, torch.from_numpy(standing), config, torch.tensor(config.offsets).double()
        )
        got = table.target(step, standing)
        assert torch.equal(got.stance, want.stance)
        torch.testing.assert_close(got.height, want.height, rtol=1e-6, atol=1e-9)


def test_falls_are_charged_once_and_negative_sums_are_not() -> None:
    terms = torch.tensor([[1.0, -0.4], [0.2, -3.0], [1.0, 0.0]])
    fallen = torch.tensor([False, False, True])
    config = RewardConfig(termination=-0.5)
    torch.testing.assert_close(
        total_reward(terms, fallen, config, 0.02), torch.tensor([0.012, 0.0, -0.48])
    )
    signed = dataclasses.replace(config, only_positive=False)
    torch.testing.assert_close(
        total_reward(terms, fallen, signed, 0.02), torch.tensor([0.012, -0.056, -0.48])
    )


def test_contract_says_what_the_profile_and_the_model_say() -> None:
    robot = load_model("quadruped")
    contract = make_contract(robot)
    assert contract == env_config().contract
    assert contract.robot.model_sha256 == robot.hash
    assert contract.joint_names == tuple(joint.name for joint in robot.profile.joints)
    model = mujoco.MjModel.from_xml_path(str(robot.xml_path))
    for joint, profile in zip(contract.joints, robot.profile.joints, strict=True):
        # The bodies of this robot are not turned against each other.
        assert joint.axis == tuple(model.joint(joint.name).axis)
        assert (joint.lower, joint.upper) == (profile.lower, profile.upper)
        assert (joint.kp, joint.kd) == (profile.kp, profile.kd)
        assert joint.effort_limit == profile.effort_limit
    np.testing.assert_array_equal(contract.imu.position, model.site("imu").pos)
    # What a robot measures, and no more.
    sources = {term.source for block in contract.observation for term in block.terms}
    assert "base_lin_vel" not in sources
