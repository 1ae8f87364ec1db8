"""Toy tasks that no policy without a memory can solve, and none that it could."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainer.env import Observations, StepResult
from trainer.envs.action_space import ActionSpace


class CueEnv:
    """A cue of +1 or -1 is shown at the first step; the last step pays for saying it again.

    The observation is ``(cue, is this the last step)``, the cue 0 but at the first step. The reward
    of the last step is 1 - (a - cue)^2 / 2, so that whoever remembers gets 1 and whoever does not
    gets at most 1/2: the last observation is the same for both cues, and no answer to it is better
    than 0 on average. All other rewards are 0.

    Attributes:
        cue: What was shown, ``(num_envs,)``.
    """

    def __init__(
        self, num_envs: int, seed: int = 0, *, delay: int = 8, discrete: bool = False
    ) -> None:
        """Seed; `reset` starts the episodes, which last ``delay + 1`` steps."""
        self.num_envs = num_envs
        self.num_actions = 1
        self.action_space = ActionSpace(
            kind="discrete" if discrete else "continuous",
            num_actions=1,
            sizes=(2,) if discrete else (),
        )
        self.obs_dims: Mapping[str, int] = {"policy": 2}
        self.max_episode_length = delay + 1
        self.device = torch.device("cpu")
        self._generator = torch.Generator().manual_seed(seed)
        self.cue = torch.zeros(num_envs)
        self._age = torch.zeros(num_envs, dtype=torch.int64)

    def reset(self, *, random_episode_length: bool = False) -> Observations:
        """Start every episode anew."""
        del random_episode_length
        self._restart(torch.ones(self.num_envs, dtype=torch.bool))
        return self._observe()

    def step(self, actions: Tensor) -> StepResult:
        """Go on by one step."""
        said = actions[:, 0]
        if self.action_space.kind == "discrete":
            said = 2.0 * said - 1.0
        last = self._age == self.max_episode_length - 1
        reward = torch.where(last, 1.0 - 0.5 * (said - self.cue).square().clamp(max=4.0), 0.0)
        self._age += 1
        final = self._observe()
        self._restart(last)
        return StepResult(
            obs=self._observe(),
            reward=reward,
            terminated=last,
            truncated=torch.zeros_like(last),
            final_obs=final,
            log={"reward/answer": reward[last].mean() if bool(last.any()) else torch.zeros(())},
        )

    def reset_rows(self, rows: Tensor) -> Observations:
        """Restart some episodes."""
        self._restart(rows)
        return self._observe()

    def state_dict(self) -> dict[str, Any]:
        """Everything the next step depends on."""
        generator = self._generator.get_state()
        return {"cue": self.cue, "age": self._age, "generator": generator}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the state was taken."""
        self.cue, self._age = state["cue"].clone(), state["age"].clone()
        self._generator.set_state(state["generator"])

    def _restart(self, rows: Tensor) -> None:
        drawn = torch.rand(self.num_envs, generator=self._generator).sub(0.5).sign()
        self.cue = torch.where(rows, drawn, self.cue)
        self._age = torch.where(rows, 0, self._age)

    def _observe(self) -> Observations:
        cue = torch.where(self._age == 0, self.cue, 0.0)
        last = (self._age == self.max_episode_length - 1).float()
        return {"policy": torch.stack([cue, last], dim=-1)}
