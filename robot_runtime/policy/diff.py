"""What differs between two policies: contract, network, provenance and golden trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from robot_runtime.policy.file import PolicyFile
from robot_runtime.policy.onnx_graph import OnnxGraph, Weight, read_graph
from robot_runtime.policy.trace import GoldenTrace

ABSENT = "(absent)"
"""Stands for a value that one side lacks."""

_KEYS = ("name", "joint", "input")
"""What the elements of a list are found by, wherever they stand."""

_UNITS = {
    "default_pos": "rad",
    "velocity_limit": "rad/s",
    "effort_limit": "Nm",
    "stall_effort": "Nm",
    "no_load_speed": "rad/s",
    "kp": "Nm/rad",
    "kd": "Nms/rad",
    "control_dt": "s",
    "pd_dt": "s",
    "physics_dt": "s",
    "delay": "s",
    "period": "s",
    "joints.lower": "rad",
    "joints.upper": "rad",
    "hold.position": "rad",
    "imu.position": "m",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A value that differs.

    Attributes:
        path: Where it stands, with names in place of numbers.
        a: The value of the first policy, or `ABSENT`.
        b: The value of the second one.
        unit: Unit of both, empty where there is none.
    """

    path: str
    a: Any
    b: Any
    unit: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightChange:
    """A weight that differs.

    Attributes:
        name: Its name in the first policy, and in the second where that is another one.
        shape: Its shape.
        count: How many of its numbers differ.
        largest: Largest absolute difference.
        place: Where that is.
    """

    name: str
    shape: tuple[int, ...]
    count: int
    largest: float
    place: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyDiff:
    """Everything that differs; empty where nothing does.

    Attributes:
        contract: Fields of the contract.
        weights: Weights that both have.
        network: Everything else of the graph: operators, versions, weights of one side.
        provenance: Entries of the provenance.
        trace: Names, origin and arrays of the golden trace.
    """

    contract: tuple[Change, ...]
    weights: tuple[WeightChange, ...]
    network: tuple[Change, ...]
    provenance: tuple[Change, ...]
    trace: tuple[Change, ...]

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not any((self.contract, self.weights, self.network, self.provenance, self.trace))


def diff_policies(a: PolicyFile, b: PolicyFile) -> PolicyDiff:
    """Compare two policy files.

    Args:
        a: The first one.
        b: The second one.
    """
    graphs = read_graph(a.model), read_graph(b.model)
    weights, network = diff_graphs(*graphs)
    return PolicyDiff(
        contract=tuple(diff_values(a.contract.to_dict(), b.contract.to_dict())),
        weights=weights,
        network=network,
        provenance=tuple(diff_values(a.provenance, b.provenance)),
        trace=tuple(_traces(a.trace, b.trace)),
    )


def diff_values(a: Any, b: Any, path: str = "") -> Iterator[Change]:
    """Compare plain JSON values, elements of lists by their names.

    Args:
        a: Values of the first side.
        b: Values of the second side.
        path: Where they stand.
    """
    kind = type(cast("object", a))
    if kind is not type(cast("object", b)):
        yield Change(path=path, a=a, b=b, unit=_unit(path))
    elif kind is dict:
        yield from _records(a, b, path)
    elif kind is list:
        yield from _lists(a, b, path)
    elif a != b:
        yield Change(path=path, a=a, b=b, unit=_unit(path))


def _records(a: Mapping[str, Any], b: Mapping[str, Any], path: str) -> Iterator[Change]:
    for name in dict.fromkeys([*a, *b]):
        inner = f"{path}.{name}" if path else name
        one, two = a.get(name, ABSENT), b.get(name, ABSENT)
        same_joints = a.get("joints") == b.get("joints")
        labels = cast("list[str] | None", a.get("joints")) if same_joints else None
        if labels and _numbers(one, len(labels)) and _numbers(two, len(labels)):
            for label, x, y in zip(labels, one, two, strict=True):
                yield from diff_values(x, y, f"{inner}[{label}]")
        else:
            yield from diff_values(one, two, inner)


def _lists(a: list[Any], b: list[Any], path: str) -> Iterator[Change]:
    key = next((key for key in _KEYS if _keyed(a, key) and _keyed(b, key)), None)
    if key is None:
        if len(a) == len(b) and any(isinstance(item, dict | list) for item in (*a, *b)):
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                yield from diff_values(x, y, f"{path}[{i}]")
        elif a != b:
            yield Change(path=path, a=a, b=b, unit=_unit(path))
        return
    ours, theirs = ({item[key]: item for item in side} for side in (a, b))
    shared = [name for name in ours if name in theirs]
    if shared != [name for name in theirs if name in ours]:
        yield Change(path=f"{path}, order", a=list(ours), b=list(theirs))
    for name in dict.fromkeys([*ours, *theirs]):
        inner = f"{path}.{name}"
        if name in shared:
            yield from diff_values(ours[name], theirs[name], inner)
        else:
            there = "present" if name in ours else ABSENT
            yield Change(path=inner, a=there, b=ABSENT if name in ours else "present")


def _keyed(items: list[Any], key: str) -> bool:
    """Whether every element is a record with a name of its own under this key."""
    names = [cast("dict[str, Any]", i).get(key) for i in items if isinstance(i, dict)]
    return len(names) == len(items) == len(set(map(str, names))) and None not in names


