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

from robot_runtime.errors import MissingExtra
from robot_runtime.files import atomic_write
from trainer.compat.models import RslRlModel

OPSET = 18
"""What rsl_rl writes."""


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


class _Stateless(nn.Module):
    """A model without its empty recurrent state."""

    def __init__(self, model: RslRlModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, obs: Tensor) -> Tensor:
        return self.model(obs)[0]


def export_jit(model: RslRlModel, path: Path) -> None:
    """Write a TorchScript file with ``forward(obs)`` and ``reset()``.

    Args:
        model: The policy, without recurrent layers.
        path: Where to write.
    """
    obs = torch.zeros(2, model.architecture.obs_dim)
    traced: Any = torch.jit.trace(_Stateless(model), (obs,), check_trace=False)
    script = torch.jit.script(ScriptedPolicy(traced))
    with atomic_write(path) as temporary:
        torch.jit.save(script, str(temporary))


def export_onnx(model: RslRlModel, path: Path, *, verbose: bool = False) -> None:
    """Write one ONNX file, weights inside, ``obs`` to ``actions`` with a free batch axis.

    Args:
        model: The policy, without recurrent layers.
        path: Where to write.
        verbose: Whether the exporter speaks.

    Raises:
        MissingExtra: The exporter of torch needs packages that are not installed.
    """
    obs = torch.zeros(2, model.architecture.obs_dim)
    speaker = logging.getLogger("torch.onnx")
    level = speaker.level
    try:
        speaker.setLevel(level if verbose else logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                _Stateless(model),
                (obs,),
                input_names=["obs"],
                output_names=["actions"],
                dynamic_shapes=({0: Dim("batch", min=1)},),
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
