"""The foreign files that were given, sorted by what they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.importers.graph import Graph, open_onnx
from export.importers.model import ModelFacts
from export.importers.reading import Table, read_yaml, shorten
from export.importers.sheet import Sheet
from export.importers.unitree_motors import motor_order
from robot_runtime.errors import BadInput

NETWORKS = (".onnx", ".pt", ".pth", ".jit")
"""Suffixes of files that hold a network."""

TEXTS = (".yaml", ".yml")
"""Suffixes of files that hold a configuration."""

_EMPTY = '""'
"""A motor without a joint, as YAML."""

_MAX_FILES = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Foreign:
    """What an importer reads.

    Attributes:
        paths: The files, folders replaced by the files in them.
        model: The robot model.
        run_torchscript: Whether the user agrees to run TorchScript.
    """

    paths: tuple[Path, ...]
    model: ModelFacts
    run_torchscript: bool

    def tables(self) -> dict[Path, Table]:
        """The mappings of all YAML files, by file."""
        return {path: read_yaml(path) for path in self.paths if path.suffix in TEXTS}

    def the_table(self, what: str, key: str) -> Table:
        """The YAML file of a format, among others of the same run.

        Args:
            what: What it is, for messages.
            key: A key that only such a file has; of a single file its absence is said later.

        Raises:
            BadInput: There is none, or several.
        """
        tables = self.tables()
        found = {path: table for path, table in tables.items() if key in table} or tables
        if len(found) != 1:
            given = shorten([path.name for path in self.paths])
            raise BadInput(f"expected one {what} (.yaml), found {len(found)} among {given}")
        return next(iter(found.values()))

    def network(self, named: str | None = None, beside: Path | None = None) -> Path:
        """The file with the network.

        Args:
            named: The file's name or path where a configuration states it.
            beside: A file beside which the named one may lie.

        Raises:
            BadInput: There is none, or several and none has the stated name.
        """
        found = [path for path in self.paths if path.suffix in NETWORKS]
        wanted = None if named is None else Path(named).name
        if len(found) > 1 and wanted is not None:
            found = [path for path in found if path.name == wanted] or found
        if not found and wanted is not None and beside is not None:
            near = [beside.parent / wanted, beside.parent.parent / str(named)]
            found = [path for path in near if path.is_file()][:1]
        graphs = [path for path in found if path.suffix == ".onnx"]
        # Exporters put TorchScript and checkpoints of the same policy beside the ONNX file.
        if len(graphs) == 1:
            return graphs[0]
        if len(found) == 1:
            return found[0]
        if found:
            raise BadInput(
                f"several networks: {shorten([str(p) for p in found])}; give one; of two that run "
                "one after the other (an encoder and an actor), make one first, "
                "onnx.compose.merge_models joins two"
            )
        hint = f" ('{named}')" if named else ""
        raise BadInput(f"no network among the files: give the {' or '.join(NETWORKS)} file{hint}")

    def motors(
        self, sheet: Sheet, file: str, ids: list[int], *, in_order: bool = False
    ) -> tuple[list[str], str]:
        """The joints behind a robot's numbered motors, and who says so.

        Unitree's numbers are known where all joints are those of one of its robots. The order of a
        model's actuators is its author's: it counts where something else agrees with it, the
        vendor's numbers of a reduced robot, or the order that a training framework gives its
        joints; else it is asked for, because another order swaps legs in silence.

        Args:
            sheet: Has the user's answer; gets a note or a question where the order is not certain.
            file: The file that has only numbers.
            ids: The numbers that it names, in the policy's order.
            in_order: Whether the format says that this is the order of the scene's joints.
        """
        said: Any = sheet.get("motors")
        if said is not None:
            return list(said), "the user's motors"
        model = self.model
        actuators = list(model.actuators)
        known = motor_order(model.driven)
        if known is None:
            found = [actuators[i] for i in ids if i < len(actuators)]
            breadth_first = [name for name in model.by_depth() if name in model.driven]
            telling = in_order or ids != sorted(ids)
            if telling and found in ([model.driven] if in_order else [model.driven, breadth_first]):
                sheet.note(
                    f"{file} names motors by number; taken is the order of the actuators of "
                    f"{model.path.name}: {', '.join(actuators)}; with it the policy has its joints "
                    "in an order that is usual in training; compare it with the robot's"
                )
            elif actuators:
                _ask_motors(sheet, file, [actuators])
            return actuators, f"actuators of {model.path.name}"
        robot, order = known
        listed = [name for name in actuators if name]
        if listed and [name for name in order if name in listed] != listed:
            if {name for name in order if name} <= set(model.driven):
                sheet.note(
                    f"{file} names motors by number; taken is the numbering of Unitree's {robot}, "
                    f"the actuators of {model.path.name} stand in another order; if the robot "
                    "numbers them otherwise, give the joints in the order of its motors as "
                    "motors: [NAME, ...]"
                )
            else:
                _ask_motors(sheet, file, [order, actuators])
        return order, f"motors of Unitree's {robot}"

    def graph(self, path: Path, observation_dim: int | None = None) -> Graph:
        """Read a network.

        Args:
            path: Its file.
            observation_dim: Length of its observation, where a configuration states it; TorchScript
                does not tell it by itself.
        """
        if path.suffix == ".onnx":
            return open_onnx(path)
        # Only here: TorchScript needs torch, and most imports do not.
        from export.importers.torchscript import open_torchscript

        return open_torchscript(path, observation_dim, allowed=self.run_torchscript)


def _ask_motors(sheet: Sheet, file: str, likely: list[list[str]]) -> None:
    sheet.ask(
        "motors",
        f"the joints behind the robot's motors, in their order: {file} has only numbers, and "
        'models list their actuators as their authors liked; "" for a number without a joint',
        *(f"[{', '.join(name or _EMPTY for name in order)}]" for order in likely),
    )


def expand(given: list[Path]) -> tuple[Path, ...]:
    """Files and folders as files.

    Raises:
        BadInput: A path does not exist, or a folder holds far too many files.
    """
    files: list[Path] = []
    for path in given:
        if path.is_dir():
            inside = [p for p in sorted(path.rglob("*")) if p.suffix in (*NETWORKS, *TEXTS)]
            if len(inside) > _MAX_FILES:
                raise BadInput(f"'{path}' holds more than {_MAX_FILES} networks and settings")
            files += inside
        elif path.exists():
            files.append(path)
        else:
            raise BadInput(f"'{path}' does not exist")
    return tuple(dict.fromkeys(files))
