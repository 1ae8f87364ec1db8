"""A mirror table tried in the simulator: mirrored robots must do mirrored things."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from torch import Tensor

from robot_runtime.errors import Refused
from robot_runtime.policy.contract import PHASE_SOURCES
from robot_runtime.policy.labels import observation_labels
from trainer.env import Observations
from trainer.envs.config import RobotEnvConfig
from trainer.envs.height import mirrored_points
from trainer.envs.physics import PhysicsState
from trainer.envs.privileged import privileged_labels, privileged_reflection
from trainer.envs.robot_env import RobotEnv
from trainer.envs.terrain import HeightField, separable_field
from trainer.mirror_table import AXIAL, POLAR, joint_reflection, mirror_table, other_side
from trainer.symmetry import Mirror, MirrorTable
from trainer.tasks.randomization import NOMINAL, quat_from_euler

_PAIRS = 16
_STEPS = 3
_HALF_CYCLE_STEPS = 10
# Both robots run the same float64 physics, in another order of legs; float32 observations.
_TOLERANCE = 1e-4


def make_mirror_table(config: RobotEnvConfig) -> MirrorTable:
    """Derive the mirror table of an environment and try it.

    Raises:
        Refused: Something has no mirror image, or the simulator disagrees; the message names the
            joint or the term.
    """
    table = mirror_table(
        config.contract,
        half_cycle=gait_half_cycle(config),
        critic=privileged_reflection(config.robot.profile.foot_geoms),
    )
    if config.scan is not None:
        # Heights are scalars that change sides.
        image = Mirror.of(mirrored_points(config.scan), [1.0] * config.scan.dim)
        table = dataclasses.replace(table, obs={**table.obs, "scan": image})
    check_mirror_table(config, table)
    return table


def gait_half_cycle(config: RobotEnvConfig) -> bool:
    """Whether the mirrored gait is the gait half a cycle later (a trot), or the same (a bound).

    Raises:
        Refused: It is neither.
    """
    feet = config.robot.profile.foot_geoms
    shifts: set[float] = set()
    for foot, offset in zip(feet, config.gait.offsets, strict=True):
        partner = other_side(foot)
        if partner in feet:
            shifts.add(round((config.gait.offsets[feet.index(partner)] - offset) % 1.0, 6))
    if shifts == {0.5}:
        return True
    if shifts <= {0.0}:
        return False
    raise Refused(f"mirror table: the gait offsets {config.gait.offsets} have no mirror image")


@torch.no_grad()
def check_mirror_table(config: RobotEnvConfig, table: MirrorTable) -> None:
    """Compare random robots with their mirror images, at rest and over a few steps.

    Raises:
        Refused: The image of an observation is not the observation of the image; the message
            names the first such term.
    """
    nominal = _deterministic(config)
    _compare(nominal, table, steps=_STEPS)
    if config.scan is not None:
        # Flat ground looks the same on both sides. Steps would tell nothing more: contacts with a
        # height field are found in the order of its cells, and rounding follows the order.
        _compare(dataclasses.replace(nominal, terrain=_ridges()), table, steps=0)


def _compare(config: RobotEnvConfig, table: MirrorTable, *, steps: int) -> None:
    """Compare at rest and over some steps in one environment; see `check_mirror_table`."""
    env = RobotEnv(config, num_envs=2 * _PAIRS, num_threads=1)
    generator = torch.Generator().manual_seed(0)
    joints = joint_reflection(config.contract, config.contract.joint_names)
    state = _random_state(config, generator)
    image = _mirrored(state, Mirror.of(joints.index, joints.sign))
    command = torch.rand(_PAIRS, 3, generator=generator) - 0.5
    env.give_commands(torch.cat([command, command * torch.tensor([1.0, -1.0, -1.0])]))
    half = _HALF_CYCLE_STEPS if gait_half_cycle(config) else 0
    step = torch.randint(0, 2 * _HALF_CYCLE_STEPS, (_PAIRS,), generator=generator)
    obs = env.put(_both(state, image), torch.cat([step, step + half]))
    _demand_mirrored(config, table, obs, "at rest")
    for k in range(steps):
        action = torch.rand(_PAIRS, env.num_actions, generator=generator) - 0.5
        obs = env.step(torch.cat([action, table.action.apply(action)])).final_obs or obs
        _demand_mirrored(config, table, obs, f"after {k + 1} steps")


def _deterministic(config: RobotEnvConfig) -> RobotEnvConfig:
    """No randomness, and a gait cycle of whole steps, so that half of it can be stepped.

    The same latency everywhere: of a delay of zero a wrong sign would not show.
    """
    contract = config.contract
    assert contract.phase is not None
    latency = contract.timing.pd_dt
    clock = dataclasses.replace(
        contract.phase, period=2 * _HALF_CYCLE_STEPS * contract.timing.control_dt
    )
    return dataclasses.replace(
        config,
        contract=dataclasses.replace(contract, phase=clock),
        randomization=dataclasses.replace(NOMINAL, latency_s=(latency, latency)),
        terrain=None,
    )


def _ridges() -> HeightField:
    """Ground that is its own mirror image, and different everywhere else."""
    return separable_field(
        lambda x: 0.05 * np.sin(7.0 * x),
        lambda y: 0.04 * np.cos(5.0 * np.abs(y) ** 1.5),
        half_size=3.0,
        resolution=0.05,
    )


def _random_state(config: RobotEnvConfig, generator: torch.Generator) -> PhysicsState:
    def draw(*shape: int) -> Tensor:
        return 2.0 * torch.rand(_PAIRS, *shape, generator=generator) - 1.0

    joints = config.contract.joints
    default = torch.tensor([joint.default_pos for joint in joints])
    tilt = 0.2 * draw(2)
    return PhysicsState(
        base_pos_w=draw(3),
        base_quat=quat_from_euler(tilt[:, 0], tilt[:, 1], math.pi * draw(1)[:, 0]),
        base_lin_vel_w=draw(3),
        base_ang_vel_b=draw(3),
        joint_pos=default + 0.2 * draw(len(joints)),
        joint_vel=draw(len(joints)),
    )


def _mirrored(state: PhysicsState, joints: Mirror) -> PhysicsState:
    """The image of a state in the world's x-z plane."""
    polar, axial = torch.tensor(POLAR), torch.tensor(AXIAL)
    return PhysicsState(
        base_pos_w=state.base_pos_w * polar,
        base_quat=state.base_quat * torch.cat([torch.ones(1), axial]),
        base_lin_vel_w=state.base_lin_vel_w * polar,
        base_ang_vel_b=state.base_ang_vel_b * axial,
        joint_pos=joints.apply(state.joint_pos),
        joint_vel=joints.apply(state.joint_vel),
    )


