"""From a checkpoint to files: what is inside, what agrees with what, what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import export.write
from export.command import describe
from export.graph import batch_network, check_normalizer, make_policy, read_source
from export.onnx import TARGETS, export_onnx
from export.parity import TOLERANCE, random_observations
from export.torchscript import read_torchscript, trace_module
from export.write import Exported, export_checkpoint
from robot_runtime.errors import BadInput, Refused
from robot_runtime.policy.file import open_policy
from robot_runtime.policy.inference import OnnxNetwork
from tests.helpers.checkpoints import CONSTANT, MadeCheckpoint, make_actor, make_checkpoint
from tests.helpers.contracts import quadruped_contract, rich_contract
from trainer.checkpoint import load_checkpoint
from trainer.config import NetworkConfig


def test_all_paths_give_the_actions_of_the_checkpoint(
    made: MadeCheckpoint, exported: Exported
) -> None:
    """1000 observations of which 100 are 50 deviations out: within 2e-6 x max(1, largest)."""
    gate = exported.gate
    assert (gate.random, gate.outliers) == (1000, 100)
    assert gate.recorded == exported.policy.trace.rows
    assert gate.tolerance == TOLERANCE * gate.largest_action
    assert set(gate.errors) == {
        "golden trace",
        "checkpoint, batch 1",
        "onnxruntime, batch 64",
        "onnxruntime, batch 1",
        "TorchScript, batch 64",
        "TorchScript, batch 1",
        "runtime, batch 1",
        "runtime from states",
    }
    assert all(error <= gate.tolerance for error in gate.errors.values())
    assert set(gate.groups) == {"ordinary", "outliers", "recorded"}
    for group in gate.groups.values():
        assert group.tolerance == TOLERANCE * max(1.0, group.largest_action) <= gate.tolerance
        assert group.error <= group.tolerance
    # The same again without the gate's help, on other observations and from the files.
    normalizer = made.normalizer
    obs = random_observations(normalizer.mean.float().numpy(), np.full(45, 2.0, np.float32), seed=9)
    expected = made.actor(torch.from_numpy(obs)).numpy()
    bound = 2e-6 * max(1.0, float(np.abs(expected).max()))
    opened = open_policy(exported.policy.path)
    assert np.abs(opened.network().batch(obs) - expected).max() <= bound
    assert exported.torchscript is not None
    module, contract, _ = read_torchscript(exported.torchscript)
    assert np.abs(module(torch.from_numpy(obs)).numpy() - expected).max() <= bound
    assert contract == opened.contract == made.contract


def test_the_file_is_for_old_and_new_runtimes(exported: Exported) -> None:
    """Single file, opset 18, IR 8, a free batch, nothing of this machine inside."""
    model = onnx.load_from_string(exported.policy.model)
    onnx.checker.check_model(model, full_check=True)
    assert model.ir_version == 8
    assert [(item.domain, item.version) for item in model.opset_import] == [("", 18)]
    (obs,), (action,) = model.graph.input, model.graph.output
    assert obs.type.tensor_type.shape.dim[0].dim_param == "batch"
    assert action.type.tensor_type.shape.dim[0].dim_param == "batch"
    assert not any(item.external_data for item in model.graph.initializer)
    assert not any(node.metadata_props or node.doc_string for node in model.graph.node)
    folder = exported.policy.path.parent
    assert sorted(os.listdir(folder)) == ["policy.onnx", "policy.pt"]
    for path in folder.iterdir():
        content = path.read_bytes()
        for name in (str(Path.cwd()), str(Path(torch.__file__).parents[1]), str(folder)):
            assert name.encode() not in content


def test_provenance_says_where_it_comes_from(made: MadeCheckpoint, exported: Exported) -> None:
    provenance = exported.policy.provenance
    digest = hashlib.sha256(made.path.read_bytes()).hexdigest()
    assert provenance["checkpoint_sha256"] == digest
    assert (provenance["task"], provenance["seed"]) == ("quadruped-test", 7)
    assert (provenance["iteration"], provenance["env_steps"]) == (12, 3456)
    for package in ("python", "torch", "onnx", "onnxruntime", "mujoco"):
        assert provenance["exported_with"][package]
    assert provenance["trained_with"]["torch"] == torch.__version__
    assert "git_commit" in provenance


@pytest.mark.parametrize("target", ["ort-1.10", "ort-1.14"])
def test_constant_features_are_named_and_bounded(
    made: MadeCheckpoint, exported: Exported, tmp_path: Path, target: str
) -> None:
    """Constant in training, 0.5 off at deployment: with eps 0.01 that is 50, and the bound 10."""
    if target != exported.gate.target:
        exported = export_checkpoint(made.path, tmp_path / "p.onnx", target=target)
    names = ["projected_gravity[y]", "joint_vel[RR_hip_joint]"]
    assert list(exported.gate.constant_features) == names
    assert exported.gate.normalized_bound == 10.0
    assert exported.policy.report["constant_features"] == names
    network = exported.policy.network()
    obs = np.zeros(45, np.float32)
    # What the normalizer saw of this feature was always 0.25, and 10 x 0.01 is the bound.
    obs[CONSTANT[0]] = 0.25 + 0.5
    off = network(obs)
    obs[CONSTANT[0]] = 0.25 + 0.1
    np.testing.assert_allclose(off, network(obs), atol=1e-5)
    obs[CONSTANT[0]] = 0.25
    assert np.abs(off - network(obs)).max() > 0.1
    assert f"bounded at 10 deviations): {', '.join(names)}" in describe(exported)


def test_constant_features_that_nothing_bounds_are_named_as_such(tmp_path: Path) -> None:
    network = NetworkConfig(actor_hidden=(32, 16), obs_clip=0.0)
    made = make_checkpoint(tmp_path / "x.pt", network=network, constant=CONSTANT)
    exported = export_checkpoint(made.path, tmp_path / "p.onnx", target="ort-1.10")
    assert exported.gate.normalized_bound is None
    assert "nothing bounds what they do to the policy): projected_gravity[y]" in describe(exported)


def test_equal_checkpoints_give_equal_files(made: MadeCheckpoint, exported: Exported) -> None:
    again = export_checkpoint(made.path, exported.policy.path.with_name("again.onnx"))
    again.policy.path.unlink()
    assert again.policy.sha256 == exported.policy.sha256


def test_torchscript_carries_the_same_and_its_seal(tmp_path: Path, exported: Exported) -> None:
    assert exported.torchscript is not None
    module, contract, trace = read_torchscript(exported.torchscript)
    assert contract == exported.policy.contract
    assert trace.to_bytes() == exported.policy.trace.to_bytes()
    assert isinstance(module, torch.jit.ScriptModule)
    files = {"contract.json": "", "provenance.json": "", "report.json": "", "seal.json": ""}
    torch.jit.load(str(exported.torchscript), _extra_files=files)
    assert json.loads(files["contract.json"]) == contract.to_dict()
    assert json.loads(files["provenance.json"]) == exported.policy.provenance
    data = exported.torchscript.read_bytes()
    damaged = tmp_path / "damaged.pt"
    for old, new, words in (
        (b'"kp":25.0', b'"kp":26.0', "its contract is not"),
        (b'"seed":7', b'"seed":8', "its provenance is not"),
        (b"clamp", b"clamq", "its graph is not"),
    ):
        with zipfile.ZipFile(exported.torchscript) as source, zipfile.ZipFile(damaged, "w") as out:
            for name in source.namelist():
                out.writestr(name, source.read(name).replace(old, new))
        with pytest.raises(BadInput, match=words):
            read_torchscript(damaged)
    for length in (0, 100, len(data) // 2, len(data) - 1):
        damaged.write_bytes(data[:length])
        with pytest.raises(BadInput, match=r"damaged\.pt"):
            read_torchscript(damaged)


def test_several_inputs_and_no_normalizer() -> None:
    contract = rich_contract()
    assert list(contract.inputs()) == ["obs", "past"]
    network = NetworkConfig(actor_hidden=(16,), normalize_obs=False, activation="tanh")
    module = make_policy(make_actor(contract, network))
    runtime = OnnxNetwork(export_onnx(module, contract, None, TARGETS["ort-1.14"]), contract)
    traced = batch_network(trace_module(module, contract), contract)
    assert runtime.dynamic
    rng = np.random.default_rng(0)
    for batch in (1, 2, 7):
        obs = rng.normal(size=(batch, contract.observation_dim)).astype(np.float32)
        expected = batch_network(module, contract)(obs)
        bound = 2e-6 * np.abs(expected).max()
        assert np.abs(runtime.batch(obs) - expected).max() <= bound
        assert np.abs(traced(obs) - expected).max() <= bound


def test_no_simulator_is_needed(tmp_path: Path, made: MadeCheckpoint) -> None:
    """A process that cannot import one turns the checkpoint into both files."""
    program = """
