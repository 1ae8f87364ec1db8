"""Checkpoints: everything a run continues from and an exporter needs, in one file.

A checkpoint holds tensors and plain containers only and is read with `weights_only=True`, so that
opening one never runs code. It is written whole or not at all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import pickle
import platform
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_runtime.errors import BadInput
from robot_runtime.files import atomic_write
from trainer.config import InvalidSetting, TrainConfig, config_from_plain, config_to_plain
from trainer.envs.action_space import ActionSpace
from trainer.networks.actor_critic import Actor
from trainer.networks.groups import groups_of

FORMAT = "surefoot-checkpoint"
SCHEMA = 1
"""Version of the layout; a reader refuses what is newer than itself."""

SUFFIX = ".pt"

Trace = dict[str, "Tensor | list[str]"]
"""A golden trace: numbers as tensors, strings as lists, by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """The content of a checkpoint.

    Attributes:
        task: Name of the task, as `surefoot train` takes it.
        config: Settings of the run; `config.seed` is its seed.
        obs_dims: Length of each observation group.
        num_actions: Length of an action.
        extensions: State of what changes the reward, by name.
        others: What the other processes of the run have for themselves, by rank from 1: their
            environments, episodes, random states.
        action_sizes: How many choices each index of an action has; empty for a continuous one.
        iteration: Iterations done.
        env_steps: Environment steps done, over all environments.
        agent: State of `trainer.ppo.PPO` or `trainer.distillation.Distillation`: networks with
            normalizers, optimizer, learning rate, random generator, fault counts; the teacher.
        collector: State of `trainer.rollout.Collector`: the environment's own state and the
            observations the next action depends on.
        progress: Counters of the loop: running episodes, fault counts.
        rng: Global random states of torch.
        versions: Versions of Python and the packages that matter, by name.
        contract: The policy contract as JSON; None for a task that no robot will run.
        trace: The golden trace; None where there is no contract, and of a policy that sees other
            groups than `policy`.
    """

    task: str
    config: TrainConfig
    obs_dims: dict[str, int]
    num_actions: int
    iteration: int
    env_steps: int
    agent: dict[str, Any]
    collector: dict[str, Any]
    progress: dict[str, Any]
    rng: dict[str, Any]
    versions: dict[str, str]
    contract: str | None
    trace: Trace | None
    action_sizes: tuple[int, ...] = ()
    others: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    extensions: dict[str, Any] = field(default_factory=dict[str, Any])


_TYPES: dict[str, tuple[type, ...]] = {
    "task": (str,),
    "config": (dict,),
    "obs_dims": (dict,),
    "num_actions": (int,),
    "iteration": (int,),
    "env_steps": (int,),
    "agent": (dict,),
    "collector": (dict,),
    "progress": (dict,),
    "rng": (dict,),
    "versions": (dict,),
    "contract": (str, type(None)),
    "trace": (dict, type(None)),
    "action_sizes": (tuple, list),
    "extensions": (dict,),
    "others": (list,),
}

