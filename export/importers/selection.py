"""Networks that see less than a term gives: some of its components, or its past alone.

A contract's terms are whole vectors, and all terms of a block are of one age. Where a network takes
the yaw rate alone, or the last two actions in every frame of a stack, the contract gives it the
whole term, with as many frames more as the older values need, and a ``Gather`` in front of the
network takes what it wants. So the user may say of a term

    - base_ang_vel: {components: [2]}
    - {name: action_before, source: last_action, lag: 1}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from export.importers.graph import Graph, Reference
from export.importers.reading import as_numbers, is_list, show
from robot_runtime.errors import BadInput
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.spec import ObservationBlock

_SIZES = {
    "base_ang_vel": 3,
    "projected_gravity": 3,
    "base_lin_vel": 3,
    "euler_xyz": 3,
    "base_quat": 4,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What a network takes of one term.

    Attributes:
        components: Elements of the term, in order; None for all.
        lag: Policy steps by which its frames are older than the block's.
        frames: Frames that the network takes.
    """

    components: tuple[int, ...] | None
    lag: int
    frames: int


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockWanted:
    """What a network takes of one block.

    Attributes:
        terms: Of its terms, in order.
        layout: How it wants them laid out, as in a contract's history.
        order: Which frame it wants first, as in a contract's history.
    """

    terms: tuple[Wanted, ...]
    layout: str
    order: str


def take_wishes(block: dict[str, Any], where: str) -> BlockWanted | None:
    """Take components and lags out of a block in short form, and widen its history for them.

    Args:
        block: The block; gets what the contract must give.
        where: Where it stands, for messages.

    Returns:
        What the network takes; None where that is all of it.

    Raises:
        BadInput: A wish that cannot be granted; the message names the term.
    """
    terms, history = block["terms"], block["history"]
    if not any(key in term for term in terms for key in ("components", "lag")):
        return None
    length = history.get("length", 1)
    wanted = [_wanted(term, length, f"{where}.{term['name']}") for term in terms]
    most = max(item.lag for item in wanted)
    if most and history.get("stride", 1) != 1:
        raise BadInput(f"{where}: a lag needs a history without a stride")
    layout, order = history.get("layout"), history.get("order")
    if most and length == 1 and all(item.frames == 1 for item in wanted):
        # One frame: how it is laid out does not matter, only what stands before the first.
        layout, order = layout or "term_major", order or "newest_first"
    if most:
        history |= {"length": length + most if layout == "frame_major" else length}
        history |= {key: value for key, value in (("layout", layout), ("order", order)) if value}
    if most and layout != "frame_major":
        for term, item in zip(terms, wanted, strict=True):
            if item.lag:
                term["history_length"] = item.frames + item.lag
    return BlockWanted(
        terms=tuple(wanted), layout=layout or "term_major", order=order or "oldest_first"
    )


