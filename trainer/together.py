"""What a run of several processes shares, and what each of them keeps for itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from robot_runtime.errors import Refused
from trainer.agent import Agent
from trainer.checkpoint import Checkpoint, global_rng_state
from trainer.config import TrainConfig, config_to_plain
from trainer.distributed import Peers
from trainer.extensions.seam import RewardExtension
from trainer.loggers import flat_settings

OF_THE_PROCESS = frozenset({"num_envs", "torch_threads", "sim_threads"})
"""Settings that may differ between processes."""

_OWN = ("generator", "states")
"""What an agent has for itself: its draws, and what it remembers of its environments."""

_SUMMED = frozenset({"episode/count", "guard/quarantined_envs", "perf/steps_per_second"})
_LARGEST = frozenset({"perf/collect_seconds", "perf/learn_seconds"})
_OF_ALL = ("grad", "kl", "parameter")
"""Faults that all processes count alike, because they have averaged before they looked."""


def check_settings(config: TrainConfig, peers: Peers) -> None:
    """Refuse processes with different settings.

    Raises:
        Refused: Names the rank, the setting and both values.
    """
    if peers.size == 1:
        return
    own = {k: repr(v) for k, v in flat_settings(config_to_plain(config)).items()}
    settings: list[dict[str, str]] = peers.gather(own)
    for rank, theirs in enumerate(settings):
        for name in sorted(set(theirs) | set(settings[0])):
            one, other = settings[0].get(name), theirs.get(name)
            if one != other and name not in OF_THE_PROCESS:
                raise Refused(f"{name} = {other} in rank {rank} and {one} in rank 0")


def start_alike(agent: Agent, extensions: Mapping[str, RewardExtension], peers: Peers) -> None:
    """Give every process the weights, normalizers and optimizer of the first one.

    Args:
        agent: Of it all of them.
        extensions: Of these the weights; they begin with, or go on from, the same statistics.
        peers: The processes.
    """
    if peers.size == 1:
        return
    for extension in extensions.values():
        parameters = extension.parameters()
        weights = peers.from_first([parameter.detach() for parameter in parameters])
        with torch.no_grad():
            for parameter, weight in zip(parameters, weights, strict=True):
                parameter.copy_(weight)
    state = agent.state_dict()
    own = {name: state.pop(name) for name in _OWN}
    shared = peers.from_first(state)
    if not peers.first:
        agent.load_state_dict(shared | own)


def shared_tensors(agent: Agent, extensions: Mapping[str, RewardExtension]) -> dict[str, Tensor]:
    """Return what must be equal in all processes, by name: weights, statistics and moments."""
    of_extensions = {
        f"{name}.{key}": value
        for name, extension in extensions.items()
        for key, value in extension.named_tensors().items()
    }
    return agent.named_tensors() | of_extensions


def own_part(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what a checkpoint holds of the process that made it alone."""
    return {
        **{name: checkpoint.agent[name] for name in _OWN},
        "collector": checkpoint.collector,
        "episodes": checkpoint.progress["episodes"],
        "faults": checkpoint.progress["faults"],
        "rng": checkpoint.rng,
        "extensions": checkpoint.extensions,
    }


def with_part(checkpoint: Checkpoint, part: Mapping[str, Any]) -> Checkpoint:
    """Return the checkpoint with what one process had for itself."""
    progress = {name: part[name] for name in ("episodes", "faults")}
    return replace(
        checkpoint,
        agent=checkpoint.agent | {name: part[name] for name in _OWN},
        collector=part["collector"],
        progress=checkpoint.progress | progress,
        rng=part["rng"],
        extensions=part["extensions"],
    )


def without_part(checkpoint: Checkpoint, agent: Agent) -> Checkpoint:
    """Return the checkpoint with fresh draws and no memory, for another number of processes.

    Args:
        checkpoint: The checkpoint.
        agent: The agent of this process, as it was built.
    """
    # Not the draws of the first iterations once more.
    draws = torch.Generator(agent.device)
    draws.manual_seed(agent.generator.initial_seed() + checkpoint.iteration)
    fresh = {"generator": draws.get_state(), "states": {}}
    return replace(
        checkpoint,
        agent=checkpoint.agent | fresh,
        progress=checkpoint.progress | {"faults": {}},
        rng=global_rng_state(),
    )


def merged_metrics(
    metrics: Mapping[str, float], steps: int, peers: Peers
) -> tuple[dict[str, float], int]:
    """Return the metrics of all processes in one.

    Counts and steps per second are added, times are those of the slowest, return and length of
    episodes are averaged over the episodes, and everything else over the steps. What a process has
    not measured is averaged over the others.

    Args:
        metrics: Of this process.
        steps: Environment steps that it has done in the iteration.
        peers: The processes.

    Returns:
        The metrics, the same in all processes, and the steps of all.
    """
    if peers.size == 1:
        return dict(metrics), steps
    parts: list[tuple[dict[str, float], int]] = peers.gather((dict(metrics), steps))
    names = dict.fromkeys(name for values, _ in parts for name in values)
    return {name: _merged(name, parts) for name in names}, sum(count for _, count in parts)


def _merged(name: str, parts: Sequence[tuple[dict[str, float], int]]) -> float:
    """Return one metric of all processes."""
    of_episodes = name.startswith("episode/")
    found = [
        (values[name], values.get("episode/count", 0.0) if of_episodes else float(steps))
        for values, steps in parts
        if name in values
    ]
    values = [value for value, _ in found]
    fault = name.startswith("nonfinite/")
    if name in _LARGEST or (fault and name.endswith(_OF_ALL)):
        return max(values)
    if name in _SUMMED or fault:
        return sum(values)
    total = sum(weight for _, weight in found)
    if not total or len(set(values)) == 1:
        # What is the same everywhere, the learning rate say, is not to be rounded.
        return values[0]
    return sum(value * weight for value, weight in found) / total
