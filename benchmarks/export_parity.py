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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from export.graph import Source, read_source
from export.onnx import TARGETS
from export.parity import GateReport
from export.write import export_source
from robot_runtime.errors import Refused
from tests.helpers.checkpoints import make_checkpoint
from tests.helpers.contracts import quadruped_contract, with_network
from trainer.config import EncoderConfig, NetworkConfig

WIDE: dict[str, Any] = {"actor_hidden": (512, 256, 128)}
HEADS: dict[str, dict[str, Any]] = {
    "gaussian": {},
    "state-gaussian": {"head": "state-gaussian"},
    "tanh": {"head": "tanh", "action_range": (-3.0, 3.0)},
    "beta": {"head": "beta", "action_range": (-3.0, 3.0)},
}
GRID = (9, 5)
"""The 45 observations of the plain quadruped, as if they were a picture."""

ENCODERS = {
    "conv1d": EncoderConfig(kind="conv1d", shape=GRID, width=32, channels=(8, 16)),
    "conv2d": EncoderConfig(kind="conv2d", shape=GRID, width=32, channels=(8, 16)),
    "attention": EncoderConfig(kind="attention", shape=GRID, width=32, heads=2),
}


def networks() -> Iterator[tuple[str, str, NetworkConfig]]:
    """Every network and head there is: what it is, its head, its settings."""
    for activation in ("elu", "relu", "silu", "tanh"):
        yield f"MLP, {activation}", "gaussian", NetworkConfig(activation=activation, **WIDE)
    yield "MLP, no normalizer", "gaussian", NetworkConfig(normalize_obs=False, **WIDE)
    for head in list(HEADS)[1:]:
        yield "MLP, elu", head, NetworkConfig(**WIDE, **HEADS[head])
    for kind in ("lstm", "gru"):
        for layers, head in ((1, "gaussian"), (2, "tanh"), (3, "beta")):
            settings = {"kind": kind, "rnn_hidden": 256, "rnn_layers": layers, **HEADS[head]}
            yield f"{kind.upper()}, {layers} x 256", head, NetworkConfig(**settings)
    shared = {"kind": "gru", "rnn_hidden": 64, "shared": True, "trunk_hidden": (64,)}
    yield "GRU, shared body", "gaussian", NetworkConfig(**shared)
    for kind, encoder in ENCODERS.items():
        yield kind, "gaussian", NetworkConfig(encoders=(encoder,))


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


def measured(name: str, head: str, source: Source, target: str, output: Path) -> str:
    """The line of one export."""
    try:
        _, gate = export_source(source, output, target=target)
    except Refused as refusal:
        return f"| {name} | {head} | {target} | refused: {refusal} |"
    return row(name, head, target, gate)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    columns = (
        *("network", "head", "target", "ONNX", "TorchScript", "torch, other batch"),
        *("largest action", "of the accepted"),
    )
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    with tempfile.TemporaryDirectory() as folder:
        for name, head, config in networks():
            normalizer = "in_graph" if config.normalize_obs else "none"
            contract = with_network(quadruped_contract(), normalizer=normalizer)
            made = make_checkpoint(Path(folder) / "it.pt", contract, network=config)
            source = read_source(made.path)
            for target in arguments.targets:
                line = measured(name, head, source, target, Path(folder) / "policy.onnx")
                print(line, flush=True)


if __name__ == "__main__":
    main()
