"""What `test_distributed.py` runs in two processes: `torchrun --nproc-per-node 2 THIS FOLDER`.

Every process leaves what it has seen in a file of its own.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robot_runtime.errors import Refused
from tests.trainer.toys.orbit import PlaneEnv, orbit
from tests.trainer.toys.surefoot_toys import MIRROR, RECIPE, PointEnv
from trainer.checkpoint import load_checkpoint
from trainer.config import AmpConfig, EvaluationConfig, RndConfig, TrainConfig
from trainer.distributed import Peers
from trainer.env import Observations, StepResult
from trainer.envs.as_rsl_rl import RslRlVecEnv
from trainer.extensions.motion import save_motion
from trainer.networks.recurrent import State
from trainer.ppo import PPO
from trainer.rollout import Acted
from trainer.rsl_rl import OnPolicyRunner
from trainer.rsl_rl_distillation import DistillationRunner
from trainer.symmetry import Mirror
from trainer.tasks.base import TaskRun
from trainer.together import shared_tensors
from trainer.torchrun import joined
from trainer.train import Run, TrainResult, train


class Points(PointEnv):
    """Rows of one large environment whose episodes are determined by row and number."""

    def __init__(self, num_envs: int, first_row: int = 0) -> None:
        self._row = first_row + torch.arange(num_envs)
        self._episode = torch.zeros(num_envs, dtype=torch.int64)
        self.rewards_are_lost = False
        super().__init__(num_envs)
        self.obs_dims: Mapping[str, int] = {"policy": 2, "critic": 3}
        # Many episode ends, at different times.
        self._limit = 5 + self._row % 4

    def step(self, actions: Tensor) -> StepResult:
        result = super().step(actions)
        cut = self._age >= self._limit
        final = self._observe()
        self._restart(cut)
        reward = result.reward * float("nan") if self.rewards_are_lost else result.reward
        truncated = result.truncated | cut
        return replace(
            result, obs=self._observe(), truncated=truncated, final_obs=final, reward=reward
        )

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"episode": self._episode}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._episode = state["episode"].clone()

    def _restart(self, rows: Tensor) -> None:
        self._episode = self._episode + rows
        phase = 1.7 * self._row + 2.3 * self._episode
        fresh = torch.stack([torch.sin(phase), torch.cos(1.3 * phase)], dim=-1)
        self._position = torch.where(rows.unsqueeze(-1), fresh, self._position)
        self._age = torch.where(rows, 0, self._age)

    def _observe(self) -> Observations:
        age = self._age.float().unsqueeze(-1)
        return {"policy": self._position.clone(), "critic": torch.cat([self._position, age], -1)}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run that is compared with one of a single process.

    Attributes:
        sizes: Environments of each process.
        network: Changed settings of the networks.
        ppo: Changed settings of the algorithm.
        iterations: Its length.
    """

    sizes: tuple[int, int]
    network: dict[str, Any] = field(default_factory=dict)
    ppo: dict[str, Any] = field(default_factory=dict)
    iterations: int = 10

    def config(self, num_envs: int) -> TrainConfig:
        ppo = replace(RECIPE.ppo, **{"entropy_coef": 0.01, "gamma": 0.99} | self.ppo)
        return replace(
            RECIPE,
            num_envs=num_envs,
            iterations=self.iterations,
            random_episode_length=False,
            network=replace(RECIPE.network, **self.network),
            ppo=ppo,
        )

    def run(self, num_envs: int, first_row: int = 0, **more: Any) -> Run:
        config = self.config(num_envs)
        task = TaskRun(env=Points(num_envs, first_row), train=config, symmetry=SYMMETRY)
        return Run("points", task, config, **more)


SYMMETRY = replace(MIRROR, obs={**MIRROR.obs, "critic": Mirror.of([0, 1, 2], [1.0, -1.0, 1.0])})
NONE = replace(RECIPE.ppo.symmetry, augment=False)
CASES = {
    "plain": Case(sizes=(64, 64), ppo={"symmetry": NONE}),
    # Shards of different sizes: the mean over all samples is not the mean of both means.
    "shared": Case(
        sizes=(10, 6),
        network={"shared": True, "trunk_hidden": (12,)},
        ppo={"grad_clip": "joint", "symmetry": NONE},
        iterations=4,
    ),
    "memory": Case(
        sizes=(8, 12),
        network={"kind": "gru", "rnn_hidden": 8},
        ppo={"normalize_advantage": "minibatch"},
        iterations=4,
    ),
}


def snapshot(run: Run) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in run.agent.named_tensors().items()}


def learn(run: Run) -> dict[str, Any]:
    """Train a run and return its tensors and metrics after each iteration."""
    tensors, metrics = [], []
    for _ in range(run.config.iterations):
        metrics.append(run.step())
        tensors.append(snapshot(run))
    return {"tensors": tensors, "metrics": metrics}


