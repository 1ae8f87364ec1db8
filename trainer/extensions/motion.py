"""Reference motions: what a robot shall move like, frame by frame, in one file.

A motion is a NumPy archive (``.npz``) without pickled objects:

    format    text "surefoot-motion"
    schema    whole number 1
    dt        time between two frames, [s]
    names     texts (dim,): what each feature is, such as ``joint_pos[FL_hip_joint]``
    frames    float32 (num_frames, dim): the features, SI units, clips one after the other
    lengths   whole numbers (num_clips,): frames of each clip, two or more; they add up

Features are matched by name, never by position.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robot_runtime.errors import BadInput
from robot_runtime.files import atomic_write

FORMAT = "surefoot-motion"
SCHEMA = 1

_KINDS = {"format": "U", "schema": "iu", "dt": "fiu", "names": "U", "frames": "f", "lengths": "iu"}
"""Kinds of NumPy dtypes that each array of a file may have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Motion:
    """Clips of a reference motion.

    Attributes:
        names: What each feature is.
        dt: Time between two frames, [s].
        clips: Features, each float32 ``(num_frames, dim)``, SI units.
    """

    names: tuple[str, ...]
    dt: float
    clips: tuple[NDArray[np.float32], ...]

    def __post_init__(self) -> None:
        """Check that the parts fit each other.

        Raises:
            BadInput: Names what is wrong.
        """
        if not self.names or len(set(self.names)) != len(self.names):
            raise BadInput("motion: every feature needs a name of its own")
        if not (np.isfinite(self.dt) and self.dt > 0.0):
            raise BadInput(f"motion: dt = {self.dt} must be positive, [s]")
        if not self.clips:
            raise BadInput("motion: there is no clip")
        for i, clip in enumerate(self.clips):
            if clip.ndim != 2 or clip.shape[1] != len(self.names) or len(clip) < 2:
                raise BadInput(
                    f"motion: clip {i} has shape {clip.shape}; expected two frames or more of "
                    f"{len(self.names)} features"
                )
            if not np.isfinite(clip).all():
                frame, feature = np.argwhere(~np.isfinite(clip))[0]
                raise BadInput(
                    f"motion: clip {i}, frame {frame}: '{self.names[feature]}' is not finite"
                )

    def select(self, names: Sequence[str], where: str) -> Motion:
        """Return the motion with these features, in this order.

        Args:
            names: Features by name.
            where: What they are of, for the message.

        Raises:
            BadInput: The motion lacks some; the message names them and those that exist.
        """
        missing = [name for name in names if name not in self.names]
        if missing:
            raise BadInput(
                f"the motion lacks {', '.join(missing)}, which {where} has; the motion has: "
                f"{', '.join(self.names)}"
            )
        columns = [self.names.index(name) for name in names]
        clips = tuple(np.ascontiguousarray(clip[:, columns]) for clip in self.clips)
        return Motion(names=tuple(names), dt=self.dt, clips=clips)

    def resample(self, dt: float) -> Motion:
        """Return the motion with another time between frames, linearly interpolated.

        Args:
            dt: Time between two frames, [s].

        Raises:
            BadInput: A clip is shorter than that.
        """
        if abs(dt - self.dt) < 1e-9:
            return self
        clips: list[NDArray[np.float32]] = []
        for i, clip in enumerate(self.clips):
            duration = (len(clip) - 1) * self.dt
            # A tolerance, so that 0.3 / 0.1 counts as 3.
            count = int(duration / dt + 1e-6) + 1
            if count < 2:
                raise BadInput(
                    f"motion: clip {i} lasts {duration:g} s, shorter than a step, {dt:g} s"
                )
            old, new = np.arange(len(clip)) * self.dt, np.arange(count) * dt
            columns = [np.interp(new, old, column) for column in clip.T]
            clips.append(np.stack(columns, axis=-1).astype(np.float32))
        return Motion(names=self.names, dt=dt, clips=tuple(clips))

    def transitions(self) -> NDArray[np.float32]:
        """Return all pairs of frames that follow each other in a clip, ``(count, 2 * dim)``."""
        pairs = [np.concatenate([clip[:-1], clip[1:]], axis=-1) for clip in self.clips]
        return np.concatenate(pairs)

    def digest(self) -> str:
        """Return what tells this motion from others: SHA-256 of names, time and numbers."""
        text = hashlib.sha256(f"{self.names}{self.dt!r}{[len(c) for c in self.clips]}".encode())
        for clip in self.clips:
            text.update(np.ascontiguousarray(clip).tobytes())
        return text.hexdigest()


def save_motion(path: Path, motion: Motion) -> None:
    """Write a motion, whole or not at all."""
    arrays: dict[str, Any] = {
        "format": np.array(FORMAT),
        "schema": np.array(SCHEMA),
        "dt": np.array(motion.dt),
        "names": np.array(motion.names),
        "frames": np.concatenate(motion.clips).astype(np.float32),
        "lengths": np.array([len(clip) for clip in motion.clips]),
    }
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def load_motion(path: Path) -> Motion:
    """Read a motion, running no code.

    Raises:
        BadInput: The file is missing, no motion, or its parts do not fit; the message names it.
    """
    arrays = _read(path)
    for name, kinds in _KINDS.items():
        if name not in arrays:
            raise BadInput(
                f"motion '{path}' lacks '{name}'; it has: {', '.join(arrays) or 'nothing'}"
            )
        if arrays[name].dtype.kind not in kinds:
            raise BadInput(f"motion '{path}': '{name}' has dtype {arrays[name].dtype}")
    if str(arrays["format"]) != FORMAT:
        raise BadInput(f"'{path}' is no motion: its format is '{arrays['format']}', not '{FORMAT}'")
    if arrays["schema"].ndim or int(arrays["schema"]) != SCHEMA:
        raise BadInput(f"motion '{path}' has schema {arrays['schema']}; expected {SCHEMA}")
    if arrays["dt"].ndim or arrays["names"].ndim != 1 or arrays["frames"].ndim != 2:
        raise BadInput(f"motion '{path}': dt is a number, names has one axis and frames two")
    lengths = arrays["lengths"]
    if lengths.ndim != 1 or (lengths < 2).any() or lengths.sum() != len(arrays["frames"]):
        raise BadInput(
            f"motion '{path}': lengths must be two or more each and add up to the "
            f"{len(arrays['frames'])} frames"
        )
    try:
        return Motion(
            names=tuple(str(name) for name in arrays["names"]),
            dt=float(arrays["dt"]),
            clips=tuple(np.split(arrays["frames"].astype(np.float32), np.cumsum(lengths)[:-1])),
        )
    except BadInput as error:
        raise BadInput(f"'{path}': {error}") from error


def _read(path: Path) -> dict[str, NDArray[Any]]:
    """Read all arrays of an archive."""
    if not path.is_file():
        raise BadInput(f"no motion '{path}'")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise BadInput(f"cannot read motion '{path}': {error.strerror or error}") from error
    except (ValueError, AttributeError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise BadInput(
            f"'{path}' is no motion: it is no NumPy archive, or it is damaged"
        ) from error
