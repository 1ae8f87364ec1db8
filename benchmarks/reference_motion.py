"""A reference motion of our quadruped: a low trot, learned for the purpose and recorded.

    python benchmarks/reference_motion.py tests/trainer/data/low_trot.npz

A policy learns to trot straight ahead at 0.5 m/s with its base 6 cm lower than the task has it and
its feet lifted higher, in an undisturbed simulation. What the robot then does, from different
starts and without exploration, is the motion.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from trainer.checkpoint import build_actor, load_checkpoint
from trainer.envs.config import RobotEnvConfig
from trainer.envs.motion_features import GROUP
from trainer.envs.robot_env import RobotEnv
from trainer.extensions.motion import Motion, save_motion
from trainer.progress import console_report
from trainer.tasks.base import ActMean, TaskRun
from trainer.tasks.quadruped_flat import env_config, train_config
from trainer.tasks.randomization import NOMINAL
from trainer.train import train

SPEED = 0.5
"""What is commanded, [m/s] ahead."""

CLIPS, SECONDS, SETTLE = 4, 4.0, 2.0
"""How many starts are recorded, for how long and after how long, [s]."""


def low_trot() -> RobotEnvConfig:
    """The environment that the gait is learned in."""
    config = env_config()
    rewards = dataclasses.replace(
        config.rewards,
        height_target=config.rewards.height_target - 0.06,
        base_height=-60.0,
        pose=0.0,
    )
    gait = dataclasses.replace(config.gait, swing_height=0.10)
    return dataclasses.replace(config, rewards=rewards, gait=gait, randomization=NOMINAL)


def make_env(config: RobotEnvConfig, num_envs: int, seed: int) -> RobotEnv:
    """Build the environment, with one command for all."""
    env = RobotEnv(config, num_envs=num_envs, seed=seed)
    env.offer(GROUP)
    env.give_commands(torch.tensor([[SPEED, 0.0, 0.0]]).repeat(num_envs, 1))
    return env


def learn(iterations: int) -> ActMean:
    """Train the gait."""
    config = dataclasses.replace(train_config(), iterations=iterations, loggers=())
    ppo = dataclasses.replace(config.ppo, symmetry=type(config.ppo.symmetry)())
    config = dataclasses.replace(config, ppo=ppo)
    task = TaskRun(env=make_env(low_trot(), config.num_envs, 0), train=config)
    with tempfile.TemporaryDirectory() as folder:
        report = console_report(iterations, 0)
        result = train("low-trot", task, config, Path(folder), report=report)
        return build_actor(load_checkpoint(result.checkpoint))


@torch.no_grad()
def walk(env: RobotEnv, act: ActMean, *, seconds: float, settle: float) -> Motion:
    """Let a policy walk without exploration and return what the robots do, a clip for each.

    Args:
        env: The environment, with the group `amp`.
        act: The policy.
        seconds: How long to record, [s].
        settle: How long to walk before that, [s].
    """
    obs, frames = env.reset(), []
    for step in range(round((settle + seconds) / env.step_dt)):
        result = env.step(act(obs["policy"]))
        obs = result.obs
        if bool((result.terminated | result.truncated).any()):
            sys.exit("a robot fell")
        if step * env.step_dt >= settle:
            frames.append(obs[GROUP].numpy().copy())
    clips = tuple(np.ascontiguousarray(clip) for clip in np.stack(frames, axis=1))
    return Motion(names=env.feature_names[GROUP], dt=env.step_dt, clips=clips)


def main() -> None:
    """Learn, record, write, and say what it is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--iterations", type=int, default=300)
    options = parser.parse_args()
    env = make_env(low_trot(), CLIPS, 1)
    motion = walk(env, learn(options.iterations), seconds=SECONDS, settle=SETTLE)
    save_motion(options.file, motion)
    frames = np.concatenate(motion.clips)
    height = frames[:, motion.names.index("base_height")].mean()
    speed = frames[:, motion.names.index("base_lin_vel_b[x]")].mean()
    size = options.file.stat().st_size / 1e3
    print(f"{speed:.3f} m/s, base {height:.3f} m high, {len(frames)} frames, {size:.0f} kB")


if __name__ == "__main__":
    main()
