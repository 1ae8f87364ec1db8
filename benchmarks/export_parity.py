"""How far exports are from the checkpoint, for every network and head: a table in Markdown.

Each network is exported for every target and passes the gate, or the benchmark ends with the gate's
own words. Figures are the largest difference of an action over the gate's observations, and how
much of what is accepted that is.

    python benchmarks/export_parity.py [--targets ort-1.10 ort-1.14]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

from export.graph import Source
from export.onnx import TARGETS
from export.parity import GateReport
from export.write import export_source
from tests.helpers.checkpoints import make_actor
from tests.helpers.contracts import quadruped_contract, with_network
from tests.helpers.networks import Convolution, make_source, recurrent_source
from trainer.config import NetworkConfig


def sources() -> Iterator[tuple[str, str, Callable[[], Source]]]:
    """Every network there is: what it is, its head, and what makes it."""
    for activation in ("elu", "relu", "silu", "tanh"):
        config = NetworkConfig(actor_hidden=(512, 256, 128), activation=activation)
        yield f"MLP 512-256-128 {activation}", "Gaussian", lambda c=config: _actor(c)
    raw = NetworkConfig(actor_hidden=(256, 128), normalize_obs=False)
    yield "MLP 256-128 without normalizer", "Gaussian", lambda: _actor(raw)
    for activation in (nn.GELU, nn.Mish, nn.SELU):
        name = f"MLP 16 {activation.__name__.lower()}"
        yield (
            name,
            "tanh",
            lambda a=activation: recurrent_source(kind="none", activation=a, squash="tanh"),
        )
    yield "MLP 16 elu", "Beta", lambda: recurrent_source(kind="none", squash="beta")
    for kind in ("lstm", "gru"):
        for layers, squash in ((1, ""), (2, "tanh"), (3, "beta")):
            head = {"": "Gaussian", "tanh": "tanh", "beta": "Beta"}[squash]
            yield (
                f"{kind.upper()} {layers} x 256",
                head,
                lambda k=kind, n=layers, s=squash: recurrent_source(
                    kind=k, layers=n, hidden=256, squash=s
                ),
            )
    yield "convolution", "Gaussian", _convolution


def _actor(config: NetworkConfig) -> Source:
    normalizer = "in_graph" if config.normalize_obs else "none"
    contract = with_network(quadruped_contract(), normalizer=normalizer)
    return make_source(make_actor(contract, config), contract)


def _convolution() -> Source:
    contract = quadruped_contract()
    module = Convolution((contract.observation_dim, contract.num_actions))
    return make_source(module.requires_grad_(False).eval(), contract)


def row(name: str, head: str, target: str, gate: GateReport) -> str:
    """One line of the table."""

    def worst(*words: str) -> str:
        found = [error for what, error in gate.errors.items() if any(w in what for w in words)]
        return f"{max(found):.1e}" if found else ""

    used = max(group.error / group.tolerance for group in gate.groups.values())
    columns = (
        *(name, head, target, worst("onnxruntime", "runtime"), worst("TorchScript")),
        *(worst("checkpoint"), f"{gate.largest_action:.2g}", f"{100 * used:.0f} %"),
    )
    return f"| {' | '.join(columns)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    head = (
        *("network", "head", "target", "ONNX", "TorchScript", "torch, other batch"),
        *("largest action", "of the accepted"),
    )
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    with tempfile.TemporaryDirectory() as folder:
        for name, distribution, make in sources():
            source = make()
            for target in arguments.targets:
                _, gate = export_source(source, Path(folder) / "policy.onnx", target=target)
                print(row(name, distribution, target, gate), flush=True)


if __name__ == "__main__":
    main()
