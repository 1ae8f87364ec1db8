"""The runners with rsl_rl's interface in several processes, and going on with their files."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from robot_runtime.errors import BadInput, Refused
from trainer.distributed import Peers
from trainer.torchrun import join, world_size
from trainer.train import Run

logger = logging.getLogger(__name__)

OF_ONE_PROCESS = ("generator", "states", "collector", "rng")
"""What every process has for itself."""


def join_on(device: str) -> Peers:
    """Join the processes of torchrun; with CUDA each has the GPU that rsl_rl gives it.

    Raises:
        BadInput: The device is another one.
    """
    local_rank = os.environ.get("LOCAL_RANK", "0")
    if world_size() > 1 and device not in ("cpu", f"cuda:{local_rank}"):
        raise BadInput(
            f"device '{device}': with several processes that of this one is 'cuda:{local_rank}', "
            "or 'cpu'"
        )
    return join(device)


def of_this_process(own: Mapping[str, Any], peers: Peers) -> Mapping[str, Any]:
    """Return what this process goes on from; no episodes if the file is of another number.

    Args:
        own: What a file holds beside rsl_rl's part of it, that of the first process.
        peers: The processes there are now.
    """
    others = own.get("others") or []
    if len(others) + 1 != peers.size:
        kept = {k: v for k, v in own.items() if k not in OF_ONE_PROCESS}
        return kept | {"progress": own["progress"] | {"faults": {}}}
    if peers.first:
        return own
    part = others[peers.rank - 1]
    progress = own["progress"] | {name: part[name] for name in ("episodes", "faults")}
    mine = {name: part[name] for name in (*OF_ONE_PROCESS, "extensions")}
    return {**own, **mine, "progress": progress}


def restore_episodes(run: Run, own: Mapping[str, Any]) -> bool:
    """Put the episodes back where they fit, and return whether they go on.

    Args:
        run: The run.
        own: What `of_this_process` returned.
    """
    why = f"the file has none of {run.peers.size} processes"
    if "collector" in own:
        try:
            if run.collector.load_state_dict(own["collector"]):
                run.episodes.load_state_dict(own["progress"]["episodes"])
                return True
            why = "the environment cannot restore them"
        except (ValueError, Refused) as error:
            why = str(error)
    logger.info("the episodes begin anew: %s", why)
    return False
