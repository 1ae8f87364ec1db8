"""A reference motion of our quadruped: what a trained policy does, recorded.

    surefoot train quadruped-flat --seed 1 --out runs/walk
    python benchmarks/reference_motion.py runs/walk tests/trainer/data/trot.npz

Robots without disturbances are told to go ahead at 0.5 m/s; what they do, from different starts and
without exploration, is the motion.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from pathlib import Path

import numpy as np
import torch

from trainer.checkpoint import build_actor, find_checkpoint, load_checkpoint
from trainer.envs.config import RobotEnvConfig
from trainer.envs.motion_features import GROUP
from trainer.envs.robot_env import RobotEnv
from trainer.extensions.motion import Motion, save_motion
from trainer.tasks.base import ActMean
from trainer.tasks.quadruped_flat import env_config
from trainer.tasks.randomization import NOMINAL

SPEED = 0.5
"""What is commanded, [m/s] ahead."""

STARTS = dataclasses.replace(NOMINAL, start_joint_pos=0.1, start_lin_vel=0.3, start_yaw=math.pi)
"""No disturbances, and different starts."""

SETTLE = 2.0
"""How long the robots walk before anything is recorded, [s]."""


def make_env(config: RobotEnvConfig, num_envs: int, seed: int) -> RobotEnv:
    """Build an environment without disturbances, with one command for all."""
    config = dataclasses.replace(config, randomization=STARTS)
    env = RobotEnv(config, num_envs=num_envs, seed=seed, num_threads=1)
    env.offer(GROUP)
    env.give_commands(torch.tensor([[SPEED, 0.0, 0.0]]).repeat(num_envs, 1))
    return env


@torch.no_grad()
def walk(env: RobotEnv, act: ActMean, *, seconds: float) -> Motion:
    """Let a policy walk without exploration and return a clip of each robot that does not fall.

    Args:
        env: The environment, with the group `amp`.
        act: The policy.
        seconds: How long to record, [s].
    """
    obs, frames = env.reset(), []
    fell = torch.zeros(env.num_envs, dtype=torch.bool)
    for step in range(round((SETTLE + seconds) / env.step_dt)):
        result = env.step(act(obs["policy"]))
        obs = result.obs
        fell |= result.terminated | result.truncated
        if step * env.step_dt >= SETTLE:
            frames.append(obs[GROUP].numpy().copy())
    if bool(fell.all()):
        sys.exit("all robots fell")
    walked = np.stack(frames, axis=1)[~fell.numpy()]
    clips = tuple(np.ascontiguousarray(clip) for clip in walked)
    return Motion(names=env.feature_names[GROUP], dt=env.step_dt, clips=clips)


def main() -> None:
    """Record, write, and say what it is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path, help="or a run folder of quadruped-flat")
    parser.add_argument("file", type=Path)
    parser.add_argument("--clips", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each clip")
    options = parser.parse_args()
    actor = build_actor(load_checkpoint(find_checkpoint(options.checkpoint)))
    env = make_env(env_config(), options.clips, 1)
    motion = walk(env, actor, seconds=options.seconds)
    save_motion(options.file, motion)
    frames = np.concatenate(motion.clips)
    height = frames[:, motion.names.index("base_height")].mean()
    speed = frames[:, motion.names.index("base_lin_vel_b[x]")].mean()
    size = options.file.stat().st_size / 1e3
    print(f"{speed:.3f} m/s, base {height:.3f} m high, {len(frames)} frames, {size:.0f} kB")


if __name__ == "__main__":
    main()
