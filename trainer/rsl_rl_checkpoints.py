"""Checkpoints of rsl_rl 1.x to 5.x: read with every key accounted for, and written as 5.x.

Reading runs no code: only archives of torch with tensors and plain containers are opened.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from robot_runtime.errors import BadInput
from trainer.checkpoint import read_archive, write_archive
from trainer.compat.adam import AdamState, is_adam, read_adam
from trainer.compat.infer import infer_architecture
from trainer.compat.layout import (
    CNN,
    MLP,
    NORMALIZER,
    RNN,
    KeyReport,
    Named,
    is_buffer,
    name_tensors,
)
from trainer.compat.models import Architecture, Hints, RslRlModel
from trainer.compat.rnd import RndWeights, check_rnd, predictor_names

__all__ = [
    "ForeignCheckpoint",
    "Hints",
    "KeyReport",
    "read_rsl_rl_checkpoint",
    "write_rsl_rl_checkpoint",
]

OWN = "surefoot"
"""The key of what our files hold beyond rsl_rl's, which rsl_rl passes over."""

OPTIMIZER = "optimizer_state_dict"
RND = "rnd_state_dict"
RND_OPTIMIZER = "rnd_optimizer_state_dict"


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignCheckpoint:
    """A checkpoint of rsl_rl, under the names of release 5.

    Attributes:
        layout: Which layout the file had, for people.
        weights: State dicts by model: `actor` and `critic`, or `student` and `teacher`.
        shapes: What the weights say about each model.
        hints: What they do not say.
        iteration: Index of the last iteration, as rsl_rl counts: one less than were done.
        infos: Whatever was saved beside the models.
        optimizer: Adam over ``model/key``; None if the file has none.
        rnd: Random network distillation; None if the file has none.
        report: What became of each key of the file.
    """

    layout: str
    weights: dict[str, dict[str, Tensor]]
    shapes: dict[str, Architecture]
    hints: Hints = field(default_factory=Hints)
    iteration: int = 0
    infos: Any = None
    optimizer: AdamState | None = None
    rnd: RndWeights | None = None
    report: tuple[KeyReport, ...] = ()

    def model(self, role: str) -> RslRlModel:
        """Build one of the models as a torch module, on the CPU, without gradients.

        Raises:
            BadInput: The file has no such model.
        """
        if role not in self.weights:
            raise BadInput(f"the checkpoint has no {role}; there are: {', '.join(self.weights)}")
        return RslRlModel(self.shapes[role], self.weights[role], self.hints)

    @property
    def policy_role(self) -> str:
        """Name of the model that acts: `actor` or `student`."""
        return "actor" if "actor" in self.weights else "student"

    def describe(self) -> str:
        """Return what was found and what became of each key, for people."""
        lines = [f"layout: {self.layout}, iteration {self.iteration}"]
        lines += [f"{role}: {shape}" for role, shape in self.shapes.items()]
        if self.rnd is not None:
            lines.append(f"rnd: {self.rnd.num_states} -> {self.rnd.num_outputs}")
        lines.append(f"not in the file: activation {self.hints.activation}")
        if any(shape.normalized for shape in self.shapes.values()):
            lines[-1] += f", normalizer epsilon {self.hints.norm_eps:g}"
        for row in self.report:
            shape = "" if row.shape is None else f" {row.shape}"
            note = f" ({row.note})" if row.note else ""
            lines.append(f"  {row.key}{shape} -> {row.became or 'left out'}{note}")
        return "\n".join(lines)


def read_rsl_rl_checkpoint(path: Path, hints: Hints | None = None) -> ForeignCheckpoint:
    """Read a checkpoint of rsl_rl 1.x to 5.x: MLP or recurrent, PPO or distillation.

    Args:
        path: The file.
        hints: What no file says; None: rsl_rl's defaults.

    Raises:
        BadInput: The file cannot be read without running code, its layout is not one of rsl_rl
            (the keys that were found are listed), its parts do not fit each other, or it leaves
            open what the policy's head is and `hints` does not say.
    """
    return parse_rsl_rl_checkpoint(read_archive(path), path.name, hints or Hints())


def parse_rsl_rl_checkpoint(
    content: Mapping[str, Any], where: str, hints: Hints
) -> ForeignCheckpoint:
    """Make sense of the top-level dict of a checkpoint; see `read_rsl_rl_checkpoint`."""
    named = name_tensors(content, where)
    iteration = _whole_number(content.get("iter"), where)
    shapes = _infer(named, hints, where)
    optimizer, slots = _read_optimizer(content, named, where)
    rnd, rnd_report = _read_rnd(content, where)
    return ForeignCheckpoint(
        layout=named.layout,
        weights=named.models,
        shapes=shapes,
        hints=hints,
        iteration=iteration,
        infos=content.get("infos"),
        optimizer=optimizer,
        rnd=rnd,
        report=(*named.report, *slots, *rnd_report, *_report_rest(content, named)),
    )


def _whole_number(found: Any, where: str) -> int:
    """Return the iteration; some scripts save it as a tensor or as a number of NumPy."""
    try:
        number: Any = found.item() if isinstance(found, Tensor) else found
        return operator.index(number)
    except (TypeError, ValueError, RuntimeError):
        raise BadInput(f"'{where}': 'iter' is {found!r}, expected an integer") from None


