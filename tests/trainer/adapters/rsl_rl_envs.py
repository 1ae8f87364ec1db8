"""The counting environment behind each interface that environments for rsl_rl have."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.trainer.adapters.counting import LENGTHS


class Simulation:
    """`Counting`, batched: resets its rows in the step that ends them."""

    def __init__(self, num_envs: int = 3) -> None:
        self.num_envs, self.num_actions = num_envs, 1
        self.max_episode_length = 5
        self.device = "cpu"
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
        self.common_step_counter = 0
        self.looks = 0
        self._episode = torch.zeros(num_envs)
        self._step = torch.zeros(num_envs)

    @property
    def unwrapped(self) -> Simulation:
        return self

    def observe(self) -> Tensor:
        return torch.stack([torch.arange(self.num_envs).float(), self._episode, self._step], -1)

    def advance(self, actions: Tensor) -> dict[str, Any]:
        """Step; return reward, done, time-outs and the observation before the resets."""
        reward = 0.1 * self._step + actions[:, 0]
        self._step = self._step + 1
        self.common_step_counter += 1
        self.episode_length_buf += 1
        kinds = [LENGTHS[(int(e) + n) % 5] for n, e in enumerate(self._episode)]
        done = self._step >= torch.tensor([length for length, _ in kinds])
        # In this interface a step is one of the two; "both" is told as terminated.
        time_out = done & torch.tensor([end == "truncated" for _, end in kinds])
        final = self.observe()
        self._episode = self._episode + done
        self._step = torch.where(done, 0.0, self._step)
        self.episode_length_buf[done] = 0
        return {"reward": reward, "done": done, "time_out": time_out, "final": final}


class LeggedGym(Simulation):
    """rsl_rl 1.x: bare tensors, privileged observations beside them, five things from a step."""

    def __init__(self) -> None:
        super().__init__()
        self.extras: dict[str, Any] = {}
        self.resets = 0

    def reset(self) -> tuple[Tensor, Tensor]:
        self.resets += 1
        return self.observe(), self.observe()

    def get_observations(self) -> Tensor:
        self.looks += 1
        return self.observe()

    def get_privileged_observations(self) -> Tensor:
        return torch.cat([self.observe(), self.observe()], -1)

    def step(self, actions: Tensor) -> Any:
        out = self.advance(actions)
        if bool(out["done"].any()):
            # Left over until the next reset, as there.
            self.extras["time_outs"] = out["time_out"]
            self.extras["episode"] = {"rew_alive": torch.tensor(2.0), "terrain": 3}
        privileged = self.get_privileged_observations()
        return self.observe(), privileged, out["reward"], out["done"], self.extras


class Tuple(Simulation):
    """rsl_rl 2.x: a tensor and the other groups in the extras."""

    def get_observations(self) -> tuple[Tensor, dict[str, Any]]:
        self.looks += 1
        return self.observe(), self._extras()

    def step(self, actions: Tensor) -> Any:
        out = self.advance(actions)
        extras = self._extras() | {"time_outs": out["time_out"].float()}
        return self.observe(), out["reward"], out["done"].long(), extras

    def _extras(self) -> dict[str, Any]:
        return {"observations": {"critic": torch.cat([self.observe(), self.observe()], -1)}}


class Grouped(Simulation):
    """rsl_rl 3.x to 5.x: groups by name, and last observations in a form of choice."""

    def __init__(self, form: str = "", *, make: Any = dict) -> None:
        super().__init__()
        self._form, self._make = form, make

    def get_observations(self) -> Any:
        self.looks += 1
        return self._groups(self.observe())

    def step(self, actions: Tensor) -> Any:
        out = self.advance(actions)
        extras: dict[str, Any] = {"time_outs": out["time_out"], "log": {"Reward/alive": 1.5}}
        if bool(out["done"].any()):
            extras |= self._final(out)
        return self._groups(self.observe()), out["reward"], out["done"].long(), extras

    def _groups(self, obs: Tensor) -> Any:
        return self._make({"proprio": obs[:, :2].clone(), "step": obs[:, 2:].clone()})

    def _final(self, out: dict[str, Tensor]) -> dict[str, Any]:
        import numpy as np

        groups = self._groups(out["final"])
        ids = out["done"].nonzero().squeeze(-1)
        if self._form == "final_obs":
            return {"final_obs": groups}
        if self._form == "terminal":
            rows = {name: value[ids] for name, value in groups.items()}
            return {"terminal": {"env_ids": ids, "observations": rows}}
        if self._form == "playground":
            return {"AutoResetWrapper_final_obs": groups}
        if self._form == "gymnasium":
            each = np.full(self.num_envs, None, dtype=object)
            for i in ids.tolist():
                each[i] = {name: value[i] for name, value in groups.items()}
            return {"final_obs": each}
        return {}
