"""Whether what another run has learned under its contract means the same under this one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from robot_runtime.errors import BadInput
from robot_runtime.policy.codec import ContractError
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.diff import diff_values
from trainer.networks.actor_critic import Actor
from trainer.networks.groups import ACTOR_GROUP
from trainer.networks.policy import with_states


def stated(contract: str) -> dict[str, Any]:
    """Return what a contract as JSON states, but for the noise of its sensors."""
    return json.loads(contract, object_hook=_noiseless)


def demand_same(one: Mapping[str, Any], other: Mapping[str, Any], said: str) -> None:
    """Refuse parts of two contracts that differ.

    Args:
        one: Parts of the other run's contract, from `stated`.
        other: The same parts of this task's.
        said: How the message begins: who has another contract.

    Raises:
        BadInput: They differ; the message names the first place and both values.
    """
    for change in diff_values(dict(one), dict(other)):
        there, here = json.dumps(change.a), json.dumps(change.b)
        raise BadInput(f"{said}: {change.path} is {there} there and {here} in the task")


def demand_deployable(
    task: str, contract: str, actor: Actor, obs_dims: Mapping[str, int], num_actions: int
) -> None:
    """Refuse a contract that the first checkpoint, or an export of it, would stumble over.

    What a recurrent policy remembers is stated in its contract, which has to be one for that. A
    contract that is one has to be of this environment.

    Args:
        task: Name of the task.
        contract: Its contract, as JSON.
        actor: The actor that will be trained.
        obs_dims: Length of each observation group of the environment.
        num_actions: Number of its actions.

    Raises:
        BadInput: Names the task and the first field that is wrong.
    """
    try:
        whole = PolicyContract.from_json(contract)
        with_states(contract, actor)
    except ContractError as error:
        if actor.rnn is None:
            # A task may state whatever its own runtime reads; `surefoot export` takes a contract.
            return
        raise BadInput(
            f"task '{task}': what it states as its policy contract is none, and that of a "
            f"recurrent policy holds its states: {error}"
        ) from error
    lengths = (
        ("observation group 'policy'", obs_dims.get(ACTOR_GROUP), whole.observation_dim),
        ("actions", num_actions, whole.num_actions),
    )
    for what, found, said in lengths:
        if found != said:
            raise BadInput(
                f"task '{task}': {what}: {found} numbers in the environment, {said} in its contract"
            )


def _noiseless(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "noise"}
