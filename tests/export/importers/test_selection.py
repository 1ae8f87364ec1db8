"""Networks that see a part of a term, or its past: the contract gives all, the graph takes some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from export.importers.sheet import MissingFieldsError
from robot_runtime.errors import BadInput
from tests.export.importers.test_custom import BODY, COMMON, POSE, History, custom, euler, run
from tests.helpers.foreign import LEGS, Network, Step, record, tensor


def recorded(case: Any, observe: Any, dim: int, rows: int = 16) -> Any:
    case.golden = record(
        case.folder / "golden.npz",
        observe,
        Network(inputs={"obs": dim}, actions=4),
        lambda a: POSE + 0.25 * np.clip(a, -0.6, 0.6),
        actions=4,
        order=LEGS,
        rows=rows,
    )
    return run(case)


ACTION = "action: {scale: 0.25, offset: default_pos, raw_clip: 0.6}"


def last(step: Step) -> Any:
    return np.clip(step.last, -0.6, 0.6) if step.k else np.zeros(4)


def test_a_yaw_rate_and_two_euler_angles_in_a_stack(tmp_path: Path) -> None:
    """As barkour and parkour policies have them: whole frames, the newest first."""
    text = f"""{COMMON}
{ACTION}
observation:
  terms:
    - yaw_rate: {{source: base_ang_vel, components: [2], scale: 0.25}}
    - roll_pitch: {{source: euler_xyz, components: [0, 1], scale: [2.0, 3.0]}}
    - command: {{scale: [2.0, 2.0, 0.25]}}
    - last_action: {{stage: applied}}
  history: {{length: 3, layout: frame_major, order: newest_first, fill: zero}}
"""
    case = custom(tmp_path, text, 30)
    history = History(3, first=False)

    def observe(step: Step) -> Any:
        frame = {
            "rate": step.gyro[2] * 0.25,
            "rp": np.array(euler(step.quat)[:2]) * [2.0, 3.0],
            "cmd": step.cmd * [2.0, 2.0, 0.25],
            "a": last(step),
        }
        return np.concatenate([f[name] for f in history.push(frame)[::-1] for name in f])

    imported = recorded(case, observe, 30)
    assert imported.replayed.report.observation < 1e-6
    assert imported.policy.contract.observation_dim == 3 * 13
    assert imported.gate.recorded == 0
    (term, *_) = imported.policy.contract.observation[0].terms
    assert (term.name, term.source) == ("yaw_rate", "base_ang_vel")
    assert "of term 'yaw_rate' the network takes components [2]" in imported.notes


@pytest.mark.parametrize("order", ["oldest_first", "newest_first"])
@pytest.mark.parametrize("layout", ["frame_major", "term_major"])
def test_the_last_two_actions_in_every_frame(tmp_path: Path, layout: str, order: str) -> None:
    """As walk-these-ways has them."""
    text = f"""{BODY}
{ACTION}
observation:
  terms:
    - projected_gravity
    - joint_pos_rel
    - last_action: {{stage: applied}}
    - before: {{source: last_action, stage: applied, lag: 1}}
  history: {{length: 4, layout: {layout}, order: {order}, fill: zero}}
"""
    case = custom(tmp_path, text, 60)
    history = History(4, first=False)
    actions = [np.zeros(4), np.zeros(4)]

    def observe(step: Step) -> Any:
        actions.append(last(step))
        names = {"g": step.gravity, "q": step.pos(LEGS) - POSE, "a": actions[-1], "b": actions[-2]}
        frames = history.push(names)
        frames = frames if order == "oldest_first" else frames[::-1]
        if layout == "frame_major":
            return np.concatenate([f[name] for f in frames for name in f])
        return np.concatenate([f[name] for name in names for f in frames])

    imported = recorded(case, observe, 60)
    assert imported.replayed.report.observation < 1e-6
    assert imported.replayed.report.action < 1e-5


def test_an_older_action_without_a_history(tmp_path: Path) -> None:
    """What stands before the first frame is asked for: there is one now."""
    text = f"""{BODY}
{ACTION}
observation:
  - base_ang_vel
  - last_action: {{stage: applied}}
  - before: {{source: last_action, stage: applied, lag: 2}}
