"""Files that nobody should trust: damaged ones, and ones made on purpose.

Everything is drawn from a seed. Each case says whether the file is certainly bad (exit code 2), or
may happen to be harmless (a flipped bit in a comment) and then must only do no harm.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from robot_runtime.control.flightlog import make_header, raw_preamble, write_log
from robot_runtime.control.record import record_dtype
from robot_runtime.policy.onnx_bytes import split
from tests.helpers.checkpoints import make_checkpoint
from tests.helpers.contracts import leaves, put, quadruped_contract
from tests.helpers.policies import write_random_policy
from tests.helpers.sealing import contract_of, replaced, resealed


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A hostile file.

    Attributes:
        name: What was done to it.
        kind: What is done with it, see `tests.fuzz.worker.run`.
        suffix: Ending of its name.
        data: Its content.
        bad: Whether it must be refused with exit code 2.
    """

    name: str
    kind: str
    suffix: str
    data: bytes
    bad: bool


class Originals:
    """Good files to start from."""

    def __init__(self, folder: Path) -> None:
        """Write and read one of each kind."""
        contract = quadruped_contract()
        self.contract = contract
        self.policy = write_random_policy(folder / "good.onnx", contract).read_bytes()
        self.checkpoint = make_checkpoint(folder / "good.pt").path.read_bytes()
        header = make_header(contract, policy="good.onnx", robot="mock")
        rows = np.zeros(20, record_dtype(contract))
        write_log(folder / "good.npz", header, rows)
        self.log = (folder / "good.npz").read_bytes()
        self.raw_log = raw_preamble(header) + rows.tobytes()
        self.bomb = folder / "exploded"


def all_cases(originals: Originals, seed: int = 0) -> list[Case]:
    """Every case, 2,000 and some."""
    rng = np.random.default_rng(seed)
    return [
        *_damaged(originals.policy, "inspect", ".onnx", rng, counts=(200, 350, 150), bad=True),
        *_damaged(originals.checkpoint, "checkpoint", ".pt", rng, counts=(80, 150, 60), bad=False),
        *_damaged(originals.log, "replay", ".npz", rng, counts=(80, 120, 50), bad=False),
        *_damaged(originals.raw_log, "replay", ".part", rng, counts=(40, 60, 30), bad=False),
        *_contracts(originals.policy, rng, 330),
        *_mutated_graphs(originals.policy, rng, 120),
        *_mutated_traces(originals.policy, rng, 60),
        *_checkpoint_fields(originals),
        *made_on_purpose(originals),
    ]


def made_on_purpose(originals: Originals) -> list[Case]:
    """The cases that somebody thought of, none of them drawn."""
    return [
        *_contract_texts(originals.policy),
        *_hostile_graphs(originals),
        *_hostile_traces(originals),
        *_hostile_pickles(originals),
        *_other_kinds(),
    ]


# Damage.


def _damaged(
    data: bytes,
    kind: str,
    suffix: str,
    rng: np.random.Generator,
    *,
    counts: tuple[int, int, int],
    bad: bool,
) -> Iterator[Case]:
    truncated, flipped, patched = counts
    for _ in range(truncated):
        length = int(rng.integers(len(data)))
        # What a crash leaves of a log is read up to its last whole record.
        certain = bad or suffix != ".part"
        yield Case(
            name=f"cut at {length}", kind=kind, suffix=suffix, data=data[:length], bad=certain
        )
    for _ in range(flipped):
        changed = bytearray(data)
        places = rng.integers(len(data), size=int(rng.integers(1, 12)))
        for place in places:
            changed[place] ^= 1 << int(rng.integers(8))
        certain = bad and bytes(changed) != data
        yield Case(
            name=f"flipped at {places.tolist()}",
            kind=kind,
            suffix=suffix,
            data=bytes(changed),
            bad=certain,
        )
    for _ in range(patched):
        start, stop = sorted(rng.integers(len(data), size=2).tolist())
        stop = min(stop, start + 4000)
        filler = rng.bytes(int(rng.integers(0, 3)) * (stop - start) // 2)
        changed_data = data[:start] + filler + data[stop:]
        yield Case(
            name=f"patched {start}..{stop}",
            kind=kind,
            suffix=suffix,
            data=changed_data,
            bad=bad and changed_data != data,
        )


# Contracts and other texts, sealed anew.

_JUNK: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    10**30,
    -(10**30),
    0.0,
    -0.0,
    1e-300,
    1e300,
    1e9,
    "",
    "x",
    "x" * 10_000,
    "\ud800",
    "\x00",
    "../../etc/passwd",
    [],
    [[]],
    {},
    {"": None},
    [1.0] * 5000,
    [None] * 12,
    list(range(13)),
    [1e38] * 12,
    ["FL_hip_joint"] * 12,
    1000,
    999,
    0.02,
)


