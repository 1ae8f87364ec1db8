"""What makes a run repeat one of rsl_rl 5.5.1 number by number."""

from __future__ import annotations

import torch
from torch import nn

from robot_runtime.errors import Refused
from trainer.config import PPOConfig
from trainer.networks.gaussian_heads import StateGaussian
from trainer.networks.heads import BetaHead
from trainer.ppo import PPO


def start_like_rsl_rl(agent: PPO) -> None:
    """Give an agent the first weights that rsl_rl would draw: torch's defaults, actor first.

    They come from torch's global generator, on the CPU, as there.
    """
    state = agent.state_dict()
    for role, module in (("actor", agent.actor), ("critic", agent.critic)):
        for name, layer in module.named_modules():
            if isinstance(layer, nn.Linear):
                drawn = nn.Linear(layer.in_features, layer.out_features)
                for part, value in drawn.state_dict().items():
                    key = f"{name}.{part}"
                    state[role][key] = value.to(state[role][key])
    head = agent.actor.distribution
    if isinstance(head, StateGaussian | BetaHead):
        # The second half, of deviations or betas, begins the same in all states.
        last = f"net.{len(list(agent.actor.net.children())) - 1}"
        for part in ("weight", "bias"):
            state["actor"][f"{last}.{part}"][head.num_outputs // 2 :] = 0.0
    agent.load_state_dict(state)


class GlobalDraws:
    """Lets an agent draw from torch's global generator what rsl_rl draws, in its order.

    Its update samples actions in every minibatch that nothing uses; they are drawn here as well,
    so that the noise of the next rollout is the same.
    """

    def __init__(self, agent: PPO, config: PPOConfig, num_envs: int, num_actions: int) -> None:
        """Take the agent, whose generator is replaced.

        Raises:
            Refused: The samples do not divide into minibatches: rsl_rl leaves the rest out, ours
                does not.
        """
        samples = num_envs * config.num_steps
        if samples % config.minibatches:
            raise Refused(
                f"parity: {num_envs} environments x {config.num_steps} steps do not divide into "
                f"{config.minibatches} minibatches"
            )
        self._shape = (samples // config.minibatches, num_actions)
        self._count = config.epochs * config.minibatches
        self._device = agent.device
        self._generator = agent.generator = _global_generator(agent.device)

    def after_update(self) -> None:
        """Draw what an update of rsl_rl draws and drops."""
        for _ in range(self._count):
            torch.randn(self._shape, generator=self._generator, device=self._device)


def _global_generator(device: torch.device) -> torch.Generator:
    if device.type != "cuda":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]