"""
    case = custom(tmp_path, text, 11)
    with pytest.raises(MissingFieldsError) as missing:
        run(case)
    assert [q.path for q in missing.value.questions] == ["observation.0.history.fill"]
    case.settings.append("observation.0.history.fill=zero")
    actions = [np.zeros(4), np.zeros(4)]

    def observe(step: Step) -> Any:
        actions.append(last(step))
        return np.concatenate([step.gyro, actions[-1], actions[-3]])

    assert recorded(case, observe, 11).replayed.report.observation < 1e-6


def test_the_choice_is_made_inside_the_written_graph(tmp_path: Path) -> None:
    text = f"{COMMON}\n{ACTION}\nobservation: [base_ang_vel: {{components: [2, 0]}}, command]"
    case = custom(tmp_path, text, 5)
    model = onnx.load_model_from_string(run(case).policy.model)
    (tensor,) = model.graph.input
    assert [d.dim_value for d in tensor.type.tensor_type.shape.dim] == [1, 6]
    (gather,) = [node for node in model.graph.node if node.op_type == "Gather"]
    (places,) = [t for t in model.graph.initializer if t.name == gather.input[1]]
    assert onnx.numpy_helper.to_array(places).tolist() == [2, 0, 3, 4, 5]


def test_a_network_that_takes_frames_as_an_axis(tmp_path: Path) -> None:
    """An input of 1 x frames x features is chosen from before it is folded."""
    text = f"""{COMMON}
{ACTION}
observation:
  terms: [base_ang_vel: {{components: [2]}}, command]
  history: {{length: 3, layout: frame_major, order: oldest_first, fill: first}}
"""
    case = custom(tmp_path, text, 12)
    network = Network(inputs={"obs": 12}, actions=4)
    model = network.proto()
    (obs,) = model.graph.input
    obs.CopyFrom(tensor("obs", [1, 3, 4]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 12]), "row"))
    model.graph.node[0].CopyFrom(helper.make_node("Reshape", ["obs", "row"], ["x"]))
    (tmp_path / "policy.onnx").write_bytes(model.SerializeToString())
    history = History(3, first=True)

    def observe(step: Step) -> Any:
        frames = history.push({"rate": step.gyro[2], "cmd": step.cmd})
        return np.concatenate([f[name] for f in frames for name in f])

    replayed = recorded(case, observe, 12).replayed
    assert replayed.report.observation < 1e-6
    assert replayed.report.action < 1e-5


def test_a_wrong_component_does_not_reproduce_the_record(tmp_path: Path) -> None:
    text = f"{COMMON}\n{ACTION}\nobservation: [base_ang_vel: {{components: [1]}}, command]"
    case = custom(tmp_path, text, 4)
    with pytest.raises(Exception, match=r"boundary A .*element 0"):
        recorded(case, lambda step: np.concatenate([step.gyro[2:], step.cmd]), 4)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ("[base_ang_vel: {components: [3]}, command]", r"components: 3, but it has 3 numbers"),
        ("[base_ang_vel: {components: []}, command]", r"components: expected places"),
        ("[base_ang_vel: {components: [0.5]}, command]", r"components: expected places"),
        ("[base_ang_vel: {lag: -1}, command]", r"expected a whole lag"),
        ("[base_ang_vel: {components: [0, 1]}, command]", r"takes 4 numbers, the terms give 5"),
        (
            "{terms: [base_ang_vel: {lag: 1}], history: {length: 2, stride: 2}}",
            r"lag needs a history without a stride",
        ),
    ],
)
def test_wishes_that_cannot_be_granted_are_refused(
    tmp_path: Path, terms: str, message: str
) -> None:
    case = custom(tmp_path, f"{COMMON}\n{ACTION}\nobservation: {terms}", 4)
    with pytest.raises(BadInput, match=message):
        run(case)
