"""Frozen dataclasses to JSON and back, strictly: nothing missing, nothing unknown, nothing cast."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from typing import Any, Literal, TypeVar, Union, cast

from robot_runtime.errors import BadInput

T = TypeVar("T")

_MAX_DEPTH = 64
_MAX_ITEMS = 4096


class ContractError(BadInput):
    """A contract is incomplete, contradictory or of another schema; the message names the field."""


def encode(value: Any) -> Any:
    """Turn a dataclass tree into plain JSON values; floats keep full precision."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [encode(item) for item in cast("tuple[Any, ...]", value)]
    return value


def canonical(value: Any) -> str:
    """The one text of a dataclass tree that is hashed: sorted keys, no spaces, repr floats."""
    return json.dumps(encode(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def parse_json(text: str, what: str) -> Any:
    """Parse JSON that a stranger wrote.

    Args:
        text: The text.
        what: What the text is, for messages.

    Raises:
        ContractError: Not JSON, a key twice, a number that is not finite, or nested too deep.
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, item in items:
            if key in seen:
                raise ContractError(f"{what}: key {key!r} stands there twice")
            seen[key] = item
        return seen

    def constant(name: str) -> Any:
        raise ContractError(f"{what}: {name} is not a finite number")

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except RecursionError:
        raise ContractError(f"{what}: nested too deep to be one") from None
    except ValueError as error:
        raise ContractError(f"{what}: not valid JSON ({error})") from None


def decode(kind: type[T], value: Any, path: str) -> T:
    """Rebuild a dataclass tree from plain JSON values.

    Args:
        kind: The dataclass to build.
        value: What `parse_json` returned.
        path: Where the value stands, for messages.

    Raises:
        ContractError: A field is missing, unknown, or of another type; the message has its path.
    """
    return cast("T", _decode(kind, value, path, 0))


def _decode(kind: Any, value: Any, path: str, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ContractError(f"{path}: nested too deep")
    if dataclasses.is_dataclass(kind):
        return _decode_record(cast("type[Any]", kind), value, path, depth)
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        inner = [a for a in typing.get_args(kind) if a is not type(None)]
        return None if value is None else _decode(inner[0], value, path, depth + 1)
    if origin is tuple:
        return _decode_tuple(kind, value, path, depth)
    if origin is Literal:
        options = typing.get_args(kind)
        if value not in options or isinstance(value, bool):
            known = ", ".join(repr(o) for o in options)
            raise ContractError(f"{path}: {_show(value)} is not one of {known}")
        return value
    return _decode_scalar(kind, value, path)


def _decode_record(kind: type[Any], value: Any, path: str, depth: int) -> Any:
    if not isinstance(value, dict):
        raise ContractError(f"{path}: expected an object, found {_show(value)}")
    record = cast("dict[str, Any]", value)
    hints = typing.get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]
    for name in names:
        if name not in record:
            raise ContractError(f"{path}.{name} is missing")
    for key in record:
        if key not in names:
            raise ContractError(f"{path}.{key} is not a field; known: {', '.join(names)}")
    fields = {n: _decode(hints[n], record[n], f"{path}.{n}", depth + 1) for n in names}
    try:
        return kind(**fields)
    except ContractError as error:
        raise ContractError(f"{path}: {error}") from None


def _decode_tuple(kind: Any, value: Any, path: str, depth: int) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ContractError(f"{path}: expected a list, found {_show(value)}")
    items = cast("list[Any]", value)
    if len(items) > _MAX_ITEMS:
        raise ContractError(f"{path}: {len(items)} items, no contract has more than {_MAX_ITEMS}")
    args = typing.get_args(kind)
    if args[-1] is not Ellipsis and len(items) != len(args):
        raise ContractError(f"{path}: expected {len(args)} items, found {len(items)}")
    kinds = [args[0]] * len(items) if args[-1] is Ellipsis else list(args)
    return tuple(
        _decode(k, item, f"{path}[{i}]", depth + 1)
        for i, (k, item) in enumerate(zip(kinds, items, strict=True))
    )


def _decode_scalar(kind: Any, value: Any, path: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > 2**53:
            raise ContractError(f"{path}: {_show(value)} does not fit a float")
        return float(value)
    if type(value) is not kind:
        raise ContractError(f"{path}: expected {kind.__name__}, found {_show(value)}")
    if kind is float and not math.isfinite(value):
        raise ContractError(f"{path}: {value} is not a finite number")
    return value


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
