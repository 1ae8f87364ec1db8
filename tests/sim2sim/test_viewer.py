"""Pictures, where the machine can draw; a plain refusal where it cannot."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest
from PIL import Image

from robot_runtime.errors import BadInput, MissingExtra
from robot_runtime.robots import load_model
from sim2sim.viewer import SIZE, check_film, draw


def test_unknown_kinds_are_refused_before_anything_runs() -> None:
    check_film(Path("gait.GIF"))
    with pytest.raises(BadInput, match=r"gait\.mp4.*\.gif or \.png"):
        check_film(Path("gait.mp4"))


def test_a_machine_without_opengl_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "disable")
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    with pytest.raises(MissingExtra, match=r"MUJOCO_GL=disable.*libosmesa6"):
        draw(model, np.zeros((1, 0)))


def test_the_robot_is_drawn_and_moves() -> None:
    model = mujoco.MjModel.from_xml_path(str(load_model("quadruped").xml_path))
    pose = model.key_qpos[0]
    moved = pose.copy()
    moved[7:] += 0.4
    try:
        frames = draw(model, np.stack([pose, pose, moved]))
    except MissingExtra as error:
        pytest.skip(str(error))
    assert frames.shape == (3, SIZE[1], SIZE[0], 3)
    np.testing.assert_array_equal(frames[0], frames[1])
    changed = (frames[0] != frames[2]).any(axis=-1)
    assert 0.005 < changed.mean() < 0.5, "the legs have moved, and sky and floor have not"
    # The orange links are in the middle of the picture.
    hue = np.asarray(Image.fromarray(frames[0]).convert("HSV"))[..., :2].astype(int)
    orange = (hue[..., 0] > 10) & (hue[..., 0] < 30) & (hue[..., 1] > 120)
    rows, columns = np.nonzero(orange)
    assert orange.sum() > 500
    assert abs(columns.mean() - SIZE[0] / 2) < 60
    assert abs(rows.mean() - SIZE[1] / 2) < 90
