"""No verb writes into a file whose name says another kind; that is said before anything is done."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from robot_runtime.cli import VERBS, main

VERB_ARGUMENTS = {
    "plot": ["no-run"],
    "export": ["no-run"],
    "import": ["mjlab", "no.onnx", "--model", "no.xml"],
    "sim2sim": ["no.onnx"],
    "run": ["no.onnx", "--robot", "mock"],
}
"""What else a verb needs; none of it exists, so what is refused after it is refused too late."""

OUTPUTS = {
    ("plot", "--out"): (".png", ".html"),
    ("export", "--output"): (".onnx",),
    ("export", "--torchscript"): (".pt",),
    ("import", "--output"): (".onnx",),
    ("sim2sim", "--report"): (".html",),
    ("sim2sim", "--film"): (".gif", ".png"),
    ("run", "--log"): (".npz",),
}
"""Options that name a file to write, and what it may be called."""

CASES = [pytest.param(verb, option, id=f"{verb}{option}") for verb, option in OUTPUTS]


def call(verb: str, option: str, path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The verb with this output; `export` cannot be without its policy file."""
    more = ["-o", str(path.with_name("policy.onnx"))] if option == "--torchscript" else []
    code = main([verb, *VERB_ARGUMENTS[verb], option, str(path), *more])
    return code, capsys.readouterr().err


@pytest.mark.parametrize(("verb", "option"), CASES)
@pytest.mark.parametrize("name", ["x.txt", "x", ".html", "x.onnx.bak", "x.html.gz", "x.jpeg"])
def test_a_name_of_another_kind_is_refused(
    verb: str, option: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    code, error = call(verb, option, path, capsys)
    assert code == 2
    kinds = " or ".join(OUTPUTS[verb, option])
    what = rf"cannot write [\w ]+ to '{re.escape(str(path))}'"
    assert re.search(rf"{what}: its name must end in {re.escape(kinds)}$", error, re.MULTILINE)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("verb", "option"), CASES)
def test_where_nothing_can_be_written_nothing_begins(
    verb: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suffix = OUTPUTS[verb, option][0]
    folder = tmp_path / f"folder{suffix}"
    folder.mkdir()
    code, error = call(verb, option, folder, capsys)
    assert (code, "it is a folder" in error) == (2, True), error
    (tmp_path / "file").write_text("")
    code, error = call(verb, option, tmp_path / "file" / f"x{suffix}", capsys)
    assert (code, "cannot write into folder" in error) == (2, True), error


@pytest.mark.parametrize(("verb", "option"), CASES)
def test_the_right_name_is_not_what_is_refused(
    verb: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for suffix in OUTPUTS[verb, option]:
        code, error = call(verb, option, tmp_path / f"x{suffix}", capsys)
        assert code == 2
        assert "cannot write" not in error


def test_these_are_all_options_that_name_a_file_to_write(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found: set[tuple[str, str]] = set()
    for verb in set(VERBS) - {"train"}:
        assert main([verb, "--help"]) == 0
        shown = capsys.readouterr().out.partition("\noptions:")[2]
        for entry in re.split(r"\n  (?=-)", shown)[1:]:
            option = re.match(r"(?:-\w \S+, )?(--\S+) [A-Z.]+\b", entry)
            if option and re.search(r"writ|\.onnx\)|draw the", entry):
                found.add((verb, option[1]))
    # A metric to draw is none.
    assert found == set(OUTPUTS)
