"""Files of strangers into plain values.

YAML is read without executing anything: the tags that Python programs leave in their dumps become
plain data. Whatever is wrong is one `BadInput` that names file, field and what was expected.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import yaml

from robot_runtime.errors import BadInput

MAX_TEXT = 2**18
"""Largest YAML or JSON file, bytes: a hundred times the largest that any stack ships."""

MAX_BINARY = 2**29
"""Largest network or trace, bytes."""

_MAX_NODES = 200_000
_MAX_DEPTH = 64
_PYTHON = "tag:yaml.org,2002:python/"


@dataclass(frozen=True, kw_only=True, slots=True)
class PythonTag:
    """Something that only Python could build, kept as data.

    Attributes:
        name: What the tag names, such as ``object/apply:builtins.slice``.
        value: Its arguments, plain values.
    """

    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping from a foreign file, with checked access.

    Attributes:
        name: The file, and the way into it, for messages.
        data: Its content.
    """

    name: str
    data: dict[str, Any]

    def __contains__(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.data.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        """The keys, in the file's order."""
        return iter(self.data)

    def where(self, key: str) -> str:
        """The name of a field for messages and provenance."""
        return f"{self.name} {key}"

    def get(self, key: str) -> Any:
        """The value of a key.

        Raises:
            BadInput: The key is missing; the message lists those there are.
        """
        if key not in self.data:
            raise BadInput(f"{self.name}: '{key}' is missing; there are {shorten(list(self.data))}")
        return self.data[key]

    def table(self, key: str) -> Table:
        """A mapping inside this one."""
        value = self.get(key)
        if not is_dict(value):
            raise BadInput(f"{self.where(key)}: expected a mapping, found {show(value)}")
        return Table(f"{self.name} {key}", value)

    def number(self, key: str) -> float:
        """A finite number."""
        return as_number(self.get(key), self.where(key))

    def count(self, key: str) -> int:
        """A whole number from 0 on."""
        value = self.number(key)
        if value != int(value) or value < 0:
            raise BadInput(f"{self.where(key)}: expected a whole number, found {show(value)}")
        return int(value)

    def numbers(self, key: str, length: int | None = None) -> list[float]:
        """A list of finite numbers, of the given length if there is one."""
        return as_numbers(self.get(key), self.where(key), length)

    def spread(self, key: str, length: int) -> list[float]:
        """One number for all, or a list of the given length."""
        value = self.get(key)
        if is_list(value):
            return self.numbers(key, length)
        return [self.number(key)] * length

    def indices(self, key: str) -> list[int]:
        """A list of whole numbers from 0 on, none of them twice."""
        values = self.numbers(key)
        if any(v != int(v) or v < 0 for v in values) or len(set(values)) != len(values):
            raise BadInput(
                f"{self.where(key)}: expected different whole numbers, found {show(values)}"
            )
        return [int(value) for value in values]

    def names(self, key: str) -> list[str]:
        """A list of different names."""
        value = self.get(key)
        ok = is_list(value) and all(isinstance(v, str) and v for v in value)
        if not ok or len(set(value)) != len(value):
            raise BadInput(f"{self.where(key)}: expected different names, found {show(value)}")
        return list(value)

    def text(self, key: str) -> str:
        """A text."""
        value = self.get(key)
        if not isinstance(value, str):
            raise BadInput(f"{self.where(key)}: expected a text, found {show(value)}")
        return value

    def flag(self, key: str, absent: bool) -> bool:
        """A truth value, or what counts where it is absent."""
        if key not in self:
            return absent
        value = self.get(key)
        if not isinstance(value, bool):
            raise BadInput(f"{self.where(key)}: expected true or false, found {show(value)}")
        return value


def read_bytes(path: Path, limit: int = MAX_BINARY) -> bytes:
    """The content of a file.

    Raises:
        BadInput: Missing, not a plain file, larger than ``limit``, or unreadable.
    """
    try:
        if not path.exists():
            raise BadInput(f"'{path}' does not exist")
        if not path.is_file():
            raise BadInput(f"'{path}' is not a plain file")
        if path.stat().st_size > limit:
            raise BadInput(f"'{path}' is larger than {limit >> 10} KiB")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read '{path}': {error}") from None


def read_yaml(path: Path) -> Table:
    """The mapping that a YAML file holds.

    Raises:
        BadInput: Not YAML, not a mapping, too large, nested too deep, or a tag that is not plain.
    """
    return parse_yaml(read_bytes(path, MAX_TEXT), path.name)


def parse_yaml(data: bytes, name: str) -> Table:
    """The mapping that a YAML text holds; see `read_yaml`."""
    value = parse_yaml_value(data, name)
    if not is_dict(value) or not all(isinstance(key, str) for key in value):
        raise BadInput(f"{name}: expected a mapping with names as keys, found {show(value)}")
    return Table(name, value)


def parse_yaml_value(data: bytes, name: str) -> Any:
    """Any value that a YAML text holds; see `read_yaml`."""
    try:
        # A loader derived from SafeLoader: it builds plain values only.
        value = yaml.load(data.decode(), _PlainLoader)
    except UnicodeDecodeError:
        raise BadInput(f"{name}: not a UTF-8 text") from None
    except RecursionError:
        raise BadInput(f"{name}: nested too deep to be a configuration") from None
    except (yaml.YAMLError, ValueError) as error:
        raise BadInput(f"{name}: not a plain YAML file: {one_line(error)}") from None
    _bounded(value, name)
    return value


def parse_json(text: str, name: str) -> Any:
    """The value of a JSON text.

    Raises:
        BadInput: Not JSON, too long, or nested too deep.
    """
    if len(text) > 16 * MAX_TEXT:
        raise BadInput(f"{name}: longer than {16 * MAX_TEXT >> 20} MiB")
    try:
        value = json.loads(text)
    except RecursionError:
        raise BadInput(f"{name}: nested too deep") from None
    except ValueError as error:
        raise BadInput(f"{name}: not JSON: {one_line(error)}") from None
    return value


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether a value of a foreign file is a list, of whatever."""
    return isinstance(value, list)


def is_dict(value: object) -> TypeGuard[dict[Any, Any]]:
    """Whether a value of a foreign file is a mapping, of whatever to whatever."""
    return isinstance(value, dict)


def as_number(value: Any, where: str) -> float:
    """A finite number.

    Raises:
        BadInput: It is none.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or (isinstance(value, int) and abs(value) > 2**53) or not math.isfinite(value):
        raise BadInput(f"{where}: expected a finite number, found {show(value)}")
    return float(value)


def as_numbers(value: Any, where: str, length: int | None = None) -> list[float]:
    """A list of finite numbers, of the given length if there is one.

    Raises:
        BadInput: It is none.
    """
    if not is_list(value):
        raise BadInput(f"{where}: expected a list of numbers, found {show(value)}")
    if length is not None and len(value) != length:
        raise BadInput(f"{where}: expected {length} numbers, found {len(value)}")
    return [as_number(item, f"{where}[{i}]") for i, item in enumerate(value)]


def show(value: Any) -> str:
    """A value for a message, cut short."""
    if isinstance(value, PythonTag):
        return f"a Python object ({value.name})"
    text = one_line(repr(value)) if not is_dict(value) else f"a mapping of {len(value)}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def shorten(names: list[Any], most: int = 20) -> str:
    """Names for a message: the first few, and how many more."""
    shown = ", ".join(str(name) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def one_line(error: object, limit: int = 200) -> str:
    """A text on one line, without colours, cut short."""
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


class _PlainLoader(yaml.SafeLoader):
    """SafeLoader that keeps Python's tags as data, refuses a key twice, and reads 1e-3."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key '{key.value}' stands there twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _python_tag(loader: _PlainLoader, suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode):
        value: Any = loader.construct_sequence(node, deep=True)
    elif isinstance(node, yaml.MappingNode):
        value = loader.construct_mapping(node, deep=True)
    else:
        value = loader.construct_scalar(node)  # type: ignore[arg-type]
    return value if suffix == "tuple" else PythonTag(name=suffix, value=value)


# The stubs of PyYAML leave their tags open.
_LOADER: Any = _PlainLoader
_LOADER.add_multi_constructor(_PYTHON, _python_tag)
_LOADER.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d[\d_]*[eE][-+]?\d+$"), list("-+0123456789")
)


def _bounded(value: Any, name: str) -> None:
    """Refuse values that aliases blow up: their size is counted without expanding them."""
    sizes: dict[int, int] = {}

    def size(item: Any, depth: int) -> int:
        if depth > _MAX_DEPTH:
            raise BadInput(f"{name}: nested too deep to be a configuration")
        if isinstance(item, PythonTag):
            return size(item.value, depth + 1)
        inner: list[Any] = []
        if is_dict(item):
            inner = list(item.values())
        elif is_list(item):
            inner = item
        else:
            return 1
        if id(item) not in sizes:
            sizes[id(item)] = 1 + sum(size(part, depth + 1) for part in inner)
        return sizes[id(item)]

    if size(value, 0) > _MAX_NODES:
        raise BadInput(f"{name}: has more than {_MAX_NODES} values")
