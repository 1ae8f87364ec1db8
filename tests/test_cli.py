"""The dispatcher: verbs are found, called and their errors are one line with the right exit code.

Verbs for the tests are planted as entry points, the way another package would add its own.
"""

import errno
import logging
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, EntryPoints, entry_points, version
from pathlib import Path

import pytest

from robot_runtime import cli
from robot_runtime.errors import BadInput, GateFailed, MissingExtra, Refused
from robot_runtime.files import atomic_write

Plant = Callable[[str, Callable[[list[str]], int]], None]


@pytest.fixture(autouse=True)
def _undo_the_process_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What main() sets for its process must not stay for the other tests of this one."""
    monkeypatch.delenv("SUREFOOT_DEBUG", raising=False)
    root = logging.getLogger()
    before = root.handlers[:], root.level
    environment = dict(os.environ)
    yield
    root.handlers[:], root.level = before
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Add or replace a verb by one that calls the given function."""
    module = types.ModuleType("planted_verbs")
    monkeypatch.setitem(sys.modules, "planted_verbs", module)
    planted: list[EntryPoint] = []

    def found(group: str) -> EntryPoints:
        names = {entry.name for entry in planted}
        others = [entry for entry in entry_points(group=group) if entry.name not in names]
        return EntryPoints([*others, *planted])

    monkeypatch.setattr(cli, "entry_points", found)

    def add(name: str, run: Callable[[list[str]], int]) -> None:
        setattr(module, name, run)
        planted.append(EntryPoint(name, f"planted_verbs:{name}", cli.COMMANDS))

    return add


def raising(error: BaseException) -> Callable[[list[str]], int]:
    def run(argv: list[str]) -> int:
        raise error

    return run