def in_one_process(case: Case) -> dict[str, Any]:
    """Do in one process what two processes do: their draws, and the unions of their minibatches."""
    run = case.run(sum(case.sizes))
    agent, total = run.agent, sum(case.sizes)
    assert isinstance(agent, PPO)
    one_of_all = agent.act
    first_rows = (0, case.sizes[0])
    shards = [slice(0, case.sizes[0]), slice(case.sizes[0], total)]
    seeds = [Peers(rank=rank, size=2).seed(run.config.seed) + 1 for rank in (0, 1)]
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def act(obs: Tensor, *state: Tensor) -> Acted:
        parts = []
        for rows, generator in zip(shards, generators, strict=True):
            agent.generator = generator
            parts.append(one_of_all(obs[rows], *(part[:, rows] for part in state)))
        joined_state: State = tuple(
            torch.cat(of_all, dim=1) for of_all in zip(*(part.state for part in parts), strict=True)
        )
        return Acted(
            sample=torch.cat([part.sample for part in parts]),
            outputs=torch.cat([part.outputs for part in parts]),
            action=torch.cat([part.action for part in parts]),
            state=joined_state,
        )

    def minibatches(num_units: int) -> Iterator[Tensor]:
        del num_units
        ppo = run.config.ppo
        steps = 1 if agent.actor.rnn is not None else ppo.num_steps
        for _ in range(ppo.epochs):
            orders = []
            for first, size, generator in zip(first_rows, case.sizes, generators, strict=True):
                own = torch.randperm(steps * size, generator=generator)
                rows = own // size * total + first + own % size
                orders.append(rows.tensor_split(ppo.minibatches))
            for parts in zip(*orders, strict=True):
                yield torch.cat(parts)

    agent.act = act  # pyright: ignore[reportAttributeAccessIssue]
    agent._minibatches = minibatches  # pyright: ignore[reportAttributeAccessIssue]
    return learn(run)


def of_a_shard(name: str, peers: Peers) -> dict[str, Any]:
    case = CASES[name]
    return learn(case.run(case.sizes[peers.rank], sum(case.sizes[: peers.rank]), peers=peers))


def lost_rewards(peers: Peers) -> dict[str, Any]:
    """Train where one process has nothing to learn from in the second iteration."""
    run = replace(CASES["plain"], sizes=(4, 4), iterations=3).run(4, 4 * peers.rank, peers=peers)
    env: Any = run.task.env
    tensors, metrics = [], []
    for iteration in range(3):
        env.rewards_are_lost = peers.rank == 1 and iteration == 1
        metrics.append(run.step())
        tensors.append(snapshot(run))
    return {"tensors": tensors, "metrics": metrics}


def _three_iterations(run: Run) -> list[dict[str, Any]]:
    """What all processes must share, after each iteration."""
    tensors: list[dict[str, Any]] = []
    for _ in range(3):
        run.step()
        seen = shared_tensors(run.agent, run.extensions)
        tensors.append({name: value.detach().clone() for name, value in seen.items()})
    return tensors


def novelty(peers: Peers) -> dict[str, Any]:
    """Train with a reward that learns by itself, in shards of different sizes."""
    size = (5, 3)[peers.rank]
    config = CASES["plain"].config(size)
    config = replace(config, iterations=3, rnd=RndConfig(weight=0.5, minibatches=3))
    task = TaskRun(env=Points(size, 5 * peers.rank), train=config)
    run = Run("points", task, config, peers=peers)
    return {"tensors": _three_iterations(run)}


def style(folder: Path, peers: Peers) -> dict[str, Any]:
    """Train against a motion, each process with transitions of its own that it remembers."""
    size, path = (5, 3)[peers.rank], folder / "orbit.npz"
    if peers.first:
        save_motion(path, orbit())
    peers.any(False)
    amp = AmpConfig(motion=str(path), group="motion", minibatches=3, hidden=(8,), replay=50)
    # A difference in any tensor ends the run.
    config = replace(CASES["plain"].config(size), iterations=3, amp=amp, compare_every=1)
    task = TaskRun(env=PlaneEnv(size, seed=peers.rank), train=config)
    run = Run("plane", task, config, peers=peers)
    return {"tensors": _three_iterations(run)}


def drifted(peers: Peers) -> dict[str, str]:
    """Change one tensor after the other in one process, and return what is said about each."""
    config = replace(CASES["plain"].config(4), rnd=RndConfig(weight=0.5))
    run = Run("points", TaskRun(env=Points(4, 4 * peers.rank), train=config), config, peers=peers)
    run.step()
    said = {}
    for name, tensor in shared_tensors(run.agent, run.extensions).items():
        before = tensor.detach().clone()
        with torch.no_grad():
            if not peers.first:
                tensor += 1e-6
            try:
                peers.check_equal(shared_tensors(run.agent, run.extensions))
                said[name] = "nothing"
            except Refused as error:
                said[name] = str(error)
            tensor.copy_(before)
    peers.check_equal(shared_tensors(run.agent, run.extensions))
    return said


