"""The same PPO twice: ours and that of rsl-rl-lib 5.5.1, with equal weights on equal data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

# ruff: noqa: N811 - RslPPO is an acronym, not a constant
from rsl_rl.algorithms import PPO as RslPPO  # pyright: ignore[reportMissingImports]
from rsl_rl.models import MLPModel  # pyright: ignore[reportMissingImports]
from rsl_rl.storage import RolloutStorage  # pyright: ignore[reportMissingImports]
from tensordict import TensorDict  # pyright: ignore[reportMissingImports]
from torch import Tensor

from trainer.config import NetworkConfig, PPOConfig, SymmetryConfig
from trainer.env import Observations, StepResult
from trainer.ppo import PPO
from trainer.rollout import Collector, Rollout
from trainer.symmetry import Mirror, MirrorTable

MIRROR_COEF = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """The size of the problem; the defaults are those of the field's velocity tasks."""

    num_envs: int = 1024
    num_steps: int = 24
    obs_dim: int = 48
    num_actions: int = 12
    hidden: tuple[int, ...] = (512, 256, 128)
    epochs: int = 5
    minibatches: int = 4
    symmetry: bool = False
    normalize_obs: bool = False


class Pair:
    """Both learners, the rollout they learn from, and the way back to where they started.

    Attributes:
        ours: Our learner.
        theirs: The learner of rsl_rl.
    """

    def __init__(self, case: Case, seed: int = 0) -> None:
        """Build both with equal weights and a random rollout of our policy."""
        torch.manual_seed(seed)
        self._seed = seed
        self._case = case
        self._mirror = _mirror(case)
        self.ours = _ours(case, self._mirror, seed)
        self._rollout = _rollout(case, self.ours)
        self._collector = Collector(
            _Recording(self._rollout), num_steps=case.num_steps, device=torch.device("cpu")
        )
        self._obs = TensorDict(
            {"policy": self._rollout.obs["policy"][-1]}, batch_size=[case.num_envs]
        )
        self.theirs = self._build_theirs()
        self._start_ours = self.ours.state_dict()
        self._start_theirs = self.theirs.save()
        # Plain copies: the learners change their tensors in place.
        self._start_ours, self._start_theirs = _copy(self._start_ours), _copy(self._start_theirs)

    def restart(self) -> None:
        """Bring weights, optimizers, learning rates, data and random states back to the start."""
        self.ours.load_state_dict(_copy(self._start_ours))
        self.ours.generator.manual_seed(self._seed)
        self.theirs.load(_copy(self._start_theirs), None, strict=True)
        self.theirs.learning_rate = self.theirs.optimizer.param_groups[0]["lr"] = 1e-3
        self._fill()
        torch.manual_seed(self._seed)

    def update_ours(self) -> None:
        """Returns, advantages and the whole update, ours; values and log-probabilities included."""
        self.ours.update(self._rollout)

    def update_theirs(self) -> None:
        """Returns, advantages and the whole update, theirs; values came with the rollout."""
        self.theirs.compute_returns(self._obs)
        self.theirs.update()

    def collect_ours(self) -> None:
        """Act, step an environment that costs nothing, and store, for one rollout, ours."""
        self._collector.collect(self.ours.act)

    def collect_theirs(self) -> None:
        """Act, step an environment that costs nothing, and store, for one rollout, theirs."""
        rollout, num_envs = self._rollout, self._case.num_envs
        self.theirs.storage.clear()
        with torch.inference_mode():
            for t in range(self._case.num_steps):
                self.theirs.act(TensorDict({"policy": rollout.obs["policy"][t]}, [num_envs]))
                after = TensorDict({"policy": rollout.obs["policy"][t + 1]}, [num_envs])
                dones = (rollout.terminated[t] | rollout.truncated[t]).long()
                extras = {"time_outs": rollout.truncated[t]}
                self.theirs.process_env_step(after, rollout.reward[t], dones, extras)

    def weights(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return every weight and statistic, ours and theirs, by our name."""
        pairs = {}
        for part in ("actor", "critic"):
            ours = getattr(self.ours, part).state_dict()
            theirs = getattr(self.theirs, part).state_dict()
            for name, value in ours.items():
                if name.startswith("normalizer.") and name not in _STATISTICS:
                    continue
                other = theirs[_their_name(name)]
                pairs[f"{part}.{name}"] = (value, other.squeeze(0) if "norm" in name else other)
        pairs["lr"] = (self.ours.lr, torch.tensor(self.theirs.learning_rate))
        return pairs

    def _build_theirs(self) -> RslPPO:
        case = self._case
        obs, groups = self._obs, {"actor": ["policy"], "critic": ["policy"]}
        shape: dict[str, Any] = {
            "hidden_dims": case.hidden,
            "activation": "elu",
            "obs_normalization": case.normalize_obs,
        }
        gaussian = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "scalar"}
        actor = MLPModel(obs, groups, "actor", case.num_actions, distribution_cfg=gaussian, **shape)
        critic = MLPModel(obs, groups, "critic", 1, **shape)
        for ours, theirs in ((self.ours.actor, actor), (self.ours.critic, critic)):
            state = theirs.state_dict()
            for name, value in ours.state_dict().items():
                if not name.startswith("normalizer."):
                    state[_their_name(name)] = value.clone()
            theirs.load_state_dict(state)
        storage = RolloutStorage(
            "rl", case.num_envs, case.num_steps, obs, [case.num_actions], "cpu"
        )
        symmetry = {
            "env": None,
            "data_augmentation_func": self._augment,
            "use_data_augmentation": True,
            "use_mirror_loss": True,
            "mirror_loss_coeff": MIRROR_COEF,
        }
        return RslPPO(
            actor,
            critic,
            storage,
            num_learning_epochs=case.epochs,
            num_mini_batches=case.minibatches,
            symmetry_cfg=symmetry if case.symmetry else None,
        )

    def _fill(self) -> None:
        """Put the rollout into their storage, with what they compute while they collect."""
        rollout, theirs, store = self._rollout, self.theirs, self.theirs.storage
        store.clear()
        with torch.no_grad():
            std = theirs.actor.state_dict()["distribution.std_param"]
            for t in range(self._case.num_steps):
                step = RolloutStorage.Transition()
                obs = TensorDict({"policy": rollout.obs["policy"][t]}, [self._case.num_envs])
                normal = torch.distributions.Normal(rollout.outputs[t], std)
                step.observations = obs
                step.actions = rollout.action[t]
                step.values = theirs.critic(obs)
                step.actions_log_prob = normal.log_prob(rollout.action[t]).sum(-1)
                step.distribution_params = (rollout.outputs[t], std.expand_as(rollout.outputs[t]))
                # Their bootstrap of a time limit: V(s_t), which is also what our `final_obs` says.
                bootstrap = 0.99 * theirs.critic(obs).squeeze(-1) * rollout.truncated[t]
                step.rewards = rollout.reward[t] + bootstrap
                step.dones = (rollout.terminated[t] | rollout.truncated[t]).long()
                store.add_transition(step)

    def _augment(
        self, env: object, obs: TensorDict | None, actions: Tensor | None
    ) -> tuple[TensorDict | None, Tensor | None]:
        """Append mirror images, in the form their settings ask for."""
        del env
        if obs is not None:
            image = TensorDict(
                {"policy": self._mirror.obs["policy"].apply(obs["policy"])}, obs.batch_size
            )
            obs = cast("TensorDict", torch.cat([obs, image]))
        if actions is not None:
            actions = torch.cat([actions, self._mirror.action.apply(actions)])
        return obs, actions


def weights_apart(case: Case, dtype: torch.dtype, seed: int = 0) -> dict[str, float]:
    """Update both learners once and return the largest difference in each weight, by name."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        pair = Pair(case, seed)
        pair.restart()
        pair.update_ours()
        pair.update_theirs()
    finally:
        torch.set_default_dtype(before)
    return {
        name: float((ours - theirs).detach().abs().max())
        for name, (ours, theirs) in pair.weights().items()
    }


class _Recording:
    """An environment that plays a rollout, whatever the actions."""

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        steps, self.num_envs, self.num_actions = rollout.action.shape
        self.obs_dims: Mapping[str, int] = {"policy": rollout.obs["policy"].shape[-1]}
        self.max_episode_length = steps
        self.device = torch.device("cpu")
        self._t = 0

    def reset(self, *, random_episode_length: bool = False) -> Observations:
        del random_episode_length
        self._t = 0
        return {"policy": self._rollout.obs["policy"][0]}

    def step(self, actions: Tensor) -> StepResult:
        del actions
        t, rollout = self._t % self.max_episode_length, self._rollout
        self._t += 1
        return StepResult(
            obs={"policy": rollout.obs["policy"][t + 1]},
            reward=rollout.reward[t],
            terminated=rollout.terminated[t],
            truncated=rollout.truncated[t],
            final_obs={"policy": rollout.final_obs[t]},
            log={},
        )

    def reset_rows(self, rows: Tensor) -> Observations:
        del rows
        return self.reset()

    def state_dict(self) -> dict[str, Any]:
        return {"t": self._t}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._t = state["t"]


def _ours(case: Case, mirror: MirrorTable, seed: int) -> PPO:
    """Build our learner with the settings that rsl_rl has by default."""
    augment = SymmetryConfig(augment=True, mirror_coef=MIRROR_COEF, mirror_normalizer=False)
    return PPO(
        {"policy": case.obs_dim},
        case.num_actions,
        config=PPOConfig(
            num_steps=case.num_steps,
            epochs=case.epochs,
            minibatches=case.minibatches,
            reuse_permutation=True,
            symmetry=augment if case.symmetry else SymmetryConfig(),
        ),
        network=NetworkConfig(
            actor_hidden=case.hidden,
            critic_hidden=case.hidden,
            std_kind="scalar",
            min_std=1e-6,
            max_std=1e6,
            normalize_obs=case.normalize_obs,
            obs_clip=0.0,
        ),
        seed=seed,
        device=torch.device("cpu"),
        symmetry=mirror,
    )


def _rollout(case: Case, ours: PPO) -> Rollout:
    """Draw observations, rewards and ends of episodes; actions come from our policy."""
    t, n = case.num_steps, case.num_envs
    obs = torch.randn(t + 1, n, case.obs_dim)
    # The policy that acted differs a little from the one that learns: a divergence of 0 up to
    # rounding at the first step would make the learning rate a matter of how products are summed.
    mean = torch.stack([ours.act(obs[i]).outputs for i in range(t)])
    mean = mean + 0.02 * torch.randn_like(mean)
    terminated = torch.rand(t, n) < 0.01
    # Never both: rsl_rl then adds the value of a state that is worth nothing.
    truncated = ~terminated & (torch.arange(t) == t // 2).unsqueeze(-1)
    return Rollout(
        obs={"policy": obs},
        final_obs=obs[:-1].clone(),
        action=mean + torch.randn_like(mean),
        outputs=mean,
        reward=torch.randn(t, n),
        terminated=terminated,
        truncated=truncated,
        log={},
    )


def _mirror(case: Case) -> MirrorTable:
    """Return some reflection: neighbours change places, every third pair its sign."""

    def swap(dim: int) -> Mirror:
        index = [i + 1 if i % 2 == 0 else i - 1 for i in range(dim)]
        return Mirror.of(index, [-1.0 if i // 2 % 3 == 0 else 1.0 for i in range(dim)])

    return MirrorTable(obs={"policy": swap(case.obs_dim)}, action=swap(case.num_actions))


_STATISTICS = {
    "normalizer.mean": "obs_normalizer._mean",
    "normalizer.var": "obs_normalizer._var",
}


def _their_name(name: str) -> str:
    """Return rsl_rl's name of one of our weights."""
    if name in _STATISTICS:
        return _STATISTICS[name]
    return name.replace("net.", "mlp.").replace("distribution.param", "distribution.std_param")


def _copy(state: Any) -> Any:
    """Copy tensors inside plain containers."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {key: _copy(value) for key, value in state.items()}
    return [_copy(item) for item in state] if isinstance(state, list) else state
