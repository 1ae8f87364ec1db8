"""What both runners with rsl_rl's interface do alike; see `trainer.rsl_rl`."""

from __future__ import annotations

import copy
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from robot_runtime.errors import BadInput
from trainer.checkpoint import read_archive, restore_global_rng_state, to_plain, write_archive
from trainer.compat.distillation_settings import DistillationSettings
from trainer.compat.exports import export_jit, export_onnx
from trainer.compat.models import Hints
from trainer.compat.policy import InferencePolicy
from trainer.compat.processes import join_on, of_this_process, restore_episodes
from trainer.compat.settings import RunnerSettings
from trainer.compat.writers import Writers, store_code_state
from trainer.env import VecEnv
from trainer.progress import Silent, console_report
from trainer.rsl_rl_checkpoints import (
    OWN,
    ForeignCheckpoint,
    parse_rsl_rl_checkpoint,
    rsl_rl_content,
)
from trainer.train import Run

logger = logging.getLogger(__name__)


class Runner(ABC):
    """The interface of rsl_rl's runners.

    A runner adds which network it learns (`ROLE`), which parts its files have (`PARTS`), and how
    these come in and go out.

    Attributes:
        env: The environment that was given.
        cfg: The configuration that was given.
        device: Where the networks learn.
    """

    ROLE: ClassVar[str]
    PARTS: ClassVar[frozenset[str]]

    env: Any
    cfg: Mapping[str, Any]
    device: str
    _env: VecEnv
    _sets: Mapping[str, Any]
    """Which observation groups each network sees."""
    _hints: Hints
    """What no file of rsl_rl's says about the network."""
    _run: Run | None

    def __init__(
        self,
        env: Any,
        train_cfg: Mapping[str, Any],
        settings: RunnerSettings | DistillationSettings,
        log_dir: str | os.PathLike[str] | None,
        device: str,
    ) -> None:
        """Join the other processes and say what became of the settings."""
        self._peers = join_on(device)
        self.env, self.cfg, self.device = env, train_cfg, device
        logger.info("settings:\n%s", settings.table())
        self._shared_settings = settings
        self._log_dir = None if log_dir is None else Path(log_dir)
        self._repositories: list[Path] = []
        self._run = None

    @property
    def _started(self) -> Run:
        """What learns; a student waits for its teacher."""
        if self._run is None:
            raise BadInput("there is no teacher yet: call load() with the file of its training")
        return self._run

    @property
    def current_learning_iteration(self) -> int:
        """Index of the last iteration, 0 before the first; the next one has the next index."""
        return 0 if self._run is None else max(self._run.iteration - 1, 0)

    @current_learning_iteration.setter
    def current_learning_iteration(self, index: int) -> None:
        self._started.iteration = index + 1

    def learn(self, num_learning_iterations: int, init_at_random_ep_len: bool = False) -> None:
        """Train.

        Args:
            num_learning_iterations: Iterations to do now.
            init_at_random_ep_len: Whether episodes start at random ages.

        Raises:
            BadInput: There is no teacher yet, where one is needed.
        """
        run, settings = self._started, self._shared_settings
        if init_at_random_ep_len:
            run.collector.restart(random_episode_length=True)
            every = torch.ones(self._env.num_envs, dtype=torch.bool, device=run.agent.device)
            run.episodes.restart(every)
        total = run.iteration + num_learning_iterations
        log_dir = self._log_dir if self._peers.first else None
        # All take part in keeping; some scripts give a folder to the first process alone.
        keeps = self._peers.from_first(log_dir is not None)
        if log_dir is not None:
            store_code_state(log_dir, self._repositories)
        with (
            Writers(log_dir, settings.logger, start=run.iteration, settings=self.cfg) as writers,
            console_report(total, run.iteration) if self._peers.first else Silent() as shown,
        ):
            for _ in range(num_learning_iterations):
                metrics = self._step()
                writers.write(run.iteration, metrics)
                shown.iteration(run.iteration, metrics)
                index = self.current_learning_iteration
                due = run.iteration == total or index % settings.save_interval == 0
                if keeps and due:
                    others = run.gather_others(run.checkpoint())
                    if log_dir is not None:
                        self._save(log_dir / f"model_{index}.pt", None, others)

    def save(self, path: str | os.PathLike[str], infos: Any = None) -> None:
        """Write a file that rsl_rl 5 loads, and that holds all that a run continues from.

        With several processes only the first one writes, and only the files that `learn` leaves
        hold the environments of all.

        Args:
            path: Where to write.
            infos: Whatever `load` shall return; tensors and plain containers.

        Raises:
            BadInput: There is no teacher yet, where one is needed.
            TypeError: `infos` holds something else; the message names it.
        """
        self._save(Path(path), infos, None)

    def load(
        self,
        path: str | os.PathLike[str],
        load_cfg: Mapping[str, bool] | bool | None = None,
        strict: bool = True,
        map_location: str | None = None,
        *,
        load_optimizer: bool = True,
    ) -> Any:
        """Load a file of ours, or of rsl_rl 1 to 5.

        Args:
            path: The file.
            load_cfg: Which parts to load, by name (`PARTS`); None: all of them, and of our own
                files everything else that a run continues from. A bool is what rsl_rl up to 3 has
                here, `load_optimizer`.
            strict: Whether the file and the networks must have the same parameters.
            map_location: Without effect: everything goes where it belongs.
            load_optimizer: Whether to load the optimizer, as rsl_rl up to 3 has it.

        Returns:
            The `infos` that were saved.

        Raises:
            BadInput: The file cannot be read or does not fit, or `load_cfg` names no such part.
        """
        del map_location
        if isinstance(load_cfg, bool):
            load_cfg, load_optimizer = None, load_cfg
        unknown = sorted(set(load_cfg or ()) - self.PARTS)
        if unknown:
            raise BadInput(
                f"load_cfg names {', '.join(unknown)}; there are: {', '.join(sorted(self.PARTS))}"
            )
        content = read_archive(Path(path))
        foreign = parse_rsl_rl_checkpoint(content, Path(path).name, self._hints)
        if load_cfg is not None:
            parts = frozenset(name for name, wanted in load_cfg.items() if wanted)
        else:
            parts = self._parts_of(foreign) - (set() if load_optimizer else {"optimizer"})
        self._take(Path(path), foreign, parts, strict)
        whole = load_cfg is None and load_optimizer and self.ROLE in foreign.weights
        if whole and OWN in content:
            self._restore_run(of_this_process(content[OWN], self._peers))
        return foreign.infos

    def get_inference_policy(self, device: str | None = None) -> InferencePolicy:
        """Return the policy without exploration; see `InferencePolicy` for what it takes.

        Args:
            device: Where it shall run; None: where the networks learn. On another device it is a
                copy, so that training can go on.
        """
        agent, target = self._started.agent, torch.device(device or self.device)
        actor = agent.actor if target == agent.device else copy.deepcopy(agent.actor)
        return InferencePolicy(actor, self._sets, target, agent.groups.actor)

    def export_policy_to_jit(self, path: str, filename: str = "policy.pt") -> None:
        """Write the policy as TorchScript into the folder `path`."""
        if self._peers.first:
            export_jit(self._foreign(None).model(self.ROLE), Path(path) / filename)

    def export_policy_to_onnx(
        self, path: str, filename: str = "policy.onnx", verbose: bool = False
    ) -> None:
        """Write the policy as one ONNX file into the folder `path`.

        Raises:
            MissingExtra: The extra `export` is not installed.
        """
        if self._peers.first:
            export_onnx(
                self._foreign(None).model(self.ROLE), Path(path) / filename, verbose=verbose
            )

    def add_git_repo_to_log(self, repo_file_path: str) -> None:
        """Keep the git state of the repository around a file beside the logs."""
        self._repositories.append(Path(repo_file_path))

    def _step(self) -> dict[str, float]:
        """Do one iteration and return what was measured."""
        return self._started.step()

    @property
    def _seed(self) -> int:
        """The configuration's seed, else the script's; scripts give every process another one."""
        seed = self._shared_settings.seed
        return self._peers.from_first(torch.initial_seed() % 2**31 if seed is None else seed)

    @abstractmethod
    def _foreign(self, infos: Any) -> ForeignCheckpoint:
        """Return what has been learned as a checkpoint of rsl_rl 5."""

    @abstractmethod
    def _own_state(self) -> dict[str, Any]:
        """Return what a run continues from and rsl_rl's part of the file does not hold."""

    def _parts_of(self, foreign: ForeignCheckpoint) -> frozenset[str]:
        """Return what to load of a file if nothing is said."""
        del foreign
        return self.PARTS

    @abstractmethod
    def _take(
        self, path: Path, foreign: ForeignCheckpoint, parts: frozenset[str], strict: bool
    ) -> None:
        """Load parts of what rsl_rl's part of the file at `path` holds."""

    @abstractmethod
    def _restore(self, own: Mapping[str, Any], goes_on: bool) -> None:
        """Put back what `_own_state` returned; `goes_on`: the episodes are back already."""

    def _more_content(self) -> dict[str, Any]:
        """Return what else of rsl_rl's goes into a file."""
        return {}

    def _save(self, path: Path, infos: Any, others: list[Any] | None) -> None:
        """Write a file, `others` being what the other processes go on from."""
        if not self._peers.first:
            return
        content = rsl_rl_content(self._foreign(infos)) | self._more_content()
        plain = to_plain(content | {OWN: self._own_state() | {"others": others}}, "checkpoint")
        write_archive(path, plain)

    def _restore_run(self, own: Mapping[str, Any]) -> None:
        """Put back all that a run continues from, the episodes only where they fit."""
        run = self._started
        self._restore(own, restore_episodes(run, own))
        run.iteration, run.env_steps = int(own["iteration"]), int(own["env_steps"])
        run.faults.update(own["progress"]["faults"])
        if "rng" in own:
            restore_global_rng_state(own["rng"])
