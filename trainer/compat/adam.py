"""The state of torch's Adam by parameter names instead of slot numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robot_runtime.errors import BadInput

_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamSlot:
    """What Adam remembers of one parameter.

    Attributes:
        step: Steps taken.
        exp_avg: Running mean of the gradient, shape of the parameter.
        exp_avg_sq: Running mean of its square, shape of the parameter.
    """

    step: float
    exp_avg: Tensor
    exp_avg_sq: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamState:
    """The state of an Adam optimizer with one parameter group.

    Attributes:
        lr: Learning rate.
        betas: Decay of the two running means.
        eps: Adam's epsilon.
        weight_decay: Weight decay.
        names: Every parameter it steps, in its order.
        slots: What it remembers, by parameter; a parameter without gradients so far has none.
    """

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    names: tuple[str, ...]
    slots: Mapping[str, AdamSlot]

    def to_torch(self, order: Sequence[str]) -> dict[str, Any]:
        """Return the state dict of a `torch.optim.Adam` over parameters in another order."""
        template = torch.optim.Adam(
            [torch.nn.Parameter(torch.zeros(1)) for _ in order],
            lr=self.lr,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
        ).state_dict()
        state = {
            i: {
                "step": torch.tensor(self.slots[name].step, dtype=torch.float32),
                "exp_avg": self.slots[name].exp_avg.clone(),
                "exp_avg_sq": self.slots[name].exp_avg_sq.clone(),
            }
            for i, name in enumerate(order)
            if name in self.slots
        }
        return {"state": state, "param_groups": template["param_groups"]}


def adam_of(state: Mapping[str, Any], names: Sequence[str]) -> AdamState:
    """Name what an optimizer of ours remembers, on the CPU.

    Args:
        state: The state dict of an Adam with one parameter group.
        names: Its parameters, in its order.
    """
    (group,) = state["param_groups"]
    slots: dict[str, AdamSlot] = {
        names[int(i)]: AdamSlot(
            step=float(slot["step"]),
            exp_avg=slot["exp_avg"].cpu().clone(),
            exp_avg_sq=slot["exp_avg_sq"].cpu().clone(),
        )
        for i, slot in state["state"].items()
    }
    return AdamState(
        lr=float(group["lr"]),
        betas=tuple(group["betas"]),
        eps=float(group["eps"]),
        weight_decay=float(group["weight_decay"]),
        names=tuple(names),
        slots=slots,
    )


def is_adam(content: Any) -> bool:
    """Return whether something is the state of an Adam (or AdamW) with one parameter group."""
    try:
        (group,) = content["param_groups"]
        return "betas" in group
    except (KeyError, TypeError, ValueError):
        return False


def read_adam(
    content: Any, candidates: Iterable[Sequence[str]], shapes: Mapping[str, Tensor], where: str
) -> AdamState:
    """Give the slots of an Adam optimizer the names of their parameters.

    Args:
        content: Its state dict.
        candidates: Lists of names it may hold, in slot order; the first with as many names as
            there are slots is taken.
        shapes: The parameters, by name.
        where: File and key, for messages.

    Raises:
        BadInput: This is no Adam with one group, its slots are not as many as the parameters, or
            the moments of a slot have another shape than its parameter.
    """
    try:
        (group,) = content["param_groups"]
        numbers, state = list(group["params"]), dict(content["state"])
        settings = {
            "lr": float(group["lr"]),
            "betas": (float(group["betas"][0]), float(group["betas"][1])),
            "eps": float(group["eps"]),
            "weight_decay": float(group.get("weight_decay", 0.0)),
        }
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise BadInput(f"'{where}' is no state of Adam with one parameter group") from error
    lists = [tuple(names) for names in candidates]
    names = next((names for names in lists if len(names) == len(numbers)), None)
    if names is None:
        counts = " or ".join(str(len(names)) for names in lists)
        raise BadInput(f"'{where}' has {len(numbers)} slots; the models have {counts} parameters")
    slots: dict[str, AdamSlot] = {}
    for number, name in zip(numbers, names, strict=True):
        if number in state:
            slots[name] = _slot(state[number], shapes[name], f"{where}' slot {number} ('{name}")
    return AdamState(**settings, names=names, slots=slots)


def _slot(found: Any, parameter: Tensor, where: str) -> AdamSlot:
    try:
        step = float(found["step"])
        first, second = (found[name] for name in _MOMENTS)
        shapes = {tuple(first.shape), tuple(second.shape)}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"'{where}') holds no moments of Adam") from error
    if shapes != {tuple(parameter.shape)}:
        raise BadInput(
            f"'{where}') has moments of shape {tuple(first.shape)}, its parameter has "
            f"{tuple(parameter.shape)}"
        )
    return AdamSlot(step=step, exp_avg=first.float(), exp_avg_sq=second.float())
