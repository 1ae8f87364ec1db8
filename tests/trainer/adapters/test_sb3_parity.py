"""PPO held against stable-baselines3: the same environments, actions, first weights and order.

What follows is then the same, from the environment's numbers to the weights after the last step.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from trainer.config import PPOConfig
from trainer.envs.gymnasium_adapter import GymnasiumEnv
from trainer.envs.gymnasium_task import RECIPE
from trainer.ppo import PPO
from trainer.rollout import Acted, Collector, Rollout

pytest.importorskip("stable_baselines3")
pytest.importorskip("mujoco")

# Only now: it imports them.
from benchmarks.sb3_opponent import Opponent, as_they_count, weight_pairs

STEPS, ENVS, SEED = 48, 4, 3

TOLERANCE = 2e-5
"""In float32, of numbers up to 25: found are differences up to 4e-6."""

OF_WEIGHTS = 2e-6
"""Of weights, after 120 steps: found are differences up to 2e-7."""


class Pair:
    """Ours and theirs, with their first weights.

    Attributes:
        agent: Ours.
        model: Theirs.
    """

    def __init__(
        self, task: str, mode: AutoresetMode, *, normalize: bool = False, **settings: Any
    ) -> None:
        ppo: PPOConfig = replace(
            RECIPE.ppo, num_steps=STEPS, minibatches=4, lr_anneal="none", adam_eps=1e-5, **settings
        )
        network = replace(RECIPE.network, normalize_obs=normalize, norm_eps=1e-8)
        config = replace(RECIPE, num_envs=ENVS, seed=SEED, network=network, ppo=ppo)
        make = functools.partial(gymnasium.make, task, max_episode_steps=15)
        self.model = Opponent(make, config).model
        self._normalizer = self.model.get_vec_normalize_env()
        if self._normalizer is not None:
            # Theirs learns with every step, unless told; and as if it had seen something before.
            self._normalizer.training, self._normalizer.obs_rms.count = False, 0.0
            self._normalizer.epsilon = network.norm_eps**2
        env = GymnasiumEnv(SyncVectorEnv([make] * ENVS, autoreset_mode=mode), seed=SEED)
        cpu = torch.device("cpu")
        self.agent = PPO(
            env.obs_dims, env.action_space, config=ppo, network=network, seed=SEED, device=cpu
        )
        outputs = self.agent.actor.distribution.num_outputs
        self._collector = Collector(env, num_steps=STEPS, device=cpu, num_outputs=outputs)

    def weights(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return every weight, ours and theirs, as they live."""
        return weight_pairs(self.model, self.agent)

    def update(self, rollout: Rollout) -> None:
        """Let ours learn, and their normalizer, which then sees its next observations anew."""
        self.agent.update(rollout)
        if self._normalizer is not None:
            unseen = self._normalizer.get_original_obs()
            learned = rollout.obs["policy"][:-1].flatten(0, 1).double()
            self._normalizer.obs_rms.update(learned.numpy())
            self.model._last_obs = self._normalizer.normalize_obs(unseen)

    def collect(self, monkeypatch: pytest.MonkeyPatch) -> Rollout:
        """Let theirs collect and learn, with our minibatches to come, and ours act as it did."""
        generator = torch.Generator()
        generator.set_state(self.agent.generator.get_state())
        count, epochs = STEPS * ENVS, self.agent.config.epochs
        orders = [torch.randperm(count, generator=generator).numpy() for _ in range(epochs)]
        orders = [as_they_count(order, STEPS, ENVS) for order in orders]
        with monkeypatch.context() as patch:
            patch.setattr(np.random, "permutation", lambda _: orders.pop(0))
            self.model.learn(count, reset_num_timesteps=False)
        assert not orders
        actions = iter(step_by_step(self.model.rollout_buffer.actions))

        def act(obs: Tensor) -> Acted:
            outputs, _ = self.agent.actor.step(obs)
            action = next(actions)
            return Acted(sample=action, outputs=outputs, action=action)

        return self._collector.collect(act)


def step_by_step(column: Any) -> Tensor:
    """A column of their buffer as they have learned from it, ``(STEPS, ENVS, ...)``."""
    by_env = torch.as_tensor(column, dtype=torch.float32).reshape(ENVS, STEPS, -1)
    return by_env.transpose(0, 1).contiguous()


def close(ours: Tensor, theirs: Tensor, what: str, tolerance: float = TOLERANCE) -> None:
    def message(found: str) -> str:
        return f"{what}: {found}"

    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=tolerance, msg=message)


CASES = {
    "hopper": ("Hopper-v5", AutoresetMode.SAME_STEP, {"learning_rate": 1e-3}),
    "hopper-we-reset": ("Hopper-v5", AutoresetMode.DISABLED, {"reward_scale": 0.1}),
    "hopper-normalized": ("Hopper-v5", AutoresetMode.SAME_STEP, {"normalize": True}),
    "cart-pole": ("CartPole-v1", AutoresetMode.SAME_STEP, {"entropy_coef": 0.01}),
}


@pytest.mark.parametrize("case", CASES)
def test_three_iterations_are_those_of_stable_baselines3(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, mode, settings = CASES[case]
    pair = Pair(task, mode, **settings)
    for name, (ours, theirs) in pair.weights().items():
        # Orthogonal or zero: the norm says with what gain they were drawn.
        close(ours.norm(), theirs.norm(), name)
        ours.copy_(theirs)
    for _ in range(3):
        rollout, buffer = pair.collect(monkeypatch), pair.model.rollout_buffer
        seen = pair.agent.actor.normalizer(rollout.obs["policy"][:-1])
        close(seen, step_by_step(buffer.observations), "observations")
        assert bool(rollout.terminated.any())
        assert bool((rollout.truncated & ~rollout.terminated).any())
        batch = pair.agent._batch(rollout, None).minibatch(
            torch.arange(STEPS * ENVS), images=False, standardize=False
        )
        assert batch is not None
        for ours, theirs, what in (
            (batch.old_value, buffer.values, "values"),
            (batch.old_log_prob, buffer.log_probs, "log-probabilities"),
            (batch.advantage, buffer.advantages, "advantages"),
            (batch.returns, buffer.returns, "returns"),
        ):
            close(ours, step_by_step(theirs).flatten(), what)
        before = {name: ours.clone() for name, (ours, _) in pair.weights().items()}
        pair.update(rollout)
        for name, (ours, theirs) in pair.weights().items():
            close(ours, theirs, name, OF_WEIGHTS)
            # The update goes a hundred times further than the tolerance.
            assert float((ours - before[name]).abs().max()) > 100 * OF_WEIGHTS, name