def _contracts(data: bytes, rng: np.random.Generator, count: int) -> Iterator[Case]:
    plain = contract_of(data)
    paths = [path for path, _ in leaves(plain)]
    inner = sorted({path.rsplit(".", depth)[0] for path in paths for depth in (1, 2)})
    for i in range(count):
        edited = json.loads(json.dumps(plain))
        for _ in range(int(rng.integers(1, 4))):
            place = str(rng.choice(paths if rng.random() < 0.7 else inner))
            junk = _JUNK[int(rng.integers(len(_JUNK)))]
            try:
                put(edited, place, junk)
            except (KeyError, IndexError, TypeError, ValueError):
                continue
        kind = "inspect" if i % 2 else "run"
        yield Case(
            name=f"contract {i}",
            kind=kind,
            suffix=".onnx",
            data=resealed(data, contract=edited),
            bad=False,
        )


def _contract_texts(data: bytes) -> Iterator[Case]:
    """Texts that are no contract, under a seal of their own."""
    good = split(data).metadata["surefoot.contract"].decode()
    texts: dict[str, bytes] = {
        "NaN gain": good.replace('"kp":25.0', '"kp":NaN').encode(),
        "infinite gain": good.replace('"kp":25.0', '"kp":1e999').encode(),
        "negative gain": good.replace('"kp":25.0', '"kp":-25.0').encode(),
        "text gain": good.replace('"kp":25.0', '"kp":"25.0"').encode(),
        "gain of a million digits": good.replace('"kp":25.0', '"kp":' + "9" * 10**6).encode(),
        "key twice": good.replace('"kp":25.0', '"kp":25.0,"kp":30.0').encode(),
        "deep list": b"[" * 200_000 + b"]" * 200_000,
        "deep object": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        "unfinished": good[:-1].encode(),
        "two contracts": (good + good).encode(),
        "no text": b"\xff\xfe\x00\x01",
        "a number": b"5",
        "null": b"null",
        "empty": b"",
        "byte order mark": b"\xef\xbb\xbf" + good.encode(),
        "many joints": _many_joints(good),
        "long history": good.replace('"length":1', '"length":1000')
        .replace('"stride":1', '"stride":1000')
        .encode(),
        "short PD step": good.replace('"pd_dt":0.005', '"pd_dt":1e-05')
        .replace('"physics_dt":0.005', '"physics_dt":1e-05')
        .encode(),
        "long delay": good.replace('"delay":0.0', '"delay":1.0').encode(),
        "state of everything": good.replace(
            '"states":[]', '"states":[{"input":"h","output":"g","shape":[100000,100000]}]'
        ).encode(),
    }
    for name, text in texts.items():
        assert text != good.encode(), name
        for kind in ("inspect", "run"):
            # A longer delay is a contract like any other, only not the one that was recorded.
            yield Case(
                name=name,
                kind=kind,
                suffix=".onnx",
                data=_with_contract(data, text),
                bad=kind == "run",
            )
    for part in ("provenance", "report", "seal", "trace"):
        for text in (b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000, b'{"version":99}'):
            yield Case(
                name=f"{part} {text[:9]!r}",
                kind="inspect",
                suffix=".onnx",
                data=replaced(data, part, text),
                bad=True,
            )


def _many_joints(good: str) -> bytes:
    plain = json.loads(good)
    plain["joints"] = [{**plain["joints"][0], "name": f"joint {i}"} for i in range(50_000)]
    return json.dumps(plain).encode()


def _with_contract(data: bytes, text: bytes) -> bytes:
    """The file with any text as its contract, under a new seal."""
    import base64

    from robot_runtime.policy.file import seal
    from robot_runtime.policy.onnx_bytes import join

    parts = split(data)
    entries = dict(parts.metadata) | {"surefoot.contract": text}
    sealed = {n: entries[f"surefoot.{n}"] for n in ("contract", "provenance", "report")}
    archive = base64.b64decode(entries["surefoot.trace"])
    entries["surefoot.seal"] = seal({**sealed, "trace": archive, "graph": parts.model}).encode()
    return join(parts.model, entries)


