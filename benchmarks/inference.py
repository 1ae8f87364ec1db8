"""What one policy step costs at 50 Hz while the other core is busy: ours, onnxruntime, torch.

Each runner is a process of its own, because threads of one would be counted for the other. They
take turns, several rounds each, so that all meet the same weather of a busy machine. A load
process keeps the last core busy with memory traffic all the while.

    python benchmarks/inference.py [--network mlp] [--seconds 6] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

PERIOD = 0.02
WARM_UP = 25

RUNNERS = {
    "ours": "surefoot, OnnxNetwork",
    "default": "onnxruntime, InferenceSession.run with defaults",
    "eager": "torch eager",
}

MAX_CPU_RATIO, MAX_P99_RATIO = 0.1, 1.5
"""Against onnxruntime's defaults: what a step of ours may take at most."""

LOAD = """
import os, sys
import numpy as np
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
a = np.ones(8_000_000)
while True:
    a += 1.0
"""

Step = Callable[[], Any]


def make_network(kind: str) -> Any:
    """The network as the export knows it: an MLP of 512-256-128, or an LSTM of 256."""
    from tests.helpers.checkpoints import make_actor
    from tests.helpers.contracts import quadruped_contract, with_network
    from tests.helpers.networks import make_source, recurrent_source
    from trainer.config import NetworkConfig

    if kind == "lstm":
        return recurrent_source(kind="lstm", hidden=256)
    contract = with_network(quadruped_contract(), normalizer="in_graph")
    config = NetworkConfig(actor_hidden=(512, 256, 128))
    return make_source(make_actor(contract, config), contract)


def make_step(runner: str, kind: str, policy: Path) -> Step:
    """One step of a runner, batch 1, observation in and action out."""
    from robot_runtime.policy.file import open_policy

    if runner == "ours":
        opened = open_policy(policy, replay=False)
        network = opened.network()
        obs = np.zeros(opened.contract.observation_dim, np.float32)
        return lambda: network(obs)
    if runner == "default":
        import onnxruntime as ort

        session = ort.InferenceSession(str(policy), providers=["CPUExecutionProvider"])
        feed = {
            arg.name: np.zeros([n if isinstance(n, int) else 1 for n in arg.shape], np.float32)
            for arg in session.get_inputs()
        }
        return lambda: session.run(None, feed)
    import torch

    source = make_network(kind)
    states = [torch.zeros(state.shape) for state in source.contract.network.states]
    whole = torch.zeros(1, source.contract.observation_dim)

    def eager() -> Any:
        with torch.no_grad():
            return source.module(whole, *states)

    return eager


def measure(runner: str, kind: str, policy: Path, seconds: float) -> dict[str, Any]:
    """Run one runner at its pace; latencies in microseconds, CPU of one core."""
    step = make_step(runner, kind, policy)
    for _ in range(WARM_UP):
        step()
    latencies: list[float] = []
    begin, cpu = time.perf_counter(), time.process_time()
    deadline = begin
    while time.perf_counter() - begin < seconds:
        deadline += PERIOD
        time.sleep(max(0.0, deadline - time.perf_counter()))
        start = time.perf_counter()
        step()
        latencies.append((time.perf_counter() - start) * 1e6)
    share = (time.process_time() - cpu) / (time.perf_counter() - begin)
    return {"latencies": latencies, "cpu": share}


def run_rounds(kind: str, policy: Path, seconds: float, rounds: int) -> dict[str, dict[str, Any]]:
    """Let the runners take turns; what each measured, all rounds together."""
    found: dict[str, dict[str, Any]] = {name: {"latencies": [], "cpu": []} for name in RUNNERS}
    # As a user's shell has it: the defaults of torch and onnxruntime are what is measured.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
    load = subprocess.Popen([sys.executable, "-c", LOAD])
    try:
        for _ in range(rounds):
            for runner in RUNNERS:
                command = [sys.executable, __file__, "--child", runner, "--network", kind]
                command += ["--policy", str(policy), "--seconds", str(seconds)]
                done = subprocess.run(
                    command, env=environment, capture_output=True, text=True, check=True
                )
                measured = json.loads(done.stdout.splitlines()[-1])
                found[runner]["latencies"] += measured["latencies"]
                found[runner]["cpu"].append(measured["cpu"])
    finally:
        load.kill()
        load.wait()
    return found


def report(kind: str, found: dict[str, dict[str, Any]]) -> None:
    """Print the table and the verdict."""
    print(f"\n{kind}: one step, batch 1, every {PERIOD * 1e3:g} ms, the other core loaded; us")
    print(f"{'':<48} {'p50':>8} {'p99':>8} {'max':>8}  CPU of one core")
    figures: dict[str, tuple[float, float]] = {}
    for runner, text in RUNNERS.items():
        values = np.array(found[runner]["latencies"])
        p50, p99 = np.percentile(values, [50, 99])
        share = float(np.median(found[runner]["cpu"]))
        figures[runner] = share, float(p99)
        print(f"{text:<48} {p50:8.0f} {p99:8.0f} {values.max():8.0f}  {100 * share:.1f} %")
    cpu, p99 = (ours / theirs for ours, theirs in zip(figures["ours"], figures["default"],
                                                      strict=True))  # fmt: skip
    for what, ratio, limit in (("CPU", cpu, MAX_CPU_RATIO), ("p99", p99, MAX_P99_RATIO)):
        verdict = "met" if ratio <= limit else "MISSED"
        print(f"{what} {ratio:.3f} of onnxruntime's defaults, target {limit}: {verdict}")


def main() -> None:
    """Measure, or be one of the runners."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--network", choices=("mlp", "lstm"), default="mlp")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--policy", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--child", choices=tuple(RUNNERS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(arguments.child, arguments.network, arguments.policy,
                                 arguments.seconds)))  # fmt: skip
        return
    from export.write import export_source

    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy.onnx"
        export_source(make_network(arguments.network), policy)
        found = run_rounds(arguments.network, policy, arguments.seconds, arguments.rounds)
    report(arguments.network, found)


if __name__ == "__main__":
    main()
