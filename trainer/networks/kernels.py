"""Faster CPU kernels for training multi-layer perceptrons; the results are those of torch.

On CPUs with AVX-512 that are not Intel's, the BLAS inside torch stays on AVX2, while oneDNN, which
torch ships as well, uses the full width: matrix products take half the time. torch reaches oneDNN
for float32 only through the operator that its compiler emits, so that operator is called here.
Wherever it cannot be had, and for everything that is not training, the ordinary path runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

_MIN_ROWS = 512
"""Below that the operator's overhead eats its gain, and each new shape costs a compilation."""


class Linear(nn.Linear):
    """`torch.nn.Linear` that trains through oneDNN where that is faster."""

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input @ weight.T + bias``, shape ``(..., out_features)``."""
        if _worthwhile(input, self.weight):
            return _OneDnnLinear.apply(input, self.weight, self.bias)
        return functional.linear(input, self.weight, self.bias)


class Elu(nn.Module):
    """ELU for the output of a `Linear` that feeds another one; overwrites its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x where it is positive, exp(x) - 1 elsewhere."""
        # A compiler fuses the plain form by itself, and exporters know it.
        if x.requires_grad and not torch.compiler.is_compiling():
            return _InPlaceElu.apply(x)
        return functional.elu(x, inplace=True)


class _OneDnnLinear(torch.autograd.Function):
    """The linear layer and its gradients as oneDNN products of dense matrices."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        # oneDNN knows plain and transposed matrices. Rows with gaps between them it would hand to
        # a reference loop, a thousand times slower.
        x = x.contiguous()
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - the decorator drops names
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        grad = grad_outputs[0].contiguous()
        grad_x = _product(grad, weight.t()) if ctx.needs_input_grad[0] else None
        # The operator copies its first operand if that is transposed: let it be the smaller one.
        if grad.shape[1] <= x.shape[1]:
            grad_weight = _product(grad.t(), x.t())
        else:
            grad_weight = _product(x.t(), grad.t()).t()
        return grad_x, grad_weight, grad.sum(0)


class _InPlaceElu(torch.autograd.Function):
    """ELU that overwrites its input going forward and the incoming gradient going back.

    The derivative follows from the result. Overwriting the gradient is right between two linear
    layers: the next layer made it by a matrix product and nobody else has it. It saves an array
    per layer, which is a tenth of the time of an update on a CPU.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        functional.elu(x, inplace=True)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - the decorator drops names
        ctx: Any, *grad_outputs: Tensor
    ) -> Tensor:
        (grad,) = grad_outputs
        (result,) = ctx.saved_tensors
        return torch.ops.aten.elu_backward.grad_input(
            grad, 1.0, 1.0, 1.0, True, result, grad_input=grad
        )


def _product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``a @ b.T + bias``; `a` and `b` dense or transposes of dense matrices."""
    return torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")


def _one_dnn_pays() -> bool:
    """Return whether this CPU and this build of torch make oneDNN the faster one."""
    if not torch.backends.mkldnn.is_available():
        return False
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        return False
    return hasattr(torch.ops.mkldnn, "_linear_pointwise")


_ONE_DNN_PAYS = _one_dnn_pays()


def _worthwhile(x: Tensor, weight: Tensor) -> bool:
    """Return whether a layer should go through oneDNN: large batches in training on the CPU."""
    return (
        _ONE_DNN_PAYS
        and weight.requires_grad
        and x.ndim == 2
        and x.shape[0] >= _MIN_ROWS
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and not torch.compiler.is_compiling()
    )
