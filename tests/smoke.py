"""Wheel and sdist, each in a clean environment and used from an empty folder: `make build`.

    python tests/smoke.py dist [argument of pip ...]

Two environments for each. One holds the package and what it requires, nothing else: a policy file
is inspected and run there, and a verb whose packages are missing says so in one line. The other
sees the packages of the environment that this script runs in, but not its checkout: a policy is
trained, exported, imported again and validated there by the verbs a user calls.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("robot_runtime", "trainer", "export", "sim2sim")

WHERE = """
import importlib, pathlib, sys
for name in sys.argv[1:]:
    origin = pathlib.Path(importlib.import_module(name).__file__)
    assert origin.is_relative_to(sys.prefix), origin
"""
"""Fails where a package is not imported from the environment itself."""


def run(*command: str | Path, cwd: Path, code: int = 0) -> str:
    """Run a command in a folder; returns what it prints on both streams.

    Raises:
        SystemExit: It ends with another code.
    """
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, errors="replace"
    )
    told = done.stdout + done.stderr
    if done.returncode != code:
        line = " ".join(map(str, command))
        raise SystemExit(f"smoke test: exit code {done.returncode}, not {code}: {line}\n{told}")
    return told


def environment(folder: Path) -> Path:
    """Make an empty environment; returns its Python."""
    run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    return folder / "bin" / "python"


def alone(artifact: Path, folder: Path, policy: Path, pip_arguments: list[str]) -> None:
    """With what it requires, and nothing else."""
    python, empty = environment(folder / "alone"), folder / "empty"
    empty.mkdir()
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    constraints = ("-c", ROOT / "constraints.txt")
    run(*pip, *constraints, *pip_arguments, artifact, cwd=folder)
    surefoot = python.with_name("surefoot")
    run(python, "-I", "-c", WHERE, "robot_runtime", cwd=empty)
    (empty / "policy.onnx").write_bytes(policy.read_bytes())
    assert "reproduced" in run(surefoot, "inspect", "policy.onnx", cwd=empty)
    run(surefoot, "run", "policy.onnx", "--robot", "mock", "--duration", "0.3", cwd=empty)
    advice = run(surefoot, "train", "quadruped-flat", cwd=empty, code=2)
    assert "pip install 'surefoot[train]'" in advice, advice


def together(artifact: Path, folder: Path) -> None:
    """With everything that the verbs can use, and without this checkout."""
    python, work = environment(folder / "together"), folder / "work"
    work.mkdir()
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps")
    (site,) = (folder / "together" / "lib").glob("python*/site-packages")
    # Folders that a .pth file names are searched, their own .pth files are not read: the editable
    # installation of this checkout stays out, its build tools are there for the sdist.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(*pip, "--no-build-isolation", "--no-index", "--ignore-installed", artifact, cwd=folder)
    run(python, "-I", "-c", WHERE, *PACKAGES, cwd=work)
    surefoot = python.with_name("surefoot")
    small = ("--num-envs", "4", "--iterations", "1", "--ppo.minibatches", "2")
    run(surefoot, "train", "quadruped-flat", *small, "--out", "run", cwd=work)
    run(surefoot, "export", "run", "-o", "policy.onnx", "--torchscript", "policy.pt", cwd=work)
    run(surefoot, "inspect", "policy.onnx", cwd=work)
    run(surefoot, "diff", "policy.onnx", "policy.onnx", cwd=work)
    # An untrained policy falls: that is a judgement, not an error.
    standing = ("--scenarios", "1", "--command", "0,0,0", "--duration", "2")
    done = subprocess.run(
        [surefoot, "sim2sim", "policy.onnx", *standing],
        cwd=work, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr


def main() -> None:
    """Try every artifact of a folder."""
    dist, *pip_arguments = sys.argv[1:]
    artifacts = [*sorted(Path(dist).resolve().glob("*.whl")), *Path(dist).resolve().glob("*.gz")]
    assert len(artifacts) == 2, f"expected a wheel and an sdist in '{dist}', found {artifacts}"
    sys.path.insert(0, str(ROOT))
    from export.write import export_checkpoint
    from tests.helpers.checkpoints import make_checkpoint

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        policy = folder / "policy.onnx"
        export_checkpoint(make_checkpoint(folder / "it.pt").path, policy)
        for artifact in artifacts:
            place = folder / artifact.suffix.removeprefix(".")
            place.mkdir()
            alone(artifact, place, policy, pip_arguments)
            together(artifact, place)
            print(f"{artifact.name}: installs and runs in clean environments")


if __name__ == "__main__":
    main()