# Graphs.


def _mutated_graphs(data: bytes, rng: np.random.Generator, count: int) -> Iterator[Case]:
    model = split(data).model
    for i in range(count):
        changed = bytearray(model)
        for place in rng.integers(len(model), size=int(rng.integers(1, 6))):
            changed[place] = int(rng.integers(256))
        # The first kilobytes are nodes and names, the rest is weights: go for both.
        if i % 2:
            place = int(rng.integers(min(300, len(model))))
            changed[place] = int(rng.integers(256))
        yield Case(
            name=f"graph {i}",
            kind="run" if i % 3 else "inspect",
            suffix=".onnx",
            data=resealed(data, model=bytes(changed)),
            bad=False,
        )


def _hostile_graphs(originals: Originals) -> Iterator[Case]:
    for name, model in _graphs(originals).items():
        yield Case(
            name=f"graph: {name}",
            kind="run",
            suffix=".onnx",
            data=resealed(originals.policy, model=model),
            bad=True,
        )
        yield Case(name=f"bare graph: {name}", kind="inspect", suffix=".onnx", data=model, bad=True)


def _graphs(originals: Originals) -> dict[str, bytes]:
    dim, actions = originals.contract.observation_dim, originals.contract.num_actions

    def tensor(name: str, values: Any) -> onnx.TensorProto:
        return numpy_helper.from_array(np.asarray(values), name)

    def model(nodes: list[Any], *weights: onnx.TensorProto, functions: Any = ()) -> bytes:
        ports = [
            helper.make_tensor_value_info("obs", TensorProto.FLOAT, [1, dim]),
            helper.make_tensor_value_info("actions", TensorProto.FLOAT, [1, actions]),
        ]
        graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], list(weights))
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        proto.functions.extend(functions)
        return proto.SerializeToString()

    def node(kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
        return helper.make_node(kind, inputs, outputs, **attributes)

    plain = split(originals.policy).model
    weight = tensor("w", np.ones((dim, actions), np.float32))
    last = node("MatMul", ["x", "w"], ["actions"])
    sized = {
        "ConstantOfShape": node("ConstantOfShape", ["size"], ["big"]),
        "Expand": node("Expand", ["obs", "size"], ["big"]),
        "Tile": node("Tile", ["obs", "repeats"], ["big"]),
    }
    return {
        "endless loop": model(
            _loop(dim, node), weight, tensor("n", np.int64(2**62)), tensor("yes", np.bool_(True))
        ),
        **{
            f"{kind} of ten billion": model(
                [first, node("ReduceMax", ["big"], ["m"]), node("Add", ["obs", "m"], ["x"]), last],
                weight,
                tensor("size", np.array([100_000, 100_000])),
                tensor("repeats", np.array([100_000, 100_000])),
            )
            for kind, first in sized.items()
        },
        "outer product": model(
            [
                node("Mul", ["column", "row"], ["big"]),
                node("ReduceMax", ["big"], ["m"]),
                node("Add", ["obs", "m"], ["x"]),
                last,
            ],
            weight,
            tensor("column", np.ones((60_000, 1), np.float32)),
            tensor("row", np.ones((1, 60_000), np.float32)),
        ),
        "computed size": model(
            [
                node("Mul", ["size", "size"], ["squared"]),
                node("ConstantOfShape", ["squared"], ["big"]),
                node("ReduceMax", ["big"], ["m"]),
                node("Add", ["obs", "m"], ["x"]),
                last,
            ],
            weight,
            tensor("size", np.array([100_000])),
        ),
        "slow constants": model(
            _slow("s", node, last), weight, tensor("s", np.ones((600, 600), np.float32))
        ),
        "external weights": _external(model([node("Identity", ["obs"], ["x"]), last], weight)),
        "NaN weights": model(
            [node("Identity", ["obs"], ["x"]), last],
            tensor("w", np.full((dim, actions), np.nan, np.float32)),
        ),
        "weights that claim more": _claim(
            model([node("Identity", ["obs"], ["x"]), last], weight), [2**40, 2**40]
        ),
        "weights of negative size": _claim(
            model([node("Identity", ["obs"], ["x"]), last], weight), [-1, 12]
        ),
        "unknown operator": model(
            [
                node("Identity", ["obs"], ["x"]),
                node("Steal", ["x", "w"], ["actions"], domain="mine"),
            ],
            weight,
        ),
        "functions in functions": model(
            [node("F30", ["obs"], ["x"], domain="mine"), last],
            weight,
            functions=_function_bomb(node),
        ),
        "function that calls itself": model(
            [node("F0", ["obs"], ["x"], domain="mine"), last],
            weight,
            functions=[_function(node, "F0", ["F0"])],
        ),
        "many operators": model(
            [
                node("Identity", ["obs"], ["i0"]),
                *(node("Identity", [f"i{i}"], [f"i{i + 1}"]) for i in range(30_000)),
                node("Identity", ["i30000"], ["x"]),
                last,
            ],
            weight,
        ),
        "deep subgraphs": model([_nested(node, 20), last], weight, tensor("yes", np.bool_(True))),
        "reads a file": model([node("Identity", ["obs"], ["x"]), last], weight).replace(
            b"MatMul", b"MatNul"
        ),
        "cycle": model(
            [node("Add", ["obs", "y"], ["x"]), node("Identity", ["x"], ["y"]), last], weight
        ),
        "no operators": model([], weight),
        **{
            f"{what} that is no text": plain.replace(name, name[:-1] + b"\xdf")
            for what, name in (("axis", b"batch"), ("input", b"obs"), ("output", b"actions"))
        },
    }


def _loop(dim: int, node: Callable[..., Any]) -> list[Any]:
    ports = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("v", TensorProto.FLOAT, [1, dim]),
        helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
        helper.make_tensor_value_info("v_on", TensorProto.FLOAT, [1, dim]),
    ]
    body = helper.make_graph(
        [node("Identity", ["go"], ["go_on"]), node("Add", ["v", "v"], ["v_on"])],
        "body",
        ports[:3],
        ports[3:],
    )
    return [
        node("Loop", ["n", "yes", "obs"], ["x"], body=body),
        node("MatMul", ["x", "w"], ["actions"]),
    ]


