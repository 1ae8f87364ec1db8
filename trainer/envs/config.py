"""Everything that makes a robot environment, apart from its size and seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from robot_runtime.errors import BadInput
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.robots import RobotModel
from trainer.envs.height import ScanConfig
from trainer.envs.levels import LevelConfig
from trainer.envs.model import SolverOptions
from trainer.envs.terrain import HeightField, TerrainConfig
from trainer.tasks.commands import CommandConfig
from trainer.tasks.extra_rewards import ExtraReward
from trainer.tasks.gait import GaitConfig
from trainer.tasks.randomization import RandomizationConfig
from trainer.tasks.rewards import TERMS, RewardConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class FallConfig:
    """When a robot counts as fallen.

    Attributes:
        max_tilt: Largest angle between the base and upright, [rad].
        min_height: Lowest base height, [m].
        clear_bodies: Bodies whose origins must stay off the ground, such as knees.
        clear_height: Lowest height of those, [m].
    """

    max_tilt: float
    min_height: float
    clear_bodies: tuple[str, ...]
    clear_height: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RobotEnvConfig:
    """A robot, its contract and its task.

    Attributes:
        robot: The robot model.
        contract: The contract of the policy in training.
        solver: Physics settings.
        gait: The gait asked for; one offset per foot of the robot.
        commands: How commands are drawn.
        rewards: Weights of the reward.
        extra_rewards: Terms of the task's own.
        pose_weight: How much each joint's distance to the default pose counts, contract order.
        randomization: What differs from robot to robot.
        fall: When an episode ends.
        episode_s: Length of an episode, [s].
        terrain: Rough ground in place of the model's floor, a field of tiles or heights as they
            are; None for the floor.
        levels: How robots move between the tiles of the terrain.
        scan: What the observation group ``scan`` sees of the ground; None for no such group.
    """

    robot: RobotModel
    contract: PolicyContract
    solver: SolverOptions
    gait: GaitConfig
    commands: CommandConfig
    rewards: RewardConfig
    pose_weight: tuple[float, ...]
    randomization: RandomizationConfig
    fall: FallConfig
    episode_s: float = 20.0
    extra_rewards: tuple[ExtraReward, ...] = ()
    terrain: TerrainConfig | HeightField | None = None
    levels: LevelConfig = field(default_factory=LevelConfig)
    scan: ScanConfig | None = None

    def __post_init__(self) -> None:
        """Refuse parts that do not fit each other.

        Raises:
            BadInput: Names the field and both lengths.
        """
        feet, joints = self.robot.profile.foot_geoms, self.contract.joints
        if len(self.gait.offsets) != len(feet):
            raise BadInput(f"gait.offsets: {len(self.gait.offsets)} for {len(feet)} feet")
        if len(self.pose_weight) != len(joints):
            raise BadInput(f"pose_weight: {len(self.pose_weight)} for {len(joints)} joints")
        if self.contract.command_names != ("lin_vel_x", "lin_vel_y", "ang_vel_z"):
            raise BadInput(
                "contract.commands: this task asks for lin_vel_x, lin_vel_y, ang_vel_z, "
                f"not {', '.join(self.contract.command_names)}"
            )
        if self.contract.phase is None or len(self.contract.phase.offsets) != 1:
            raise BadInput("contract.phase: this task needs a gait clock with one phase")
        if self.contract.phase.restart is not None:
            raise BadInput(
                f"contract.phase.restart = {self.contract.phase.restart}: the reward of this task "
                "follows a clock that never restarts"
            )
        names = [*TERMS, *(extra.name for extra in self.extra_rewards)]
        for extra in self.extra_rewards:
            if names.count(extra.name) > 1:
                raise BadInput(f"extra_rewards: there are two reward terms called '{extra.name}'")
        if not self.episode_s >= self.contract.timing.control_dt:
            raise BadInput(f"episode_s = {self.episode_s}: shorter than one control step")

    @property
    def max_episode_length(self) -> int:
        """Control steps after which an episode is truncated."""
        return math.ceil(self.episode_s / self.contract.timing.control_dt - 1e-9)
