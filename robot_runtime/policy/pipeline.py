"""One policy step, from state to joint targets: the path that every runner shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from robot_runtime.policy.action import ActionMapper
from robot_runtime.policy.command import CommandShaper
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.observation import ObservationBuilder
from robot_runtime.policy.state import (
    Array,
    AsArray,
    JointTargets,
    PolicyInputs,
    RobotState,
    as_float32,
)

Network = Callable[[Array], Array]
"""Observation, shape ``(observation_dim,)``, to raw action, shape ``(num_actions,)``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyStep:
    """What one policy step computed.

    Attributes:
        command: The command the policy saw, shape ``(num_commands,)``.
        observation: The network's input, float32, shape ``(observation_dim,)``.
        raw_action: The network's output, float32, shape ``(num_actions,)``.
        applied_action: The same after clip and filter, shape ``(num_actions,)``.
        targets: The joint targets.
    """

    command: Array
    observation: Array
    raw_action: Array
    applied_action: Array
    targets: JointTargets


class PolicyPipeline:
    """Holds what a policy remembers between steps: history, last action, last command."""

    def __init__(
        self, contract: PolicyContract, network: Network, asarray: AsArray = as_float32
    ) -> None:
        """Prepare the path of a contract.

        Args:
            contract: The contract.
            network: The policy's network.
            asarray: Makes constants of the array library, dtype and device to compute with.
        """
        self._asarray = asarray
        self._network = network
        self._builder = ObservationBuilder(contract, asarray)
        self._shaper = CommandShaper(contract, asarray)
        self._mapper = ActionMapper(contract, asarray)
        self._command = self._shaper.zero()
        self._raw = self._mapper.zero()
        self._applied = self._mapper.zero()

    def reset(self) -> None:
        """Forget everything, as before the first step."""
        self._builder.reset()
        self._command = self._shaper.zero()
        self._raw = self._mapper.zero()
        self._applied = self._mapper.zero()

    def step(
        self, state: RobotState, asked: Array, elapsed: float, forced: Array = None
    ) -> PolicyStep:
        """Compute one policy step.

        Args:
            state: The measured state, any float dtype; it is cast to the pipeline's own.
            asked: What the operator asks for, shape ``(num_commands,)``.
            elapsed: Time since the policy began, [s].
            forced: Raw action to take instead of the network's, shape ``(num_actions,)``; None
                for the network's.

        Returns:
            Everything that was computed on the way.
        """
        state = cast_state(state, self._asarray)
        self._command = self._shaper(self._asarray(asked), self._command)
        inputs = PolicyInputs(
            state=state,
            command=self._command,
            raw_action=self._raw,
            applied_action=self._applied,
            elapsed=np.float64(elapsed),
        )
        observation = self._builder.compute(inputs)
        self._builder.commit()
        raw = self._network(observation) if forced is None else self._asarray(forced)
        self._raw = raw
        self._applied = self._mapper.apply(raw, self._applied)
        return PolicyStep(
            command=self._command,
            observation=observation,
            raw_action=raw,
            applied_action=self._applied,
            targets=self._mapper.targets(self._applied, state.joint_pos),
        )


def cast_state(state: RobotState, asarray: AsArray) -> RobotState:
    """The same state in the array library and dtype of ``asarray``; time stays as it is."""
    lin_vel = state.base_lin_vel_b
    return RobotState(
        time=state.time,
        base_quat=asarray(state.base_quat),
        base_ang_vel_b=asarray(state.base_ang_vel_b),
        base_lin_vel_b=None if lin_vel is None else asarray(lin_vel),
        joint_pos=asarray(state.joint_pos),
        joint_vel=asarray(state.joint_vel),
    )
