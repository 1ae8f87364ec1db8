"""Broken and hostile files: always one line, never a traceback, a hang, a fill or foreign code."""

from __future__ import annotations

import pickle
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import helper, numpy_helper

from robot_runtime.cli import main
from robot_runtime.errors import SurefootError
from tests.export.importers.test_berkeley import bhl_case
from tests.export.importers.test_holosoma import holosoma_case
from tests.export.importers.test_leapp import leapp_case
from tests.export.importers.test_mjlab import mjlab_case
from tests.export.importers.test_motion import Motion, motion_case
from tests.export.importers.test_rl_sar import sar_case
from tests.export.importers.test_rsl_rl import AGENT, CONTRACT, flat, mlp
from tests.export.importers.test_rsl_rl import case as rsl_rl_case
from tests.export.importers.test_unitree import deploy_case, terms
from tests.helpers.foreign import Case, Network, record, tensor

SLOWEST = 10.0
"""Seconds of the processor that one broken file may take; a busy machine is no bug."""

LARGEST = 2 * 2**30
"""Bytes that this process may grow to."""

EVIL = (
    "!!python/object/apply:os.system ['touch {mark}']",
    "!!python/object/new:subprocess.Popen [[touch, {mark}]]",
    "!!python/name:os.system ",
    '!!python/object/apply:builtins.exec [\'open("{mark}", "w")\']',
    "!evil {{a: 1}}",
)
WORDS = (".nan", ".inf", "-.inf", "1e400", "-1", "0", "null", "[]", "{}", "''", "x", "[[[[1]]]]")
WORDS += ("99999999999999999999", "1e-300", "true", "&a [*a]", "*b", "\t", "\x00", "1" * 5000)


def checkpoint_case(folder: Path) -> Case:
    """A checkpoint with its settings; what else is needed stands on the command line."""
    folder.mkdir(parents=True)
    case = rsl_rl_case(folder, flat(mlp()), "{}")
    case.write("agent.yaml", AGENT.format(normalization="false"))
    case.settings = [
        f"{key}={yaml.safe_dump(value, default_flow_style=True)}"
        for key, value in yaml.safe_load(CONTRACT).items()
    ]
    return case


def cases(folder: Path) -> dict[str, Case]:
    sar, _ = sar_case(folder / "sar")
    sar.files.append(folder / "sar/policy/biped2/him/policy.onnx")
    bhl = bhl_case(folder / "bhl")
    bhl.files.append(folder / "bhl/checkpoints/policy.onnx")
    leapp = leapp_case(folder / "leapp")
    leapp.files.append(folder / "leapp/walk.onnx")
    holosoma = holosoma_case(folder / "holosoma", 25, {"task": {"rl_rate": 50}, "robot": {}})
    return {
        "deploy": deploy_case(folder / "deploy", terms(2), {"obs": 42}),
        "sar": sar,
        "bhl": bhl,
        "leapp": leapp,
        "holosoma": holosoma,
        "mjlab": mjlab_case(folder / "mjlab"),
        "motion": motion_case(folder / "motion", Motion(34)),
        "rsl_rl": checkpoint_case(folder / "rsl_rl"),
    }


def broken_text(rng: np.random.Generator, text: bytes, mark: str) -> bytes:
    """A YAML with one thing wrong."""
    kind = rng.integers(6)
    rows = text.decode().splitlines()
    i = int(rng.integers(len(rows)))
    if kind == 0:
        return text[: int(rng.integers(len(text)))]
    if kind == 1:
        flipped = bytearray(text)
        flipped[int(rng.integers(len(text)))] ^= 1 << int(rng.integers(8))
        return bytes(flipped)
    if kind == 2:
        rows[i] = rows[i].partition(":")[0] + ": " + str(rng.choice(np.array(WORDS)))
    elif kind == 3:
        evil = str(rng.choice(np.array(EVIL))).format(mark=mark)
        rows[i] = rows[i].partition(":")[0] + ": " + evil
    elif kind == 4:
        rows.insert(i, rows[int(rng.integers(len(rows)))])
    else:
        del rows[i]
    return "\n".join(rows).encode()


