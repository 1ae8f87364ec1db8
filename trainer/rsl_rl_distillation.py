"""A runner with the interface of rsl_rl's `DistillationRunner`; see `trainer.rsl_rl`.

    from trainer.rsl_rl_distillation import DistillationRunner

    runner = DistillationRunner(env, agent_cfg.to_dict(), log_dir=log_dir, device="cuda:0")
    runner.load("logs/teacher/model_1499.pt")
    runner.learn(num_learning_iterations=300)

Configurations are those of rsl_rl 2 to 5; what became of every setting is logged.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from robot_runtime.errors import BadInput
from robot_runtime.files import atomic_write
from trainer.checkpoint import read_archive, restore_global_rng_state, to_plain
from trainer.compat.adam import adam_of
from trainer.compat.agent import foreign_name, foreign_weights, hints_of, own_weights
from trainer.compat.distillation_settings import read_distillation_settings
from trainer.compat.exports import export_jit, export_onnx
from trainer.compat.infer import infer_architecture
from trainer.compat.policy import InferencePolicy
from trainer.compat.writers import Writers, store_code_state
from trainer.distillation import Distillation
from trainer.envs.rsl_rl_adapter import RslRlEnv
from trainer.progress import console_report
from trainer.rsl_rl_checkpoints import (
    OWN,
    ForeignCheckpoint,
    parse_rsl_rl_checkpoint,
    rsl_rl_content,
)
from trainer.tasks.base import TaskRun
from trainer.train import Run

logger = logging.getLogger(__name__)

PARTS = ("student", "optimizer", "iteration")
"""What `load` takes of the file of a distillation, beside the teacher."""


class DistillationRunner:
    """Trains a student, behind the interface of rsl_rl's `DistillationRunner`.

    Attributes:
        env: The environment that was given.
        cfg: The configuration that was given.
        device: Where the networks learn.
        settings: What the configuration became; `settings.table()` shows it.
    """

    def __init__(
        self,
        env: Any,
        train_cfg: Mapping[str, Any],
        log_dir: str | os.PathLike[str] | None = None,
        device: str = "cpu",
    ) -> None:
        """Read the configuration and look at the environment; `load` brings the teacher.

        Args:
            env: An environment for rsl_rl.
            train_cfg: A configuration of rsl_rl 2 to 5.
            log_dir: Where to log and keep files; None: nothing is written.
            device: Where the networks learn.

        Raises:
            BadInput: The configuration cannot be read.
            Refused: It asks for something that is not there; every such setting is named.
        """
        self.env, self.cfg, self.device = env, train_cfg, device
        self.settings = read_distillation_settings(train_cfg)
        logger.info("settings:\n%s", self.settings.table())
        self._log_dir = None if log_dir is None else Path(log_dir)
        self._repositories: list[Path] = []
        self._env = RslRlEnv(env, obs_groups=self.settings.groups, needed=("teacher",))
        self._run: Run | None = None

    @property
    def alg(self) -> Distillation:
        """The algorithm: student, teacher and optimizer.

        Raises:
            BadInput: There is no teacher yet.
        """
        return cast("Distillation", self._started.agent)

    @property
    def current_learning_iteration(self) -> int:
        """Index of the last iteration, 0 before the first; the next one has the next index."""
        return 0 if self._run is None else max(self._run.iteration - 1, 0)

    def learn(self, num_learning_iterations: int, init_at_random_ep_len: bool = False) -> None:
        """Train.

        Args:
            num_learning_iterations: Iterations to do now.
            init_at_random_ep_len: Whether episodes start at random ages.

        Raises:
            BadInput: There is no teacher yet.
        """
        run, folder = self._started, self._log_dir
        if init_at_random_ep_len:
            run.collector.restart(random_episode_length=True)
            run.episodes.restart(torch.ones(self._env.num_envs, dtype=torch.bool))
        total = run.iteration + num_learning_iterations
        if folder is not None:
            store_code_state(folder, self._repositories)
        logging_to = self.settings.logger
        with (
            Writers(folder, logging_to, start=run.iteration, settings=self.cfg) as writers,
            console_report(total, run.iteration) as shown,
        ):
            for _ in range(num_learning_iterations):
                metrics = run.step()
                writers.write(run.iteration, metrics)
                shown.iteration(run.iteration, metrics)
                index = self.current_learning_iteration
                due = run.iteration == total or index % self.settings.save_interval == 0
                if folder is not None and due:
                    self.save(folder / f"model_{index}.pt")

    def save(self, path: str | os.PathLike[str], infos: Any = None) -> None:
        """Write a file that rsl_rl 5 loads, and that holds all that a run continues from.

        Args:
            path: Where to write.
            infos: Whatever `load` shall return; tensors and plain containers.

        Raises:
            BadInput: There is no teacher yet.
            TypeError: `infos` holds something else; the message names it.
        """
        whole = self._started.checkpoint()
        own = {name: getattr(whole, name)
               for name in ("iteration", "env_steps", "agent", "collector", "progress", "rng",
                            "versions")}  # fmt: skip
        content = rsl_rl_content(self._foreign(infos))
        content["teacher_state_dict"] = self.alg.teacher.network.state_dict()
        plain = to_plain(content | {OWN: own}, "checkpoint")
        with atomic_write(Path(path)) as temporary:
            torch.save(plain, temporary)

    def load(
        self,
        path: str | os.PathLike[str],
        load_cfg: Mapping[str, bool] | None = None,
        strict: bool = True,
        map_location: str | None = None,
    ) -> Any:
        """Load a teacher, or go on with a distillation.

        Args:
            path: The file of a training, whose actor becomes the teacher of a new student; or of a
                distillation, ours or rsl_rl's, with both.
            load_cfg: Which of `student`, `optimizer` and `iteration` to load of a distillation;
                None: all of them, and of our own files everything else that a run continues from.
            strict: Whether the file and the student must have the same parameters.
            map_location: Without effect: everything goes where it belongs.

        Returns:
            The `infos` that were saved.

        Raises:
            BadInput: The file cannot be read, or does not fit.
        """
        del map_location
        self._run = self._start(Path(path))
        content = read_archive(Path(path))
        foreign = parse_rsl_rl_checkpoint(content, Path(path).name, hints_of(self._network))
        if "student" in foreign.weights:
            parts = PARTS if load_cfg is None else [name for name in PARTS if load_cfg.get(name)]
            self._load_student(foreign, parts, strict)
            if OWN in content and load_cfg is None:
                self._restore(content[OWN])
        return foreign.infos

    def get_inference_policy(self, device: str | None = None) -> InferencePolicy:
        """Return the student without exploration; see `InferencePolicy` for what it takes."""
        target = torch.device(device or self.device)
        actor = self.alg.actor if target == self.alg.device else copy.deepcopy(self.alg.actor)
        return InferencePolicy(actor, self._env.sets, target)

    def export_policy_to_jit(self, path: str, filename: str = "policy.pt") -> None:
        """Write the student as TorchScript into the folder `path`."""
        export_jit(self._foreign(None).model("student"), Path(path) / filename)

    def export_policy_to_onnx(
        self, path: str, filename: str = "policy.onnx", verbose: bool = False
    ) -> None:
        """Write the student as one ONNX file into the folder `path`.

        Raises:
            MissingExtra: The extra `export` is not installed.
        """
        export_onnx(self._foreign(None).model("student"), Path(path) / filename, verbose=verbose)

    def add_git_repo_to_log(self, repo_file_path: str) -> None:
        """Keep the git state of the repository around a file beside the logs."""
        self._repositories.append(Path(repo_file_path))

    @property
    def _started(self) -> Run:
        if self._run is None:
            raise BadInput("there is no teacher yet: call load() with the file of its training")
        return self._run

    @property
    def _network(self) -> Any:
        return self._started.config.network

    def _start(self, teacher: Path) -> Run:
        """Begin with a new student of a teacher."""
        seed = self.settings.seed
        config = self.settings.train_config(
            str(teacher),
            num_envs=self._env.num_envs,
            dims=self._env.obs_dims,
            groups=("teacher",),
            seed=torch.initial_seed() % 2**31 if seed is None else seed,
        )
        config = replace(config, device=cast("Any", str(self.device)))
        return Run("rsl_rl", TaskRun(env=self._env, train=config), config)

    def _foreign(self, infos: Any) -> ForeignCheckpoint:
        """Return the student as a checkpoint of rsl_rl 5."""
        student, hints = self.alg.actor, hints_of(self._network)
        weights = foreign_weights(student)
        return ForeignCheckpoint(
            layout="surefoot",
            weights={"student": weights},
            shapes={"student": infer_architecture("student", weights, hints, None)},
            hints=hints,
            iteration=self.current_learning_iteration,
            infos=infos,
            optimizer=adam_of(self.alg.state_dict()["optimizer"], self._learned()),
        )

    def _learned(self) -> list[str]:
        """Return ``student/name`` of what the optimizer steps, in its order."""
        actor = self.alg.actor
        names = [name for name, _ in actor.named_parameters() if name != "distribution.param"]
        return [f"student/{foreign_name(name, actor)}" for name in names]

    def _load_student(self, foreign: ForeignCheckpoint, parts: Any, strict: bool) -> None:
        """Put what the file has of the student into the run."""
        agent = self.alg
        state = agent.state_dict()
        if "student" in parts:
            weights = foreign.weights["student"]
            state["actor"] = own_weights("student", weights, agent.actor, strict)
        if "optimizer" in parts and foreign.optimizer is not None:
            moments = foreign.optimizer.to_torch(self._learned())["state"]
            state["optimizer"]["state"] = moments
        agent.load_state_dict(state)
        if "iteration" in parts:
            self._started.iteration = foreign.iteration + 1

    def _restore(self, own: Mapping[str, Any]) -> None:
        """Put back all else that a run continues from, the episodes only where they fit."""
        run = self._started
        run.agent.load_state_dict(own["agent"])
        try:
            if run.collector.load_state_dict(own["collector"]):
                run.episodes.load_state_dict(own["progress"]["episodes"])
        except ValueError as error:
            logger.info("the episodes begin anew: %s", error)
        run.iteration, run.env_steps = int(own["iteration"]), int(own["env_steps"])
        run.faults.update(own["progress"]["faults"])
        restore_global_rng_state(own["rng"])
