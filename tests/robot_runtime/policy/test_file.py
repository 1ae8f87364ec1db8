"""The policy file: what it carries, what it refuses, and in which words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from robot_runtime.errors import BadInput, SurefootError
from robot_runtime.policy.codec import ContractError
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.file import load_policy, open_policy, policy_bytes, write_policy
from robot_runtime.policy.onnx_bytes import join, split
from robot_runtime.policy.proof import TraceMismatch
from tests.helpers.contracts import leaves, put, quadruped_contract, rich_contract
from tests.helpers.policies import (
    mlp_model,
    random_weights,
    synthesized_trace,
    write_random_policy,
)
from tests.helpers.sealing import contract_of, replaced, resealed

CONTRACT = rich_contract()


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy file with the rich contract. Tests only read it."""
    return write_random_policy(tmp_path_factory.mktemp("policy") / "policy.onnx", CONTRACT)


@pytest.fixture(scope="module")
def data(policy: Path) -> bytes:
    return policy.read_bytes()


def refusal(data: bytes, *, replay: bool = False) -> str:
    """The one line a damaged file is refused with."""
    with pytest.raises(SurefootError) as caught:
        load_policy(data, path="policy.onnx", replay=replay)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("'policy.onnx': ")
    assert caught.value.exit_code == 2
    return text


def test_it_gives_back_what_was_written(policy: Path, data: bytes) -> None:
    opened = open_policy(policy)
    assert opened.contract == CONTRACT
    assert opened.path == policy
    assert opened.model == data
    assert opened.trace.origin == "synthesized"
    assert opened.provenance == {"source": "random weights"}
    assert opened.report == {}
    assert opened.replayed is not None
    assert opened.replayed.rows == opened.trace.rows > 0
    assert open_policy(policy, replay=False).replayed is None


def test_it_is_a_plain_onnx_model(data: bytes) -> None:
    """The onnx package agrees with our reader about the metadata, and finds the model valid."""
    model = onnx.load_from_string(data)
    onnx.checker.check_model(model, full_check=True)
    texts = {item.key: item.value.encode() for item in model.metadata_props}
    assert texts == split(data).metadata
    assert next(iter(texts)) == "surefoot.contract"
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert (
        PolicyContract.from_json(session.get_modelmeta().custom_metadata_map["surefoot.contract"])
        == CONTRACT
    )
    model.ClearField("metadata_props")
    assert split(data).model == model.SerializeToString()


def test_equal_parts_give_equal_bytes(data: bytes) -> None:
    model = mlp_model(CONTRACT)
    again = policy_bytes(
        model,
        contract=CONTRACT,
        trace=synthesized_trace(CONTRACT, model),
        provenance={"source": "random weights"},
        report={},
    )
    assert again == data


def test_metadata_of_the_model_is_left_out(tmp_path: Path) -> None:
    contract = quadruped_contract()
    model = mlp_model(contract)
    written = write_policy(
        tmp_path / "p.onnx",
        join(model, {"joint_stiffness": b"25.000,25.000"}),
        contract=contract,
        trace=synthesized_trace(contract, model),
        provenance={},
        report={},
    )
    assert "joint_stiffness" not in split(written.model).metadata


def test_only_a_file_that_proves_itself_appears(tmp_path: Path) -> None:
    """A trace of other weights is refused before the file gets its name."""
    contract = quadruped_contract()
    old = tmp_path / "p.onnx"
    old.write_bytes(b"old")
    with pytest.raises(TraceMismatch, match="boundary B"):
        write_policy(
            old,
            mlp_model(contract, seed=1),
            contract=contract,
            trace=synthesized_trace(contract, mlp_model(contract, seed=0)),
            provenance={},
            report={},
        )
    assert old.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["p.onnx"]


# What is not a policy file.


def make_checkpoint_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"")


