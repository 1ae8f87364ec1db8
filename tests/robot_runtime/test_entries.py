"""What another package has registered and does not have is said by its name."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from robot_runtime.entries import load_entry
from robot_runtime.errors import BadInput


def entry(value: str) -> EntryPoint:
    return EntryPoint(name="mine", value=value, group="surefoot.tasks")


def test_what_is_there_is_loaded() -> None:
    assert load_entry(entry("pathlib:Path")) is Path


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("pathlib:Pth", "has no attribute 'Pth'"),
        ("not_here_at_all:make", "No module named 'not_here_at_all'"),
        ("pathlib.not_here:make", "No module named 'pathlib.not_here'"),
    ],
)
def test_what_is_not_there_is_named_with_its_group(value: str, why: str) -> None:
    with pytest.raises(BadInput) as error:
        load_entry(entry(value))
    said = f"entry point 'mine' of the group 'surefoot.tasks' names '{value}', which does not load"
    assert str(error.value).startswith(said)
    assert why in str(error.value)


def test_a_package_that_the_module_needs_is_another_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_another.py").write_text("import not_here_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_here_at_all"):
        load_entry(entry("needs_another:make"))
