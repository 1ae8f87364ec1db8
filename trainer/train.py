"""The training loop: collect, screen, update, log, keep."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from robot_runtime.errors import BadInput
from robot_runtime.files import atomic_write, check_output
from trainer.action_metrics import ActionMetrics
from trainer.agent import make_agent
from trainer.checkpoint import (
    Checkpoint,
    Trace,
    checkpoint_path,
    global_rng_state,
    package_versions,
    restore_global_rng_state,
    save_checkpoint,
    to_plain,
    trace_from_arrays,
)
from trainer.config import TrainConfig, config_to_plain
from trainer.contract_match import demand_deployable
from trainer.distributed import ALONE, Peers
from trainer.env import VecEnv
from trainer.envs.action_space import action_space_of, require_head
from trainer.evaluation import Evaluator, best_path, is_best
from trainer.extensions.build import make_extensions
from trainer.guard import screen
from trainer.interrupt import StopOnInterrupt
from trainer.loggers import ScalarWriter
from trainer.metrics import EpisodeTracker, MetricLog, to_floats
from trainer.networks.groups import ACTOR_GROUP
from trainer.networks.policy import DeterministicPolicy, with_states
from trainer.ppo import PPO
from trainer.progress import Report, Silent
from trainer.rollout import Collector
from trainer.tasks.base import Deployment, TaskRun
from trainer.together import (
    check_settings,
    merged_metrics,
    own_part,
    shared_tensors,
    start_alike,
    with_part,
    without_part,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainResult:
    """How a run ended.

    Attributes:
        checkpoint: The last checkpoint.
        iterations: Iterations done, those before a resume included.
        env_steps: Environment steps done, over all environments.
        interrupted: Whether Ctrl-C ended it.
        metrics: Metrics of the last iteration.
        stopped: Why its evaluations ended it before its last iteration; None if they did not.
        best: The checkpoint with the highest mean return in an evaluation; None if the folder has
            none: a run resumed into another folder may not have been as good again.
    """

    checkpoint: Path
    iterations: int
    env_steps: int
    interrupted: bool
    metrics: dict[str, float]
    stopped: str | None = None
    best: Path | None = None


def train(
    name: str,
    task: TaskRun,
    config: TrainConfig,
    folder: Path,
    *,
    resume: Checkpoint | None = None,
    initial: Checkpoint | None = None,
    report: Report | None = None,
    eval_env: VecEnv | None = None,
    writers: Sequence[ScalarWriter] = (),
    peers: Peers = ALONE,
) -> TrainResult:
    """Train a policy and keep checkpoints and metrics in `folder`.

    Ctrl-C finishes the iteration, writes a checkpoint and returns; a second one raises
    KeyboardInterrupt.

    Args:
        name: Name of the task, kept in the checkpoints.
        task: The task.
        config: Settings of the run.
        folder: The run folder, made if it does not exist.
        resume: Continue from here. On the CPU, with one torch thread and an environment that
            restores its state, the weights are then those of an uninterrupted run, bit for bit.
        initial: Begin with what this run's actor has learned, and with all else anew.
        report: What the user sees.
        eval_env: Environments of its own to evaluate in, needed if the settings ask for that.
        writers: Where metrics go beside the loggers of the settings: any objects with
            ``add_scalar(name, value, step)``, the step being the iteration, from 1.
        peers: Processes that learn together, see `trainer.torchrun.joined`. Only the first one
            evaluates, writes and reports; `folder`, `eval_env` and `writers` are its alone.

    Raises:
        BadInput: The checkpoint does not fit, or has no iterations left to do, or there is nothing
            to evaluate in, or no checkpoint can be written.
        MissingExtra: The package of a logger is not installed.
        Refused: The environment breaks its interface.
    """
    if peers.first:
        check_output(checkpoint_path(folder, config.iterations), "a checkpoint", ".pt")
    torch.set_num_threads(config.torch_threads)
    torch.manual_seed(peers.seed(config.seed))
    run = Run(name, task, config, resume, eval_env, peers, initial)
    settings = {"task": name, **config_to_plain(config)}
    metrics: dict[str, float] = {}
    stopped: str | None = None
    with (
        MetricLog(
            folder, start=run.iteration, loggers=config.loggers, settings=settings, writers=writers
        )
        if peers.first
        else contextlib.nullcontext() as log,
        (report if peers.first else None) or Silent() as shown,
        StopOnInterrupt() as stop,
    ):
        if peers.first:
            # Only now: the log has made sure that no other run has the folder.
            with atomic_write(folder / "config.json") as temporary:
                temporary.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        while run.iteration < config.iterations and not stopped and not peers.any(stop.requested):
            learned, evaluated = run.step(), run.evaluate()
            metrics = learned | evaluated
            if log is not None:
                log.write(run.iteration, metrics)
            shown.iteration(run.iteration, metrics)
            if evaluated:
                stopped = run.evaluator.reason_to_stop()
                if is_best(run.evaluator.returns):
                    run.keep(best_path(folder))
            if run.iteration % config.checkpoint_every == 0 and run.iteration < config.iterations:
                run.keep(checkpoint_path(folder, run.iteration))
        checkpoint = checkpoint_path(folder, run.iteration)
        run.keep(checkpoint)
        interrupted = peers.any(stop.requested)
    return TrainResult(
        checkpoint=checkpoint,
        iterations=run.iteration,
        env_steps=run.env_steps,
        interrupted=interrupted,
        metrics=metrics,
        stopped=stopped if run.iteration < config.iterations else None,
        best=best_path(folder) if run.evaluator.returns and best_path(folder).is_file() else None,
    )


class Run:
    """Everything that changes during a run, and one iteration of it.

    Attributes:
        agent: Networks and optimizer.
        extensions: What changes the reward, by name.
        collector: The environment and the observations to go on from.
        evaluator: The evaluations so far.
        iteration: Iterations done.
        env_steps: Environment steps done, over all environments.
    """

    def __init__(
        self,
        name: str,
        task: TaskRun,
        config: TrainConfig,
        resume: Checkpoint | None = None,
        eval_env: VecEnv | None = None,
        peers: Peers = ALONE,
        initial: Checkpoint | None = None,
    ) -> None:
        """Build the agent, reset the environment and, on resume, put everything back."""
        space = action_space_of(task.env)
        require_head(space)
        self.name, self.task, self.config, self.peers = name, task, config, peers
        check_settings(config, peers)
        env, device = task.env, torch.device(config.device)
        self.agent = make_agent(config, task, resume, peers)
        contract = task.deployment.contract_json() if task.deployment else None
        if contract is not None:
            dims, actions = env.obs_dims, env.num_actions
            demand_deployable(name, contract, self.agent.actor, dims, actions)
        if initial is not None:
            if resume is not None or not isinstance(self.agent, PPO):
                raise BadInput("initial: neither a run that goes on nor a student takes an actor")
            self.agent.begin_with(initial, contract)
        self.extensions = make_extensions(config, env, device, peers)
        extra = [name for one in self.extensions.values() for name in one.groups]
        self.collector = Collector(
            env,
            num_steps=config.ppo.num_steps,
            device=device,
            num_outputs=self.agent.actor.distribution.num_outputs,
            groups=self.agent.collected,
            extra=tuple(dict.fromkeys(extra)),
            random_episode_length=config.random_episode_length,
        )
        self.episodes = EpisodeTracker(env.num_envs, device)
        self.actions = ActionMetrics(space, self.agent.groups.actor, task.symmetry, device)
        self.evaluator = Evaluator(config.evaluation, eval_env, needed=peers.first)
        self.iteration, self.env_steps = 0, 0
        self.faults: Counter[str] = Counter()
        if resume is not None:
            self._restore(resume)
        start_alike(self.agent, self.extensions, peers)

    def step(self) -> dict[str, float]:
        """Run one iteration and return its metrics."""
        begin = time.perf_counter()
        self.agent.limit_std(self.iteration, self.config.iterations)
        rollout = self.collector.collect(self.agent.act)
        screening = screen(rollout)
        self.faults.update(screening.faults)
        for culprit in screening.culprits:
            logger.warning("iteration %d: not finite: %s", self.iteration + 1, culprit)
        reward, done = rollout.reward, rollout.terminated | rollout.truncated
        metrics = self.episodes.update(reward, done, rollout.valid)
        if screening.faults:
            self.collector.reset_rows(screening.rows)
            self.episodes.restart(screening.rows)
        if screening.valid is not None:
            reward = reward[screening.valid]
        collected = time.perf_counter()
        self.agent.anneal(self.iteration, self.config.iterations)
        metrics |= {"rollout/reward": reward.mean()} | rollout.log
        metrics |= self.actions.measure(self.agent.actor, rollout, screening.valid)
        for extension in self.extensions.values():
            mixed, more = extension.mix(rollout, screening.valid)
            rollout, metrics = replace(rollout, reward=mixed), metrics | more
        metrics |= self.agent.update(rollout, screening.valid)
        for extension in self.extensions.values():
            metrics |= extension.update(rollout, screening.valid)
        metrics |= {"guard/quarantined_envs": screening.rows.sum()} | self.agent.faults
        values = to_floats(metrics)
        learned = time.perf_counter()
        self.iteration += 1
        steps = rollout.reward.numel() if rollout.valid is None else int(rollout.valid.sum())
        values |= {
            **{name: float(count) for name, count in self.faults.items()},
            "perf/collect_seconds": collected - begin,
            "perf/learn_seconds": learned - collected,
            "perf/steps_per_second": steps / (learned - begin),
        }
        values, steps = merged_metrics(values, steps, self.peers)
        self.env_steps += steps
        values["progress/env_steps"] = float(self.env_steps)
        if self.config.compare_every and self.iteration % self.config.compare_every == 0:
            self.peers.check_equal(shared_tensors(self.agent, self.extensions))
        curriculum = self.task.curriculum
        return values | (curriculum.update(values) if curriculum else {})

    def evaluate(self) -> dict[str, float]:
        """Evaluate if it is time, and return the numbers to log; what is learned stays as it is."""
        if not self.evaluator.due(self.iteration):
            return {}
        found: dict[str, float] = {}
        if self.peers.first:
            policy = DeterministicPolicy(self.agent.actor)
            found = self.evaluator.run(policy, self.agent.groups.actor)
        # All decide from these what is best and whether to go on.
        self.evaluator.load_state_dict(self.peers.from_first(self.evaluator.state_dict()))
        return self.peers.from_first(found)

    def keep(self, path: Path) -> None:
        """Write a checkpoint with what every process needs to go on."""
        checkpoint = self.checkpoint()
        checkpoint = replace(checkpoint, others=self.gather_others(checkpoint))
        if self.peers.first:
            save_checkpoint(path, checkpoint)

    def gather_others(self, own: Checkpoint) -> list[dict[str, Any]]:
        """Return what the other processes have for themselves, by rank from 1.

        Args:
            own: The checkpoint of this process; all must take part, and the first one gets them.
        """
        if self.peers.size == 1:
            return []
        return self.peers.gather_to_first(to_plain(own_part(own), "checkpoint"))[1:]

    def checkpoint(self) -> Checkpoint:
        """Return everything this process goes on from, golden trace included."""
        deployment, env, actor = self.task.deployment, self.task.env, self.agent.actor
        return Checkpoint(
            task=self.name,
            config=self.config,
            obs_dims=dict(env.obs_dims),
            num_actions=env.num_actions,
            action_sizes=action_space_of(env).sizes,
            iteration=self.iteration,
            env_steps=self.env_steps,
            agent=self.agent.state_dict(),
            extensions={name: one.state_dict() for name, one in self.extensions.items()},
            collector=self.collector.state_dict(),
            progress={
                "episodes": self.episodes.state_dict(),
                "faults": dict(self.faults),
                "evaluation": self.evaluator.state_dict(),
                "curriculum": self.task.curriculum.state_dict() if self.task.curriculum else {},
            },
            rng=global_rng_state(),
            versions=package_versions(),
            contract=with_states(deployment.contract_json(), actor) if deployment else None,
            trace=self._trace(deployment) if deployment and self.peers.first else None,
        )

    def _trace(self, deployment: Deployment) -> Trace | None:
        """Record the golden trace with a copy of the actor on the CPU, where it is exported.

        There is none of a policy that sees what no robot measures, a teacher's say.
        """
        if self.agent.groups.actor != (ACTOR_GROUP,):
            return None
        actor = copy.deepcopy(self.agent.actor).cpu().requires_grad_(False)
        return trace_from_arrays(deployment.record_trace(DeterministicPolicy(actor)))

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Continue where a checkpoint was taken."""
        if checkpoint.iteration >= self.config.iterations:
            raise BadInput(
                f"the checkpoint has done {checkpoint.iteration} iterations and the run is to have "
                f"{self.config.iterations}: ask for more with --iterations"
            )
        number, own = 1 + len(checkpoint.others), True
        if number != self.peers.size:
            own, checkpoint = False, without_part(checkpoint, self.agent)
            if self.peers.first:
                logger.warning(
                    "the checkpoint is of %d processes and there are %d: all episodes begin anew",
                    number, self.peers.size,
                )  # fmt: skip
        elif not self.peers.first:
            checkpoint = with_part(checkpoint, checkpoint.others[self.peers.rank - 1])
        try:
            self.agent.load_state_dict(checkpoint.agent)
            self.restore_extensions(checkpoint.extensions)
            if own and self.collector.load_state_dict(checkpoint.collector):
                self.episodes.load_state_dict(checkpoint.progress["episodes"])
            elif own:
                logger.warning("the environment cannot restore its episodes: they begin anew")
            if self.task.curriculum:
                self.task.curriculum.load_state_dict(checkpoint.progress.get("curriculum", {}))
        except (RuntimeError, ValueError, KeyError) as error:
            text = " ".join(str(error).split())
            raise BadInput(f"the checkpoint does not fit this run: {text}") from error
        self.faults.update(checkpoint.progress["faults"])
        # Checkpoints made before there were evaluations have none.
        self.evaluator.load_state_dict(checkpoint.progress.get("evaluation", {"returns": []}))
        self.iteration, self.env_steps = checkpoint.iteration, checkpoint.env_steps
        restore_global_rng_state(checkpoint.rng)

    def restore_extensions(self, states: dict[str, Any]) -> None:
        """Put the extensions back; one that the checkpoint has not begins anew."""
        for name, extension in self.extensions.items():
            if name in states:
                extension.load_state_dict(states[name])
            else:
                logger.warning("the checkpoint has no state of '%s': it begins anew", name)
        for name in sorted(set(states) - set(self.extensions)):
            logger.warning("'%s' is off: the state that the checkpoint has of it is dropped", name)
