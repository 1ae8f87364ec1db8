"""Train a task of mjlab with Surefoot, its own agent configuration unchanged.

Run it with a Python in which both are installed; mjlab pins a MuJoCo of its own, so Surefoot's
simulator may not be usable there, its trainer is:

    python examples/mjlab_train.py Mjlab-Velocity-Flat-Unitree-Go1 --num-envs 4096 --device cuda:0
"""

# Where this is checked the simulator is not installed.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description="Train a task of mjlab with Surefoot.")
    parser.add_argument("task", help="name of the task")
    parser.add_argument("--num-envs", type=int, help="environments; default: the task's")
    parser.add_argument("--device", default="cuda:0", help="cuda:N or cpu")
    parser.add_argument("--logger", help="tensorboard or wandb; default: the agent's")
    parser.add_argument("--seed", type=int, help="seed; default: the agent's")
    parser.add_argument("--max-iterations", type=int, help="iterations; default: the agent's")
    parser.add_argument("--checkpoint", type=Path, help="file of ours or of rsl_rl to go on from")
    parser.add_argument("--log-root", type=Path, default=Path("logs/surefoot"), help="where to log")
    return parser.parse_args(argv)


def configure(env_cfg: Any, agent_cfg: Any, options: argparse.Namespace) -> None:
    """Let the options have their way in both configurations."""
    if options.num_envs is not None:
        env_cfg.scene.num_envs = options.num_envs
    if options.seed is not None:
        agent_cfg.seed = options.seed
    if options.max_iterations is not None:
        agent_cfg.max_iterations = options.max_iterations
    if options.logger is not None:
        agent_cfg.logger = options.logger
    env_cfg.seed = agent_cfg.seed
    # With it time limits bootstrap from the observation the episode ended with.
    if hasattr(env_cfg, "capture_terminal_observations"):
        env_cfg.capture_terminal_observations = True


def run(options: argparse.Namespace) -> Path:
    """Train and return the log folder."""
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import mjlab.tasks  # noqa: F401 - registers the tasks
    from mjlab.envs import ManagerBasedRlEnv
    from mjlab.rl import RslRlVecEnvWrapper
    from mjlab.tasks.registry import load_env_cfg, load_rl_cfg

    from trainer.rsl_rl import OnPolicyRunner

    env_cfg, agent_cfg = load_env_cfg(options.task), load_rl_cfg(options.task)
    configure(env_cfg, agent_cfg, options)
    name = time.strftime("%Y-%m-%d_%H-%M-%S")
    if agent_cfg.run_name:
        name += f"_{agent_cfg.run_name}"
    folder = options.log_root / agent_cfg.experiment_name / name
    env = ManagerBasedRlEnv(cfg=env_cfg, device=options.device)
    wrapped = RslRlVecEnvWrapper(env, clip_actions=agent_cfg.clip_actions)
    runner = OnPolicyRunner(
        wrapped, dataclasses.asdict(agent_cfg), log_dir=str(folder), device=options.device
    )
    if options.checkpoint is not None:
        runner.load(options.checkpoint)
    runner.learn(num_learning_iterations=agent_cfg.max_iterations, init_at_random_ep_len=True)
    env.close()
    return folder


def main(argv: list[str]) -> None:
    """Train."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    print(f"logs and files: {run(parse(argv))}")


if __name__ == "__main__":
    main(sys.argv[1:])