def _infer(named: Named, hints: Hints, where: str) -> dict[str, Architecture]:
    """Read the shapes of all models off their weights."""
    known = {
        len(value)
        for state in named.models.values()
        for key, value in state.items()
        if key.startswith("distribution.") and value.ndim == 1
    }
    if len(known) > 1:
        raise BadInput(f"'{where}': the models have different numbers of actions: {sorted(known)}")
    num_actions = next(iter(known), None)
    try:
        return {
            role: infer_architecture(role, state, hints, num_actions)
            for role, state in named.models.items()
        }
    except BadInput as error:
        raise BadInput(f"'{where}': {error}") from None


def _read_optimizer(
    content: Mapping[str, Any], named: Named, where: str
) -> tuple[AdamState | None, list[KeyReport]]:
    if content.get(OPTIMIZER) is None:
        return None, []
    if not is_adam(content[OPTIMIZER]):
        note = "no state of Adam with one parameter group: training begins with moments of 0"
        return None, [KeyReport(key=OPTIMIZER, shape=None, became="", note=note)]
    # Distillation steps everything up to release 3 and the student alone from 4 on.
    student = [name for name in named.parameters if name.startswith("student/")]
    candidates = [named.parameters, *([student] if student else [])]
    parameters = _by_path(named.models)
    adam = read_adam(content[OPTIMIZER], candidates, parameters, f"{where}: {OPTIMIZER}")
    return adam, _report_adam(OPTIMIZER, adam)


def _read_rnd(content: Mapping[str, Any], where: str) -> tuple[RndWeights | None, list[KeyReport]]:
    if content.get(RND) is None:
        return None, []
    state = content[RND]
    tensors = isinstance(state, Mapping) and all(isinstance(v, Tensor) for v in state.values())
    if not tensors:
        raise BadInput(f"'{where}': '{RND}' is no state dict")
    num_states, num_outputs = check_rnd(state, f"{where}: {RND}")
    report = [
        KeyReport(key=f"{RND}/{key}", shape=tuple(value.shape), became=f"rnd/{key}")
        for key, value in state.items()
    ]
    adam = None
    if content.get(RND_OPTIMIZER) is not None:
        place = f"{where}: {RND_OPTIMIZER}"
        adam = read_adam(content[RND_OPTIMIZER], [predictor_names(state)], state, place)
        report += _report_adam(RND_OPTIMIZER, adam)
    weights = RndWeights(
        state=dict(state), optimizer=adam, num_states=num_states, num_outputs=num_outputs
    )
    return weights, report


def _report_adam(key: str, adam: AdamState) -> list[KeyReport]:
    return [
        KeyReport(
            key=f"{key}/{i}",
            shape=tuple(adam.slots[name].exp_avg.shape) if name in adam.slots else None,
            became=f"moments of {name}" if name in adam.slots else "",
            note="" if name in adam.slots else f"{name} has had no gradient",
        )
        for i, name in enumerate(adam.names)
    ]


def _report_rest(content: Mapping[str, Any], named: Named) -> list[KeyReport]:
    """Report the top-level entries that are no tensors."""
    used = {row.key.split("/")[0] for row in named.report} | {OPTIMIZER, RND, RND_OPTIMIZER}
    kept = {"iter": "iteration", "infos": "infos"}
    return [
        KeyReport(key=str(key), shape=None, became=kept.get(key, ""))
        for key in content
        if key not in used
    ]


def _by_path(models: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {
        f"{role}/{key}": value for role, state in models.items() for key, value in state.items()
    }


def rsl_rl_content(checkpoint: ForeignCheckpoint) -> dict[str, Any]:
    """Return a checkpoint as the top-level dict that rsl_rl 5.x saves and loads."""
    content: dict[str, Any] = {}
    order: list[str] = []
    for role, state in checkpoint.weights.items():
        ordered = {key: state[key] for key in sorted(state, key=_place_in_release_5)}
        content[f"{role}_state_dict"] = ordered
        if role != "teacher":
            order += [f"{role}/{key}" for key in ordered if not is_buffer(key)]
    if checkpoint.optimizer is not None:
        content[OPTIMIZER] = checkpoint.optimizer.to_torch(order)
    if checkpoint.rnd is not None:
        content[RND] = checkpoint.rnd.state
        if checkpoint.rnd.optimizer is not None:
            names = predictor_names(checkpoint.rnd.state)
            content[RND_OPTIMIZER] = checkpoint.rnd.optimizer.to_torch(names)
    return content | {"iter": checkpoint.iteration, "infos": checkpoint.infos}


def write_rsl_rl_checkpoint(path: Path, checkpoint: ForeignCheckpoint) -> None:
    """Write a file that rsl_rl 5.x loads, whole or not at all.

    Raises:
        BadInput: The file cannot be written.
    """
    write_archive(path, rsl_rl_content(checkpoint))


def _place_in_release_5(key: str) -> int:
    """Return where release 5 registers a module, by which its optimizer numbers parameters.

    Keys of one module keep their order: `sorted` is stable.
    """
    prefixes = (NORMALIZER, "distribution.", MLP, RNN, CNN)
    return next(i for i, prefix in enumerate(prefixes) if key.startswith(prefix))