def _wanted(term: dict[str, Any], length: Any, where: str) -> Wanted:
    picked, lag = term.pop("components", None), term.pop("lag", 0)
    frames = term.get("history_length") or length
    for value, name, least in ((lag, "lag", 0), (frames, "history length", 1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise BadInput(f"{where}: expected a whole {name}, found {show(value)}")
    if picked is None:
        return Wanted(components=None, lag=lag, frames=frames)
    numbers = as_numbers(picked, f"{where}.components")
    if not numbers or any(n != int(n) or n < 0 for n in numbers):
        raise BadInput(f"{where}.components: expected places from 0 on, found {show(picked)}")
    places = tuple(int(n) for n in numbers)
    scale, size = term.get("scale"), _SIZES.get(term["source"])
    if is_list(scale) and size is not None and len(scale) == len(places) != size:
        whole = [1.0] * size
        for place, factor in zip(places, scale, strict=True):
            if place < size:
                whole[place] = factor
        term["scale"] = whole
    return Wanted(components=places, lag=lag, frames=frames)


def select(
    graph: Graph, contract: PolicyContract, wanted: list[BlockWanted | None]
) -> tuple[Graph, Reference | None]:
    """Put what the network takes in front of it.

    Args:
        graph: The foreign network.
        contract: What it is given.
        wanted: What it takes, by block.

    Returns:
        The network for the contract's observation, and what gives the foreign network's from it;
        the network itself and None where they are the same.

    Raises:
        BadInput: A component that a term does not have.
    """
    if not any(wanted):
        return graph, None
    if graph.observed is not None:
        raise BadInput("components and lag: this network's observation is made inside its graph")
    places: dict[str, list[NDArray[np.int64]]] = {}
    start: dict[str, int] = {}
    for block, wish in zip(contract.observation, wanted, strict=True):
        size = contract.block_dim(block)
        chosen = np.arange(size) if wish is None else _places(contract, block, wish)
        begin = start.get(block.input, 0)
        places.setdefault(block.input, []).append(chosen + begin)
        start[block.input] = begin + size
    by_input = {name: np.concatenate(parts) for name, parts in places.items()}
    whole: list[NDArray[np.int64]] = []
    offset = 0
    for name, size in start.items():
        whole.append(by_input[name] + offset)
        offset += size
    indices = np.concatenate(whole)
    model = onnx.load_model_from_string(graph.model)
    for name, chosen in by_input.items():
        _gather(model, name, chosen, start[name])

    def reference(output: str) -> Reference:
        return Chosen(graph.reference(output), indices)

    selected = dataclasses.replace(
        graph,
        model=model.SerializeToString(deterministic=True),
        inputs={name: start.get(name, size) for name, size in graph.inputs.items()},
        reference=reference,
    )
    return selected, Chosen(None, indices)


def taken(contract: PolicyContract, wanted: list[BlockWanted | None]) -> dict[str, int]:
    """How many numbers the network takes, by input."""
    found: dict[str, int] = {}
    for block, wish in zip(contract.observation, wanted, strict=True):
        count = contract.block_dim(block)
        if wish is not None:
            count = len(_places(contract, block, wish))
        found[block.input] = found.get(block.input, 0) + count
    return found


def describe(contract: PolicyContract, wanted: list[BlockWanted | None]) -> list[str]:
    """What the network takes of terms that it does not take as they are, for people."""
    notes: list[str] = []
    for block, wish in zip(contract.observation, wanted, strict=True):
        for term, item in zip(block.terms, wish.terms if wish else (), strict=False):
            parts = [f"components {list(item.components)}"] if item.components else []
            parts += [f"what it was {item.lag} policy step(s) before"] if item.lag else []
            if parts:
                notes.append(f"of term '{term.name}' the network takes {', '.join(parts)}")
    return notes


class Chosen:
    """A network behind the choice of what it takes; without one, the choice itself."""

    def __init__(self, inner: Reference | None, indices: NDArray[np.int64]) -> None:
        """Take the network and the places of what it takes."""
        self._inner = inner
        self._indices = indices

    def reset(self) -> None:
        """Forget the network's state."""
        if self._inner is not None:
            self._inner.reset()

    def step(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Run one of the contract's observations, shape ``(observation_dim,)``."""
        chosen = np.ascontiguousarray(obs[self._indices], np.float32)
        return chosen if self._inner is None else self._inner.step(chosen)


def _places(
    contract: PolicyContract, block: ObservationBlock, wish: BlockWanted
) -> NDArray[np.int64]:
    """Where in the contract's block the network's numbers stand, in the network's order."""
    sizes = [contract.term_dim(term) for term in block.terms]
    base = 0 if block.history.includes_current else 1
    given = [
        (t, base + age, i)
        for t, age in _frames([block.length_of(term) for term in block.terms],
                              block.history.layout, block.history.order)
        for i in range(sizes[t])
    ]  # fmt: skip
    at = {place: i for i, place in enumerate(given)}
    found: list[int] = []
    for t, age in _frames([term.frames for term in wish.terms], wish.layout, wish.order):
        term = wish.terms[t]
        for i in term.components if term.components is not None else range(sizes[t]):
            if i >= sizes[t]:
                name = block.terms[t].name
                raise BadInput(f"observation.{name}.components: {i}, but it has {sizes[t]} numbers")
            found.append(at[t, base + age + term.lag, i])
    return np.array(found, np.int64)


def _frames(lengths: list[int], layout: str, order: str) -> Iterable[tuple[int, int]]:
    """Term and age of every part of a block, in its order."""

    def ages(length: int) -> list[int]:
        return list(range(length)) if order == "newest_first" else list(range(length))[::-1]

    if layout == "frame_major":
        return [(t, age) for age in ages(max(lengths)) for t in range(len(lengths))]
    return [(t, age) for t, length in enumerate(lengths) for age in ages(length)]


def _gather(model: onnx.ModelProto, name: str, places: NDArray[np.int64], size: int) -> None:
    """Let the graph take all of an input, and its nodes the chosen part in the input's shape."""
    chosen, at, flat = f"{name}_chosen", f"{name}_places", f"{name}_flat"
    _rename(model.graph, name, chosen)
    (tensor,) = [tensor for tensor in model.graph.input if tensor.name == name]
    shape = tensor.type.tensor_type.shape
    nodes = [helper.make_node("Gather", [name, at], [chosen], axis=-1)]
    if len(shape.dim) > 2:
        sizes = np.array([axis.dim_value or 1 for axis in shape.dim], np.int64)
        nodes[0].output[0] = flat
        nodes.append(helper.make_node("Reshape", [flat, f"{name}_shape"], [chosen]))
        model.graph.initializer.append(numpy_helper.from_array(sizes, f"{name}_shape"))
        del shape.dim[:]
        shape.dim.add().dim_value = 1
        shape.dim.add()
    shape.dim[-1].ClearField("dim_param")
    shape.dim[-1].dim_value = size
    model.graph.initializer.append(numpy_helper.from_array(places, at))
    for node in reversed(nodes):
        model.graph.node.insert(0, node)


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name == old:
                node.input[i] = new
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename(inner, old, new)
