"""The fast layers against torch's own in double precision."""

import pytest
import torch
from torch import Tensor, nn

from trainer.networks import kernels
from trainer.networks.mlp import make_mlp

WIDTHS = (10, 64, 32, 3)


def gradients(net: nn.Module, x: Tensor) -> list[Tensor]:
    net.zero_grad()
    y = net(x)
    y.square().mean().backward()
    return [y.detach(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)]


def reference(net: nn.Sequential, activation: nn.Module) -> nn.Sequential:
    """The same network of torch's modules, in double precision."""
    layers: list[nn.Module] = []
    for layer in net:
        if isinstance(layer, nn.Linear):
            twin = nn.Linear(layer.in_features, layer.out_features, dtype=torch.float64)
            twin.load_state_dict(layer.state_dict())
            layers.append(twin)
        else:
            layers.append(activation)
    return nn.Sequential(*layers)


@pytest.mark.parametrize("one_dnn", [True, False])
@pytest.mark.parametrize(
    ("name", "activation"),
    [("elu", nn.ELU()), ("relu", nn.ReLU()), ("silu", nn.SiLU()), ("tanh", nn.Tanh())],
)
def test_outputs_and_gradients(
    monkeypatch: pytest.MonkeyPatch, one_dnn: bool, name: str, activation: nn.Module
) -> None:
    if one_dnn and not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no oneDNN")
    monkeypatch.setattr(kernels, "_ONE_DNN_PAYS", one_dnn)
    g = torch.Generator().manual_seed(0)
    net = make_mlp(10, WIDTHS[1:-1], 3, activation=name, out_gain=1.0, generator=g)
    # A view with gaps between its rows, as a slice of a wider table would be.
    x = torch.randn(700, 16, generator=g)[:, 3:13]
    for ours, theirs in zip(
        gradients(net, x), gradients(reference(net, activation), x.double()), strict=True
    ):
        # float32 sums of up to 700 terms.
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)


def test_small_batches_and_frozen_weights_take_the_ordinary_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "_ONE_DNN_PAYS", True)
    monkeypatch.setattr(kernels, "_OneDnnLinear", None)  # to call it is an error
    layer = kernels.Linear(4, 2)
    layer(torch.randn(8, 4))
    layer.requires_grad_(False)
    layer(torch.randn(2000, 4))


def test_initialization_is_orthogonal_and_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    g = torch.Generator().manual_seed(0)
    net = make_mlp(64, (32,), 3, activation="elu", out_gain=0.01, generator=g)
    assert torch.equal(torch.get_rng_state(), before)
    first, last = (layer.weight for layer in net if isinstance(layer, nn.Linear))
    torch.testing.assert_close(first @ first.T, 2.0 * torch.eye(32), atol=1e-5, rtol=0.0)
    torch.testing.assert_close(last @ last.T, 1e-4 * torch.eye(3), atol=1e-9, rtol=0.0)
