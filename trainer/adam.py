"""Adam (Kingma and Ba 2014, arXiv:1412.6980), with next to nothing around its one fused kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

BETAS = (0.9, 0.999)
"""Decay of the running means of the gradient and of its square."""


class Adam:
    """`torch.optim.Adam` of one parameter group, result for result.

    Around the kernel, torch's class walks through modules, hooks, groups, devices and one step
    count per parameter. For networks of legged robots and small minibatches that takes several
    times longer than the kernel.

    Attributes:
        parameters: What is stepped.
        lr: Step size, 0-d tensor, read at each step.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, lr: Tensor, eps: float) -> None:
        """Start with moments of 0.

        Args:
            parameters: What to step, all on one device.
            lr: Step size, 0-d tensor on that device; it may change from step to step.
            eps: Added to the root of the second moment.
        """
        self.parameters = list(parameters)
        self._weights: list[Tensor] = [*self.parameters]
        self.lr = lr
        self._eps = eps
        self._first = [torch.zeros_like(p) for p in self.parameters]
        self._second = [torch.zeros_like(p) for p in self.parameters]
        # The kernel wants a count for each parameter: views of one vector are counted at once.
        self._count = torch.zeros(len(self.parameters), device=lr.device)
        self._counts = list(self._count.unbind())

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, skip: Tensor) -> None:
        """Take a step.

        Args:
            skip: Whether to leave everything as it is, bool, 0-d. The kernel sees to that, so
                the host need not know.
        """
        found = skip.float()
        self._count += 1.0 - found
        torch._fused_adam_(  # pyright: ignore - torch exports it without types
            self._weights,
            gradients(self.parameters),
            self._first,
            self._second,
            [],
            self._counts,
            lr=self.lr,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=found,
        )

    def moments(self) -> dict[str, Tensor]:
        """Return everything that changes with the steps, as it lives, by name."""
        return {
            "step": self._count,
            **{f"{i}.exp_avg": moment for i, moment in enumerate(self._first)},
            **{f"{i}.exp_avg_sq": moment for i, moment in enumerate(self._second)},
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state as `torch.optim.Adam` has it; without a step there are no moments."""
        names, numbers = ("step", "exp_avg", "exp_avg_sq"), range(len(self.parameters))
        counts = self._count.clone().unbind()
        slots = zip(counts, self._first, self._second, strict=True)
        state = {i: dict(zip(names, slot, strict=True)) for i, slot in enumerate(slots)}
        group = {
            "lr": self.lr,
            "betas": BETAS,
            "eps": self._eps,
            "weight_decay": 0.0,
            "amsgrad": False,
            "maximize": False,
            "foreach": None,
            "capturable": False,
            "differentiable": False,
            "fused": True,
            "decoupled_weight_decay": False,
            "params": list(numbers),
        }
        stepped = {i: state[i] for i, count in enumerate(self._count.tolist()) if count}
        return {"state": stepped, "param_groups": [group]}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over moments and learning rate; a parameter that has none begins anew.

        Raises:
            ValueError: The state is of other parameters.
        """
        (group,) = state["param_groups"]
        if len(group["params"]) != len(self.parameters):
            raise ValueError(
                f"the optimizer's state is of {len(group['params'])} parameters, there are "
                f"{len(self.parameters)}"
            )
        for i, number in enumerate(group["params"]):
            live = {"step": self._counts[i], "exp_avg": self._first[i]}
            live["exp_avg_sq"] = self._second[i]
            for name, tensor in live.items():
                found = state["state"].get(number, {}).get(name)
                if found is not None and found.shape != tensor.shape:
                    raise ValueError(
                        f"the optimizer's state of parameter {i} has shape {tuple(found.shape)}, "
                        f"the parameter {tuple(tensor.shape)}"
                    )
                tensor.zero_() if found is None else tensor.copy_(found)
        self.lr.copy_(torch.as_tensor(group["lr"]))


def gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return the gradients, 0 where there are none."""
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]


@torch.no_grad()
def clip_gradients(parameters: Sequence[nn.Parameter], max_norm: float) -> Tensor:
    """Scale gradients down so that their norm is `max_norm` at most, as torch does.

    Returns:
        The norm before, 0-d.
    """
    grads = gradients(parameters)
    norm = torch.cat([grad.reshape(-1) for grad in grads]).norm()
    share = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(grads, share)  # pyright: ignore[reportPrivateImportUsage]
    return norm
