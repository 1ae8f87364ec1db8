"""Evaluation: whole episodes of the deterministic policy, in environments of its own.

What is best and when a run ends are pure functions of the returns so far, so that a resumed run
decides as an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_runtime.errors import BadInput
from trainer.checkpoint import SUFFIX, checkpoint_folder
from trainer.checkpoint import global_rng_state as torch_rng_state
from trainer.checkpoint import restore_global_rng_state as restore_torch_rng_state
from trainer.config import EvaluationConfig
from trainer.env import VecEnv
from trainer.networks.groups import ACTOR_GROUP, observed
from trainer.seam import conform_obs, conform_step

SEED_OFFSET = 1_000_003
"""What the evaluation's seed is beyond the run's: other episodes than those it learns from."""

Policy = Callable[[Tensor], Tensor]
"""Raw observations of what the actor sees, float32 ``(N, dim)``, to deterministic actions.

One that remembers has a method ``reset(rows)``: rows, bool ``(N,)``, begin anew.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What came out of one episode per environment.

    Attributes:
        returns: Undiscounted sums of the rewards, float64, shape ``(N,)``.
        lengths: Steps, int64, shape ``(N,)``.
        terminated: Who ended by the task's own rule (a fall), bool, shape ``(N,)``; the others
            reached the time limit.
        log: What the environment reported, averaged over the steps.
    """

    returns: Tensor
    lengths: Tensor
    terminated: Tensor
    log: dict[str, float]

    @property
    def mean_return(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    def metrics(self) -> dict[str, float]:
        """Numbers to log, by name."""
        return {
            "eval/return": self.mean_return,
            "eval/return_std": float(self.returns.std(correction=0)),
            "eval/length": float(self.lengths.double().mean()),
            "eval/terminated": float(self.terminated.double().mean()),
            **{f"eval/{name}": value for name, value in self.log.items()},
        }


@torch.no_grad()
def evaluate(policy: Policy, env: VecEnv, groups: tuple[str, ...] = (ACTOR_GROUP,)) -> Evaluation:
    """Run one whole episode in every environment.

    One per environment and not the first ones to end: those would be the short ones. An episode
    that outlasts the time limit counts as ended there.

    Args:
        policy: The policy; what is not finite reaches it as 0.
        env: The environments; they are reset first.
        groups: Which observations the actor sees.
    """
    n, dims = env.num_envs, {name: env.obs_dims[name] for name in groups}
    cpu = torch.device("cpu")
    returns = torch.zeros(n, dtype=torch.float64)
    lengths = torch.zeros(n, dtype=torch.int64)
    terminated, ended = (torch.zeros(n, dtype=torch.bool) for _ in range(2))
    sums: dict[str, tuple[float, int]] = {}
    _forget(policy, ~ended)
    obs = observed(conform_obs(env.reset(), dims, n, env.device), groups)
    while not bool(ended.all()):
        action = policy(obs.nan_to_num(0.0, 0.0, 0.0))
        raw = env.step(action.to(env.device))
        result = conform_step(raw, dims, n, cpu, final_groups=())
        alive = ~ended if result.valid is None else ~ended & result.valid
        returns += torch.where(alive, result.reward.nan_to_num(0.0, 0.0, 0.0), 0.0)
        lengths += alive
        for name, value in result.log.items():
            total, count = sums.get(name, (0.0, 0))
            sums[name] = (total + float(value), count + 1)
        terminated |= alive & result.terminated
        done = result.terminated | result.truncated
        ended |= (alive & done) | (lengths >= env.max_episode_length)
        _forget(policy, done)
        obs = observed(result.obs, groups).to(env.device)
    log = {name: total / count for name, (total, count) in sums.items()}
    return Evaluation(returns=returns, lengths=lengths, terminated=terminated, log=log)


def moving_average(returns: Sequence[float], width: int) -> list[float]:
    """Return the mean of each value and at most ``width - 1`` before it."""
    return [
        sum(returns[max(0, i + 1 - width) : i + 1]) / min(width, i + 1) for i in range(len(returns))
    ]


def is_best(returns: Sequence[float]) -> bool:
    """Return whether the last value is higher than all before it."""
    return len(returns) > 0 and all(returns[-1] > earlier for earlier in returns[:-1])


def reason_to_stop(returns: Sequence[float], config: EvaluationConfig) -> str | None:
    """Return why a run ends after these evaluations; None while it goes on.

    The rule looks at the moving average: the run ends when it reaches `target`, or when `patience`
    evaluations brought no new highest one. Averages of fewer than `average` evaluations count for
    neither.
    """
    averages = moving_average(returns, config.average)[config.average - 1 :]
    if not averages:
        return None
    if config.target is not None and averages[-1] >= config.target:
        return f"the moving average {averages[-1]:.4g} has reached the target {config.target:.4g}"
    since = len(averages) - 1 - averages.index(max(averages))
    if config.patience and since >= config.patience:
        return f"{since} evaluations without a moving average above {max(averages):.4g}"
    return None


class Evaluator:
    """Evaluates a run now and then, always with the same episodes where they can be restored.

    Attributes:
        returns: Mean returns of the evaluations so far.
    """

    def __init__(
        self, config: EvaluationConfig, env: VecEnv | None, *, needed: bool = True
    ) -> None:
        """Take the environments.

        Args:
            config: When, and when the run ends.
            env: Environments that nothing else steps; None where nothing is evaluated.
            needed: Whether there must be some; another process may have them.

        Raises:
            BadInput: The settings ask for evaluations and there is no environment.
        """
        if config.every and env is None and needed:
            raise BadInput(
                f"evaluation.every = {config.every}, and there is no environment to evaluate in: "
                "give train() an eval_env"
            )
        self.config = config
        self.returns: list[float] = []
        self._env = env
        self._start = env.state_dict() if env is not None else {}

    def due(self, iteration: int) -> bool:
        """Return whether there is to be an evaluation after this iteration, counted from 1."""
        return self.config.every > 0 and iteration % self.config.every == 0

    def run(self, policy: Policy, groups: tuple[str, ...] = (ACTOR_GROUP,)) -> dict[str, float]:
        """Evaluate, and return the numbers to log; see `evaluate`."""
        assert self._env is not None, "only what is due is run"
        with unchanged_random_states():
            self._env.load_state_dict(self._start)
            found = evaluate(policy, self._env, groups)
        self.returns.append(found.mean_return)
        average = moving_average(self.returns, self.config.average)[-1]
        return {**found.metrics(), "eval/average": average}

    def reason_to_stop(self) -> str | None:
        """Return why the run ends now; None while it goes on."""
        return reason_to_stop(self.returns, self.config)

    def state_dict(self) -> dict[str, Any]:
        """Return the returns so far."""
        return {"returns": list(self.returns)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was called."""
        self.returns = list(state["returns"])


def best_path(run: Path) -> Path:
    """Return the file of a run's best checkpoint."""
    return checkpoint_folder(run) / f"best{SUFFIX}"


@contextlib.contextmanager
def unchanged_random_states() -> Generator[None]:
    """Leave every global random state as it was: torch's, NumPy's and Python's."""
    of_torch, of_python = torch_rng_state(), random.getstate()
    of_numpy = np.random.get_state()  # noqa: NPY002 - an environment may use the global one
    try:
        yield
    finally:
        restore_torch_rng_state(of_torch)
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002


def _forget(policy: Policy, rows: Tensor) -> None:
    reset = getattr(policy, "reset", None)
    if callable(reset) and bool(rows.any()):
        reset(rows)
