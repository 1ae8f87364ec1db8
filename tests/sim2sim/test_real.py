"""Policies nobody here wrote: their contracts, their recorded runs, and how they walk here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_runtime.cli import main
from robot_runtime.control.modes import Mode
from robot_runtime.policy.file import PolicyFile, write_policy
from robot_runtime.policy.inference import OnnxNetwork
from robot_runtime.policy.proof import Tolerances
from tests.helpers.real_contracts import read_facts, real_contract, real_trace

CASES = ("playground__go1", "unitree_rl_lab__g1")


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, real_dir: Path) -> Path:
    return real_dir / request.param


@pytest.fixture(scope="module")
def policy(case: Path, tmp_path_factory: pytest.TempPathFactory) -> PolicyFile:
    contract, facts = real_contract(case), read_facts(case)
    model = (case / facts["policy"]["file"]).read_bytes()
    trace = real_trace(case, contract, OnnxNetwork(model, contract))
    return write_policy(
        tmp_path_factory.mktemp("real") / f"{case.name}.onnx",
        model,
        contract=contract,
        trace=trace,
        provenance={"source": facts["case"]},
        report={},
    )


def test_the_recorded_run_is_replayed(policy: PolicyFile) -> None:
    """Writing has replayed it within the house's tolerances, which are the ones promised."""
    assert Tolerances() == Tolerances(observation=1e-5, action=1e-4, target=1e-5)
    assert policy.replayed is not None
    assert policy.replayed.rows >= 500
    assert policy.trace.origin == "recorded"


def _close(measured: float, stated: float) -> bool:
    return abs(measured - stated) <= max(0.03, 0.1 * abs(stated))


@pytest.mark.parametrize("name", ["fwd0.5", "fwd1.0", "lat0.3", "yaw0.5", "stand"])
def test_it_walks_in_sim2sim_as_stated(
    case: Path, policy: PolicyFile, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = read_facts(case)
    command = ",".join(str(value) for value in facts["expected"]["commands"][name])
    arguments = ["--model", str(case / "model.xml"), "--command", command, "--duration", "20"]
    main(["sim2sim", str(policy.path), *arguments, "--json"])
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["failure"] == ""
    (segment,) = run["metrics"]["segments"]
    stated = facts["expected"]["results"][name]
    for measured, key in zip(segment["velocity"], ("vx", "vy", "wz"), strict=True):
        assert _close(measured, stated[key]), (key, measured, stated[key])


@pytest.mark.usefixtures("unhurried")
def test_it_walks_in_real_time_as_stated(
    case: Path, policy: PolicyFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "flight.npz"
    option = f"model={case / 'model.xml'}"
    arguments = ["--robot", "sim", "--option", option, "--command", "0.5,0,0", "--duration", "9"]
    assert main(["run", str(policy.path), *arguments, "--log", str(log)]) == 0, capsys.readouterr()
    with np.load(log, allow_pickle=False) as npz:
        rows = {name: np.array(npz[name]) for name in ("mode", "elapsed", "base_lin_vel_b")}
    walking = (rows["mode"] == Mode.POLICY) & (rows["elapsed"] >= 3.0)
    stated: dict[str, Any] = read_facts(case)["expected"]["results"]["fwd0.5"]
    vx, vy, _ = rows["base_lin_vel_b"][walking].mean(axis=0)
    assert _close(float(vx), stated["vx"])
    assert _close(float(vy), stated["vy"])
