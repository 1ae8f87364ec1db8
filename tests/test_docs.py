"""The pages tell the truth: links, commands, fields, tables and snippets are held against the code.

`python -m tests.helpers.docs` makes the generated parts of the pages anew.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from robot_runtime import cli
from robot_runtime.control.faults import Fault
from robot_runtime.control.modes import Mode
from robot_runtime.control.record import record_dtype
from robot_runtime.policy import contract as contract_module
from robot_runtime.policy import spec as spec_module
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.file import open_policy
from robot_runtime.policy.proof import replay
from robot_runtime.policy.trace import OUTPUTS, TraceInputs
from robot_runtime.robots import load_model
from tests.helpers.contracts import quadruped_contract
from tests.helpers.docs import PAGES, ROOT, filled, run_example
from tests.helpers.policies import mlp_model, synthesized_trace, write_random_policy
from tests.robot_runtime.policy.test_fields import OFF_PATH, ON_PATH
from trainer.config import (
    AmpConfig,
    DistillConfig,
    EncoderConfig,
    EvaluationConfig,
    NetworkConfig,
    PPOConfig,
    RndConfig,
    SymmetryConfig,
    TrainConfig,
)
from trainer.metrics import read_metrics
from trainer.tasks.quadruped_flat import make_contract

EXAMPLES = ROOT / "examples" / "docs"
_FENCE = re.compile(r"^```(\w*) ?(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def each_page() -> pytest.MarkDecorator:
    names = [str(path.relative_to(ROOT)) for path in PAGES]
    return pytest.mark.parametrize("name", names)


# Links


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"[^\w\- ]", "", heading.strip().lower().replace("`", ""))
    return text.replace(" ", "-")


def anchors(text: str) -> set[str]:
    found: dict[str, int] = {}
    names: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", _FENCE.sub("", text), re.MULTILINE):
        name = anchor(heading)
        names.add(f"{name}-{found[name]}" if name in found else name)
        found[name] = found.get(name, 0) + 1
    return names


def links(text: str) -> Iterator[tuple[str, str]]:
    for _, shown, target in _LINK.findall(_FENCE.sub("", text)):
        if not re.match(r"https?://", target):
            yield shown, target


@each_page()
def test_links_lead_somewhere(name: str) -> None:
    path = ROOT / name
    for shown, target in links(page(name)):
        file, _, fragment = target.partition("#")
        goal = (path.parent / file).resolve() if file else path
        assert goal.exists(), f"{name}: [{shown}]({target}): there is no {goal}"
        assert goal.is_relative_to(ROOT), f"{name}: [{shown}]({target}) leaves the project"
        if fragment:
            known = anchors(goal.read_text(encoding="utf-8"))
            assert fragment in known, f"{name}: [{shown}]({target}): headings are {sorted(known)}"


@each_page()
def test_linked_functions_are_in_the_linked_file(name: str) -> None:
    for shown, target in links(page(name)):
        code = re.fullmatch(r"`(?:\w+\.)*(\w+)`", shown)
        file = (ROOT / name).parent / target
        if code is None or file.suffix != ".py":
            continue
        defined = rf"^\s*(?:def|class) {code[1]}\b|^{code[1]}\b.*="
        text = file.read_text(encoding="utf-8")
        assert re.search(defined, text, re.MULTILINE), f"{name}: {target} has no {shown}"


# Generated parts and snippets


@each_page()
def test_generated_tables_and_outputs_are_those_of_the_code(name: str) -> None:
    text = page(name)
    assert filled(text) == text, f"{name} is out of date: run python -m tests.helpers.docs"


@each_page()
def test_snippets_are_parts_of_examples_that_run(name: str) -> None:
    for language, source, body in _FENCE.findall(page(name)):
        if language in {"python", "yaml"}:
            assert source.startswith("examples/"), f"{name}: a snippet of no file: {body[:60]!r}"
            # A method stands on a page without its class.
            inside = any(textwrap.indent(body, " " * depth) in page(source) for depth in (0, 4))
            assert inside, f"{name}: a snippet is not in {source} any more"


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_policy(tmp_path_factory.mktemp("policy") / "p.onnx", quadruped_contract())


def test_read_policy(policy: Path) -> None:
    printed = run_example(EXAMPLES / "read_policy.py", policy)
    assert "quadruped-test for FL_hip_joint" in printed
    assert "synthesized" in printed
    assert float(printed.split()[-1]) < 1e-5


def test_open_policy(policy: Path) -> None:
    printed = run_example(EXAMPLES / "open_policy.py", policy)
    names = [line.split()[0] for line in printed.splitlines()]
    assert names == list(quadruped_contract().joint_names)


def test_import_policy(tmp_path: Path) -> None:
    contract = PolicyContract.from_json(run_example(EXAMPLES / "leg_contract.py"))
    model, text, out = (tmp_path / name for name in ("m.onnx", "contract.json", "p.onnx"))
    model.write_bytes(mlp_model(contract))
    text.write_text(contract.to_json())
    assert "p.onnx synthesized" in run_example(EXAMPLES / "import_policy.py", model, text, out)
    assert open_policy(out).contract == contract


def test_answers_of_an_import(tmp_path: Path) -> None:
    """With the answers of the example the foreign network replays the trace of the original."""
    contract = make_contract(load_model("quadruped"))
    model, out = tmp_path / "walk.onnx", tmp_path / "p.onnx"
    model.write_bytes(mlp_model(contract))
    answers = ROOT / "examples" / "import" / "quadruped.yaml"
    arguments = ["custom", str(model), "--user", str(answers), "--model", "quadruped"]
    assert cli.main(["import", *arguments, "-o", str(out)]) == 0
    imported = open_policy(out)
    network = imported.network()
    replay(imported.contract, synthesized_trace(contract, model.read_bytes()), network)


def test_run_loop_and_read_log(policy: Path, tmp_path: Path) -> None:
    log = tmp_path / "flight.npz"
    assert "DAMPING" in run_example(EXAMPLES / "run_loop.py", policy, log)
    assert run_example(EXAMPLES / "read_log.py", log, policy).endswith("equal\n")


def test_walk_in_mujoco(policy: Path) -> None:
    # Random weights: where it goes does not matter, and it may well fall.
    assert " after " in run_example(EXAMPLES / "walk_in_mujoco.py", policy)


def test_calm_quadruped(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert run_example(EXAMPLES / "calm_quadruped.py", run, "4", "1") == "1 iterations, 96 steps\n"
    assert (run / "checkpoints" / "iteration_0000001.pt").exists()


def test_gentle_start(tmp_path: Path) -> None:
    run = tmp_path / "run"
    printed = run_example(EXAMPLES / "gentle_start.py", run, "4", "1")
    # Robots that have just begun to stand and move slowly follow their commands.
    assert printed == "1 iterations at level 0.01\n"
    assert "reward/power" in read_metrics(run)[0]


def test_every_example_is_run() -> None:
    text = Path(__file__).read_text(encoding="utf-8") + "".join(map(page, ("docs/contract.md",)))
    for path in EXAMPLES.glob("*.py"):
        assert path.name in text, f"{path.name} is not run by any test"


# Commands


def command_lines(text: str) -> Iterator[list[str]]:
    """Every command line that starts with `surefoot VERB`: in blocks, and in the middle of text."""
    lines = re.findall(r"^(?: {4}|\$ )(surefoot .*)$", text, re.MULTILINE)
    lines += re.findall(r"`(surefoot [^`]+)`", text.replace("```", ""))
    for line in lines:
        yield shlex.split(line, comments=True)


@pytest.fixture(scope="module")
def help_pages(pytestconfig: pytest.Config) -> dict[str, str]:
    return {}


def help_of(verb: str, known: dict[str, str], capsys: pytest.CaptureFixture[str]) -> str:
    if verb not in known:
        capsys.readouterr()
        assert cli.main([verb, "--help"]) == 0, f"surefoot {verb} --help"
        known[verb] = capsys.readouterr().out
    return known[verb]


@each_page()
def test_commands_exist_with_their_options(
    name: str, help_pages: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for _, verb, *arguments in command_lines(page(name)):
        if verb in {"VERB", "--help", "--version"}:
            continue
        assert verb in cli.VERBS, f"{name}: there is no verb {verb!r}"
        text = help_of(verb, help_pages, capsys)
        for argument in arguments:
            option = argument.partition("=")[0]
            if re.match(r"--?[a-zA-Z]", option):
                found = re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text)
                assert found, f"{name}: surefoot {verb} has no option {option}"


def test_every_verb_is_in_the_readme() -> None:
    for verb in cli.VERBS:
        assert f"`surefoot {verb}`" in page("README.md"), verb


# The contract


def field_rows() -> dict[str, tuple[str, set[str]]]:
    """Meaning and proof of every field in docs/contract.md, by its path."""
    rows: dict[str, tuple[str, set[str]]] = {}
    prefix = ""
    for line in page("docs/contract.md").splitlines():
        heading = re.fullmatch(r"### `(.*)`", line)
        if line.startswith("#"):
            prefix = heading[1].replace("[*]", ".*") if heading else ""
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if prefix and len(cells) == 4 and re.fullmatch(r"`\w+`", cells[0]):
            field = cells[0].strip("`")
            path = field if prefix == "contract" else f"{prefix}.{field}"
            rows[path] = (cells[2], set(filter(None, cells[3].split(", "))))
    return rows


def test_every_field_of_the_contract_has_a_row() -> None:
    """Each dataclass of the contract stands under the headings of the places where it is used."""
    rows = field_rows()
    fields = {
        field.name
        for module in (spec_module, contract_module)
        for kind in vars(module).values()
        if dataclasses.is_dataclass(kind) and isinstance(kind, type)
        for field in dataclasses.fields(kind)
    }
    assert fields == {path.rpartition(".")[2] for path in rows}
    leaves = {re.sub(r"(\.\*)+$", "", path) for path in (*ON_PATH, *OFF_PATH)}
    assert leaves <= set(rows), leaves - set(rows)


def test_every_proof_is_one_that_is_tested() -> None:
    replayed = {"A", "B", "C", "rows"}
    on_path = {re.sub(r"(\.\*)+$", "", path) for path in ON_PATH}
    off_path = {re.sub(r"(\.\*)+$", "", path) for path in OFF_PATH} - on_path
    for path, (_, proof) in field_rows().items():
        if path in on_path:
            assert proof & replayed, f"{path} is on the path to torque, and its proof is {proof}"
        # Damping has a meaning in the native form alone, and a test of its own.
        if path in off_path and path != "actuator.damping":
            assert not proof & {"A", "B", "C"}, f"{path} is not replayed, and its proof is {proof}"


def test_every_source_has_a_row() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]* \| ", page("docs/contract.md"), re.MULTILINE)
    assert set(spec_module.Source.__args__) <= set(rows)


# Other pages


def test_running_names_every_fault_mode_and_record_field() -> None:
    text = page("docs/running.md")
    names = [str(f.name) for f in (*Fault, *Mode)]
    names += list(record_dtype(quadruped_contract()).names or ())
    assert [name for name in names if f"`{name}`" not in text] == []


def test_training_names_every_setting() -> None:
    text = page("docs/training.md")
    for prefix, kind in (
        ("", TrainConfig),
        ("evaluation.", EvaluationConfig),
        ("network.", NetworkConfig),
        ("network.encoders.N.", EncoderConfig),
        ("ppo.", PPOConfig),
        ("ppo.symmetry.", SymmetryConfig),
        ("rnd.", RndConfig),
        ("amp.", AmpConfig),
        ("distill.", DistillConfig),
    ):
        for field in dataclasses.fields(kind):
            if not dataclasses.is_dataclass(getattr(kind(), field.name)):
                assert f"| `{prefix}{field.name}` |" in text


def test_policy_file_names_every_array_of_the_trace(policy: Path) -> None:
    text = page("docs/policy-file.md")
    arrays = ["meta", *(f.name for f in dataclasses.fields(TraceInputs)), *OUTPUTS]
    assert [name for name in arrays if f"| `{name}` |" not in text] == []
    assert set(open_policy(policy).trace.to_arrays()) == set(arrays)
    types = {name: array.dtype for name, array in open_policy(policy).trace.to_arrays().items()}
    said = {"meta": np.uint8, "start": np.bool_, "elapsed": np.float64}
    assert all(dtype == said.get(name, np.float32) for name, dtype in types.items())


@each_page()
def test_no_page_names_this_machine(name: str) -> None:
    assert str(ROOT) not in page(name)
    assert not re.search(r"(?<![\w./])/(?:home|root|work|tmp)/", page(name)), name


def test_the_plan_of_the_house_names_files_that_exist() -> None:
    text = page("docs/architecture.md")
    rooms = text[text.index("## Rooms") : text.index("Imports:")]
    room, missing = ROOT, []
    for line in rooms.splitlines():
        entry = re.match(r"    (\w+)/ ", line)
        room = ROOT / entry[1] if entry else room
        missing += [
            f"{room.name}: {file}"
            for file in re.findall(r"\w+\.py", line)
            if not list(room.rglob(file))
        ]
    assert missing == []
