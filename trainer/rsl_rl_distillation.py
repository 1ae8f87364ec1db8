"""A runner with the interface of rsl_rl's `DistillationRunner`; see `trainer.rsl_rl`.

    from trainer.rsl_rl_distillation import DistillationRunner

    runner = DistillationRunner(env, agent_cfg.to_dict(), log_dir=log_dir, device="cuda:0")
    runner.load("logs/teacher/model_1499.pt")
    runner.learn(num_learning_iterations=300)

Configurations are those of rsl_rl 2 to 5; what became of every setting is logged.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from robot_runtime.errors import BadInput
from trainer.compat.adam import adam_of
from trainer.compat.agent import foreign_name, foreign_weights, hints_of, own_weights
from trainer.compat.distillation_settings import read_distillation_settings
from trainer.compat.infer import infer_architecture
from trainer.compat.runner import Runner
from trainer.distillation import Distillation
from trainer.envs.rsl_rl_adapter import RslRlEnv
from trainer.rsl_rl_checkpoints import ForeignCheckpoint
from trainer.tasks.base import TaskRun
from trainer.train import Run


class DistillationRunner(Runner):
    """Trains a student, behind the interface of rsl_rl's `DistillationRunner`.

    `load` takes the file of a training, whose actor becomes the teacher of a new student; or of a
    distillation, ours or rsl_rl's, with both. The first file always brings the teacher.

    Attributes:
        env: The environment that was given.
        cfg: The configuration that was given.
        device: Where the networks learn.
        settings: What the configuration became; `settings.table()` shows it.
    """

    ROLE = "student"
    PARTS = frozenset({"student", "teacher", "optimizer", "iteration"})

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
        self.settings = read_distillation_settings(train_cfg)
        super().__init__(env, train_cfg, self.settings, log_dir, device)
        adapter = RslRlEnv(env, obs_groups=self.settings.groups, needed=("teacher",))
        self._env, self._sets = adapter, adapter.sets
        seen = adapter.obs_dims["policy"]
        self._hints = hints_of(self.settings.student.network(seen, seen))

    @property
    def alg(self) -> Distillation:
        """The algorithm: student, teacher and optimizer.

        Raises:
            BadInput: There is no teacher yet.
        """
        return cast("Distillation", self._started.agent)

    def _start(self, teacher: Path) -> Run:
        """Begin with a new student of a teacher."""
        config = self.settings.train_config(
            str(teacher),
            num_envs=self._env.num_envs,
            dims=self._env.obs_dims,
            groups=("teacher",),
            seed=self._seed,
        )
        config = replace(config, device=cast("Any", str(self.device)))
        return Run("rsl_rl", TaskRun(env=self._env, train=config), config, peers=self._peers)

    def _foreign(self, infos: Any) -> ForeignCheckpoint:
        """Return the student as a checkpoint of rsl_rl 5."""
        student, hints = self.alg.actor, self._hints
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

    def _parts_of(self, foreign: ForeignCheckpoint) -> frozenset[str]:
        """Return everything, of the file of a training the teacher."""
        return self.PARTS if self.ROLE in foreign.weights else frozenset({"teacher"})

    def _take(
        self, path: Path, foreign: ForeignCheckpoint, parts: frozenset[str], strict: bool
    ) -> None:
        lacking = sorted(parts & {"student", "optimizer"})
        if lacking and self.ROLE not in foreign.weights:
            raise BadInput(
                f"load_cfg asks for {', '.join(lacking)}: '{path.name}' is the file of a training "
                "and has a teacher alone"
            )
        if self._run is None or "teacher" in parts:
            self._run = self._start(path)
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
            self.current_learning_iteration = foreign.iteration

    def _own_state(self) -> dict[str, Any]:
        whole = self._started.checkpoint()
        names = ("iteration", "env_steps", "agent", "collector", "progress", "rng", "versions")
        own = {name: getattr(whole, name) for name in names}
        return own | {name: own["agent"].pop(name) for name in ("generator", "states")}

    def _more_content(self) -> dict[str, Any]:
        return {"teacher_state_dict": self.alg.teacher.network.state_dict()}

    def _restore(self, own: Mapping[str, Any], goes_on: bool) -> None:
        state = self.alg.state_dict() | own["agent"]
        state |= {name: own[name] for name in ("generator", "states") if name in own}
        self.alg.load_state_dict(state)
