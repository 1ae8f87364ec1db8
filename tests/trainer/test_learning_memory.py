"""Does it learn to remember, and to choose? Tasks with known best policies, solved in seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_runtime.cli import main
from tests.trainer.toys.choices import MOVES, GridEnv, LeverEnv
from tests.trainer.toys.memory import CueEnv
from trainer.checkpoint import build_actor, find_checkpoint, load_checkpoint
from trainer.config import NetworkConfig, PPOConfig, TrainConfig
from trainer.env import VecEnv
from trainer.evaluation import Evaluation, evaluate
from trainer.networks.actor_critic import Actor
from trainer.networks.policy import DeterministicPolicy
from trainer.tasks.base import TaskRun
from trainer.train import train


def trained(
    env: VecEnv, folder: Path, *, kind: str = "mlp", seed: int = 0, **changes: Any
) -> Actor:
    """Train for some iterations and return the policy of the checkpoint."""
    network = NetworkConfig(
        kind=kind, rnn_hidden=32, actor_hidden=(32,), critic_hidden=(32,), init_std=0.5
    )
    ppo = {"num_steps": 18, "epochs": 4, "gamma": 0.97, "entropy_coef": 0.0, "learning_rate": 3e-3}
    iterations = changes.pop("iterations", 20)
    config = TrainConfig(
        num_envs=env.num_envs,
        iterations=iterations,
        seed=seed,
        random_episode_length=False,
        loggers=(),
        network=network,
        ppo=PPOConfig(**{**ppo, **changes}),
    )
    result = train("toy", TaskRun(env=env, train=config), config, folder)
    return build_actor(load_checkpoint(result.checkpoint))


def judged(actor: Actor, env: VecEnv) -> Evaluation:
    return evaluate(DeterministicPolicy(actor), env)


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_memory_solves_what_needs_one(tmp_path: Path, kind: str, discrete: bool) -> None:
    """The cue is shown at step 0, and the answer is due at step 8; 1 is the most there is."""
    actor = trained(CueEnv(64, 0, discrete=discrete), tmp_path, kind=kind)
    assert judged(actor, CueEnv(1000, 7, discrete=discrete)).mean_return > 0.9


def test_without_a_memory_it_cannot_be_solved(tmp_path: Path) -> None:
    """Whoever does not remember sees the same at the last step whatever the cue was.

    Its answer a is then the same, and worth 1 - (1 - 2 a m + a^2) / 2 where m is the mean cue: at
    most 1/2 + m^2 / 2.
    """
    actor = trained(CueEnv(64, 0), tmp_path)
    env = CueEnv(1000, 7)
    env.reset()
    most = 0.5 + 0.5 * float(env.cue.mean()) ** 2
    found = judged(actor, CueEnv(1000, 7)).mean_return
    assert 0.4 < found <= most + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_memory_bridges_thirty_steps(tmp_path: Path, kind: str, seed: int) -> None:
    env = CueEnv(64, seed, delay=30, discrete=True)
    actor = trained(env, tmp_path, kind=kind, seed=seed, iterations=60, num_steps=62)
    assert judged(actor, CueEnv(1000, 7, delay=30, discrete=True)).mean_return > 0.95


def test_the_shortest_way_is_found_from_every_cell(tmp_path: Path) -> None:
    env = GridEnv(64, 0)
    actor = trained(env, tmp_path, iterations=30, num_steps=20, entropy_coef=0.003)
    cells = torch.cartesian_prod(torch.arange(4), torch.arange(4))[1:]
    left = cells.clone()
    for _ in range(6):
        action = actor(env.observe(left)["policy"])
        done = (left == 0).all(-1)
        moved = (left + MOVES[action[:, 0].long()]).clamp(0, 3)
        assert ((moved.sum(-1) == left.sum(-1) - 1) | done).all()
        left = torch.where(done.unsqueeze(-1), left, moved)
    assert (left == 0).all()


def test_several_choices_at_once_are_all_learned(tmp_path: Path) -> None:
    env = LeverEnv(64, 0)
    actor = trained(env, tmp_path, iterations=20)
    contexts = torch.eye(6)
    assert torch.equal(actor(contexts).long(), env.right)


def test_discrete_actions_of_gymnasium_go_the_whole_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command line into a checkpoint and back into the environment."""
    few = [
        "--num-envs",
        "2",
        "--iterations",
        "2",
        "--ppo.num-steps",
        "16",
        "--ppo.minibatches",
        "2",
    ]
    run = str(tmp_path / "run")
    assert main(["train", "gym:CartPole-v1", *few, "--out", run]) == 0
    assert load_checkpoint(find_checkpoint(Path(run))).action_sizes == (2,)
    capsys.readouterr()
    assert main(["eval", run, "--episodes", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["returns"] == told["lengths"]  # a reward of 1 per step
    beta = ["--network.head", "beta", "--out", str(tmp_path / "beta")]
    assert main(["train", "gym:CartPole-v1", *few, *beta]) == 2
    assert "network.head = beta: the actions are discrete" in capsys.readouterr().err