def _slow(start: str, node: Callable[..., Any], last: Any) -> list[Any]:
    """Products of matrices that depend on constants alone: minutes while loading."""
    names = [start, *(f"p{i}" for i in range(15_000))]
    products = [node("MatMul", [a, start], [b]) for a, b in itertools.pairwise(names)]
    return [
        *products,
        node("ReduceMax", [names[-1]], ["m"]),
        node("Add", ["obs", "m"], ["x"]),
        last,
    ]


def _external(data: bytes) -> bytes:
    model = onnx.load_from_string(data)
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    entry = weight.external_data.add()
    entry.key, entry.value = "location", "../../../../../../etc/passwd"
    return model.SerializeToString()


def _claim(data: bytes, shape: list[int]) -> bytes:
    model = onnx.load_from_string(data)
    model.graph.initializer[0].dims[:] = shape
    return model.SerializeToString()


def _function(node: Callable[..., Any], name: str, calls: list[str]) -> Any:
    names = ["a", *(f"v{i}" for i in range(len(calls) - 1)), "b"]
    nodes = [
        node(kind, [x], [y], domain="mine" if kind.startswith("F") else "")
        for kind, (x, y) in zip(calls, itertools.pairwise(names), strict=True)
    ]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
    return helper.make_function("mine", name, ["a"], ["b"], nodes, opsets)


def _function_bomb(node: Callable[..., Any]) -> list[Any]:
    """Thirty functions, each calling the one before it twice: a billion operators."""
    first = _function(node, "F0", ["Identity"])
    return [first, *(_function(node, f"F{i + 1}", [f"F{i}"] * 2) for i in range(30))]


def _nested(node: Callable[..., Any], depth: int) -> Any:
    out = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    inner = node("Identity", ["obs"], ["x"])
    other = helper.make_graph([inner], "g", [], [out])
    for _ in range(depth):
        graph = helper.make_graph([inner], "g", [], [out])
        inner = node("If", ["yes"], ["x"], then_branch=graph, else_branch=other)
    return inner


# Traces and logs.


def _arrays(data: bytes) -> dict[str, Any]:
    import base64

    archive = base64.b64decode(split(data).metadata["surefoot.trace"])
    with np.load(io.BytesIO(archive), allow_pickle=False) as npz:
        return {name: npz[name] for name in npz.files}