def other_settings(peers: Peers) -> str:
    case = replace(CASES["plain"], ppo={"clip": 0.1 * (2 + peers.rank)})
    try:
        case.run(4, peers=peers)
    except Refused as error:
        return str(error)
    return ""


def whole_run(
    folder: Path, peers: Peers, iterations: int, resume: Path | None = None, **more: Any
) -> TrainResult:
    """Train the toy task with everything around it."""
    config = replace(
        CASES["memory"].config(8),
        iterations=iterations,
        evaluation=EvaluationConfig(every=2, episodes=4, average=1, **more),
    )
    return train(
        "points",
        TaskRun(env=Points(8, 8 * peers.rank), train=config, symmetry=SYMMETRY),
        config,
        folder,
        resume=load_checkpoint(resume) if resume else None,
        eval_env=Points(4, 100) if peers.first else None,
        peers=peers,
    )


def interrupted(folder: Path, peers: Peers) -> TrainResult:
    """Press Ctrl-C in the second process alone."""
    config = replace(CASES["plain"].config(4), iterations=50)
    env = Points(4, 4 * peers.rank)
    if not peers.first:
        step, count = env.step, [0]

        def pressed(actions: Tensor) -> StepResult:
            count[0] += 1
            if count[0] == config.ppo.num_steps + 3:
                signal.raise_signal(signal.SIGINT)
            return step(actions)

        env.step = pressed  # pyright: ignore[reportAttributeAccessIssue]
    return train("points", TaskRun(env=env, train=config), config, folder, peers=peers)


def as_in_rsl_rl(folder: Path, peers: Peers) -> dict[str, Any]:
    """Use the runner of rsl_rl's interface; every process has a seed of its own, as usual there."""
    shape = {"class_name": "MLPModel", "hidden_dims": [16, 8], "obs_normalization": True}
    gaussian = {"class_name": "GaussianDistribution", "init_std": 0.8}
    config = {
        "seed": 3 + peers.rank,
        "num_steps_per_env": 10,
        "save_interval": 100,
        "actor": shape | {"distribution_cfg": gaussian},
        "critic": shape,
        "algorithm": {"class_name": "PPO", "num_learning_epochs": 3, "num_mini_batches": 4},
    }
    runner = OnPolicyRunner(Points(8, 8 * peers.rank), config, str(folder))
    runner.learn(3)
    runner.save(str(folder / "by_hand.pt"))
    return {"tensors": [dict(runner.alg.named_tensors())]}


def distilled(folder: Path, teacher: Path, peers: Peers) -> dict[str, Any]:
    """Teach a student behind rsl_rl's interface, and go on with it from its file."""
    shape = {"class_name": "MLPModel", "hidden_dims": [8], "obs_normalization": True}
    config = {
        "seed": 3 + peers.rank,
        "num_steps_per_env": 10,
        "save_interval": 100,
        "obs_groups": {"student": ["policy"], "teacher": ["policy"]},
        "student": shape | {"distribution_cfg": {"class_name": "GaussianDistribution"}},
        "teacher": shape,
        "algorithm": {"class_name": "Distillation", "gradient_length": 5},
    }

    def runner(iterations: int, path: Path) -> DistillationRunner:
        # The first process alone has a folder, as in some scripts.
        log_dir = str(folder) if peers.first else None
        made = DistillationRunner(RslRlVecEnv(Points(8, 8 * peers.rank)), config, log_dir)
        made.load(path)
        made.learn(iterations)
        peers.any(False)
        return made

    whole = runner(4, teacher)
    runner(2, teacher)
    rest = runner(2, folder / "model_1.pt")
    return {"tensors": [one.alg.named_tensors() for one in (whole, rest)]}


def main(folder: Path) -> None:
    with joined("cpu") as peers:
        seen: dict[str, Any] = {name: of_a_shard(name, peers) for name in CASES}
        seen["lost"] = lost_rewards(peers)
        seen["novelty"], seen["style"] = novelty(peers), style(folder, peers)
        seen["drifted"], seen["settings"] = drifted(peers), other_settings(peers)
        whole = whole_run(folder / "whole", peers, 4)
        half = whole_run(folder / "half", peers, 2)
        rest = whole_run(folder / "rest", peers, 4, half.checkpoint)
        early = whole_run(folder / "early", peers, 10, target=-1e9)
        pressed = interrupted(folder / "pressed", peers)
        results = {"whole": whole, "rest": rest, "early": early, "pressed": pressed}
        for name, result in results.items():
            seen[name] = {
                "iterations": result.iterations,
                "interrupted": result.interrupted,
                "stopped": result.stopped,
                "env_steps": result.env_steps,
            }
        seen["rsl_rl"] = as_in_rsl_rl(folder / "rsl_rl", peers)
        # The first process alone writes it, and the others read it.
        peers.any(False)
        teacher = folder / "rsl_rl" / "by_hand.pt"
        seen["distilled"] = distilled(folder / "distilled", teacher, peers)
        torch.save(seen, folder / f"rank_{peers.rank}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