def _numbers(value: Any, count: int) -> bool:
    return (
        isinstance(value, list)
        and len(cast("list[Any]", value)) == count
        and all(isinstance(item, float | int) for item in cast("list[Any]", value))
    )


def _unit(path: str) -> str:
    first, last = path.split(".")[0], path.split(".")[-1].split("[")[0]
    for key in (last, f"{first}.{last}", ".".join([*path.split(".")[1:2], last])):
        if key in _UNITS:
            return _UNITS[key]
    return ""


def diff_graphs(a: OnnxGraph, b: OnnxGraph) -> tuple[tuple[WeightChange, ...], tuple[Change, ...]]:
    """Compare two graphs.

    Weights are found by name; those without a namesake by shape, the nearest first, because every
    exporter names them otherwise.

    Returns:
        The weights that differ, and everything else that does.
    """
    weights: list[WeightChange] = []
    network: list[Change] = []
    pairs, only_a, only_b = _pairs(a.weights, b.weights)
    for one, two in pairs:
        change = _weight(one, two)
        if change is not None:
            weights.append(change)
    network += [Change(path=f"weight {w.name}", a=_shown(w), b=ABSENT) for w in only_a]
    network += [Change(path=f"weight {w.name}", a=ABSENT, b=_shown(w)) for w in only_b]
    kinds = [[operator.kind for operator in graph.operators] for graph in (a, b)]
    if kinds[0] != kinds[1]:
        ours, theirs = (", ".join(f"{n} {k}" for k, n in Counter(each).items()) for each in kinds)
        network.append(Change(path="operators", a=ours, b=theirs))
    else:
        settings = [[operator.settings for operator in graph.operators] for graph in (a, b)]
        changed = [k for k, x, y in zip(kinds[0], *settings, strict=True) if x != y]
        if changed:
            network.append(
                Change(
                    path=f"settings of {', '.join(dict.fromkeys(changed))}", a="these", b="others"
                )
            )
    network += diff_values(
        {"opset": a.opsets.get(""), "IR": a.ir_version, "written by": a.producer},
        {"opset": b.opsets.get(""), "IR": b.ir_version, "written by": b.producer},
    )
    return tuple(weights), tuple(network)


def _pairs(
    a: Mapping[str, Weight], b: Mapping[str, Weight]
) -> tuple[list[tuple[Weight, Weight]], list[Weight], list[Weight]]:
    pairs = [
        (weight, b[name]) for name, weight in a.items() if name in b and _alike(weight, b[name])
    ]
    named = {one.name for one, _ in pairs}
    rest_a = [weight for name, weight in a.items() if name not in named]
    rest_b = [weight for name, weight in b.items() if name not in named]
    only_a: list[Weight] = []
    for weight in rest_a:
        near = [other for other in rest_b if _alike(weight, other)]
        if not near:
            only_a.append(weight)
            continue
        nearest = min(near, key=lambda other: float(np.sum(_distance(weight, other))))
        pairs.append((weight, nearest))
        rest_b.remove(nearest)
    return pairs, only_a, rest_b


def _alike(a: Weight, b: Weight) -> bool:
    return (a.shape, a.dtype) == (b.shape, b.dtype) and a.values is not None is not b.values


def _distance(a: Weight, b: Weight) -> NDArray[np.float64]:
    ours, theirs = np.asarray(a.values, np.float64), np.asarray(b.values, np.float64)
    # Equal infinities differ by nothing.
    return np.where(ours == theirs, 0.0, np.abs(np.nan_to_num(ours - theirs, nan=np.inf)))


def _weight(a: Weight, b: Weight) -> WeightChange | None:
    distance = _distance(a, b)
    count = int(np.count_nonzero(distance))
    if not count:
        return None
    place = np.unravel_index(int(np.argmax(distance)), distance.shape)
    return WeightChange(
        name=a.name if a.name == b.name else f"{a.name} / {b.name}",
        shape=a.shape,
        count=count,
        largest=float(distance.max()),
        place=tuple(int(i) for i in place),
    )


def _shown(weight: Weight) -> str:
    return f"{weight.dtype} {list(weight.shape)}"


def _traces(a: GoldenTrace, b: GoldenTrace) -> Iterator[Change]:
    yield from diff_values(
        {"origin": a.origin, "rows": a.rows, "joints": list(a.joint_names),
         "commands": list(a.command_names)},
        {"origin": b.origin, "rows": b.rows, "joints": list(b.joint_names),
         "commands": list(b.command_names)},
    )  # fmt: skip
    ours, theirs = a.to_arrays(), b.to_arrays()
    for name, array in ours.items():
        other = theirs[name]
        if name == "meta" or np.array_equal(array, other, equal_nan=array.dtype.kind == "f"):
            continue
        if array.shape != other.shape:
            if array.shape[1:] != other.shape[1:] or a.rows == b.rows:
                yield Change(path=name, a=list(array.shape), b=list(other.shape))
            continue
        rows = np.argwhere((array != other).reshape(len(array), -1).any(axis=1))
        largest = np.nanmax(np.abs(array.astype(np.float64) - other))
        yield Change(path=name, a=f"from row {int(rows[0, 0])} on", b=f"by at most {largest:.3g}")