def make_torchscript_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("policy/data.pkl", b"")
        archive.writestr("policy/constants.pkl", b"")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: None, "does not exist"),
        (lambda p: p.mkdir(), "is a folder"),
        (lambda p: p.write_bytes(b""), "empty"),
        (lambda p: p.write_text('{"joints": []}'), "not an ONNX file"),
        (lambda p: p.write_bytes(b"\x80\x02}q\x00."), "not an ONNX file"),
        (lambda p: p.write_bytes(b"\x08\x0a" + bytes(range(1, 200))), "ONNX"),
        (lambda p: p.write_bytes(b"PK\x03\x04 cut"), "damaged zip"),
        (make_checkpoint_zip, "surefoot export .*x.onnx -o policy.onnx"),
        (make_torchscript_zip, "TorchScript"),
        (lambda p: np.savez(p.with_suffix(""), a=1) or Path(f"{p.with_suffix('')}.npz").rename(p),
         "zip archive"),
        (lambda p: p.write_bytes(mlp_model(quadruped_contract())), "without a contract"),
        (lambda p: os.mkfifo(p), "not a plain file"),
    ],
)  # fmt: skip
def test_what_is_no_policy_file_is_refused(tmp_path: Path, make: Any, words: str) -> None:
    path = tmp_path / "x.onnx"
    make(path)
    with pytest.raises(BadInput, match=words) as caught:
        open_policy(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_no_file_can_have_is_refused() -> None:
    with pytest.raises(BadInput, match="policy"):
        open_policy("policy\0.onnx")
    with pytest.raises(BadInput, match="xxx"):
        open_policy("x" * 5000)


def test_a_truncated_file_is_refused_at_every_length(data: bytes) -> None:
    lengths = {
        *range(1, 300),
        *range(300, len(data), len(data) // 300),
        *range(len(data) - 300, len(data)),
    }
    for length in lengths:
        assert refusal(data[:length])


def test_every_flipped_bit_is_refused(data: bytes) -> None:
    """All of the beginning and of the seal, and random places between."""
    rng = np.random.default_rng(0)
    places = {*range(200), *range(len(data) - 700, len(data))}
    places |= {int(i) for i in rng.integers(0, len(data), 500)}
    for place in places:
        for bit in {0, 7, int(rng.integers(1, 7))}:
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            assert refusal(bytes(damaged))


def test_bytes_that_are_appended_are_refused(data: bytes) -> None:
    assert "cut off" in refusal(data + b"\x08")
    assert "graph" in refusal(data + b"\x08\x08")
    assert "twice" in refusal(join(data, {"surefoot.contract": b"{}"}))
    assert "two graphs" in refusal(data + b"\x3a\x00")


def test_metadata_of_others_is_ignored(data: bytes) -> None:
    labelled = join(data, {"label": b"left on the robot of Tuesday"})
    assert load_policy(labelled, path="p").contract == CONTRACT


@pytest.mark.parametrize("part", ["contract", "trace", "provenance", "report", "seal"])
def test_a_missing_part_is_named(data: bytes, part: str) -> None:
    parts = split(data)
    del parts.metadata[f"surefoot.{part}"]
    assert f"surefoot.{part} is missing" in refusal(join(parts.model, parts.metadata))


# The seal.


def test_editing_any_number_of_the_contract_breaks_the_seal(data: bytes) -> None:
    edited = 0
    for path, value in leaves(contract_of(data)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        plain = contract_of(data)
        # The smallest edit there is.
        put(plain, path, value + 1 if isinstance(value, int) else float(np.nextafter(value, 9.9e9)))
        text = refusal(replaced(data, "contract", json.dumps(plain).encode()))
        assert "seal is broken: its contract" in text
        edited += 1
    assert edited > 300


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("contract", b"{}"),
        ("provenance", b'{"source":"elsewhere"}'),
        ("report", b'{"tolerance":1}'),
    ],
)
def test_an_edited_part_is_named(data: bytes, part: str, value: bytes) -> None:
    assert f"its {part} is not the one" in refusal(replaced(data, part, value))


def test_an_edited_trace_and_graph_are_named(data: bytes) -> None:
    other = synthesized_trace(CONTRACT, mlp_model(CONTRACT, seed=5)).to_bytes()
    forged = split(resealed(data, trace=other)).metadata["surefoot.trace"]
    assert "its trace is not the one" in refusal(replaced(data, "trace", forged))
    assert "trace is not base64" in refusal(replaced(data, "trace", b"%%%"))
    swapped = join(mlp_model(CONTRACT, seed=5), split(data).metadata)
    assert "its graph is not the one" in refusal(swapped)


def test_a_newer_seal_asks_for_an_upgrade(data: bytes) -> None:
    assert "upgrade" in refusal(replaced(data, "seal", b'{"version":2,"blake3":{}}'))
    assert "edited or damaged" in refusal(replaced(data, "seal", b"[]"))
    assert "not valid JSON" in refusal(replaced(data, "seal", b"{"))


def test_with_the_seal_made_anew_other_weights_are_caught_by_the_replay(data: bytes) -> None:
    weights = random_weights(CONTRACT)
    weights[0][0][3, 5] += np.float32(0.01)
    forged = resealed(data, model=mlp_model(CONTRACT, weights))
    assert load_policy(forged, path="p", replay=False)
    assert "boundary B (observation -> action)" in refusal(forged, replay=True)


def test_another_graph_is_refused_before_the_replay(data: bytes) -> None:
    forged = resealed(data, model=mlp_model(quadruped_contract()))
    assert "no input 'past'" in refusal(forged)


# The contract.


def test_a_newer_contract_asks_for_an_upgrade(data: bytes) -> None:
    plain = contract_of(data) | {"schema": 2, "gait_library": []}
    text = refusal(resealed(data, contract=plain))
    assert "schema is 2, newer than 1" in text
    assert "upgrade" in text


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("joints.0.name", "joints[0].name"),
        ("joints.0.default_pos", "joints[0].default_pos"),
        ("action.terms.0.scale", "action.terms[0].scale"),
        ("joints.0.kp", "joints[0].kp"),
        ("joints.0.kd", "joints[0].kd"),
        ("observation.0.terms", "observation[0].terms"),
        ("observation.0.history.length", "observation[0].history.length"),
        ("observation.0.history.layout", "observation[0].history.layout"),
        ("timing.control_dt", "timing.control_dt"),
        ("action.terms.0.raw_lower", "action.terms[0].raw_lower"),
    ],
)
def test_an_incomplete_contract_is_refused_and_what_is_missing_named(
    data: bytes, path: str, named: str
) -> None:
    """Joint names, poses, scale, gains, terms, history, period, clip: none has a default."""
    plain = contract_of(data)
    *parents, last = path.split(".")
    holder: Any = plain
    for key in parents:
        holder = holder[int(key)] if isinstance(holder, list) else holder[key]
    del holder[last]
    assert f"contract.{named} is missing" in refusal(resealed(data, contract=plain))


