"""How an episode begins: the robot's own physics, and where it stands."""

from __future__ import annotations

import mujoco
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robot_runtime.errors import BadInput
from trainer.envs.config import RobotEnvConfig
from trainer.envs.ground import FlatGround, Ground
from trainer.envs.levels import TerrainLevels
from trainer.envs.model import find_geoms
from trainer.envs.physics import BatchedPhysics, PhysicsParams, PhysicsState
from trainer.tasks.randomization import draw_robots, draw_starts, num_robot_draws, num_start_draws

# A foot exactly on the ground would touch it or not as rounding wants, [m].
_CLEARANCE = 1e-4


class EpisodeStarts:
    """Gives rows of the physics what a new episode has drawn for them.

    Attributes:
        num_draws: Numbers in [0, 1) that `begin` takes per row.
        foot_radius: Radius of each foot, [m], float32, shape (num_feet,).
    """

    def __init__(
        self,
        config: RobotEnvConfig,
        physics: BatchedPhysics,
        ground: Ground | None = None,
        levels: TerrainLevels | None = None,
    ) -> None:
        """Look up the feet.

        Args:
            config: Robot and randomization.
            physics: The rows.
            ground: What they stand on; None for flat ground.
            levels: Which tile each row starts on; None for the middle of the world.

        Raises:
            BadInput: The model has no such feet, or they are no spheres.
        """
        contract = config.contract
        self._ground = ground or FlatGround()
        self._levels = levels
        self._config = config
        self._physics = physics
        self._feet = find_geoms(physics.model, config.robot.profile.foot_geoms)
        _require_spheres(physics.model, self._feet)
        self.foot_radius = torch.from_numpy(
            physics.model.geom_size[self._feet, 0].astype(np.float32)
        )
        columns = [contract.joint_array(name) for name in ("default_pos", "lower", "upper")]
        self._default, self._lower, self._upper = torch.tensor(np.array(columns)).float()
        joints = len(contract.joints)
        self._sizes = (num_robot_draws(joints), num_start_draws(joints))
        self.num_draws = sum(self._sizes)

    def begin(self, rows: NDArray[np.int64], u: Tensor) -> tuple[Tensor, Tensor]:
        """Draw robots and put them at their start.

        Args:
            rows: Row numbers, shape (k,).
            u: Draws in [0, 1), shape (k, num_draws).

        Returns:
            Delay of the targets, [PD periods], int64, shape (k,), and positions of the feet, world
            frame, [m], shape (k, num_feet, 3).
        """
        robot, start = u.split(self._sizes, dim=1)
        return self._randomize(rows, robot), self._place(rows, start)

    def put(self, rows: NDArray[np.int64], state: PhysicsState) -> Tensor:
        """Put robots into a state, the base so high that the lowest foot is above the ground.

        Args:
            rows: Row numbers, shape (k,).
            state: The state, leading shape (k,).

        Returns:
            Positions of the feet, world frame, [m], shape (k, num_feet, 3).
        """
        self._physics.place_rows(rows, state)
        feet = self._physics.geom_pos_w(self._feet)[rows]
        lift = (self._ground.rest(feet, self.foot_radius) - feet[..., 2]).amax(-1) + _CLEARANCE
        self._physics.lift_rows(rows, lift)
        feet[..., 2] += lift[:, None]
        return feet

    def _randomize(self, rows: NDArray[np.int64], u: Tensor) -> Tensor:
        config, physics = self._config, self._physics
        robots = draw_robots(u, config.randomization, len(config.contract.joints))
        friction, base_mass = physics.nominal.friction[:1], physics.nominal.base_mass[0]
        physics.set_params(
            rows,
            PhysicsParams(
                friction=friction.repeat(len(rows)) if robots.friction is None else robots.friction,
                base_mass=base_mass + robots.payload,
                kp_scale=robots.kp_scale,
                kd_scale=robots.kd_scale,
                strength=robots.strength,
            ),
        )
        latency = (robots.latency / config.contract.timing.pd_dt).round().to(torch.int64)
        return config.contract.delay_steps + latency

    def _place(self, rows: NDArray[np.int64], u: Tensor) -> Tensor:
        start = draw_starts(u, self._config.randomization)
        base_pos = torch.zeros(len(rows), 3)
        base_pos[:, 2] = self._config.robot.profile.base_height
        if self._levels is not None:
            base_pos[:, :2] = self._levels.begin(rows)
        joint_pos = torch.clamp(self._default + start.joint_offset, self._lower, self._upper)
        state = PhysicsState(
            base_pos_w=base_pos,
            base_quat=start.quat,
            base_lin_vel_w=start.lin_vel_w,
            base_ang_vel_b=start.ang_vel_b,
            joint_pos=joint_pos,
            joint_vel=torch.zeros_like(joint_pos),
        )
        return self.put(rows, state)


def _require_spheres(model: mujoco.MjModel, feet: NDArray[np.int64]) -> None:
    """Refuse feet whose height above the ground is not their centre's less a radius."""
    for foot in feet:
        kind = mujoco.mjtGeom(model.geom_type[foot])
        if kind != mujoco.mjtGeom.mjGEOM_SPHERE:
            raise BadInput(
                f"foot '{model.geom(foot).name}' is a {kind.name.removeprefix('mjGEOM_').lower()}: "
                "this environment measures the height of spheres; give the foot spheres where it "
                "touches the ground, and name those in the profile"
            )
