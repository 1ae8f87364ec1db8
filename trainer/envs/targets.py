"""Joint targets on their way to the motors, with a delay of its own for every row."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.state import JointTargets
from trainer.envs.saved import check_shapes

_KINDS = ("position", "velocity", "effort")


class TargetQueue:
    """The targets of the last policy steps, delayed by whole PD periods and low-passed.

    It does for rows with different delays what `robot_runtime.policy.actuator.Actuator` does for
    one robot: at a fresh start the first target has always been there. `effort` and limits remain
    the actuator's.
    """

    def __init__(self, contract: PolicyContract, num_envs: int, max_delay: int) -> None:
        """Allocate the queue, every row fresh and without delay.

        Args:
            contract: Declares the periods, the kinds of targets and their filter.
            num_envs: Number of rows.
            max_delay: Longest delay of any row, in PD periods.
        """
        self._decimation = contract.decimation
        self._depth = -(-max_delay // self._decimation)
        self._filter = contract.actuator.target_filter
        driven = {term.kind for term in contract.action.terms} | {"position"}
        self._kinds = tuple(kind for kind in _KINDS if kind in driven)
        self._joints = len(contract.joints)
        shape = (num_envs, len(self._kinds) * self._joints)
        self._past = torch.zeros(self._depth + 1, *shape)
        self._filtered = torch.zeros(shape)
        self._fresh = torch.ones(num_envs, dtype=torch.bool)
        self._unfiltered = torch.ones(num_envs, dtype=torch.bool)
        self._rows = torch.arange(num_envs)
        self._given: JointTargets | None = None
        self.delay = torch.zeros(num_envs, dtype=torch.int64)
        """PD periods from a target to its effect, int64, shape (num_envs,)."""

    def restart(self, rows: NDArray[np.int64], delay: NDArray[np.int64]) -> None:
        """Forget the targets of rows of these numbers and give them a delay, each shape (k,)."""
        self.delay.numpy()[rows] = delay
        self._fresh.numpy()[rows] = True
        self._unfiltered.numpy()[rows] = True

    def push(self, targets: JointTargets) -> None:
        """Add the targets of a policy step, each of shape (num_envs, num_joints)."""
        self._given = targets
        parts = [getattr(targets, kind) for kind in self._kinds]
        new = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        if self._depth == 0:
            self._past = new.unsqueeze(0)
            return
        past = torch.where(self._fresh.unsqueeze(-1), new, self._past[:-1])
        self._past = torch.cat([new.unsqueeze(0), past])
        self._fresh = torch.zeros_like(self._fresh)

    def at(self, pd_step: int) -> JointTargets:
        """The targets in effect during one PD period; call once per period, in order.

        Args:
            pd_step: Number of the period within the policy step, from 0.
        """
        assert self._given is not None, "push comes before at"
        # A target k policy steps old is in effect from pd_step + k * decimation = delay on.
        current = self._past[0]
        if self._depth == 1:
            current = torch.where((self.delay > pd_step).unsqueeze(-1), self._past[1], current)
        elif self._depth:
            age = (self.delay - pd_step + self._decimation - 1) // self._decimation
            current = self._past[age.clamp_(0, self._depth), self._rows]
        if self._filter < 1.0:
            old = torch.where(self._unfiltered.unsqueeze(-1), current, self._filtered)
            current = self._filter * current + (1.0 - self._filter) * old
            self._filtered = current
            self._unfiltered = torch.zeros_like(self._unfiltered)
        parts = current.split(self._joints, dim=-1)
        delayed = dict(zip(self._kinds, parts, strict=True))
        # What no action drives is the same at all times.
        rest = {k: getattr(self._given, k) for k in _KINDS if k not in delayed}
        return JointTargets(**delayed, **rest)

    def state_dict(self) -> dict[str, Tensor]:
        """Targets under way, filter and delays."""
        return {
            "past": self._past.clone(),
            "filtered": self._filtered.clone(),
            "fresh": self._fresh.clone(),
            "unfiltered": self._unfiltered.clone(),
            "delay": self.delay.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue where `state_dict` was called.

        Raises:
            ValueError: A field is missing or has another shape.
        """
        check_shapes("target queue", state, self.state_dict())
        self._past = state["past"].clone()
        self._filtered = state["filtered"].clone()
        self._fresh = state["fresh"].clone()
        self._unfiltered = state["unfiltered"].clone()
        self.delay = state["delay"].clone()
