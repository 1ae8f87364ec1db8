r"""Train a task of Isaac Lab with Surefoot, its own agent configuration unchanged.

Run it with Isaac Lab's Python, in which Surefoot is installed as well:

    ./isaaclab.sh -p examples/isaaclab_train.py --task Isaac-Velocity-Flat-Anymal-D-v0 \
        --num_envs 4096 --headless agent.algorithm.entropy_coef=0.01

What is no option goes to Hydra, as with Isaac Lab's own script. The configuration of the agent is
the task's for rsl_rl; what becomes of each of its settings is logged. Several GPUs:

    ./isaaclab.sh -p -m torch.distributed.run --standalone --nproc-per-node 2 \
        examples/isaaclab_train.py --task Isaac-Velocity-Flat-Anymal-D-v0 --headless --distributed
"""

# Where this is checked the simulator is not installed.
# pyright: reportMissingImports=false, reportCallIssue=false

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

AddArguments = Callable[[argparse.ArgumentParser], Any]


def parse(argv: list[str], add_arguments: AddArguments) -> tuple[argparse.Namespace, list[str]]:
    """Return the options, and what is left for Hydra.

    Args:
        argv: The command line without the program.
        add_arguments: Adds the options of Isaac Lab's launcher, such as `--headless`.
    """
    parser = argparse.ArgumentParser(description="Train a task of Isaac Lab with Surefoot.")
    parser.add_argument("--task", required=True, help="name of the task")
    parser.add_argument("--agent", default="rsl_rl_cfg_entry_point", help="its agent configuration")
    parser.add_argument("--num_envs", type=int, help="environments; default: the task's")
    parser.add_argument("--logger", help="tensorboard or wandb; default: the agent's")
    parser.add_argument("--seed", type=int, help="seed; default: the agent's")
    parser.add_argument("--max_iterations", type=int, help="iterations; default: the agent's")
    parser.add_argument("--distributed", action="store_true", help="a process per GPU, by torchrun")
    parser.add_argument("--checkpoint", type=Path, help="file of ours or of rsl_rl to go on from")
    parser.add_argument("--log_root", type=Path, default=Path("logs/surefoot"), help="where to log")
    add_arguments(parser)
    return parser.parse_known_args(argv)


def configure(env_cfg: Any, agent_cfg: Any, options: argparse.Namespace) -> None:
    """Let the options have their way in both configurations."""
    if options.num_envs is not None:
        env_cfg.scene.num_envs = options.num_envs
    if options.seed is not None:
        agent_cfg.seed = options.seed
    if options.max_iterations is not None:
        agent_cfg.max_iterations = options.max_iterations
    if getattr(options, "device", None) is not None:
        env_cfg.sim.device = agent_cfg.device = options.device
    if options.logger is not None:
        agent_cfg.logger = options.logger
    rank = 0
    if options.distributed:
        rank = int(os.environ["RANK"])
        env_cfg.sim.device = agent_cfg.device = f"cuda:{os.environ['LOCAL_RANK']}"
    env_cfg.seed = agent_cfg.seed + rank
    # With it time limits bootstrap from the observation the episode ended with.
    if hasattr(env_cfg, "compute_final_obs"):
        env_cfg.compute_final_obs = True


def run(env_cfg: Any, agent_cfg: Any, options: argparse.Namespace) -> Path:
    """Train and return the log folder."""
    import gymnasium
    from isaaclab_rl.rsl_rl import RslRlVecEnvWrapper

    from trainer.rsl_rl import OnPolicyRunner

    configure(env_cfg, agent_cfg, options)
    name = time.strftime("%Y-%m-%d_%H-%M-%S")
    if agent_cfg.run_name:
        name += f"_{agent_cfg.run_name}"
    folder = options.log_root / agent_cfg.experiment_name / name
    env = gymnasium.make(options.task, cfg=env_cfg)
    wrapped = RslRlVecEnvWrapper(env, clip_actions=agent_cfg.clip_actions)
    runner = OnPolicyRunner(
        wrapped, agent_cfg.to_dict(), log_dir=str(folder), device=agent_cfg.device
    )
    runner.add_git_repo_to_log(__file__)
    if options.checkpoint is not None:
        runner.load(options.checkpoint)
    runner.learn(num_learning_iterations=agent_cfg.max_iterations, init_at_random_ep_len=True)
    runner.export_policy_to_jit(str(folder / "exported"))
    env.close()
    return folder


def main(argv: list[str]) -> None:
    """Start the simulator, let Hydra build the configurations, and train."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    from isaaclab.app import AppLauncher

    options, overrides = parse(argv, AppLauncher.add_app_launcher_args)
    # Hydra reads the command line itself.
    sys.argv = [sys.argv[0], *overrides]
    app = AppLauncher(options).app
    # Only now: these need the running simulator.
    import isaaclab_tasks  # noqa: F401 - registers the tasks
    from isaaclab_tasks.utils.hydra import hydra_task_config

    @hydra_task_config(options.task, options.agent)
    def train(env_cfg: Any, agent_cfg: Any) -> None:
        print(f"logs and files: {run(env_cfg, agent_cfg, options)}")

    train()
    app.close()


if __name__ == "__main__":
    main(sys.argv[1:])
