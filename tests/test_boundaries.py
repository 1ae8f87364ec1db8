"""Who may import whom: held by running the imports, by import-linter and by ruff.

The truth is the first: a subprocess in which the forbidden packages cannot be imported imports
every module of a package. It also sees an attempt that an `except ImportError` swallows. Each
holder is shown to catch a planted violation, so none of them can pass by looking the other way.
"""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("trainer", "export", "sim2sim", "robot_runtime")
BASE_INSTALL = {"numpy", "onnxruntime", "array_api_compat", "robot_runtime"}
GROUND_FLOOR_BLOCKS = ["torch", "mujoco", "onnx", "gymnasium", "trainer", "export", "sim2sim"]
SIM2SIM_BLOCKS = ["torch", "trainer", "export"]

IMPORT_EVERYTHING = """
import importlib, json, pkgutil, sys

package, blocked = sys.argv[1], set(json.loads(sys.argv[2]))
attempts = []
current = package

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            attempts.append(f"{current} imports {name}")
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Block())
imported = []
pending = [package]
while pending:
    current = pending.pop()
    try:
        module = importlib.import_module(current)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] not in blocked:
            raise
        continue
    imported.append(current)
    for info in pkgutil.iter_modules(getattr(module, "__path__", [])):
        if info.name != "__main__":
            pending.append(f"{current}.{info.name}")
print(json.dumps({"imported": imported, "attempts": attempts}))
"""


def import_everything(
    package: str, blocked: list[str], folder: Path = ROOT
) -> tuple[set[str], list[str]]:
    """Import all modules of a package in a fresh process, with some packages out of reach.

    Returns:
        The names of the imported modules, and the attempts to import what is blocked.
    """
    result = subprocess.run(
        [sys.executable, "-c", IMPORT_EVERYTHING, package, json.dumps(blocked)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    return set(report["imported"]), report["attempts"]


def modules_of(package: str) -> set[str]:
    """The module names of a package by its files."""
    names: set[str] = set()
    for path in (ROOT / package).rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return {name for name in names if not name.endswith("__main__")}


@pytest.mark.parametrize(
    ("package", "blocked"),
    [("robot_runtime", GROUND_FLOOR_BLOCKS), ("sim2sim", SIM2SIM_BLOCKS)],
)
def test_every_module_imports_with_the_rooms_above_out_of_reach(
    package: str, blocked: list[str]
) -> None:
    imported, attempts = import_everything(package, blocked)
    assert attempts == []
    assert imported == modules_of(package)


@pytest.mark.parametrize(
    "violation",
    [
        "import torch",
        "from trainer.gae import advantages",
        "try:\n    import torch.nn\nexcept ImportError:\n    torch = None",
        "import json\nimport importlib\nimportlib.import_module('mujoco')",
    ],
)
def test_a_planted_import_is_caught(tmp_path: Path, violation: str) -> None:
    room = tmp_path / "ground" / "deep"
    room.mkdir(parents=True)
    (tmp_path / "ground" / "__init__.py").touch()
    (tmp_path / "ground" / "good.py").write_text("import numpy\n")
    (room / "__init__.py").touch()
    (room / "bad.py").write_text(violation + "\n")
    imported, attempts = import_everything("ground", GROUND_FLOOR_BLOCKS, tmp_path)
    assert {"ground", "ground.good", "ground.deep"} <= imported
    assert [attempt.partition(" ")[0] for attempt in attempts] == ["ground.deep.bad"]


def foreign_imports(source: str) -> set[str]:
    """The packages that a module imports, late imports included, beyond the base install."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or ".").partition(".")[0])
    return names - BASE_INSTALL - sys.stdlib_module_names


def test_the_ground_floor_needs_the_base_install_only() -> None:
    # A driver imports the SDK of its robot when it is made; everything else has no excuse.
    foreign = {
        str(path.relative_to(ROOT)): names
        for path in (ROOT / "robot_runtime").rglob("*.py")
        if path.parent.name != "drivers" and (names := foreign_imports(path.read_text()))
    }
    assert foreign == {}


def test_a_planted_foreign_import_is_seen() -> None:
    source = "import numpy as np\nimport os.path\ndef f():\n    from scipy.linalg import expm\n"
    assert foreign_imports(source) == {"scipy"}


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    script = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    # Isolated (-I) and with the folder first, so that the copy is read and not this checkout.
    return subprocess.run(
        [
            sys.executable,
            "-I",
            "-c",
            f"import sys; sys.path.insert(0, {str(folder)!r}); sys.argv[0] = 'x'; {script}",
            "--no-cache",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def copied_house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources in which violations can be planted."""
    folder = tmp_path_factory.mktemp("house")
    for package in PACKAGES:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_import_rules_hold(copied_house: Path) -> None:
    result = lint_imports(copied_house)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("robot_runtime/control/planted.py", "def late() -> None:\n    import torch\n"),
        ("robot_runtime/policy/planted.py", "import robot_runtime.control\n"),
        ("robot_runtime/planted.py", "import sim2sim\n"),
        ("sim2sim/planted.py", "import torch\n"),
        ("sim2sim/planted.py", "import trainer.commands\n"),
        ("trainer/planted.py", "import export\n"),
        ("trainer/planted.py", "import robot_runtime.control\n"),
        ("export/planted.py", "import sim2sim\n"),
    ],
)
def test_import_linter_catches_a_planted_import(copied_house: Path, module: str, line: str) -> None:
    planted = copied_house / module
    planted.write_text(line)
    try:
        result = lint_imports(copied_house)
    finally:
        planted.unlink()
    assert result.returncode == 1, result.stdout
    assert "BROKEN" in result.stdout
    assert "planted" in result.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("robot_runtime/control/x.py", "import torch"),
        ("robot_runtime/policy/x.py", "from trainer import gae"),
        ("robot_runtime/x.py", "import mujoco"),
        ("sim2sim/x.py", "import torch.nn"),
        ("sim2sim/x.py", "from export import onnx"),
    ],
)
def test_ruff_tells_it_in_the_editor(module: str, line: str) -> None:
    ruff = [sys.executable, "-m", "ruff", "check", "--no-cache", "--select", "TID251"]
    result = subprocess.run(
        [*ruff, "--stdin-filename", module, "-"],
        cwd=ROOT,
        input=line + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "TID251" in result.stdout