def _both(state: PhysicsState, image: PhysicsState) -> PhysicsState:
    fields = dataclasses.fields(PhysicsState)
    return PhysicsState(
        **{f.name: torch.cat([getattr(state, f.name), getattr(image, f.name)]) for f in fields}
    )


def _demand_mirrored(
    config: RobotEnvConfig, table: MirrorTable, obs: Observations, when: str
) -> None:
    contract = config.contract
    labels = observation_labels(contract)
    labels_of = {
        "policy": labels,
        "critic": labels + privileged_labels(config.robot.profile.foot_geoms),
        "scan": [f"scan[{i}]" for i in range(config.scan.dim if config.scan else 0)],
    }
    # What no physics has touched is looked at first: there a wrong sign is at home.
    given = tuple(
        term.name
        for block in contract.observation
        for term in block.terms
        if term.source in ("command", "last_action", *PHASE_SOURCES)
    )
    for group, values in obs.items():
        image, actual = table.obs[group].apply(values[:_PAIRS]), values[_PAIRS:]
        error = ((image - actual).abs() / actual.abs().clamp_min(1.0)).amax(0)
        wrong = [labels_of[group][i] for i in torch.nonzero(error > _TOLERANCE)[:, 0].tolist()]
        if wrong:
            first = next((name for name in wrong if name.startswith(given)), wrong[0])
            raise Refused(
                f"mirror table: {when}, '{first}' of the group '{group}' is not what a mirrored "
                f"robot observes ({len(wrong)} of {len(error)} numbers differ)"
            )
