"""Plain policy files as the runners of rsl_rl write them: TorchScript and ONNX, mean actions only.

They hold the network and nothing else. `surefoot export` writes files that carry their contract and
prove themselves; these are for tools that expect rsl_rl's.
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.jit import TracerWarning  # pyright: ignore[reportPrivateImportUsage]

from robot_runtime.errors import BadInput, MissingExtra
from robot_runtime.files import atomic_write
from trainer.compat.models import RslRlModel

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


class _Flat(nn.Module):
    """A model whose state is given and returned one tensor after the other."""

    def __init__(self, model: RslRlModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, obs: Tensor, *state: Tensor) -> Tensor | tuple[Tensor, ...]:
        actions, after = self.model(obs, state)
        return (actions, *after) if after else actions


def _demand_no_images(model: RslRlModel) -> None:
    if model.architecture.images:
        images = ", ".join(model.architecture.images)
        raise BadInput(f"the policy sees images ({images}), and there is no export of such")


def export_jit(model: RslRlModel, path: Path) -> None:
    """Write a TorchScript file with ``forward(obs)`` and ``reset()``.

    Args:
        model: The policy. With recurrent layers the file is for one robot, and remembers.
        path: Where to write.

    Raises:
        BadInput: The policy sees images.
    """
    _demand_no_images(model)
    state = model.initial_state(1)
    obs = torch.zeros(1 if state else 2, model.architecture.obs_dim)
    with torch.no_grad(), warnings.catch_warnings():
        # Recurrent layers check the shapes of what they get, and a trace keeps what it saw.
        warnings.simplefilter("ignore", TracerWarning)
        traced: Any = torch.jit.trace(_Flat(model), (obs, *state), check_trace=False)
    kind = (ScriptedPolicy, ScriptedGru, ScriptedLstm)[len(state)]
    script = torch.jit.script(kind(traced, *state))
    with atomic_write(path) as temporary:
        torch.jit.save(script, str(temporary))


def export_onnx(model: RslRlModel, path: Path, *, verbose: bool = False) -> None:
    """Write one ONNX file, weights inside, ``obs`` to ``actions`` with a free batch axis.

    Recurrent layers have their state as inputs ``h_in`` (and ``c_in``) and outputs ``h_out``
    (and ``c_out``), ``(layers, B, hidden)``, as rsl_rl's files have it.

    Args:
        model: The policy.
        path: Where to write.
        verbose: Whether the exporter speaks.

    Raises:
        BadInput: The policy sees images.
        MissingExtra: The exporter of torch needs packages that are not installed.
    """
    _demand_no_images(model)
    batch = Dim("batch", min=1)
    inputs = (torch.zeros(2, model.architecture.obs_dim), *model.initial_state(2))
    names = STATE_NAMES[: len(inputs) - 1]
    states = tuple({1: batch} for _ in names)
    # A function with *args has one entry for all of them.
    shapes = ({0: batch}, states) if states else ({0: batch},)
    speaker = logging.getLogger("torch.onnx")
    level = speaker.level
    try:
        speaker.setLevel(level if verbose else logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                _Flat(model),
                inputs,
                input_names=["obs", *(f"{name}_in" for name in names)],
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