def test_every_key_of_the_contract_is_needed(data: bytes) -> None:
    def objects(value: Any) -> list[dict[str, Any]]:
        inner = value.values() if isinstance(value, dict) else value
        own = [value] if isinstance(value, dict) else []
        return own + [o for i in inner if isinstance(i, dict | list) for o in objects(i)]

    removed = 0
    for i, found in enumerate(objects(contract_of(data))):
        for key in found:
            plain = contract_of(data)
            del objects(plain)[i][key]
            with pytest.raises(ContractError, match=rf"{key} is missing"):
                PolicyContract.from_json(json.dumps(plain))
            removed += 1
    assert removed > 300


def test_a_lonely_file_needs_numpy_and_onnxruntime_alone(tmp_path: Path, data: bytes) -> None:
    """Copied alone into an empty folder, opened where nothing else can be imported."""
    (tmp_path / "policy.onnx").write_bytes(data)
    model = onnx.load_from_string(data)
    assert model.ir_version <= 8
    assert [(item.domain, item.version) for item in model.opset_import] == [("", 18)]
    program = """
import sys
allowed = {"robot_runtime", "numpy", "onnxruntime", "array_api_compat"} | sys.stdlib_module_names

class Guard:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        # onnxruntime looks for these and lives without them.
        if top not in allowed and not top.startswith("_"):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Guard())
from robot_runtime.policy.file import open_policy
opened = open_policy("policy.onnx")
print(opened.replayed.rows, sorted(m for m in sys.modules if m in ("torch", "onnx", "mujoco")))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1] == "[]"
    assert os.listdir(tmp_path) == ["policy.onnx"]


def test_writing_where_nothing_can_be_written_is_refused(tmp_path: Path) -> None:
    contract = quadruped_contract()
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "policy.onnx"):
        with pytest.raises(BadInput, match="cannot write"):
            write_random_policy(path, contract)
