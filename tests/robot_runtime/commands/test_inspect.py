"""`surefoot inspect`: everything a file says about itself, and what it is if it is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from robot_runtime.cli import main
from robot_runtime.commands.inspect import table
from robot_runtime.policy.file import open_policy
from tests.helpers.contracts import leaves, put, quadruped_contract, rich_contract
from tests.helpers.policies import mlp_model, write_random_policy
from tests.helpers.sealing import contract_of, resealed


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_policy(tmp_path_factory.mktemp("p") / "policy.onnx", rich_contract())


def test_every_name_and_number_is_shown(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(policy)]) == 0
    shown = capsys.readouterr().out
    for path, value in leaves(rich_contract().to_dict()):
        # Fields of terms that ask for nothing are left out, and the version is said by refusing.
        if path == "schema" or value in ("", None, "raw", "body", "base"):
            continue
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        if isinstance(value, bool):
            continue
        assert text in shown or text.replace("_", " ") in shown, path
    opened = open_policy(policy)
    for text in (opened.sha256, opened.contract.sha256(), "intact", "reproduced", "synthesized"):
        assert text in shown
    assert all(len(line) < 200 for line in shown.splitlines())


def test_json_holds_the_whole_contract(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(policy), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["contract"] == rich_contract().to_dict()
    assert printed["seal"] == "intact"
    assert printed["replay"]["observation"] <= 1e-5
    assert printed["sha256"] == open_policy(policy).sha256


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_forged_contract_is_shown_and_code_one(
    tmp_path: Path, policy: Path, capsys: pytest.CaptureFixture[str], form: list[str]
) -> None:
    plain = contract_of(policy.read_bytes())
    put(plain, "joints.7.kp", 28.0)
    forged = tmp_path / "forged.onnx"
    forged.write_bytes(resealed(policy.read_bytes(), contract=plain))
    assert main(["inspect", str(forged), *form]) == 1
    assert "effort of RL_thigh_joint" in capsys.readouterr().out


def test_other_files_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreign = tmp_path / "foreign.onnx"
    foreign.write_bytes(mlp_model(quadruped_contract()))
    for name, words in (("foreign.onnx", "without a contract"), ("none.onnx", "does not exist")):
        assert main(["inspect", str(tmp_path / name)]) == 2
        captured = capsys.readouterr()
        # Of a file that can be read it is said what it is.
        assert ("without a contract" in captured.out) == (name == "foreign.onnx")
        (line,) = captured.err.splitlines()
        assert line.startswith("surefoot inspect: error: ")
        assert words in line


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--help"]) == 0
    assert "surefoot inspect policy.onnx --json" in capsys.readouterr().out


def test_a_table_aligns_and_drops_empty_columns() -> None:
    text = table(("name", "x", "note"), [("a", 1.5, None), ("bcd", 10.0, None)])
    assert text.splitlines() == ["  name    x", "  a     1.5", "  bcd    10"]
