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
        self._default, self._lower, self._upper = (
            contract.joint_array(name).astype(np.float32)
            for name in ("default_pos", "lower", "upper")
        )
        self._friction = float(physics.nominal.friction[0])
        self._base_mass = float(physics.nominal.base_mass[0])
        joints = len(contract.joints)
        self._sizes = (num_robot_draws(joints), num_start_draws(joints))
        self.num_draws = sum(self._sizes)

    def begin(
        self, rows: NDArray[np.int64], u: NDArray[np.float32]
    ) -> tuple[NDArray[np.int64], Tensor]:
        """Draw robots and put them at their start.

        Args:
            rows: Row numbers, shape (k,).
            u: Draws in [0, 1), float32, shape (k, num_draws).

        Returns:
            Delay of the targets, [PD periods], int64, shape (k,), and positions of the feet, world
            frame, [m], shape (k, num_feet, 3).
        """
        # In NumPy: for the few rows that begin at once it takes half of torch's time.
        of_robot = self._sizes[0]
        return self._randomize(rows, u[:, :of_robot]), self._place(rows, u[:, of_robot:])

    def put(self, rows: NDArray[np.int64], state: PhysicsState) -> Tensor:
        """Put robots into a state, the base so high that the lowest foot is above the ground.

        Args:
            rows: Row numbers, shape (k,).
            state: The state, leading shape (k,).

        Returns:
            Positions of the feet, world frame, [m], shape (k, num_feet, 3).
        """
        self._physics.place_rows(rows, state)
        feet = self._physics.geom_pos_w(self._feet, rows)
        lift = (self._ground.rest(feet, self.foot_radius) - feet[..., 2]).amax(-1) + _CLEARANCE
        self._physics.lift_rows(rows, lift)
        feet[..., 2] += lift[:, None]
        return feet

    def _randomize(self, rows: NDArray[np.int64], u: NDArray[np.float32]) -> NDArray[np.int64]:
        contract = self._config.contract
        robots = draw_robots(u, self._config.randomization, len(contract.joints))
        friction = robots.friction
        if friction is None:
            friction = np.full(len(rows), self._friction, dtype=np.float32)
        params = PhysicsParams(
            friction=torch.from_numpy(friction),
            base_mass=torch.from_numpy(self._base_mass + robots.payload),
            kp_scale=torch.from_numpy(robots.kp_scale),
            kd_scale=torch.from_numpy(robots.kd_scale),
            strength=torch.from_numpy(robots.strength.copy()),
        )
        self._physics.set_params(rows, params)
        latency = np.rint(robots.latency / contract.timing.pd_dt).astype(np.int64)
        return contract.delay_steps + latency

    def _place(self, rows: NDArray[np.int64], u: NDArray[np.float32]) -> Tensor:
        start = draw_starts(u, self._config.randomization)
        base_pos = torch.zeros(len(rows), 3)
        base_pos[:, 2] = self._config.robot.profile.base_height
        if self._levels is not None:
            base_pos[:, :2] = self._levels.begin(rows)
        joint_pos = np.clip(self._default + start.joint_offset, self._lower, self._upper)
        state = PhysicsState(
            base_pos_w=base_pos,
            base_quat=torch.from_numpy(start.quat),
            base_lin_vel_w=torch.from_numpy(start.lin_vel_w),
            base_ang_vel_b=torch.from_numpy(start.ang_vel_b),
            joint_pos=torch.from_numpy(joint_pos),
            joint_vel=torch.zeros(joint_pos.shape),
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
