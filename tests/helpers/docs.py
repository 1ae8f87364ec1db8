"""The parts of the pages in docs/ that are made from the code, so that they cannot rot.

A page marks them in two ways:

    <!-- generated: faults -->          a table of `TABLES`, up to the next <!-- end -->
    ```text output of examples/docs/history.py     what an example prints, up to the next fence

`python -m tests.helpers.docs` fills them in anew; `tests/test_docs.py` demands that they are full.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import itertools
import re
import runpy
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from export.importers.pipeline import FORMATS
from robot_runtime.control.faults import REACTIONS, Fault, Reaction
from robot_runtime.control.modes import TRANSITIONS, Event, Mode
from robot_runtime.control.safety import SafetyLimits
from robot_runtime.control.softstart import SoftStart
from robot_runtime.drivers import mock as mock_driver
from robot_runtime.drivers.options import Option
from sim2sim import driver as sim_driver
from sim2sim import metrics, scenarios
from sim2sim.metrics import Thresholds
from sim2sim.scenarios import nominal_schedule
from tests.helpers.contracts import quadruped_contract
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
from trainer.envs.terrain import TerrainConfig
from trainer.envs.terrain_kinds import TileConfig
from trainer.tasks.commands import CommandConfig
from trainer.tasks.quadruped_flat import train_config
from trainer.tasks.randomization import RandomizationConfig
from trainer.tasks.rewards import RewardConfig

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
)
"""Every page that people read."""

_TABLE = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
_OUTPUT = re.compile(r"(```\w+ output of (\S+)\n).*?(```\n)", re.DOTALL)


def filled(page: str) -> str:
    """The text of a page with every generated table and every output as the code gives them."""
    page = _TABLE.sub(lambda m: f"{m[1]}{TABLES[m[2]]()}\n{m[3]}", page)
    return _OUTPUT.sub(lambda m: m[1] + run_example(ROOT / m[2]) + m[3], page)


def run_example(path: Path, *arguments: str | Path) -> str:
    """Run an example as ``python path arguments`` does, in this process; returns what it prints."""
    printed = io.StringIO()
    with (
        mock.patch.object(sys, "argv", [str(path), *map(str, arguments)]),
        mock.patch.object(sys, "path", [str(path.parent), *sys.path]),
        contextlib.redirect_stdout(printed),
    ):
        runpy.run_path(str(path), run_name="__main__")
    return printed.getvalue()


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A markdown table."""
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(value) for value in line) + " |" for line in lines)


def options_table(options: Sequence[Option]) -> str:
    """The options of a driver."""
    rows = [(f"`{one.name}`", one.type_text, one.default_text, one.help) for one in options]
    return table(("option", "type", "without it", "meaning"), rows)


def attribute_docs(kind: type) -> dict[str, str]:
    """What the source says about every attribute of a class.

    It stands in the string under the attribute, or in the "Attributes:" of the class.
    """
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef)
    found: dict[str, str] = {}
    for field, after in itertools.pairwise(node.body):
        target = getattr(field, "target", None) or next(iter(getattr(field, "targets", [])), None)
        if isinstance(target, ast.Name) and isinstance(after, ast.Expr):
            found[target.id] = ast.literal_eval(after.value)
    section = (ast.get_docstring(node) or "").partition("Attributes:\n")[2]
    for match in re.finditer(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE):
        found[match[1]] = match[2]
    return {name: _sentence(text) for name, text in found.items()}


def fields_table(head: str, *kinds: type) -> str:
    """Fields of dataclasses that need no arguments: name, default, meaning."""
    rows: list[tuple[object, ...]] = []
    for kind in kinds:
        docs, values = attribute_docs(kind), kind()
        rows += [
            (f"`{field.name}`", _shown(getattr(values, field.name)), docs[field.name])
            for field in dataclasses.fields(kind)
            if not dataclasses.is_dataclass(getattr(values, field.name))
        ]
    return table((head, "default", "meaning"), rows)


def settings_table() -> str:
    """All settings of a training run, with what the recipe of the quadruped has instead."""
    recipe = train_config()
    rows: list[tuple[object, ...]] = []
    for prefix, kind, used in (
        ("", TrainConfig, recipe),
        ("evaluation.", EvaluationConfig, recipe.evaluation),
        ("network.", NetworkConfig, recipe.network),
        ("network.encoders.N.", EncoderConfig, EncoderConfig()),
        ("ppo.", PPOConfig, recipe.ppo),
        ("ppo.symmetry.", SymmetryConfig, recipe.ppo.symmetry),
        ("rnd.", RndConfig, recipe.rnd),
        ("amp.", AmpConfig, recipe.amp),
        ("distill.", DistillConfig, recipe.distill),
    ):
        docs, defaults = attribute_docs(kind), kind()
        for field in dataclasses.fields(kind):
            default, own = getattr(defaults, field.name), getattr(used, field.name)
            if not dataclasses.is_dataclass(default):
                other = "" if own == default else _shown(own)
                row = (f"`{prefix}{field.name}`", _shown(default), other, docs[field.name])
                rows.append(row)
    return table(("setting", "default", "quadruped-flat", "meaning"), rows)


