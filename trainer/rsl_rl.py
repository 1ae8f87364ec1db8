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

import dataclasses
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from robot_runtime.errors import BadInput, Refused
from trainer.compat.agent import ROLES, foreign_of, hints_of, load_foreign
from trainer.compat.parity import GlobalDraws, start_like_rsl_rl
from trainer.compat.rnd_agent import load_rnd, rnd_weights
from trainer.compat.rnd_settings import SET as RND_SET
from trainer.compat.runner import Runner
from trainer.compat.settings import RunnerSettings, read_settings
from trainer.compat.symmetry import read_mirror_table
from trainer.env import VecEnv
from trainer.envs.action_space import action_space_of
from trainer.envs.rsl_rl_adapter import RslRlEnv
from trainer.envs.rsl_rl_groups import ObsForm
from trainer.extensions.rnd import RandomNetworkDistillation
from trainer.normalizer import RunningNormalizer
from trainer.ppo import PPO
from trainer.rsl_rl_checkpoints import ForeignCheckpoint
from trainer.symmetry import MirrorTable
from trainer.tasks.base import TaskRun
from trainer.together import start_alike
from trainer.train import Run

logger = logging.getLogger(__name__)


class OnPolicyRunner(Runner):
    """Trains a policy with PPO, behind the interface of rsl_rl's `OnPolicyRunner`.

    Attributes:
        env: The environment that was given.
        cfg: The configuration that was given.
        device: Where the networks learn.
        settings: What the configuration became; `settings.table()` shows it.
    """

    ROLE = "actor"
    PARTS = frozenset({"actor", "critic", "optimizer", "iteration", "rnd"})

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
        self.settings: RunnerSettings = read_settings(train_cfg)
        super().__init__(env, train_cfg, self.settings, log_dir, device)
        self._env, self._sets = _adapt(env, self.settings)
        config = self.settings.train_config(
            num_envs=self._env.num_envs,
            dims=self._env.obs_dims,
            step_dt=getattr(self._env, "step_dt", None),
            images=getattr(self._env, "images", None),
            seed=self._seed,
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
        return cast("PPO", self._started.agent)

    @property
    def _rnd(self) -> RandomNetworkDistillation | None:
        return cast("RandomNetworkDistillation | None", self._started.extensions.get("rnd"))

    def _step(self) -> dict[str, float]:
        metrics = super()._step()
        if self._draws is not None:
            self._draws.after_update()
        return metrics

    def _take(
        self, path: Path, foreign: ForeignCheckpoint, parts: frozenset[str], strict: bool
    ) -> None:
        load_foreign(self.alg, foreign, parts, strict=strict)
        if self._rnd is not None and "rnd" in parts and foreign.rnd is not None:
            load_rnd(self._rnd, foreign.rnd)
        if "iteration" in parts:
            self.current_learning_iteration = foreign.iteration

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
        whole = self._started.checkpoint()
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

    def _restore(self, own: Mapping[str, Any], goes_on: bool) -> None:
        run, state = self._started, self.alg.state_dict()
        for role in ROLES:
            for name, value in own["statistics"][role].items():
                state[role][f"normalizer.{name}"] = value.to(state[role][f"normalizer.{name}"])
        state |= {name: own[name] for name in ("generator", "faults") if name in own}
        # What a critic remembers belongs to the episodes; files from before it did have none.
        state["states"] = own.get("states", {}) if goes_on else {}
        self.alg.load_state_dict(state)
        run.restore_extensions(own.get("extensions", {}))


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
