"""What makes a run repeat one of rsl_rl 5.5.1 number by number."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from robot_runtime.errors import Refused
from trainer.config import PPOConfig
from trainer.networks.gaussian_heads import StateGaussian
from trainer.networks.heads import BetaHead
from trainer.ppo import PPO


def start_like_rsl_rl(agent: PPO) -> None:
    """Give an agent the first weights that rsl_rl would draw: torch's defaults, actor first.

    They come from torch's global generator, on the CPU, as there: convolutions first, recurrent
    layers last.
    """
    state = agent.state_dict()
    for role, module in (("actor", agent.actor), ("critic", agent.critic)):
        layers = dict(module.named_modules())
        for name in sorted(layers, key=lambda name: name == "rnn"):
            for part, value in _drawn(layers[name]).items():
                key = f"{name}.{part}"
                state[role][key] = value.to(state[role][key])
    head = agent.actor.distribution
    if isinstance(head, StateGaussian | BetaHead):
        # The second half, of deviations or betas, begins the same in all states.
        last = f"net.{len(list(agent.actor.net.children())) - 1}"
        for part in ("weight", "bias"):
            state["actor"][f"{last}.{part}"][head.num_outputs // 2 :] = 0.0
    agent.load_state_dict(state)


def _drawn(layer: nn.Module) -> dict[str, Tensor]:
    """Return the weights that torch draws for a layer; nothing for what has none of its own."""
    if isinstance(layer, nn.Linear):
        return nn.Linear(layer.in_features, layer.out_features).state_dict()
    if isinstance(layer, nn.LSTM | nn.GRU):
        kind = nn.LSTM if isinstance(layer, nn.LSTM) else nn.GRU
        return kind(layer.input_size, layer.hidden_size, layer.num_layers).state_dict()
    if isinstance(layer, nn.Conv2d):
        sizes = (layer.in_channels, layer.out_channels, layer.kernel_size[0])
        return nn.Conv2d(*sizes).state_dict()
    return {}


class GlobalDraws:
    """Lets an agent draw from torch's global generator what rsl_rl draws, in its order.

    Its update samples actions in every minibatch that nothing uses; they are drawn here as well,
    so that the noise of the next rollout is the same.
    """

    def __init__(self, agent: PPO, config: PPOConfig, num_envs: int, num_actions: int) -> None:
        """Take the agent, whose generator is replaced.

        Raises:
            Refused: The samples, or with recurrent layers the environments, do not divide into
                minibatches: rsl_rl leaves the rest out, ours does not.
        """
        samples = num_envs * config.num_steps
        units = samples if agent.actor.rnn is None else num_envs
        if units % config.minibatches:
            steps = f" x {config.num_steps} steps" if agent.actor.rnn is None else ""
            raise Refused(
                f"parity: {num_envs} environments{steps} do not divide into "
                f"{config.minibatches} minibatches"
            )
        images = 2 if config.symmetry.augment else 1
        self._shape = (images * samples // config.minibatches, num_actions)
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