def broken_network(rng: np.random.Generator, data: bytes) -> bytes:
    """An ONNX with one thing wrong."""
    kind = rng.integers(5)
    if kind == 0:
        return data[: int(rng.integers(len(data)))]
    if kind == 1:
        flipped = bytearray(data)
        for _ in range(int(rng.integers(1, 4))):
            flipped[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        return bytes(flipped)
    model = onnx.load_model_from_string(data)
    weight = model.graph.initializer[int(rng.integers(len(model.graph.initializer)))]
    if kind == 2:
        weight.dims[:] = [int(rng.choice([-1, 0, 3, 2**20, 2**40])) for _ in weight.dims]
    elif kind == 3:
        values = numpy_helper.to_array(weight).copy()
        if values.dtype.kind == "f":
            values.flat[0] = rng.choice([np.nan, np.inf, 3e38])
        weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    elif model.metadata_props:
        entry = model.metadata_props[int(rng.integers(len(model.metadata_props)))]
        entry.value = str(rng.choice(np.array(WORDS)))
    else:
        model.graph.node[int(rng.integers(len(model.graph.node)))].op_type = "Loop"
    return model.SerializeToString()


def broken_archive(rng: np.random.Generator, data: bytes) -> bytes:
    """An archive of torch, cut off or with a few bits turned."""
    if rng.integers(3) == 0:
        return data[: int(rng.integers(len(data)))]
    flipped = bytearray(data)
    for place in rng.integers(len(data), size=int(rng.integers(1, 6))):
        flipped[int(place)] ^= 1 << int(rng.integers(8))
    return bytes(flipped)


def broken(rng: np.random.Generator, path: Path, mark: str) -> bytes:
    """A file with one thing wrong, by what it is."""
    original = path.read_bytes()
    if path.suffix == ".onnx":
        return broken_network(rng, original)
    if path.suffix == ".pt":
        return broken_archive(rng, original)
    return broken_text(rng, original, mark)


def attacks(folder: Path, count: int, mark: str) -> Iterator[Case]:
    """Cases with one file broken, put right again after each."""
    rng = np.random.default_rng(7)
    found = list(cases(folder).values())
    for i in range(count):
        case = found[i % len(found)]
        path = case.files[int(rng.integers(len(case.files)))]
        original = path.read_bytes()
        path.write_bytes(broken(rng, path, mark))
        yield case
        path.write_bytes(original)


def survive(folder: Path, count: int) -> int:
    """Import broken files; returns how many were refused."""
    mark = folder / "executed"
    refused = 0
    for case in attacks(folder, count, str(mark)):
        before = time.process_time()
        try:
            case.run()
        except SurefootError:
            refused += 1
        assert time.process_time() - before < SLOWEST
        assert not mark.exists()
    # Kilobytes on Linux.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < LARGEST
    return refused


def test_broken_files_are_refused_in_one_line(tmp_path: Path) -> None:
    # What is not refused has been broken where nothing reads it, or was broken into another number.
    assert survive(tmp_path, 210) > 100


@pytest.mark.slow
def test_two_thousand_broken_files(tmp_path: Path) -> None:
    assert survive(tmp_path, 2000) > 1000


def blown_up() -> str:
    rows = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    return "\n".join(rows)


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)) * 4,
    "not a mapping": b"- 1\n- 2\n",
    "numbers as keys": b"1: 2\n",
    "deep": b"a: " + b"[" * 60_000,
    "deep mapping": ("".join(f"{' ' * i}a:\n" for i in range(300))).encode(),
    "blown up": blown_up().encode(),
    "endless": b"a: &a [*a]\n",
    "huge": b"a: " + b"1" * 300_000,
    "twice": b"step_dt: 1\nstep_dt: 2\n",
    "utf-16": "step_dt: 1".encode("utf-16"),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_yaml_through_the_command_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = deploy_case(tmp_path, terms(1), {"obs": 21})
    case.write("params/deploy.yaml", content)
    before = time.process_time()
    assert main(case.argv()) == 2
    assert time.process_time() - before < SLOWEST
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("surefoot import: error: ")
    assert len(lines[0]) < 1000


