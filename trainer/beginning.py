"""Beginning a run with what another one has learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from robot_runtime.errors import BadInput
from trainer.checkpoint import Checkpoint
from trainer.contract_match import demand_same, stated
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
        said = "initial: the checkpoint is of another contract"
        demand_same(_meaning(checkpoint.contract), _meaning(contract), said)
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


def _meaning(contract: str) -> dict[str, Any]:
    """What the numbers that an actor sees and gives mean: not the gains, limits and rates."""
    whole = stated(contract)
    parts = {name: whole.get(name) for name in ("observation", "action", "phase", "imu")}
    joints = [{k: one[k] for k in ("name", "default_pos")} for one in whole.get("joints", ())]
    commands = [one["name"] for one in whole.get("commands", ())]
    return {**parts, "joints": joints, "commands": commands}
