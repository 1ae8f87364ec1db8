"""From a checkpoint to the module that is exported: raw observations in, mean actions out."""

from __future__ import annotations

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# torch.jit and torch.onnx have no types: what comes out of them is checked where it is used.
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from robot_runtime.errors import BadInput, Refused
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.labels import observation_labels
from robot_runtime.policy.trace import GoldenTrace
from trainer.checkpoint import (
    Checkpoint,
    build_actor,
    load_checkpoint,
    trace_to_arrays,
)
from trainer.networks.actor_critic import ACTOR_GROUP, Actor
from trainer.networks.graph_spec import (
    GraphSpec,
    NoGraphSpecError,
    Normalization,
    graph_spec_of,
    normalization_of,
)
from trainer.normalizer import RunningNormalizer

BatchNetwork = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""Observations, shape ``(n, observation_dim)``, to raw actions, shape ``(n, num_actions)``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A policy, read and ready for export.

    Attributes:
        contract: Its contract.
        trace: Its golden trace.
        module: Its deterministic policy, on the CPU, without gradients.
        spec: The same as plain arrays, None where it is no chain of known layers.
        normalization: Its normalizer, None where it has none.
        constant_features: Names of the features that never changed in training.
        origin: Where it comes from, plain JSON values.
    """

    contract: PolicyContract
    trace: GoldenTrace
    module: Policy
    spec: GraphSpec | None
    normalization: Normalization | None
    constant_features: tuple[str, ...]
    origin: dict[str, Any]


class Policy(nn.Module):
    """The deterministic policy: one tensor per input of the contract, then one per state.

    The wrapped module maps whole observations ``(B, dim)`` to actions ``(B, num_actions)``; one
    with a state maps ``(obs, *states)`` to ``(actions, *states)``. A state of three axes is
    ``(layers, B, hidden)``, as torch's LSTM and GRU have it; any other has its batch first.
    """

    def __init__(self, actor: nn.Module, num_states: int = 0) -> None:
        """Wrap a module.

        Args:
            actor: The module.
            num_states: How many states it takes and gives.
        """
        super().__init__()
        self.actor = actor
        self.num_states = num_states

    def forward(self, *inputs: Tensor) -> Any:
        """Return raw actions for the contract's inputs, followed by the next states if any."""
        count = len(inputs) - self.num_states
        obs = inputs[0] if count == 1 else torch.cat(inputs[:count], dim=-1)
        return self.actor(obs, *inputs[count:])


def read_source(path: Path) -> Source:
    """Read a checkpoint and refuse one that cannot become a policy file.

    Raises:
        BadInput: Unreadable, not a checkpoint of ours, or its parts do not fit each other.
        Refused: It has no contract or no trace, or its normalizer was lost.
    """
    checkpoint = load_checkpoint(path)
    if checkpoint.contract is None:
        raise Refused(
            f"checkpoint '{path}' has no contract: task '{checkpoint.task}' is not one that a "
            "robot runs, so there is nothing to export"
        )
    seen = checkpoint.config.network.actor_groups or (ACTOR_GROUP,)
    if seen != (ACTOR_GROUP,):
        raise Refused(
            f"the policy of checkpoint '{path}' sees the observation groups {', '.join(seen)}, and "
            f"a robot measures {ACTOR_GROUP} alone: distil it into a policy that sees no more "
            "(surefoot train TASK --distill.teacher CHECKPOINT)"
        )
    if checkpoint.trace is None:
        raise Refused(f"checkpoint '{path}' has no golden trace, so nothing could prove the export")
    try:
        contract = PolicyContract.from_json(checkpoint.contract)
        trace = GoldenTrace.from_arrays(trace_to_arrays(checkpoint.trace))
        _check_lengths(checkpoint, contract)
        actor = build_actor(checkpoint)
    except BadInput as error:
        raise BadInput(f"checkpoint '{path}': {error}") from None
    normalizer = check_normalizer(actor, checkpoint, contract)
    return Source(
        contract=contract,
        trace=trace,
        module=make_policy(actor, len(contract.network.states)),
        spec=spec_or_none(actor),
        normalization=None if normalizer is None else normalization_of(normalizer),
        constant_features=() if normalizer is None else constant_features(normalizer, contract),
        origin=_origin(checkpoint, path),
    )