class Evil:
    """What a pickle can be."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def test_pickles_are_never_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = tmp_path / "executed"
    case = deploy_case(tmp_path, terms(1), {"obs": 21})
    evil = pickle.dumps(Evil(mark))
    case.files[1].write_bytes(evil)
    assert main(case.argv()) == 2
    Network(inputs={"obs": 21}, actions=4).save(case.files[1])
    golden = tmp_path / "golden.npz"
    np.savez(golden, obs=np.array([Evil(mark)], dtype=object))
    assert main(case.argv("--golden", str(golden))) == 2
    golden.write_bytes(evil)
    assert main(case.argv("--golden", str(golden))) == 2
    assert not mark.exists()
    assert capsys.readouterr().err.count("\n") == 3


def graph_of(nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto]) -> bytes:
    graph = helper.make_graph(
        nodes, "policy", [tensor("obs", [1, 21])], [tensor("actions", [1, 4])], weights
    )
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("com.evil", 1)]
    used = {node.domain for node in nodes}
    kept = [opset for opset in opsets if opset.domain in used]
    return helper.make_model(graph, opset_imports=kept, ir_version=7).SerializeToString()


def exploding() -> bytes:
    shape = numpy_helper.from_array(np.array([2**17, 2**17]), "shape")
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["big"]),
        helper.make_node("ReduceSum", ["big"], ["sum"]),
        helper.make_node("Add", ["obs", "sum"], ["actions"]),
    ]
    return graph_of(nodes, [shape])


def looping() -> bytes:
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"])],
        "body",
        [tensor("i", [], onnx.TensorProto.INT64), tensor("c", [], onnx.TensorProto.BOOL)],
        [tensor("d", [], onnx.TensorProto.BOOL)],
    )
    count = numpy_helper.from_array(np.array(2**62), "count")
    true = numpy_helper.from_array(np.array(True), "true")
    nodes = [
        helper.make_node("Loop", ["count", "true"], [], body=body, name="forever"),
        helper.make_node("Identity", ["obs"], ["actions"]),
    ]
    return graph_of(nodes, [count, true])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (exploding(), r"tensor '\w+' has the shape|shapes do not fit"),
        (looping(), "node 'forever' is a Loop: a policy step must be bounded"),
        (graph_of([helper.make_node("Run", ["obs"], ["actions"], domain="com.evil")], []),
         "needs operators of 'com.evil', which are other code"),
        (b"", "is not an ONNX model"),
        (b"\x08\x06", "it has no graph"),
        (b"hello", "is not an ONNX model"),
    ],
    ids=["fills memory", "loops", "other code", "empty", "no graph", "text"],
)  # fmt: skip
def test_hostile_graphs(tmp_path: Path, content: bytes, message: str) -> None:
    case = deploy_case(tmp_path, terms(1), {"obs": 21})
    case.files[1].write_bytes(content)
    before = time.process_time()
    with pytest.raises(SurefootError, match=message):
        case.run()
    assert time.process_time() - before < SLOWEST


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qpos": None}, r"'qpos' is missing; there are"),
        ({"obs": np.zeros((3, 21), np.float32)}, r"'act' is float32 of shape"),
        ({"obs": np.full((12, 21), np.nan)}, r"has no complete row"),
        ({"act": np.zeros((12, 3), np.float32)}, r"'act' has 3 columns, the policy 4"),
        ({"qpos": np.zeros((12, 9), np.float32)}, r"qpos has 9 and qvel 10 columns, expected 11"),
        ({"all_joints": np.array(["a", "b", "c", "d"])}, r"no joint 'left_hip' of the policy"),
        ({"cmd": np.zeros((12, 2))}, r"'cmd' has 2 columns for lin_vel_x, lin_vel_y, ang_vel_z"),
        ({"kp": np.array([1.0, 2, 3, 4])}, r"recorded with kp = 1 of joint 'left_hip', the pol"),
        (
            {"joints": np.array(["a", "b"]), "kp": np.ones(2)},
            r"gains have no joint of the policy; they have a, b",
        ),
        ({"target": np.zeros((12, 4), np.float32)}, r"differs at boundary C .*target of left_hip"),
        ({"act": np.zeros((12, 4), np.float32)}, r"differs at boundary A .*last_action|boundary B"),
    ],
)
def test_records_that_are_wrong(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    case = deploy_case(tmp_path, terms(1), {"obs": 21})
    from tests.export.importers.test_unitree import POLICY, Manager, deploy_target

    case.golden = record(
        tmp_path / "golden.npz",
        Manager(terms(1)),
        Network(inputs={"obs": 21}, actions=4),
        deploy_target,
        actions=4,
        order=POLICY,
    )
    case.run()
    with np.load(case.golden) as npz:
        arrays = {**npz, **change}
    np.savez(case.golden, **{k: v for k, v in arrays.items() if v is not None})
    with pytest.raises(SurefootError, match=message):
        case.run()


def test_missing_things_through_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = deploy_case(tmp_path, terms(1), {"obs": 21})
    case.settings = []
    out = str(tmp_path / "o.onnx")
    for argv, message in (
        (["import", "magic", out, "--model", case.model, "-o", out], "no format 'magic'; there"),
        (["import", "custom", "none.pt", "--model", case.model, "-o", out], "does not exist"),
        (["import", "custom", case.model, "--model", case.model, "-o", out], "no network among"),
        (["import", "custom", case.model, "--model", "no.xml", "-o", out], "'no.xml' does not ex"),
        (
            ["import", "custom", case.model, "--model", case.model, "-o", "o.pt"],
            "must end in .onnx",
        ),
        (case.argv("--golden", str(tmp_path)), "is not a plain file"),
        (case.argv("--user", str(tmp_path / "u.yaml")), "does not exist"),
        (case.argv(), "timing.pd_dt (period of the PD in training, [s]; likely 0.002 or 0.005)"),
    ):
        assert main(argv) == 2
        captured = capsys.readouterr()
        assert message in captured.err
        assert captured.err.count("\n") == 1
    # What is missing is printed as YAML to keep, and that YAML is an answer.
    assert "timing.pd_dt: 0.002  # period of the PD in training, [s] (likely: 0.002, 0.005)" in (
        captured.out
    )
    (tmp_path / "u.yaml").write_text(captured.out)
    assert main(case.argv("--user", str(tmp_path / "u.yaml"))) == 0
    text = capsys.readouterr().out
    assert "trace: synthesized; it proves consistency from now on, not origin" in text
    assert "timing.pd_dt" in text
    assert "user: u.yaml" in text


def test_models_that_are_wrong(tmp_path: Path) -> None:
    case = deploy_case(tmp_path, terms(1), {"obs": 21})
    for content, message in (
        ("<mujoco><worldbody><body/></worldbody></mujoco>", "no joint that the model drives"),
        ("<mujoco><worldbody/></mujoco>", "the model has no body"),
        ("<mujoco", "MuJoCo cannot read it"),
        ('<mujoco><option><flag sensornoise="enable"/></option></mujoco>', "MuJoCo cannot read"),
    ):
        case.robot(content)
        with pytest.raises(SurefootError, match=message):
            case.run()


def test_an_import_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = deploy_case(tmp_path, terms(1), {"obs": 21})
    assert main(case.argv("--json")) == 0
    plain = yaml.safe_load(capsys.readouterr().out)
    assert plain["trace"] == "synthesized"
    assert plain["fields"]["timing.pd_dt"] == "user: --set"
    assert any("three digits" in note for note in plain["notes"])