def _npz(arrays: dict[str, Any], *, pickled: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=pickled, **arrays)
    return buffer.getvalue()


def _mutated_traces(data: bytes, rng: np.random.Generator, count: int) -> Iterator[Case]:
    arrays = _arrays(data)
    names = list(arrays)
    for i in range(count):
        name = names[int(rng.integers(len(names)))]
        array = arrays[name]
        junk: list[Any] = [
            array[:0],
            array[:-1],
            array[..., None],
            array.ravel(),
            array.astype(np.float64) + 0.5,
            array.astype("U8"),
            np.zeros((3, 10_000), np.float32),
            np.float32(1.0),
            np.full(array.shape, np.nan),
            array.astype(np.int32),
            array[::-1] + array[::-1],
        ]
        changed = arrays | {name: junk[i % len(junk)]}
        yield Case(
            name=f"trace {name} {i % len(junk)}",
            kind="run",
            suffix=".onnx",
            data=resealed(data, trace=_npz(changed)),
            bad=False,
        )


def _hostile_traces(originals: Originals) -> Iterator[Case]:
    data, arrays = originals.policy, _arrays(originals.policy)
    objects = np.empty(1, object)
    objects[0] = Bomb(originals.bomb)
    rows = len(arrays["start"])
    archives = {
        "pickled objects": _npz(arrays | {"start": objects}, pickled=True),
        "pickled extra": _npz(arrays | {"extra": objects}, pickled=True),
        "empty": _npz({}),
        "not a zip": b"\x93NUMPY\x01\x00",
        "zeros by the gigabyte": _npz(arrays | {"observation": np.zeros(2**27, np.float32)}),
        "header that lies": _lying_npz(arrays, (2**40,)),
        "header of many axes": _lying_npz(arrays, (1,) * 60_000),
        "header of code": _raw_npz(b"{'descr': __import__('os').system('true'), 'shape': ()}"),
        "a day": _npz(
            {
                k: np.resize(v, (60_000, *v.shape[1:])) if len(v) == rows else v
                for k, v in arrays.items()
            }
        ),
        "meta deep": _npz(arrays | {"meta": np.frombuffer(b"[" * 100_000, np.uint8)}),
        "meta of numbers": _npz(arrays | {"meta": np.arange(1000.0)}),
    }
    for name, archive in archives.items():
        yield Case(
            name=f"trace: {name}",
            kind="run",
            suffix=".onnx",
            data=resealed(data, trace=archive),
            bad=True,
        )
        yield Case(name=f"log: {name}", kind="replay", suffix=".npz", data=archive, bad=True)
    with np.load(io.BytesIO(originals.log), allow_pickle=False) as npz:
        log = {name: npz[name] for name in npz.files}
    header = json.loads(log["header"].tobytes())
    headers: dict[str, Any] = {
        "version": {**header, "version": 99},
        "contract": {**header, "contract": "{}"},
        "types": {**header, "robot": 5},
        "list": [header],
        "deep contract": {**header, "contract": "[" * 100_000},
    }
    for name, value in headers.items():
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        yield Case(
            name=f"log header: {name}",
            kind="replay",
            suffix=".npz",
            data=_npz(log | {"header": text}),
            bad=True,
        )
    for name in log:
        changed = log | {name: np.zeros(2**20, np.uint8)}
        yield Case(
            name=f"log column: {name}", kind="replay", suffix=".npz", data=_npz(changed), bad=True
        )
    magic = originals.raw_log[:20]
    for length in (0, 1, 2**31, 2**63):
        yield Case(
            name=f"raw log of {length}",
            kind="replay",
            suffix=".part",
            data=magic + length.to_bytes(8, "little") + b"{}",
            bad=True,
        )


def _lying_npz(arrays: dict[str, Any], shape: tuple[int, ...]) -> bytes:
    header = repr({"descr": "<f4", "fortran_order": False, "shape": shape}).encode()
    return _raw_npz(header, arrays)


def _raw_npz(header: bytes, arrays: dict[str, Any] | None = None) -> bytes:
    """An archive whose member ``start`` has this header and no data."""
    rest = {name: value for name, value in (arrays or {}).items() if name != "start"}
    buffer = io.BytesIO(_npz(rest))
    member = b"\x93NUMPY\x02\x00" + len(header).to_bytes(4, "little") + header
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("start.npy", member)
    return buffer.getvalue()