def surefoot(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    """Run the dispatcher in its own process, after the given Python code."""
    script = f"import sys\n{code}\nfrom robot_runtime.cli import main\nsys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )


def one_error_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    return lines[0]


def test_help_lists_every_verb_with_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    page = capsys.readouterr().out
    for name, verb in cli.VERBS.items():
        assert f"  {name} " in page
        assert verb.summary in page
    assert cli.main([]) == 0
    assert capsys.readouterr().out == page


def test_every_verb_of_ours_has_an_entry_point_and_a_summary() -> None:
    registered = {
        entry.name
        for entry in entry_points(group=cli.COMMANDS)
        if entry.dist is not None and entry.dist.name == "surefoot"
    }
    assert registered == set(cli.VERBS)


def test_help_imports_no_verb_and_nothing_heavy() -> None:
    heavy = {"torch", "mujoco", "onnx", "numpy", "onnxruntime", "trainer", "export", "sim2sim"}
    code = (
        "import atexit\n"
        f"atexit.register(lambda: print(sorted({heavy!r} & set(sys.modules)), file=sys.stderr))"
    )
    result = surefoot("--help", code=code)
    assert result.returncode == 0
    assert result.stderr.strip() == "[]"


def test_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"surefoot {version('surefoot')}\n"


def test_a_verb_gets_its_arguments_and_its_code_is_returned(plant: Plant) -> None:
    seen: list[list[str]] = []

    def run(argv: list[str]) -> int:
        seen.append(argv)
        return 1

    plant("judge", run)
    assert cli.main(["judge", "policy.onnx", "--json"]) == 1
    assert seen == [["policy.onnx", "--json"]]


def test_verbs_of_other_packages_are_listed(
    plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant("juggle", lambda argv: 0)
    assert cli.main(["--help"]) == 0
    assert "  juggle " in capsys.readouterr().out


def test_unknown_verb_lists_what_exists(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trian"]) == 2
    line = one_error_line(capsys)
    assert line.startswith("surefoot: error: unknown verb 'trian'; there are: ")
    assert all(name in line for name in cli.VERBS)


def test_unknown_option_of_surefoot_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--frobnicate"]) == 2
    assert "--frobnicate" in one_error_line(capsys)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadInput("no file 'x.onnx'"), 2),
        (Refused("the hash\ndiffers"), 2),
        (MissingExtra("no torch"), 2),
        (GateFailed("3 of 60 fell"), 1),
    ],
)
def test_errors_of_the_user_are_one_line(
    plant: Plant, capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    plant("judge", raising(error))
    assert cli.main(["judge"]) == code
    assert one_error_line(capsys) == f"surefoot judge: error: {' '.join(str(error).split())}"


def test_anything_else_is_an_internal_error_with_a_hint(
    plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant("judge", raising(ZeroDivisionError("float division\nby zero")))
    assert cli.main(["judge"]) == 70
    line = one_error_line(capsys)
    assert "internal error: ZeroDivisionError: float division by zero" in line
    assert "SUREFOOT_DEBUG=1" in line


def test_debug_mode_prints_the_traceback(
    plant: Plant, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREFOOT_DEBUG", "1")
    plant("judge", raising(BadInput("no file")))
    assert cli.main(["judge"]) == 2
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert error.splitlines()[-1] == "surefoot judge: error: no file"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError(2, "No such file or directory", "x.pt"),
         "error: cannot use 'x.pt': No such file or directory"),
        (OSError(36, "File name too long", "a" * 300), f"error: cannot use '{'a' * 300}': File"),
        (MemoryError(), "error: not enough memory\n"),
        (MemoryError("5 GiB\nasked for"), "error: not enough memory: 5 GiB asked for"),
    ],
)  # fmt: skip
def test_what_the_system_refuses_by_name_is_the_users(
    error: Exception, said: str, plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant("break", raising(error))
    assert cli.main(["break"]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"surefoot break: {said}")
    assert line.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_that_end_a_verb_are_ctrl_c(
    number: signal.Signals, plant: Plant, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a verb has begun to write is taken away, as after Ctrl-C."""

    def write(argv: list[str]) -> int:
        with atomic_write(tmp_path / "x") as temporary:
            temporary.write_text("half")
            signal.raise_signal(number)
        return 0

    before = signal.getsignal(number)
    plant("write", write)
    assert cli.main(["write"]) == 130
    assert capsys.readouterr().err == "surefoot write: interrupted\n"
    assert os.listdir(tmp_path) == []
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("error", [ImportError("initialization failed", name="torch"), BadInput()])
def test_whatever_comes_of_an_interrupt_is_one(
    number: signal.Signals, error: Exception, plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(argv: list[str]) -> int:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            raise error from None
        return 0

    plant("load", load)
    assert cli.main(["load"]) == 130
    assert capsys.readouterr().err == "surefoot load: interrupted\n"


def test_a_signal_that_is_ignored_stays_so(plant: Plant) -> None:
    """`nohup surefoot train` goes on when the terminal goes away."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        plant("stay", lambda argv: signal.raise_signal(signal.SIGHUP) or 0)
        assert cli.main(["stay"]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_interrupt(plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    plant("judge", raising(KeyboardInterrupt()))
    assert cli.main(["judge"]) == 130
    assert one_error_line(capsys) == "surefoot judge: interrupted"


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [(None, 0, ""), (0, 0, ""), (3, 3, ""), ("no way", 2, "surefoot judge: error: no way\n")],
)
def test_sys_exit_of_a_verb(
    plant: Plant, capsys: pytest.CaptureFixture[str], status: object, code: int, text: str
) -> None:
    plant("judge", raising(SystemExit(status)))
    assert cli.main(["judge"]) == code
    assert capsys.readouterr().err == text


@pytest.mark.parametrize(
    ("verb", "module", "advice"),
    [
        ("train", "torch", "surefoot[train]"),
        ("demo", "mujoco", "surefoot[all]"),
        ("export", "torch", "surefoot[export]"),
        ("sim2sim", "mujoco", "surefoot[sim]"),
        ("run", "mujoco", "surefoot[sim]"),
        ("juggle", "onnx", "surefoot[export]"),
    ],
)
def test_missing_package_names_the_extra(
    plant: Plant, capsys: pytest.CaptureFixture[str], verb: str, module: str, advice: str
) -> None:
    plant(verb, raising(ModuleNotFoundError(f"No module named '{module}'", name=module)))
    assert cli.main([verb]) == 2
    line = one_error_line(capsys)
    assert f"package '{module}' is not installed" in line
    assert f"pip install '{advice}'" in line


@pytest.mark.parametrize("verb", ["train", "export", "sim2sim"])
def test_a_robot_without_extras_gets_the_advice_from_the_real_verbs(verb: str) -> None:
    code = (
        "class Bare:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in {'torch','mujoco','onnx','onnxscript','tyro','rich',"
        "'gymnasium','tensorboard','matplotlib'}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Bare())"
    )
    result = surefoot(verb, "policy.onnx", code=code)
    assert result.returncode == 2, result.stderr
    assert len(result.stderr.splitlines()) == 1
    extra = cli.VERBS[verb].extra
    assert f"pip install 'surefoot[{extra}]'" in result.stderr


def test_mujoco_on_a_python_too_old_says_so(
    plant: Plant, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    plant("sim2sim", raising(ModuleNotFoundError("No module named 'mujoco'", name="mujoco")))
    assert cli.main(["sim2sim"]) == 2
    assert "needs Python 3.11 or newer, and this is 3.10" in one_error_line(capsys)


def test_a_package_that_is_there_and_broken_is_named(
    plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant("train", raising(ImportError("libcudart.so.13: cannot open", name="torch")))
    assert cli.main(["train"]) == 2
    assert "'torch' is installed and does not import: libcudart" in one_error_line(capsys)


@pytest.mark.parametrize("verb", ["train", "sim2sim"])
def test_an_opengl_that_mujoco_cannot_load_is_named(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "nonsense")
    arguments = {"train": ["quadruped-flat", "--help"], "sim2sim": ["policy.onnx"]}[verb]
    result = surefoot(verb, *arguments)
    assert result.returncode == 2
    assert result.stderr.startswith(f"surefoot {verb}: error: package 'mujoco' does not import ")
    assert "MUJOCO_GL='nonsense'" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_missing_module_of_ours_is_no_missing_extra(
    plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant("train", raising(ModuleNotFoundError("No module named 'trainer.x'", name="trainer.x")))
    assert cli.main(["train"]) == 70
    assert "internal error: ModuleNotFoundError" in one_error_line(capsys)


def test_a_closed_pipe_ends_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run(
        [sys.executable, "-m", "robot_runtime.cli", "--help"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert process.returncode == 141
    assert process.stderr == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("redirection", [">&-", "<&-", ">/dev/full"])
def test_standard_streams_may_be_closed_or_full(redirection: str, unbuffered: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m robot_runtime.cli --version {redirection}"],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        capture_output=True,
        text=True,
        check=False,
    )
    full = "full" in redirection
    assert done.returncode == (2 if full else 0)
    assert done.stderr == "surefoot: error: cannot write: No space left on device\n" * full


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_stream_that_is_closed_is_the_null_device_and_no_file_of_ours(number: int) -> None:
    # The dispatcher in a verb's place: what it has opened is there when the verb begins.
    look = (
        "import os, sys; from robot_runtime import cli; cli._open_what_is_closed(); "
        "null = os.stat(os.devnull).st_rdev; "
        "streams = (sys.stdin, sys.stdout, sys.stderr); "
        "sys.exit(any(s is None or s.fileno() != i for i, s in enumerate(streams)) "
        f"or os.fstat({number}).st_rdev != null or not os.get_inheritable({number}))"
    )
    command = [sys.executable, "-c", look]
    done = subprocess.run(["sh", "-c", f'"$@" {number}>&-', "sh", *command], check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_is_said_also_where_there_is_no_standard_output(
    number: int, plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant("train", raising(OSError(number, os.strerror(number))))
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(["train"]) == 2
    assert one_error_line(capsys) == f"surefoot train: error: cannot write: {os.strerror(number)}"


def test_threads_are_set_before_the_verb_is_imported_and_the_user_wins(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str | None, str | None]] = []

    def run(argv: list[str]) -> int:
        seen.append((os.environ.get("OMP_WAIT_POLICY"), os.environ.get("OMP_NUM_THREADS")))
        return 0

    plant("judge", run)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cli.main(["judge"])
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    cli.main(["judge"])
    assert seen == [("PASSIVE", "1"), ("PASSIVE", "4")]


def test_a_wrong_argument_of_a_verb_is_one_line(
    plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(argv: list[str]) -> int:
        parser = cli.Parser("surefoot judge")
        parser.add_argument("--runs", type=int, default=1)
        return 0 if parser.parse_args(argv).runs else 1

    plant("judge", run)
    assert cli.main(["judge", "--runs", "many"]) == 2
    line = one_error_line(capsys)
    assert line.startswith("surefoot judge: error: argument --runs: invalid int value: 'many'")
    assert cli.main(["judge", "--run", "3"]) == 2, "an abbreviation is not an option"


def test_parser_keeps_the_lines_of_its_examples() -> None:
    epilog = "examples:\n  surefoot judge a.onnx\n  surefoot judge b.onnx --json"
    assert epilog in cli.Parser("surefoot judge", epilog=epilog).format_help()
