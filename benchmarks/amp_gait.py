"""How far a motion prior moves the quadruped's gait toward a reference motion.

    python benchmarks/amp_gait.py                  # one seed, about 2 minutes of one core
    python benchmarks/amp_gait.py --seeds 1 2 3

The same policy learns to go ahead at 0.5 m/s twice, by a reward that says nothing about how, with
and without the low trot of `tests/trainer/data` as a motion prior. Then both walk without
exploration and without disturbances, and every transition (s, s') is compared with the nearest one
of the reference: the root mean square over all features, each in units of `SCALES`. It passes when
the prior at least halves that distance and the robot still goes as fast as it is told.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from reference_motion import SPEED, make_env, walk

from trainer.checkpoint import build_actor, load_checkpoint
from trainer.config import AmpConfig, SymmetryConfig, TrainConfig
from trainer.envs.config import RobotEnvConfig
from trainer.extensions.motion import Motion, load_motion
from trainer.progress import console_report
from trainer.tasks.base import ActMean, TaskRun
from trainer.tasks.quadruped_flat import env_config, train_config
from trainer.train import train

REFERENCE = Path(__file__).parents[1] / "tests" / "trainer" / "data" / "trot.npz"

SCALES = {
    "joint_pos": 0.1,
    "joint_vel": 1.0,
    "base_height": 0.01,
    "base_lin_vel_b": 0.1,
    "base_ang_vel_b": 0.5,
}
"""What counts as one: [rad], [rad/s], [m], [m/s], [rad/s]."""


ROBOTS = 16
"""How many walk to be judged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gait:
    """How a policy walks.

    Attributes:
        distance: To the reference, in units of `SCALES`, of the robots that did not fall.
        falls: How many of `ROBOTS` fell.
        speed: Mean forward velocity, [m/s].
        height: Mean height of the base, [m].
    """

    distance: float
    falls: int
    speed: float
    height: float


def task_without_style() -> RobotEnvConfig:
    """The flat-ground task, without what its reward says about the gait."""
    config = env_config()
    rewards = dataclasses.replace(
        config.rewards, gait=0.0, swing_height=0.0, base_height=0.0, pose=0.0, foot_slip=0.0
    )
    return dataclasses.replace(config, rewards=rewards)


def settings(seed: int, iterations: int, amp: AmpConfig) -> TrainConfig:
    """The recipe of the flat-ground task, with other ends."""
    config = train_config()
    ppo = dataclasses.replace(config.ppo, symmetry=SymmetryConfig())
    return dataclasses.replace(
        config, num_envs=128, seed=seed, iterations=iterations, loggers=(), ppo=ppo, amp=amp
    )


def learn(config: TrainConfig) -> ActMean:
    """Train a policy."""
    env = make_env(task_without_style(), config.num_envs, config.seed)
    with tempfile.TemporaryDirectory() as folder:
        report = console_report(config.iterations, 0)
        task = TaskRun(env=env, train=config)
        result = train("amp-gait", task, config, Path(folder), report=report)
        return build_actor(load_checkpoint(result.checkpoint))


def judge(act: ActMean, reference: Motion) -> Gait:
    """Let a policy walk and compare."""
    motion = walk(make_env(task_without_style(), ROBOTS, 1000), act, seconds=4.0)
    frames = np.concatenate(motion.clips)
    return Gait(
        distance=distance(motion, reference),
        falls=ROBOTS - len(motion.clips),
        speed=float(frames[:, motion.names.index("base_lin_vel_b[x]")].mean()),
        height=float(frames[:, motion.names.index("base_height")].mean()),
    )


def distance(motion: Motion, reference: Motion) -> float:
    """Return the mean distance of a motion's transitions to the nearest of the reference."""
    scale = np.tile([SCALES[name.partition("[")[0]] for name in reference.names], 2)
    one, other = (
        scaled(m.select(reference.names, "the robot"), scale) for m in (motion, reference)
    )
    nearest = torch.cdist(torch.from_numpy(one), torch.from_numpy(other)).amin(1)
    return float(nearest.mean()) / len(scale) ** 0.5


def scaled(motion: Motion, scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the transitions in units of the scales."""
    return motion.transitions() / scale


def main() -> int:
    """Train, judge, print, and say whether the bounds hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--iterations", type=int, default=180)
    parser.add_argument(
        "--style", type=float, default=AmpConfig().style_weight, help="amp.style_weight"
    )
    parser.add_argument("--reference", type=Path, default=REFERENCE)
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    reference = load_motion(options.reference)
    prior = AmpConfig(motion=str(options.reference), style_weight=options.style)
    print(f"{'':>14} {'distance':>9} {'m/s':>6} {'base m':>7} {'falls':>5}")
    results: dict[str, dict[str, float]] = {}
    held = True
    for seed in options.seeds:
        pair: list[Gait] = []
        for name, amp in (("without", AmpConfig()), ("with", prior)):
            gait = judge(learn(settings(seed, options.iterations, amp)), reference)
            line = f"{gait.distance:9.3f} {gait.speed:6.3f} {gait.height:7.3f} {gait.falls:5d}"
            print(f"seed {seed} {name:>7} {line}", flush=True)
            results[f"{seed} {name}"] = dataclasses.asdict(gait)
            pair.append(gait)
        held &= pair[1].distance < 0.5 * pair[0].distance and abs(pair[1].speed - SPEED) < 0.1
    if options.json:
        options.json.write_text(json.dumps(results, indent=2), encoding="utf-8")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
