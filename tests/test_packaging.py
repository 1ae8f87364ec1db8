"""What is shipped: the wheel and the sdist hold the four packages whole, and nothing else."""

import configparser
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"trainer", "export", "sim2sim", "robot_runtime"}
NOT_SHIPPED = {"ruff.toml", "__pycache__"}


def run(*command: str | Path, cwd: Path) -> str:
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist and the wheel that was built from that sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel_files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def source_files() -> set[str]:
    """Every file under the four packages that belongs to the project."""
    return {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and not NOT_SHIPPED & set(path.parts)
    }


def test_wheel_has_four_top_level_names(wheel_files: set[str]) -> None:
    tops = {name.partition("/")[0] for name in wheel_files}
    assert tops == PACKAGES | {"surefoot-0.1.0.dist-info"}


def test_wheel_holds_every_file_of_the_packages(wheel_files: set[str]) -> None:
    shipped = {name for name in wheel_files if ".dist-info/" not in name}
    assert shipped == source_files()


def test_wheel_holds_the_data_and_the_type_markers(wheel_files: set[str]) -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= wheel_files
    assert "robot_runtime/robots/quadruped/robot.xml" in wheel_files
    assert "robot_runtime/robots/quadruped/profile.json" in wheel_files


def test_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = HeaderParser().parsestr(
            archive.read("surefoot-0.1.0.dist-info/METADATA").decode()
        )
        assert "surefoot-0.1.0.dist-info/licenses/LICENSE" in archive.namelist()
    assert metadata["Name"] == "surefoot"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    requirements: list[str] = metadata.get_all("Requires-Dist", [])
    base = {line.partition(">")[0] for line in requirements if "extra ==" not in line}
    assert base == {"numpy", "onnxruntime", "array-api-compat"}
    assert {"train", "sim", "export", "dev", "all"} <= set(metadata.get_all("Provides-Extra", []))


def test_entry_points_name_modules_that_ship(wheel: Path, wheel_files: set[str]) -> None:
    parser = configparser.ConfigParser(delimiters=("=",))
    with zipfile.ZipFile(wheel) as archive:
        parser.read_string(archive.read("surefoot-0.1.0.dist-info/entry_points.txt").decode())
    groups = {"surefoot.commands", "surefoot.drivers", "surefoot.models", "surefoot.tasks"}
    assert groups | {"console_scripts"} == set(parser.sections())
    for group in parser.sections():
        for name, value in parser[group].items():
            module = value.partition(":")[0].replace(".", "/")
            found = {f"{module}.py", f"{module}/__init__.py"} & wheel_files
            assert found, f"{group}: {name} = {value}"


def test_sdist_holds_what_is_needed_to_build_and_test(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert source_files() <= names
    wanted = {"pyproject.toml", "LICENSE", "README.md", "Makefile", "constraints.txt"}
    assert wanted | {"tests/test_packaging.py", "docs/architecture.md"} <= names
    assert not [name for name in names if name.startswith((".venv", ".git/", "runs", "out"))]


def test_installed_wheel_is_imported_from_where_it_was_installed(
    wheel: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    run(*pip, "--no-deps", "--no-index", "--target", site, wheel, cwd=tmp_path)
    # -S: no .pth files, so that the editable install of this checkout cannot answer instead.
    script = f"""
import sys
sys.path[:0] = [{str(site)!r}]
sys.path.append({sysconfig.get_path("purelib")!r})
import importlib, importlib.metadata, pathlib
files = {{str(f) for f in importlib.metadata.distribution("surefoot").files}}
for package in {sorted(PACKAGES)!r}:
    origin = pathlib.Path(importlib.import_module(package).__file__)
    assert str(origin.relative_to({str(site)!r})) in files, origin
from robot_runtime.cli import main
sys.exit(main(["--version"]))
"""
    assert run(sys.executable, "-I", "-S", "-c", script, cwd=tmp_path) == "surefoot 0.1.0\n"


@pytest.mark.slow
def test_base_install_in_a_clean_environment_runs_on_its_own(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    constraints = ROOT / "constraints.txt"
    run(python, "-m", "pip", "install", "--quiet", "-c", constraints, wheel, cwd=tmp_path)
    script = """
import importlib, pkgutil, robot_runtime
for info in pkgutil.walk_packages(robot_runtime.__path__, "robot_runtime."):
    importlib.import_module(info.name)
"""
    run(python, "-I", "-c", script, cwd=tmp_path)
    listing = run(tmp_path / "venv" / "bin" / "surefoot", "--help", cwd=tmp_path)
    assert "sim2sim" in listing
    advice = subprocess.run(
        [tmp_path / "venv" / "bin" / "surefoot", "train"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert advice.returncode == 2
    assert "pip install 'surefoot[train]'" in advice.stderr
