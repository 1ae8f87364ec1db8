"""docs/trainer.md: every detail has its number, source, code and test, every fault its test."""

from __future__ import annotations

import ast
import dataclasses
import re
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from robot_runtime import cli
from tests.helpers.docs import ROOT
from trainer.config import TrainConfig

PAGE = ROOT / "docs" / "trainer.md"
_LINK = re.compile(r"\[`([\w.]+)`\]\((\.\./[\w./]+\.py)\)")


def details() -> dict[int, str]:
    """The numbered details of the page, each as one line."""
    text = PAGE.read_text(encoding="utf-8").split("## Known faults")[0]
    found = re.findall(r"^(\d+)\. (.*?)(?=^\d+\. |^#|^`--|\Z)", text, re.MULTILINE | re.DOTALL)
    return {int(number): " ".join(body.split()) for number, body in found}


def faults() -> list[list[str]]:
    """The rows of the table: fault, what is done here, tests."""
    text = PAGE.read_text(encoding="utf-8").split("## Known faults")[1]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return rows[1:]


@cache
def symbols(path: Path) -> frozenset[str]:
    """Names that a file defines: functions, classes, constants, and methods as `Class.method`."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body
                      if isinstance(part, ast.FunctionDef)}  # fmt: skip
        targets = node.targets if isinstance(node, ast.Assign) else []
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return frozenset(names)


def linked(text: str) -> list[tuple[str, str]]:
    """The symbols a text links to, after checking that each is where the link says."""
    found = _LINK.findall(text)
    for symbol, place in found:
        path = (PAGE.parent / place).resolve()
        assert path.is_file(), f"{symbol}: there is no {place}"
        assert symbol in symbols(path), f"{place} has no {symbol}"
    return found


def test_details_are_numbered_one_after_the_other() -> None:
    assert list(details()) == list(range(1, len(details()) + 1))
    assert len(details()) > 37


@pytest.mark.parametrize("number", details())
def test_every_detail_has_its_source_its_code_and_its_test(number: int) -> None:
    found = re.fullmatch(
        r"\*\*.+\*\*.*\*Source\*: (.+)\. \*Code\*: (.+)\. \*Test\*: (.+)\.|"
        r".*\*\*.+\*\*.*\*Source\*: (.+)\. \*Code\*: (.+)\. \*Test\*: (.+)\.",
        details()[number],
    )
    assert found, f"detail {number}: {details()[number][:80]}"
    source, code, tests = [part for part in found.groups() if part is not None]
    assert len(source) > 3
    assert [place for _, place in linked(code) if place.startswith("../trainer/")]
    names = [symbol for symbol, _ in linked(tests)]
    assert names
    assert all(name.startswith("test_") for name in names)


@pytest.mark.parametrize("row", faults(), ids=lambda row: row[0][:40])
def test_every_fault_has_a_test(row: list[str]) -> None:
    _, here, tests = row
    names = [symbol for symbol, _ in linked(tests)]
    assert names
    assert all(name.startswith("test_") for name in names)
    numbers = [int(number) for number in re.findall(r"\b\d+\b", re.sub(r"\(.*?\)", "", here))]
    assert set(numbers) <= set(details()), f"{row[0]}: there is no detail {numbers}"


def settings(kind: Any, prefix: str = "") -> list[str]:
    """Every option of a dataclass of settings, those inside it included."""
    names: list[str] = []
    types = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        inner = types[field.name]
        if dataclasses.is_dataclass(inner):
            names += settings(inner, f"{prefix}{field.name}.")
        else:
            names.append(f"--{prefix}{field.name}".replace("_", "-"))
    return names


def test_every_setting_is_in_the_help_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert cli.main(["train", "quadruped-flat", "--help"]) == 0
    text = capsys.readouterr().out
    names = settings(TrainConfig)
    assert len(names) > 80
    # A list of parts, which have numbers on the command line: a test of the verb shows them.
    names.remove("--network.encoders")
    missing = [n for n in names if not re.search(rf"(?<![\w-]){re.escape(n)}(?![\w-])", text)]
    assert missing == []