def faults_table() -> str:
    """Every fault, its reaction and its meaning."""
    docs = attribute_docs(Fault)
    rows = [(f"`{f.name}`", REACTIONS[f].value, docs[str(f.name)]) for f in Fault]
    return table(("fault", "reaction", "meaning"), rows)


def reactions_table() -> str:
    """Every reaction and its meaning."""
    docs = attribute_docs(Reaction)
    return table(("reaction", "what is done"), [(r.value, docs[r.name]) for r in Reaction])


def modes_table() -> str:
    """Every mode with its number and its meaning."""
    docs = attribute_docs(Mode)
    return table(
        ("mode", "number", "sends"), [(f"`{m.name}`", m.value, docs[m.name]) for m in Mode]
    )


def transitions_table() -> str:
    """The mode that follows on every event."""
    head = ("mode", *(event.value for event in Event))
    rows = [
        (f"`{mode.name}`", *(f"`{TRANSITIONS[mode, event].name}`" for event in Event))
        for mode in Mode
    ]
    return table(head, rows)


def schedule_table() -> str:
    """The nominal schedule of sim2sim, which is also what `surefoot run` asks for by default."""
    segments, _ = nominal_schedule(quadruped_contract())
    rows = [(s.name, _shown(s.duration), *map(_shown, s.command)) for s in segments]
    return table(("segment", "s", "forward m/s", "left m/s", "turning rad/s"), rows)


def constants_table(module: Any, *names: str) -> str:
    """Constants of a module with the strings under them."""
    docs = attribute_docs_of_module(module)
    return table(("draw", "value"), [(docs[n], _shown(getattr(module, n))) for n in names])


def attribute_docs_of_module(module: Any) -> dict[str, str]:
    """What a module says under its constants."""
    body = ast.parse(inspect.getsource(module)).body
    return {
        a.targets[0].id: _sentence(b.value.value)
        for a, b in itertools.pairwise(body)
        if isinstance(a, ast.Assign)
        and isinstance(a.targets[0], ast.Name)
        and isinstance(b, ast.Expr)
        and isinstance(b.value, ast.Constant)
        and isinstance(b.value.value, str)
    }


TABLES: dict[str, Callable[[], str]] = {
    "settings": settings_table,
    "rewards": lambda: fields_table("weight", RewardConfig),
    "randomization": lambda: fields_table("draw", RandomizationConfig),
    "terrain": lambda: fields_table("setting", TerrainConfig),
    "tiles": lambda: fields_table("setting", TileConfig),
    "training-commands": lambda: fields_table("setting", CommandConfig),
    "faults": faults_table,
    "reactions": reactions_table,
    "modes": modes_table,
    "transitions": transitions_table,
    "limits": lambda: fields_table("limit", SafetyLimits),
    "soft-start": lambda: fields_table("setting", SoftStart),
    "mock": lambda: options_table(mock_driver.OPTIONS),
    "sim": lambda: options_table(sim_driver.OPTIONS),
    "formats": lambda: table(
        ("format", "files"), [(f"`{name}`", entry.files) for name, entry in FORMATS.items()]
    ),
    "schedule": schedule_table,
    "starts": lambda: constants_table(scenarios, "JOINT_OFFSET", "BASE_SPEED"),
    "disturbances": lambda: constants_table(
        scenarios, "FRICTION", "PAYLOAD", "STRENGTH", "LATENCY", "PUSH_SPEED", "PUSH_EVERY"
    ),
    "thresholds": lambda: fields_table("threshold", Thresholds),
    "falls": lambda: constants_table(metrics, "FALL_TILT", "FALL_HEIGHT", "TRANSIENT"),
}
"""Tables by name."""


def _sentence(text: str) -> str:
    """One line of markdown, without the full stop, of the first paragraph of a docstring."""
    line = " ".join(text.strip().split("\n\n")[0].split()).replace("``", "`").rstrip(".")
    return re.sub(r", see `\w+`$", "", line)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple) and not value:
        return "none"
    if isinstance(value, tuple):
        is_range = len(value) == 2 and value[0] < value[1]
        return (" to " if is_range else " ").join(_shown(item) for item in value)
    return {"": "empty", None: "none"}.get(value, str(value))  # pyright: ignore[reportArgumentType]


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|")


def main() -> None:
    """Fill in every page."""
    for path in PAGES:
        old = path.read_text(encoding="utf-8")
        new = filled(old)
        if new != old:
            path.write_text(new, encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
