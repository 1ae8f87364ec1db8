"""Beginning a run with what another one has learned."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from robot_runtime.errors import BadInput
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.labels import observation_labels
from trainer.checkpoint import Checkpoint
from trainer.networks.actor_critic import Actor

_EXPLORATION = "distribution."


def begin_with(actor: Actor, checkpoint: Checkpoint, contract: str | None) -> None:
    """Give an actor the weights and statistics that another run has learned.

    How much it explores stays what the settings say, and the critic begins anew: it is worth
    nothing under other rewards.

    Args:
        actor: The actor of the new run; changed in place.
        checkpoint: The other run's.
        contract: The contract of the new task, as JSON; None where it has none.

    Raises:
        BadInput: The other actor has other layers, sees other observations or moves other joints.
            The message names the first difference.
    """
    if contract is not None and checkpoint.contract is not None:
        own, other = (PolicyContract.from_json(text) for text in (contract, checkpoint.contract))
        _require_same_meaning(own, other)
    given = _learned(checkpoint.agent["actor"])
    own_shapes = {name: tuple(value.shape) for name, value in _learned(actor.state_dict()).items()}
    shapes = {name: tuple(value.shape) for name, value in given.items()}
    for name in sorted(own_shapes.keys() | shapes.keys()):
        if own_shapes.get(name) != shapes.get(name):
            raise BadInput(
                f"initial: '{name}' is {shapes.get(name, 'not there')} in the checkpoint and "
                f"{own_shapes.get(name, 'not there')} in this run: give both the same network.*"
            )
    actor.load_state_dict(given, strict=False)


def _learned(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What an actor has learned, without how much it explores."""
    return {name: value for name, value in state.items() if not name.startswith(_EXPLORATION)}


def _require_same_meaning(own: PolicyContract, other: PolicyContract) -> None:
    """Refuse numbers that mean something else, whatever their count."""
    pairs = (
        ("observation", observation_labels(own), observation_labels(other)),
        ("action", own.action_joints, other.action_joints),
    )
    for what, here, there in pairs:
        for i, (name, known) in enumerate(zip(here, there, strict=False)):
            if name != known:
                raise BadInput(
                    f"initial: {what} {i} is '{known}' in the checkpoint and '{name}' in this task"
                )
        if len(here) != len(there):
            raise BadInput(
                f"initial: {len(there)} numbers of {what} in the checkpoint, {len(here)} in this "
                "task"
            )
    for what in ("observation", "action"):
        if getattr(own, what) != getattr(other, what):
            raise BadInput(
                f"initial: the {what} of the checkpoint has the same names and other scales, "
                "clips or offsets than this task's"
            )
