"""Files for old onnxruntimes, run in them: real wheels in environments of their own.

The old runtimes know nothing of this project. A short script with NumPy and the standard library
reads contract and golden trace from the file's metadata and replays the network, with its state.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from export.onnx import TARGETS
from export.write import export_source
from tests.helpers.networks import recurrent_source

ROOT = Path(__file__).resolve().parents[2]

REPLAY = """
import base64, io, json, sys
import numpy as np
import onnxruntime as ort
for path in sys.argv[1:]:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    contract = json.loads(metadata["surefoot.contract"])
    archive = io.BytesIO(base64.b64decode(metadata["surefoot.trace"]))
    trace = np.load(archive, allow_pickle=False)
    network = contract["network"]
    (block,) = contract["observation"]
    outputs = [network["output"]] + [state["output"] for state in network["states"]]
    worst, states = 0.0, {}
    for start, obs, wanted in zip(trace["start"], trace["observation"], trace["network_action"]):
        if start:
            states = {s["input"]: np.zeros(s["shape"], np.float32) for s in network["states"]}
        action, *after = session.run(outputs, dict(states, **{block["input"]: obs[None]}))
        states = {s["input"]: value for s, value in zip(network["states"], after)}
        worst = max(worst, float(np.abs(action[0] - wanted).max()))
    print(ort.__version__, worst)
"""
"""Prints the runtime's version and the largest difference, for each file."""

RUNTIMES = {
    "ort-1.10": ("3.8", "onnxruntime==1.10.0", "numpy<1.25"),
    "ort-1.12": ("3.8", "onnxruntime==1.12.1", "numpy<1.25"),
    "ort-1.14": ("3.8", "onnxruntime==1.14.1", "numpy<1.25"),
    "ort-1.18": ("3.10", "onnxruntime==1.18.1", "numpy<2"),
}

NETWORKS: list[dict[str, Any]] = [
    {"kind": "none"},
    {"kind": "none", "activation": torch.nn.GELU, "squash": "tanh"},
    {"kind": "none", "activation": torch.nn.Mish, "squash": "beta"},
    {"kind": "lstm", "layers": 2, "activation": torch.nn.SiLU},
    {"kind": "gru", "layers": 2, "squash": "tanh", "activation": torch.nn.SELU},
]


def find_python(version: str) -> Path:
    """A Python of this version, wherever a version manager may have put it."""
    candidates = [
        shutil.which(f"python{version}"),
        *sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(
            f"versions/{version}.*/bin/python"
        )),
    ]  # fmt: skip
    for candidate in filter(None, candidates):
        done = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False)
        if done.returncode == 0 and f" {version}." in done.stdout:
            return Path(candidate)
    pytest.skip(f"no Python {version} on this machine")


def environment(folder: Path, version: str, *packages: str) -> Path:
    """Make an environment with these packages; returns its Python."""
    subprocess.run([find_python(version), "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *packages]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return python


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Every network for every target."""
    folder = tmp_path_factory.mktemp("files")
    made: dict[str, list[Path]] = {target: [] for target in TARGETS}
    for (i, settings), target in itertools.product(enumerate(NETWORKS), TARGETS):
        path = folder / f"{target}-{i}.onnx"
        export_source(recurrent_source(**settings), path, target=target)
        made[target].append(path)
    return made


def test_the_format_is_not_above_the_target(tmp_path: Path) -> None:
    """Runtime 1.10 knows opset 15, 1.12 opset 17, 1.14 opset 18, all IR 8; 1.18 21 and 10."""
    known = {"ort-1.10": (15, 8), "ort-1.12": (17, 8), "ort-1.14": (18, 8), "ort-1.18": (21, 10)}
    source = recurrent_source(kind="gru")
    for target, (opset, ir_version) in known.items():
        export_source(source, tmp_path / "p.onnx", target=target)
        model = onnx.load(str(tmp_path / "p.onnx"))
        assert model.ir_version <= ir_version
        assert [item.domain for item in model.opset_import] == [""]
        assert model.opset_import[0].version <= opset
        assert not any(item.external_data for item in model.graph.initializer)
    assert [path.name for path in tmp_path.iterdir()] == ["p.onnx"]


@pytest.mark.slow
@pytest.mark.parametrize("target", RUNTIMES)
def test_the_target_runs_what_was_written_for_it(
    target: str, files: dict[str, list[Path]], tmp_path: Path
) -> None:
    """In the runtime itself: golden trace replayed within a tenth of what a robot accepts."""
    python = environment(tmp_path / "venv", *RUNTIMES[target])
    lonely = tmp_path / "lonely"
    lonely.mkdir()
    for path in files[target]:
        shutil.copy(path, lonely)
    done = subprocess.run(
        [python, "-I", "-c", REPLAY, *sorted(os.listdir(lonely))],
        cwd=lonely,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == len(NETWORKS)
    for version, worst in lines:
        assert f"onnxruntime=={version}" in RUNTIMES[target]
        assert float(worst) <= 1e-5, done.stdout


@pytest.mark.slow
def test_the_lonely_file_in_the_oldest_declared_environment(
    files: dict[str, list[Path]], tmp_path: Path
) -> None:
    """Nothing but the file, the ground floor and the oldest versions its package declares."""
    requirements = ("numpy==2.0.0", "onnxruntime==1.20.0", "array-api-compat==1.10.0")
    python = environment(tmp_path / "venv", "3.10", *requirements)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", ROOT], check=True)
    lonely = tmp_path / "lonely"
    lonely.mkdir()
    command = python.with_name("surefoot")
    for path in (*files["ort-1.10"], *files["ort-1.14"]):
        shutil.copy(path, lonely / "policy.onnx")
        for arguments, said in (
            (["inspect", "policy.onnx"], "reproduced; largest differences"),
            (["run", "policy.onnx", "--robot", "mock", "--duration", "0.3"], ""),
        ):
            done = subprocess.run(
                [command, *arguments], cwd=lonely, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert said in done.stdout
        (lonely / "policy.onnx").unlink()