def _check_lengths(checkpoint: Checkpoint, contract: PolicyContract) -> None:
    """Refuse lengths that are not the contract's, before a network of that size is made."""
    for what, found, said in (
        ("num_actions", checkpoint.num_actions, contract.num_actions),
        (f"obs_dims of {ACTOR_GROUP}", checkpoint.obs_dims.get(ACTOR_GROUP),
         contract.observation_dim),
    ):  # fmt: skip
        if found != said:
            raise BadInput(f"{what} is {found}, in its contract {said}")


def make_policy(actor: nn.Module, num_states: int = 0) -> Policy:
    """The policy of an actor, ready to be run and traced."""
    return Policy(actor, num_states).eval().requires_grad_(False)


def spec_or_none(actor: nn.Module) -> GraphSpec | None:
    """The network as plain arrays; None where it is no chain of known layers."""
    try:
        return graph_spec_of(actor)
    except NoGraphSpecError:
        return None


def check_normalizer(
    actor: Actor, checkpoint: Checkpoint, contract: PolicyContract
) -> RunningNormalizer | None:
    """Hold the normalizer of the module against what settings and contract say.

    A policy without the normalizer it was trained with still runs, and falls.

    Returns:
        The normalizer, None where the run had none.

    Raises:
        Refused: Settings, contract and module disagree, or the normalizer has seen nothing.
    """
    wanted = checkpoint.config.network.normalize_obs
    found = isinstance(actor.normalizer, RunningNormalizer)
    if wanted != found:
        raise Refused(
            f"the run's settings say normalize_obs = {wanted}, but the policy has "
            f"{'a' if found else 'no'} normalizer ({type(actor.normalizer).__name__})"
        )
    if wanted != (contract.network.normalizer == "in_graph"):
        raise Refused(
            f"the run's settings say normalize_obs = {wanted}, but the contract's "
            f"network.normalizer is '{contract.network.normalizer}'"
        )
    if not isinstance(actor.normalizer, RunningNormalizer):
        return None
    if not float(actor.normalizer.count) > 0.0:
        raise Refused("the policy's normalizer has seen no observation: train before exporting")
    return actor.normalizer


def batch_network(module: nn.Module, contract: PolicyContract) -> BatchNetwork:
    """A module without state over whole observations in NumPy.

    Args:
        module: One tensor per input of the contract, one action out.
        contract: The contract that says how the observation is cut into inputs.
    """
    widths = list(contract.inputs().values())

    def run(obs: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.no_grad():
            return module(*torch.split(torch.from_numpy(obs), widths, dim=1)).numpy()

    return run


def example_inputs(contract: PolicyContract, batch: int) -> tuple[Tensor, ...]:
    """Zeros of the contract's inputs and states, to trace with."""
    observed = (torch.zeros(batch, dim) for dim in contract.inputs().values())
    states = (torch.zeros(batched(state.shape, batch)) for state in contract.network.states)
    return (*observed, *states)


def batch_axis(shape: tuple[int, ...]) -> int:
    """Which axis of a state is the batch: see `Policy`."""
    return 1 if len(shape) == 3 else 0


def batched(shape: tuple[int, ...], batch: int) -> tuple[int, ...]:
    """The shape of a state for a batch, from that for a batch of one."""
    axis = batch_axis(shape)
    return (*shape[:axis], batch, *shape[axis + 1 :])


def constant_features(normalizer: RunningNormalizer, contract: PolicyContract) -> tuple[str, ...]:
    """Names of the features that never changed in training.

    The normalizer divides what such a feature does on the robot by ``eps`` alone, up to its bound:
    whoever deploys the policy should know them.
    """
    std = normalizer.var.sqrt()
    # Below the rounding of a float32 mean a deviation is none.
    constant = std <= 1e-6 * normalizer.mean.abs().clamp(min=1.0)
    labels = observation_labels(contract)
    return tuple(label for label, flag in zip(labels, constant, strict=True) if bool(flag))


def _origin(checkpoint: Checkpoint, path: Path) -> dict[str, Any]:
    """Where a checkpoint comes from: no path, no time, nothing of a machine."""
    return {
        "source": "surefoot checkpoint",
        "checkpoint_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "task": checkpoint.task,
        "seed": checkpoint.config.seed,
        "iteration": checkpoint.iteration,
        "env_steps": checkpoint.env_steps,
        "trained_with": dict(sorted(checkpoint.versions.items())),
    }
