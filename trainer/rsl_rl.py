"""A runner with the interface of rsl_rl's: change the import and keep the script.

    from trainer.rsl_rl import OnPolicyRunner

    runner = OnPolicyRunner(env, agent_cfg.to_dict(), log_dir=log_dir, device="cuda:0")
    runner.learn(num_learning_iterations=1500, init_at_random_ep_len=True)

It reads configurations of rsl_rl 2 to 5, logs what became of every setting, trains with our PPO in
environments made for rsl_rl, and writes files that rsl_rl 5 loads. What rsl_rl does wrong is done
right: time limits bootstrap from the last observation where the environment gives it, every epoch
has fresh minibatches, samples that are not finite are left out, and a run continues where it was.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from robot_runtime.errors import BadInput, Refused
from robot_runtime.files import atomic_write
from trainer.checkpoint import read_archive, restore_global_rng_state, to_plain
from trainer.compat.agent import ROLES, foreign_of, hints_of, load_foreign
from trainer.compat.exports import export_jit, export_onnx
from trainer.compat.parity import GlobalDraws, start_like_rsl_rl
from trainer.compat.policy import InferencePolicy
from trainer.compat.rnd_agent import load_rnd, rnd_weights
from trainer.compat.rnd_settings import SET as RND_SET
from trainer.compat.settings import RunnerSettings, read_settings
from trainer.compat.symmetry import read_mirror_table
from trainer.compat.writers import Writers, store_code_state
from trainer.distributed import Peers
from trainer.env import VecEnv
from trainer.envs.action_space import action_space_of
from trainer.envs.rsl_rl_adapter import RslRlEnv
from trainer.envs.rsl_rl_groups import ObsForm
from trainer.extensions.rnd import RandomNetworkDistillation
from trainer.normalizer import RunningNormalizer
from trainer.ppo import PPO
from trainer.progress import Silent, console_report
from trainer.rsl_rl_checkpoints import (
    OWN,
    ForeignCheckpoint,
    parse_rsl_rl_checkpoint,
    rsl_rl_content,
)
from trainer.symmetry import MirrorTable
from trainer.tasks.base import TaskRun
from trainer.together import start_alike
from trainer.torchrun import join, world_size
from trainer.train import Run

logger = logging.getLogger(__name__)

OF_ONE_PROCESS = ("generator", "states", "collector", "rng")
"""What every process has for itself."""

ALL_PARTS = frozenset({"actor", "critic", "optimizer", "iteration", "rnd"})
"""What `load` loads if it is not told otherwise."""


class OnPolicyRunner:
    """Trains a policy with PPO, behind the interface of rsl_rl's `OnPolicyRunner`.

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
        """Read the configuration and build everything.

        Args:
            env: An environment for rsl_rl, or one of ours.
            train_cfg: A configuration of rsl_rl 2 to 5. Beside its keys it may hold
                ``surefoot: {"parity": True}``, which repeats rsl_rl 5.5.1 number by number.
            log_dir: Where to log and keep files; None: nothing is written.
            device: Where the networks learn.

        Raises:
            BadInput: The configuration cannot be read.
            Refused: It asks for something that is not there; every such setting is named.
        """
        self._peers = _join(device)
        self.env, self.cfg, self.device = env, train_cfg, device
        self.settings: RunnerSettings = read_settings(train_cfg)
        logger.info("settings:\n%s", self.settings.table())
        self._log_dir = None if log_dir is None else Path(log_dir)
        self._repositories: list[Path] = []
        self._env, self._sets = _adapt(env, self.settings)
        seed = self.settings.seed
        config = self.settings.train_config(
            num_envs=self._env.num_envs,
            dims=self._env.obs_dims,
            step_dt=getattr(self._env, "step_dt", None),
            images=getattr(self._env, "images", None),
            # Scripts give every process another one.
            seed=self._peers.from_first(torch.initial_seed() % 2**31 if seed is None else seed),
        )
        self._config = dataclasses.replace(config, device=cast("Any", str(device)))
        self._hints = hints_of(config.network)
        self._run = Run(
            "rsl_rl", TaskRun(env=self._env, train=config, symmetry=self._mirror_table()),
            self._config, peers=self._peers,
        )  # fmt: skip
        start_like_rsl_rl(self.alg)
        start_alike(self.alg, {}, self._peers)
        if not self.settings.models.learn_std:
            cast("nn.Module", self.alg.actor.distribution).requires_grad_(False)
        self._draws: GlobalDraws | None = None
        if self.settings.parity:
            sizes = (self._env.num_envs, self._env.num_actions)
            self._draws = GlobalDraws(self.alg, self._config.ppo, *sizes)

    @property
    def alg(self) -> PPO:
        """The algorithm: networks and optimizer, under our names."""
        return cast("PPO", self._run.agent)

    @property
    def _rnd(self) -> RandomNetworkDistillation | None:
        return cast("RandomNetworkDistillation | None", self._run.extensions.get("rnd"))

    @property
    def current_learning_iteration(self) -> int:
        """Index of the last iteration, 0 before the first; the next one has the next index."""
        return max(self._run.iteration - 1, 0)

    @current_learning_iteration.setter
    def current_learning_iteration(self, index: int) -> None:
        self._run.iteration = index + 1

    def learn(self, num_learning_iterations: int, init_at_random_ep_len: bool = False) -> None:
        """Train.

        Args:
            num_learning_iterations: Iterations to do now.
            init_at_random_ep_len: Whether episodes start at random ages.
        """
        run = self._run
        if init_at_random_ep_len:
            run.collector.restart(random_episode_length=True)
            every = torch.ones(self._env.num_envs, dtype=torch.bool, device=self.alg.device)
            run.episodes.restart(every)
        total = run.iteration + num_learning_iterations
        log_dir = self._log_dir if self._peers.first else None
        if log_dir is not None:
            store_code_state(log_dir, self._repositories)
        with (
            Writers(
                log_dir, self.settings.logger, start=run.iteration, settings=self.cfg
            ) as writers,
            console_report(total, run.iteration) if self._peers.first else Silent() as shown,
        ):
            for _ in range(num_learning_iterations):
                metrics = run.step()
                if self._draws is not None:
                    self._draws.after_update()
                writers.write(run.iteration, metrics)
                shown.iteration(run.iteration, metrics)
                index = self.current_learning_iteration
                last = run.iteration == total
                if self._log_dir is not None and (last or index % self.settings.save_interval == 0):
                    others = run.gather_others(run.checkpoint())
                    self._save(self._log_dir / f"model_{index}.pt", None, others)

    def save(self, path: str | os.PathLike[str], infos: Any = None) -> None:
        """Write a file that rsl_rl 5 loads, and that holds all that a run continues from.

        With several processes only the first one writes, and only the files that `learn` leaves
        hold the environments of all.

        Args:
            path: Where to write.
            infos: Whatever `load` shall return; tensors and plain containers.

        Raises:
            TypeError: `infos` holds something else; the message names it.
        """
        self._save(Path(path), infos, None)

    def _save(self, path: Path, infos: Any, others: list[Any] | None) -> None:
        if not self._peers.first:
            return
        content = rsl_rl_content(self._foreign(infos)) | {
            OWN: self._own_state() | {"others": others}
        }
        plain = to_plain(content, "checkpoint")
        with atomic_write(path) as temporary:
            torch.save(plain, temporary)

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
            load_cfg: Which of `actor`, `critic`, `optimizer`, `iteration` and `rnd` to load; None:
                all of them, and of our own files everything else that a run continues from. A bool
                is what rsl_rl up to 3 has here, `load_optimizer`.
            strict: Whether the file and the networks must have the same parameters.
            map_location: Without effect: everything goes where it belongs.
            load_optimizer: Whether to load the optimizer, as rsl_rl up to 3 has it.

        Returns:
            The `infos` that were saved.

        Raises:
            BadInput: The file cannot be read or does not fit, or `load_cfg` names no such part.
        """
        del map_location
        named: set[str] = set(load_cfg) if isinstance(load_cfg, Mapping) else set()
        if named - ALL_PARTS:
            raise BadInput(
                f"load_cfg names {', '.join(sorted(named - ALL_PARTS))}; there are: "
                f"{', '.join(sorted(ALL_PARTS))}"
            )
        content = read_archive(Path(path))
        foreign = parse_rsl_rl_checkpoint(content, Path(path).name, self._hints)
        if isinstance(load_cfg, bool):
            load_cfg, load_optimizer = None, load_cfg
        if load_cfg is not None:
            parts = frozenset(name for name, wanted in load_cfg.items() if wanted) & ALL_PARTS
        else:
            parts = ALL_PARTS if load_optimizer else ALL_PARTS - {"optimizer"}
        load_foreign(self.alg, foreign, parts, strict=strict)
        if self._rnd is not None and "rnd" in parts and foreign.rnd is not None:
            load_rnd(self._rnd, foreign.rnd)
        if "iteration" in parts:
            self.current_learning_iteration = foreign.iteration
        if OWN in content and load_cfg is None and load_optimizer:
            self._restore(content[OWN])
        return foreign.infos

    def get_inference_policy(self, device: str | None = None) -> InferencePolicy:
        """Return the policy without exploration; see `InferencePolicy` for what it takes.

        Args:
            device: Where it shall run; None: where the networks learn. On another device it is a
                copy, so that training can go on.
        """
        target = torch.device(device or self.device)
        here = target == self.alg.device
        actor = self.alg.actor if here else copy.deepcopy(self.alg.actor)
        return InferencePolicy(actor, self._sets, target, self.alg.groups.actor)

    def export_policy_to_jit(self, path: str, filename: str = "policy.pt") -> None:
        """Write the policy as TorchScript into the folder `path`."""
        if self._peers.first:
            export_jit(self._foreign(None).model("actor"), Path(path) / filename)

    def export_policy_to_onnx(
        self, path: str, filename: str = "policy.onnx", verbose: bool = False
    ) -> None:
        """Write the policy as one ONNX file into the folder `path`.

        Raises:
            MissingExtra: The extra `export` is not installed.
        """
        if self._peers.first:
            export_onnx(self._foreign(None).model("actor"), Path(path) / filename, verbose=verbose)

    def add_git_repo_to_log(self, repo_file_path: str) -> None:
        """Keep the git state of the repository around a file beside the logs."""
        self._repositories.append(Path(repo_file_path))

    def _mirror_table(self) -> MirrorTable | None:
        """Return what the configuration's augmentation function does; None without one."""
        if self.settings.symmetry is None:
            return None
        form = getattr(self._env, "form", None)
        if form is None:
            shapes = {name: (dim,) for name, dim in self._env.obs_dims.items()}
            form = ObsForm(kind=dict, shapes=shapes, device=torch.device(self._env.device))
        num_actions = self._env.num_actions
        return read_mirror_table(self.settings.symmetry, self.env, self._sets, form, num_actions)

    def _foreign(self, infos: Any) -> ForeignCheckpoint:
        index = self.current_learning_iteration
        foreign = foreign_of(self.alg, self._hints, iteration=index, infos=infos)
        rnd = None if self._rnd is None else rnd_weights(self._rnd)
        return dataclasses.replace(foreign, rnd=rnd)

    def _own_state(self) -> dict[str, Any]:
        """Return what a run continues from and rsl_rl's part of the file does not hold."""
        whole = self._run.checkpoint()
        return {
            "schema": 1,
            "iteration": whole.iteration,
            "env_steps": whole.env_steps,
            "generator": whole.agent["generator"],
            "faults": whole.agent["faults"],
            "states": whole.agent["states"],
            "statistics": {role: _statistics(getattr(self.alg, role)) for role in ROLES},
            "collector": whole.collector,
            "extensions": whole.extensions,
            "progress": whole.progress,
            "rng": whole.rng,
            "versions": whole.versions,
        }

    def _restore(self, own: Mapping[str, Any]) -> None:
        """Put back what `_own_state` returned, the episodes only where they fit."""
        own = self._of_this_process(own)
        run, state = self._run, self.alg.state_dict()
        for role in ROLES:
            for name, value in own["statistics"][role].items():
                state[role][f"normalizer.{name}"] = value.to(state[role][f"normalizer.{name}"])
        state |= {name: own[name] for name in ("generator", "faults") if name in own}
        # What a critic remembers belongs to the episodes; files from before it did have none.
        goes_on = self._restore_episodes(own)
        state["states"] = own.get("states", {}) if goes_on else {}
        self.alg.load_state_dict(state)
        run.restore_extensions(own.get("extensions", {}))
        run.iteration, run.env_steps = int(own["iteration"]), int(own["env_steps"])
        run.faults.update(own["progress"]["faults"])
        if "rng" in own:
            restore_global_rng_state(own["rng"])

    def _restore_episodes(self, own: Mapping[str, Any]) -> bool:
        """Return whether the episodes go on."""
        run, why = self._run, f"the file has none of {self._peers.size} processes"
        if "collector" in own:
            try:
                if run.collector.load_state_dict(own["collector"]):
                    run.episodes.load_state_dict(own["progress"]["episodes"])
                    return True
                why = "the environment cannot restore them"
            except (ValueError, Refused) as error:
                why = str(error)
        logger.info("the episodes begin anew: %s", why)
        return False

    def _of_this_process(self, own: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what this process goes on from; no episodes if the file is of another number."""
        others = own.get("others") or []
        if len(others) + 1 != self._peers.size:
            kept = {k: v for k, v in own.items() if k not in OF_ONE_PROCESS}
            return kept | {"progress": own["progress"] | {"faults": {}}}
        if self._peers.first:
            return own
        part = others[self._peers.rank - 1]
        progress = own["progress"] | {name: part[name] for name in ("episodes", "faults")}
        mine = {name: part[name] for name in (*OF_ONE_PROCESS, "extensions")}
        return {**own, **mine, "progress": progress}


def _join(device: str) -> Peers:
    """Join the processes of torchrun; with CUDA each has the GPU that rsl_rl gives it.

    Raises:
        BadInput: The device is another one.
    """
    local_rank = os.environ.get("LOCAL_RANK", "0")
    if world_size() > 1 and device not in ("cpu", f"cuda:{local_rank}"):
        raise BadInput(
            f"device '{device}': with several processes that of this one is 'cuda:{local_rank}', "
            "or 'cpu'"
        )
    return join(device)


def _adapt(env: Any, settings: RunnerSettings) -> tuple[VecEnv, Mapping[str, Any]]:
    """Return the environment as one of ours, and which of its groups each network sees."""
    if hasattr(env, "obs_dims") and hasattr(env, "reset_rows"):
        if action_space_of(env).kind != "continuous":
            raise Refused("the runner takes continuous actions, as rsl_rl does: use trainer.train")
        if settings.obs_groups is not None:
            logger.info("obs_groups: ignored, the environment is one of ours")
        return env, {name: [name] for name in env.obs_dims}
    if not hasattr(env, "get_observations"):
        raise BadInput(f"{type(env).__name__} is neither an environment for rsl_rl nor one of ours")
    adapter = RslRlEnv(
        env,
        obs_groups=settings.obs_groups,
        needed=() if settings.rnd is None else (RND_SET,),
        use_final_obs=not settings.parity,
    )
    return adapter, adapter.sets


def _statistics(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return a normalizer's statistics in full precision."""
    normalizer = getattr(module, "normalizer", None)
    return dict(normalizer.state_dict()) if isinstance(normalizer, RunningNormalizer) else {}
