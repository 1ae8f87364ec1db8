"""Moving pictures of a run, drawn without a display where some OpenGL can do that.

The drawing runs in a process of its own: which OpenGL MuJoCo uses is settled by the environment
before its first use, and a broken driver takes its process with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import mujoco
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from robot_runtime.errors import MissingExtra
from robot_runtime.files import atomic_write, check_output
from sim2sim.probe import Truth

BACKENDS = ("egl", "osmesa")
"""Values of MUJOCO_GL that are tried in this order where the environment names none."""

SUFFIXES = (".gif", ".png")
"""Kinds of picture: a film, or a sheet of `SHEET` frames."""

SIZE = (480, 360)
"""Width and height of a frame, [pixels]."""
FRAME_RATE = 25.0
"""Frames per second of a film."""
SHEET = (3, 4)
"""Rows and columns of a sheet; read like a page."""
SHEET_EVERY = 0.06
"""Time between two frames of a sheet, [s]."""


def check_film(path: Path) -> None:
    """Refuse a film that cannot be written, before anything runs.

    Raises:
        BadInput: See `robot_runtime.files.check_output`.
    """
    check_output(path, "a film", *SUFFIXES)


def film(model: mujoco.MjModel, truth: Truth, path: Path, begin: float = 0.0) -> None:
    """Draw a run and write the film.

    Args:
        model: The model that ran.
        truth: What the probe saw.
        path: Where to write, ``.gif`` or ``.png``.
        begin: Time of the first frame, [s].

    Raises:
        BadInput: The kind of picture is unknown, or the file cannot be written.
        MissingExtra: No OpenGL of this machine draws without a display.
    """
    check_film(path)
    sheet = path.suffix.lower() == ".png"
    spacing = SHEET_EVERY if sheet else 1.0 / FRAME_RATE
    last = float(truth.time[-1])
    times = begin + spacing * np.arange(SHEET[0] * SHEET[1] if sheet else (last - begin) // spacing)
    rows = np.minimum(np.searchsorted(truth.time, times - 1e-9), len(truth.time) - 1)
    frames = draw(model, truth.qpos[rows])
    with atomic_write(path) as temporary:
        if sheet:
            rows_of_frames = [
                np.concatenate(list(row), axis=1) for row in np.split(frames, SHEET[0])
            ]
            Image.fromarray(np.concatenate(rows_of_frames, axis=0)).save(temporary)
        else:
            images = [Image.fromarray(frame) for frame in frames]
            images[0].save(
                temporary,
                save_all=True,
                append_images=images[1:],
                duration=round(1000.0 / FRAME_RATE),
                loop=0,
            )


def draw(model: mujoco.MjModel, qpos: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Draw poses in a process of its own.

    Args:
        model: The model.
        qpos: Poses, shape ``(frames, nq)``.

    Returns:
        RGB, uint8, shape ``(frames, height, width, 3)``.

    Raises:
        MissingExtra: No OpenGL of this machine draws without a display.
    """
    own = os.environ.get("MUJOCO_GL")
    tried = (own,) if own else BACKENDS
    last = ""
    with tempfile.TemporaryDirectory(prefix="surefoot-") as folder:
        scene, poses, frames = (Path(folder) / name for name in ("model.mjb", "poses", "frames"))
        mujoco.mj_saveModel(model, str(scene), None)
        with poses.open("wb") as file:
            np.save(file, qpos, allow_pickle=False)
        for backend in tried:
            done = subprocess.run(
                [sys.executable, "-m", "sim2sim.viewer", str(scene), str(poses), str(frames)],
                env={**os.environ, "MUJOCO_GL": backend},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0 and frames.exists():
                with frames.open("rb") as file:
                    return np.load(file, allow_pickle=False)
            last = done.stderr.strip().rpartition("\n")[2]
    raise MissingExtra(
        f"no OpenGL that draws without a display (tried MUJOCO_GL={', '.join(tried)}: {last}); on "
        "Debian and Ubuntu: apt install libosmesa6"
    )


def main(argv: Sequence[str]) -> int:
    """Draw poses in this process.

    Args:
        argv: Compiled model, poses, and where the frames go.
    """
    scene, poses, frames = argv
    model = mujoco.MjModel.from_binary_path(scene)
    with open(poses, "rb") as file:
        qpos = np.load(file, allow_pickle=False)
    width, height = SIZE
    model.vis.global_.offwidth = max(width, model.vis.global_.offwidth)
    model.vis.global_.offheight = max(height, model.vis.global_.offheight)
    # A processor draws this: shadows and smoothing cost ten times the rest.
    model.vis.quality.shadowsize, model.vis.quality.offsamples = 0, 0
    data = mujoco.MjData(model)
    pictures: list[NDArray[np.uint8]] = []
    with mujoco.Renderer(model, height, width) as renderer:
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            renderer.scene.flags[flag] = 0
        option = mujoco.MjvOption()
        # Collision shapes only where there is nothing nicer to show.
        moving = model.body_weldid[model.geom_bodyid] != 0
        option.geomgroup[3] = not (model.geom_group[moving] < 3).any()
        camera = mujoco.MjvCamera()
        camera.azimuth, camera.elevation = 120.0, -12.0
        for pose in qpos:
            data.qpos[:] = pose
            mujoco.mj_forward(model, data)
            camera.lookat[:] = data.subtree_com[1]
            if not pictures:
                camera.distance = max(1.0, 4.0 * float(data.subtree_com[1, 2]))
            renderer.update_scene(data, camera, option)
            pictures.append(renderer.render().copy())
    with open(frames, "wb") as file:
        np.save(file, np.stack(pictures), allow_pickle=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