import sys
for name in ("mujoco", "mujoco_warp", "gymnasium", "isaaclab", "isaacgym"):
    sys.modules[name] = None
from robot_runtime.cli import main
sys.exit(main(["export", sys.argv[1], "-o", "policy.onnx", "--torchscript", "policy.pt"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(made.path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path)) == ["policy.onnx", "policy.pt"]
    assert done.stderr == ""


# Refusals.


def without_normalizer(actor: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in actor.items() if not name.startswith("normalizer.")}


def test_a_lost_normalizer_is_refused(tmp_path: Path, made: MadeCheckpoint) -> None:
    """Settings say normalization is on; the weights, the module or the contract know of none."""
    checkpoint = load_checkpoint(made.path)
    agent = {"actor": without_normalizer(checkpoint.agent["actor"])}
    lost = make_checkpoint(tmp_path / "lost.pt", changes={"agent": agent})
    with pytest.raises(BadInput, match=r"normalizer\.mean"):
        export_checkpoint(lost.path, tmp_path / "out" / "p.onnx")
    actor = make_actor(made.contract, NetworkConfig(actor_hidden=(32, 16)))
    actor.normalizer = torch.nn.Identity()
    with pytest.raises(Refused, match=r"normalize_obs = True, but the policy has no normalizer"):
        check_normalizer(actor, checkpoint, made.contract)
    silent = quadruped_contract().to_json()
    wrong = make_checkpoint(tmp_path / "wrong.pt", changes={"contract": silent})
    with pytest.raises(Refused, match=r"network\.normalizer is 'none'"):
        export_checkpoint(wrong.path, tmp_path / "out" / "p.onnx")
    assert not list(tmp_path.glob("out/*"))


def test_a_normalizer_that_saw_nothing_is_refused(made: MadeCheckpoint) -> None:
    actor = make_actor(made.contract, NetworkConfig(actor_hidden=(32, 16)))
    actor.get_buffer("normalizer.count").zero_()
    with pytest.raises(Refused, match="seen no observation"):
        check_normalizer(actor, load_checkpoint(made.path), made.contract)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"contract": None, "trace": None}, "has no contract"),
        ({"trace": None}, "has no golden trace"),
        ({"contract": "{}"}, "schema is missing"),
        ({"obs_dims": {"policy": 46}}, "obs_dims of policy is 46, in its contract 45"),
    ],
)
def test_a_checkpoint_that_cannot_become_a_policy_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    made = make_checkpoint(tmp_path / "x.pt", changes=changes)
    with pytest.raises((BadInput, Refused), match=words) as caught:
        read_source(made.path)
    assert str(made.path) in str(caught.value)


@pytest.mark.usefixtures("quick")
def test_a_failure_of_the_second_file_leaves_nothing(
    tmp_path: Path, made: MadeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export.write, "torchscript_bytes", fail)
    with pytest.raises(BadInput, match="No space left"):
        export_checkpoint(made.path, tmp_path / "p.onnx", torchscript=tmp_path / "p.pt")
    assert os.listdir(tmp_path) == []
