"""From what an operator asks to what the policy is told."""

from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.state import Array, AsArray, as_float32


class CommandShaper:
    """Clips commands to the contract's ranges and limits how fast they change."""

    def __init__(self, contract: PolicyContract, asarray: AsArray = as_float32) -> None:
        """Prepare the bounds.

        Args:
            contract: The contract with the command channels.
            asarray: Makes constants of the array library, dtype and device to compute with.
        """
        channels = contract.commands
        rates = [np.inf if c.max_rate is None else c.max_rate for c in channels]
        self._lower = asarray(np.array([c.lower for c in channels]))
        self._upper = asarray(np.array([c.upper for c in channels]))
        self._step = asarray(np.array(rates) * contract.timing.control_dt)
        self._limited = bool(np.any(np.isfinite(rates)))

    def zero(self, batch_shape: tuple[int, ...] = ()) -> Array:
        """The command before the first one: nothing asked for, whatever the ranges."""
        xp = array_namespace(self._lower)
        return xp.zeros(
            (*batch_shape, self._lower.shape[0]),
            dtype=self._lower.dtype,
            device=self._lower.device,
        )

    def __call__(self, asked: Array, previous: Array) -> Array:
        """The command of this policy step.

        Args:
            asked: What the operator asks for, shape ``(..., num_commands)``.
            previous: The command of the step before, shape ``(..., num_commands)``.

        Returns:
            The command, within its ranges, no farther from ``previous`` than the rates allow.
        """
        xp = array_namespace(self._lower)
        command = xp.minimum(xp.maximum(asked, self._lower), self._upper)
        if not self._limited:
            return command
        return xp.minimum(xp.maximum(command, previous - self._step), previous + self._step)


def clip_command(
    contract: PolicyContract, command: NDArray[np.float64]
) -> tuple[tuple[float, ...], list[str]]:
    """Bring one command into the contract's ranges, for people who want to know.

    Args:
        contract: The contract with the command channels.
        command: What is asked for, shape ``(num_commands,)``.

    Returns:
        The command, and a line for every channel that was clipped.
    """
    values: list[float] = []
    notes: list[str] = []
    for channel, asked in zip(contract.commands, command.tolist(), strict=True):
        value = min(max(asked, channel.lower), channel.upper)
        if value != asked:
            notes.append(
                f"{channel.name} {asked:g} is clipped to {value:g}, the contract's range is "
                f"{channel.lower:g}..{channel.upper:g}"
            )
        values.append(value)
    return tuple(values), notes