_LATER: dict[str, Any] = {"action_sizes": (), "extensions": {}, "others": []}
"""What older files of this schema lack, and what they meant."""


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, whole or not at all.

    Raises:
        BadInput: The file cannot be written.
        TypeError: Some state holds something else than tensors and plain containers; the message
            names where.
    """
    content = {item.name: getattr(checkpoint, item.name) for item in dataclasses.fields(checkpoint)}
    content["config"] = config_to_plain(checkpoint.config)
    content = {"format": FORMAT, "schema": SCHEMA, **content}
    write_archive(path, to_plain(content, "checkpoint"))


def write_archive(path: Path, plain: Mapping[str, Any]) -> None:
    """Write what `torch.save` makes of a dict, whole or not at all.

    torch's own writer of files does not say what the system says, such as that the disk is full.

    Raises:
        BadInput: The file cannot be written.
    """
    buffer = io.BytesIO()
    torch.save(plain, buffer)
    with atomic_write(path) as temporary:
        temporary.write_bytes(buffer.getbuffer())


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint, all tensors on the CPU.

    Raises:
        BadInput: The file is missing, unreadable, truncated, not a checkpoint of ours, of a newer
            schema, lacks something, or holds objects that would run code; the message names the
            file and what is wrong.
    """
    content = read_archive(path)
    if content.get("format") != FORMAT:
        keys = ", ".join(map(str, list(content)[:6])) or "nothing"
        raise BadInput(f"'{path}' is not a checkpoint of surefoot; it holds: {keys}")
    schema = content.get("schema")
    if not isinstance(schema, int) or schema < 1:
        raise BadInput(f"checkpoint '{path}' has schema {schema!r}; expected 1 to {SCHEMA}")
    if schema > SCHEMA:
        raise BadInput(
            f"checkpoint '{path}' has schema {schema}, which is newer than the {SCHEMA} that this "
            "version reads: update surefoot"
        )
    content = {**_LATER, **content}
    for name, types in _TYPES.items():
        if name not in content:
            raise BadInput(f"checkpoint '{path}' lacks '{name}'")
        if not isinstance(content[name], types):
            raise BadInput(f"checkpoint '{path}': '{name}' is a {type(content[name]).__name__}")
    try:
        config = config_from_plain(content["config"])
    except (InvalidSetting, TypeError, AttributeError) as error:
        raise BadInput(f"checkpoint '{path}': {error}") from error
    fields: dict[str, Any] = {name: content[name] for name in _TYPES}
    fields |= {"config": config, "action_sizes": tuple(content["action_sizes"])}
    return Checkpoint(**fields)


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint meant by `path`: itself, or the newest of a run folder.

    Raises:
        BadInput: The path does not exist, or the folder has no checkpoint.
    """
    if not path.exists():
        raise BadInput(f"no checkpoint or run folder '{path}'")
    if not path.is_dir():
        return path
    found = sorted(checkpoint_folder(path).glob(f"*{SUFFIX}"))
    if not found:
        raise BadInput(f"run folder '{path}' has no checkpoint in '{checkpoint_folder(path)}'")
    return found[-1]


def checkpoint_folder(run: Path) -> Path:
    """Return where a run keeps its checkpoints."""
    return run / "checkpoints"


def checkpoint_path(run: Path, iteration: int) -> Path:
    """Return the file of the checkpoint after `iteration` iterations; names sort by age."""
    return checkpoint_folder(run) / f"iteration_{iteration:07d}{SUFFIX}"


def action_space(checkpoint: Checkpoint) -> ActionSpace:
    """Return what the environment of a checkpoint takes as an action."""
    return ActionSpace(
        kind="discrete" if checkpoint.action_sizes else "continuous",
        num_actions=checkpoint.num_actions,
        sizes=checkpoint.action_sizes,
    )


def build_actor(checkpoint: Checkpoint) -> Actor:
    """Build the deterministic policy of a checkpoint, on the CPU.

    Returns:
        A module that maps what the actor sees, float32 ``(B, dim)``, to raw actions without
        exploration, ``(B, num_actions)``; the normalizer is inside. One with a memory takes and
        gives its state too. Weights need no gradient.

    Raises:
        BadInput: The weights do not fit the network that the settings describe.
    """
    try:
        network, known = checkpoint.config.network, checkpoint.obs_dims
        dims = {name: known[name] for name in groups_of(network, known).actor}
        actor = Actor(dims, action_space(checkpoint), network, torch.Generator())
        actor.load_state_dict(checkpoint.agent["actor"])
    except KeyError as error:
        raise BadInput(f"the checkpoint has no {error}") from error
    except RuntimeError as error:
        text = " ".join(str(error).split())
        raise BadInput(f"the checkpoint's weights do not fit its settings: {text}") from error
    return actor.eval().requires_grad_(False)


def global_rng_state() -> dict[str, Any]:
    """Return torch's global random states; agent and environment keep their own beside them.

    Of several GPUs it is that of the current one: asking the others would begin to use them.
    """
    on_gpu = [torch.cuda.get_rng_state()] if torch.cuda.is_available() else []
    return {"torch": torch.get_rng_state(), "cuda": on_gpu}


def restore_global_rng_state(state: Mapping[str, Any]) -> None:
    """Set the random states that `global_rng_state` returned."""
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and state["cuda"]:
        # Older files have one state per GPU.
        index = min(torch.cuda.current_device(), len(state["cuda"]) - 1)
        torch.cuda.set_rng_state(state["cuda"][index])


def trace_from_arrays(arrays: Mapping[str, np.ndarray]) -> Trace:
    """Turn the arrays of a golden trace into what a checkpoint may hold.

    Raises:
        TypeError: An array holds objects; the message names it.
    """
    trace: Trace = {}
    for name, array in arrays.items():
        if array.dtype.kind == "U":
            trace[name] = [str(item) for item in array.ravel()]
        elif array.dtype.kind in "biuf":
            trace[name] = torch.from_numpy(np.array(array))
        else:
            raise TypeError(f"trace array '{name}' has dtype {array.dtype}: not numbers, not text")
    return trace


def trace_to_arrays(trace: Trace) -> dict[str, np.ndarray]:
    """Turn the trace of a checkpoint back into arrays; texts come back as one axis.

    Raises:
        BadInput: Something in it is no array; the message names it.
    """
    arrays: dict[str, np.ndarray] = {}
    for name, value in trace.items():
        if isinstance(value, list):
            arrays[name] = np.array([str(item) for item in value])
        # A stride of 0 makes a tensor of any size of one number.
        elif isinstance(value, Tensor) and value.device.type == "cpu" and value.is_contiguous():
            arrays[name] = value.numpy()
        else:
            raise BadInput(f"golden trace: {name} is no array")
    return arrays


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that shape a run."""
    found = {"python": platform.python_version()}
    for name in ("surefoot", "torch", "numpy", "mujoco", "gymnasium"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def read_archive(path: Path) -> dict[str, Any]:
    """Read the top-level dict of a file written by `torch.save`, running no code.

    Returns:
        What was saved, all tensors on the CPU.

    Raises:
        BadInput: The file is missing, unreadable, truncated, no archive of torch, holds something
            else than a dict, or objects beyond tensors and plain containers.
    """
    if not path.exists():
        raise BadInput(f"checkpoint '{path}' does not exist")
    if not path.is_file():
        raise BadInput(f"checkpoint '{path}' is not a file")
    try:
        # The index of the archive is its end, so that this sees most truncations. What is no
        # archive at all, a bare pickle say, is not even looked into.
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise BadInput(f"'{path}' is not a checkpoint, or it is truncated")
        with torch.serialization.safe_globals(_plain_numpy()):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise BadInput(f"cannot read checkpoint '{path}': {error.strerror}") from error
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        what = f" ({found[1]})" if found else ""
        raise BadInput(
            f"'{path}' is refused: it holds more than tensors and plain containers{what}, "
            "and reading that could run code"
        ) from error
    except BadInput:
        raise
    except Exception as error:
        # A damaged file raises whatever the part of torch that meets the damage raises.
        raise BadInput(f"'{path}' is not a checkpoint, or it is damaged") from error
    if not isinstance(content, dict):
        raise BadInput(f"'{path}' is not a checkpoint; it holds a {type(content).__name__}")
    return content


def _plain_numpy() -> list[Any]:
    """Return what numbers and arrays of NumPy are pickled as, by both names it has had.

    They hold numbers, and run nothing; scripts leave them in what they save beside the networks.
    """
    kinds = (np.dtype(t) for t in (*np.typecodes["AllInteger"], *np.typecodes["Float"], "?"))
    names = (
        (np.array(0.0).__reduce__()[0], "_reconstruct"),
        (np.float64(0).__reduce__()[0], "scalar"),
    )
    parts = [(part, f"numpy.{core}.multiarray.{name}") for part, name in names
             for core in ("core", "_core")]  # fmt: skip
    return [np.ndarray, np.dtype, *dict.fromkeys(type(kind) for kind in kinds), *parts]


def to_plain(value: object, where: str) -> Any:
    """Copy tensors to the CPU and containers as they are; refuse everything else by its place."""
    if isinstance(value, Tensor):
        # A clone: torch.save would write the whole storage behind a view.
        return value.detach().cpu().clone()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {key: to_plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [to_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    raise TypeError(
        f"{where} is a {type(value).__name__}; a checkpoint holds tensors and plain containers"
    )