# Checkpoints and pickles.


class Bomb:
    """Unpickling this makes a folder: what a hostile file would do."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (self.folder,)


def _saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def _checkpoint_fields(originals: Originals) -> Iterator[Case]:
    """Each field of a checkpoint replaced by junk."""
    content = torch.load(io.BytesIO(originals.checkpoint), weights_only=True)
    junk: list[Any] = [
        None,
        -1,
        10**30,
        float("nan"),
        "x",
        [],
        {},
        {"a": {}},
        torch.zeros(3),
        "[" * 1000,
        {"policy": 10**12},
        {"actor": {"net.0.weight": 5}},
        torch.empty(10**6, 10**6, device="meta"),
    ]
    fields = [
        "format",
        "schema",
        "task",
        "config",
        "obs_dims",
        "num_actions",
        "agent",
        "contract",
        "trace",
        "versions",
    ]
    for name, (i, value) in itertools.product(fields, enumerate(junk)):
        yield Case(
            name=f"checkpoint {name} {i}",
            kind="checkpoint",
            suffix=".pt",
            data=_saved(content | {name: value}),
            bad=False,
        )
    for name in content["trace"]:
        for i, value in enumerate(junk[-4:]):
            changed = content | {"trace": content["trace"] | {name: value}}
            yield Case(
                name=f"checkpoint trace {name} {i}",
                kind="checkpoint",
                suffix=".pt",
                data=_saved(changed),
                bad=True,
            )


def _hostile_pickles(originals: Originals) -> Iterator[Case]:
    content = torch.load(io.BytesIO(originals.checkpoint), weights_only=True)
    bomb = Bomb(originals.bomb)
    wide = torch.zeros(1).expand(2**40)
    deep: Any = {}
    for _ in range(400):
        deep = {"a": deep}
    opcodes = b"\x80\x02" + b"(" * 100_000 + b"."
    files = {
        "bomb in the agent": _saved(content | {"agent": {"actor": bomb}}),
        "bomb in the format": _saved({"format": bomb}),
        "bomb alone": _saved(bomb),
        "bare bomb": pickle.dumps(bomb),
        "bare opcodes": opcodes,
        "endless tensor": _saved(content | {"trace": content["trace"] | {"start": wide}}),
        "deep": _saved(content | {"progress": deep, "contract": 5}),
        "opcodes in an archive": _replaced_record(originals.checkpoint, "data.pkl", opcodes),
        "bomb in an archive": _replaced_record(
            originals.checkpoint, "data.pkl", pickle.dumps(bomb, protocol=2)
        ),
        "no pickle": _replaced_record(originals.checkpoint, "data.pkl", b""),
    }
    for name, data in files.items():
        for kind, suffix in (("checkpoint", ".pt"), ("inspect", ".onnx"), ("replay", ".npz")):
            yield Case(name=f"pickle: {name}", kind=kind, suffix=suffix, data=data, bad=True)


def _replaced_record(data: bytes, name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(buffer, "w") as target:
        for member in source.namelist():
            target.writestr(member, content if member.endswith(name) else source.read(member))
    return buffer.getvalue()


def _other_kinds() -> Iterator[Case]:
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(2**27))
        archive.writestr("x.npy", bytes(2**27))
    files = {
        "empty": b"",
        "one byte": b"\x08",
        "zeros": bytes(5000),
        "text": b"hello\n",
        "yaml": b"!!python/object/apply:os.mkdir [exploded]\n",
        "json": b'{"joints": []}',
        "zip bomb": bomb.getvalue(),
        "zip of nothing": b"PK\x05\x06" + bytes(18),
        "fields without end": b"\x08\x08" + b"\x10\x01" * 400_000,
        "number without end": b"\x08" + b"\xff" * 4000,
        "field that claims an exabyte": b"\x08\x08\x3a\xff\xff\xff\xff\xff\xff\xff\x7f",
        "picture": b"\x89PNG\r\n\x1a\n" + bytes(100),
        "numpy": b"\x93NUMPY\x01\x00\x10\x00{'descr':'<f4'}\n",
    }
    for name, data in files.items():
        for kind, suffix in (("inspect", ".onnx"), ("checkpoint", ".pt"), ("replay", ".npz")):
            yield Case(name=name, kind=kind, suffix=suffix, data=data, bad=True)
