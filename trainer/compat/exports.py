"""Plain policy files as the runners of rsl_rl write them: TorchScript and ONNX, mean actions only.

They hold the network and nothing else. `surefoot export` writes files that carry their contract and
prove themselves; these are for tools that expect rsl_rl's.
"""

from __future__ import annotations

import logging
import math
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.jit import TracerWarning  # pyright: ignore[reportPrivateImportUsage]

from robot_runtime.errors import MissingExtra
from robot_runtime.files import atomic_write
from trainer.compat.models import RslRlModel, State

OPSET = 18
"""What rsl_rl writes."""


STATE_NAMES = ("h", "c")
"""Inputs and outputs of the state are called ``h_in``, ``h_out`` and so on, as rsl_rl has it."""


class ScriptedPolicy(nn.Module):
    """Raw observations to mean actions, with the method `reset` that callers expect."""

    def __init__(self, policy: nn.Module) -> None:
        """Wrap a module over observations."""
        super().__init__()
        self.policy = policy

    def forward(self, x: Tensor) -> Tensor:
        """Return mean actions ``(B, num_actions)``."""
        return self.policy(x)

    @torch.jit.export
    def reset(self) -> None:
        """Do nothing: there is no state."""


class ScriptedLstm(nn.Module):
    """The same with the memory of one robot, in `hidden_state` and `cell_state`, as there."""

    def __init__(self, policy: nn.Module, h: Tensor, c: Tensor) -> None:
        """Wrap a module over observations, hidden state and cell state."""
        super().__init__()
        self.policy = policy
        self.hidden_state: Tensor
        self.cell_state: Tensor
        self.register_buffer("hidden_state", h)
        self.register_buffer("cell_state", c)

    def forward(self, x: Tensor) -> Tensor:
        """Return mean actions ``(1, num_actions)`` and remember."""
        actions, h, c = self.policy(x, self.hidden_state, self.cell_state)
        self.hidden_state.copy_(h)
        self.cell_state.copy_(c)
        return actions

    @torch.jit.export
    def reset(self) -> None:
        """Begin a new episode."""
        self.hidden_state.zero_()
        self.cell_state.zero_()


class ScriptedGru(nn.Module):
    """The same with the memory of one robot in `hidden_state`."""

    def __init__(self, policy: nn.Module, h: Tensor) -> None:
        """Wrap a module over observations and hidden state."""
        super().__init__()
        self.policy = policy
        self.hidden_state: Tensor
        self.register_buffer("hidden_state", h)

    def forward(self, x: Tensor) -> Tensor:
        """Return mean actions ``(1, num_actions)`` and remember."""
        actions, h = self.policy(x, self.hidden_state)
        self.hidden_state.copy_(h)
        return actions

    @torch.jit.export
    def reset(self) -> None:
        """Begin a new episode."""
        self.hidden_state.zero_()


class ScriptedImages(nn.Module):
    """Raw observations and images, in the model's order, to mean actions, as rsl_rl has it."""

    def __init__(self, policy: nn.Module) -> None:
        """Wrap a module over observations and images in one flat row."""
        super().__init__()
        self.policy = policy

    def forward(self, obs_1d: Tensor, obs_2d: list[Tensor]) -> Tensor:
        """Return mean actions ``(B, num_actions)``."""
        flat = torch.cat([image.flatten(1) for image in obs_2d], dim=1)
        return self.policy(obs_1d, flat)

    @torch.jit.export
    def reset(self) -> None:
        """Do nothing: there is no state."""


class _Flat(nn.Module):
    """A model whose state, or images, are given and returned one tensor after the other."""

    def __init__(self, model: RslRlModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, obs: Tensor, *more: Tensor) -> Tensor | tuple[Tensor, ...]:
        if self.model.image_shapes:
            images = dict(zip(self.model.image_shapes, more, strict=True))
            return self.model(obs, images=images)[0]
        actions, after = self.model(obs, more)
        return (actions, *after) if after else actions


class _FlatImages(nn.Module):
    """A model whose images lie in one row, one after the other."""

    def __init__(self, model: RslRlModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, obs: Tensor, flat: Tensor) -> Tensor:
        shapes = self.model.image_shapes
        parts = flat.split([math.prod(shape) for shape in shapes.values()], dim=1)
        images = {
            name: part.unflatten(1, shape)
            for (name, shape), part in zip(shapes.items(), parts, strict=True)
        }
        return self.model(obs, images=images)[0]


def export_jit(model: RslRlModel, path: Path) -> None:
    """Write a TorchScript file with ``forward(obs)`` and ``reset()``.

    Args:
        model: The policy. With recurrent layers the file is for one robot, and remembers; with
            images it is ``forward(obs, images)``, a list.
        path: Where to write.
    """
    state = model.initial_state(1)
    obs = torch.zeros(1 if state else 2, model.architecture.obs_dim)
    with torch.no_grad(), warnings.catch_warnings():
        # Recurrent layers check the shapes of what they get, and a trace keeps what it saw.
        warnings.simplefilter("ignore", TracerWarning)
        traced: Any = torch.jit.trace(*_traced(model, obs, state), check_trace=False)
    kind = (ScriptedPolicy, ScriptedGru, ScriptedLstm)[len(state)]
    if model.image_shapes:
        kind = ScriptedImages
    script = torch.jit.script(kind(traced, *state))
    with atomic_write(path) as temporary:
        torch.jit.save(script, str(temporary))


def _traced(model: RslRlModel, obs: Tensor, state: State) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return what is traced, and with what."""
    if not model.image_shapes:
        return _Flat(model), (obs, *state)
    width = sum(math.prod(shape) for shape in model.image_shapes.values())
    return _FlatImages(model), (obs, torch.zeros(len(obs), width))


def export_onnx(model: RslRlModel, path: Path, *, verbose: bool = False) -> None:
    """Write one ONNX file, weights inside, ``obs`` to ``actions`` with a free batch axis.

    Recurrent layers have their state as inputs ``h_in`` (and ``c_in``) and outputs ``h_out``
    (and ``c_out``), ``(layers, B, hidden)``, as rsl_rl's files have it; images are inputs with the
    names of their groups, ``(B, channels, height, width)``.

    Args:
        model: The policy.
        path: Where to write.
        verbose: Whether the exporter speaks.

    Raises:
        MissingExtra: The exporter of torch needs packages that are not installed.
    """
    batch, state = Dim("batch", min=1), model.initial_state(2)
    images = tuple(torch.zeros(2, *shape) for shape in model.image_shapes.values())
    names = STATE_NAMES[: len(state)]
    # A function with *args has one entry for all of them.
    more = tuple({1: batch} for _ in state) + tuple({0: batch} for _ in images)
    shapes = ({0: batch}, more) if more else ({0: batch},)
    speaker = logging.getLogger("torch.onnx")
    level = speaker.level
    try:
        speaker.setLevel(level if verbose else logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                _Flat(model),
                (torch.zeros(2, model.architecture.obs_dim), *state, *images),
                input_names=["obs", *(f"{name}_in" for name in names), *model.image_shapes],
                output_names=["actions", *(f"{name}_out" for name in names)],
                dynamic_shapes=shapes,
                opset_version=OPSET,
                external_data=False,
                dynamo=True,
                verbose=verbose,
            )
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"export to ONNX needs {error.name}: pip install 'surefoot[export]'"
        ) from error
    finally:
        speaker.setLevel(level)
    assert program is not None
    with atomic_write(path) as temporary:
        temporary.write_bytes(program.model_proto.SerializeToString())
