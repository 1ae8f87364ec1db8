"""How an episode begins: the robot's own physics, and where it stands."""

from __future__ import annotations

import mujoco
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robot_runtime.errors import BadInput
from trainer.envs.config import RobotEnvConfig
from trainer.envs.draws import EpisodeDraw
from trainer.envs.ground import FlatGround, Ground
from trainer.envs.levels import TerrainLevels
from trainer.envs.model import find_geoms
from trainer.envs.physics import PARAMS, BatchedPhysics, PhysicsParams, PhysicsState

# A foot exactly on the ground would touch it or not as rounding wants, [m].
_CLEARANCE = 1e-4


class EpisodeStarts:
    """Gives rows of the physics what a new episode has drawn for them.

    Attributes:
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
        self._ground = ground or FlatGround()
        self._levels = levels
        self._base_height = config.robot.profile.base_height
        self._physics = physics
        self._feet = find_geoms(physics.model, config.robot.profile.foot_geoms)
        _require_spheres(physics.model, self._feet)
        self.foot_radius = torch.from_numpy(
            physics.model.geom_size[self._feet, 0].astype(np.float32)
        )

    def begin(self, rows: NDArray[np.int64], draw: EpisodeDraw) -> Tensor:
        """Give rows the physics and the start that are drawn for them.

        Args:
            rows: Row numbers, shape (k,).
            draw: Their draws.

        Returns:
            Positions of the feet, world frame, [m], shape (k, num_feet, 3).
        """
        params = {name: torch.from_numpy(getattr(draw, name)) for name in PARAMS}
        self._physics.set_params(rows, PhysicsParams(**params))
        base_pos_w = np.zeros((len(rows), 3), dtype=np.float32)
        base_pos_w[:, 2] = self._base_height
        if self._levels is not None:
            base_pos_w[:, :2] = self._levels.begin(rows)
        state = PhysicsState(
            base_pos_w=torch.from_numpy(base_pos_w),
            base_quat=torch.from_numpy(draw.base_quat),
            base_lin_vel_w=torch.from_numpy(draw.base_lin_vel_w),
            base_ang_vel_b=torch.from_numpy(draw.base_ang_vel_b),
            joint_pos=torch.from_numpy(draw.joint_pos),
            joint_vel=torch.from_numpy(np.zeros_like(draw.joint_pos)),
        )
        return self.put(rows, state)

    def put(self, rows: NDArray[np.int64], state: PhysicsState) -> Tensor:
        """Put robots into a state, the base so high that the lowest foot is above the ground.

        Args:
            rows: Row numbers, shape (k,).
            state: The state, leading shape (k,).

        Returns:
            Positions of the feet, world frame, [m], shape (k, num_feet, 3).
        """
        self._physics.place_rows(rows, state)
        foot_pos_w = self._physics.geom_pos_w(self._feet, rows)
        height = foot_pos_w.numpy()[..., 2]
        rest = self._ground.rest(foot_pos_w, self.foot_radius).numpy()
        lift = (rest - height).max(-1) + np.float32(_CLEARANCE)
        self._physics.lift_rows(rows, torch.from_numpy(lift))
        height += lift[:, None]
        return foot_pos_w


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
