"""Reference motions: files read back as they were written, matched by name, refused by name."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_runtime.errors import BadInput
from trainer.extensions.motion import Motion, load_motion, save_motion

MOTION = Motion(
    names=("knee", "hip", "height"),
    dt=0.1,
    clips=(
        np.arange(12, dtype=np.float32).reshape(4, 3),
        np.array([[1.0, 0.5, 0.3], [2.0, 0.25, 0.3]], dtype=np.float32),
    ),
)


def arrays(**changes: Any) -> dict[str, Any]:
    """What a file of `MOTION` holds, with changes; None takes an array out."""
    content = {
        "format": "surefoot-motion",
        "schema": 1,
        "dt": 0.1,
        "names": np.array(MOTION.names),
        "frames": np.concatenate(MOTION.clips),
        "lengths": np.array([4, 2]),
    }
    return {name: value for name, value in {**content, **changes}.items() if value is not None}


def test_written_and_read_it_is_the_same(tmp_path: Path) -> None:
    save_motion(tmp_path / "a.npz", MOTION)
    again = load_motion(tmp_path / "a.npz")
    assert (again.names, again.dt) == (MOTION.names, MOTION.dt)
    for one, other in zip(again.clips, MOTION.clips, strict=True):
        assert np.array_equal(one, other)
    assert again.digest() == MOTION.digest()
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_features_come_by_name_in_the_order_asked_for() -> None:
    chosen = MOTION.select(("height", "knee"), "the robot")
    assert np.array_equal(chosen.clips[1], np.array([[0.3, 1.0], [0.3, 2.0]], dtype=np.float32))
    with pytest.raises(BadInput, match=r"lacks ankle, which the robot has; .* knee, hip, height"):
        MOTION.select(("knee", "ankle"), "the robot")


def test_transitions_never_lead_from_one_clip_to_the_next() -> None:
    pairs = MOTION.transitions()
    expected = [[0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 7, 8], [6, 7, 8, 9, 10, 11],
                [1.0, 0.5, 0.3, 2.0, 0.25, 0.3]]  # fmt: skip
    assert np.array_equal(pairs, np.array(expected, dtype=np.float32))


def test_another_time_between_frames_is_interpolated() -> None:
    half = MOTION.resample(0.05)
    assert half.dt == 0.05
    assert [len(clip) for clip in half.clips] == [7, 3]
    # The first feature of the first clip is 0, 3, 6, 9 at 0, 0.1, 0.2, 0.3 s.
    np.testing.assert_allclose(half.clips[0][:, 0], 1.5 * np.arange(7), rtol=1e-6)
    assert MOTION.resample(0.1) is MOTION
    with pytest.raises(BadInput, match=r"clip 1 lasts 0.1 s, shorter than a step, 0.2 s"):
        MOTION.resample(0.2)
    # 15 * 0.01 / 0.05 is a little less than 3 in binary numbers.
    frames = np.arange(16, dtype=np.float32)[:, None]
    long = Motion(names=("knee",), dt=0.01, clips=(frames,))
    np.testing.assert_allclose(long.resample(0.05).clips[0][:, 0], [0.0, 5.0, 10.0, 15.0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frames": None}, "lacks 'frames'; it has: format, schema"),
        ({"format": "video"}, "its format is 'video'"),
        ({"schema": 2}, "has schema 2; expected 1"),
        ({"dt": 0.0}, "dt = 0.0 must be positive"),
        ({"dt": "fast"}, "'dt' has dtype"),
        ({"names": np.array(["knee", "knee", "height"])}, "a name of its own"),
        ({"names": np.array(["knee", "hip"])}, r"clip 0 has shape \(4, 3\); .* of 2 features"),
        ({"lengths": np.array([4, 3])}, "add up to the 6 frames"),
        ({"lengths": np.array([5, 1])}, "two or more each"),
        ({"frames": np.full((6, 3), np.nan, dtype=np.float32)}, "frame 0: 'knee' is not finite"),
        ({"frames": np.array([object()])}, "no NumPy archive, or it is damaged"),
    ],
)
def test_every_bad_file_is_refused_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.npz"
    np.savez(path, **arrays(**changes))
    with pytest.raises(BadInput, match=message) as caught:
        load_motion(path)
    assert str(path) in str(caught.value)


def test_what_is_no_file_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no motion at all")
    np.save(tmp_path / "array.npy", np.zeros(3))
    for name in ("text.npz", "array.npy"):
        with pytest.raises(BadInput, match=f"{name}' is no motion"):
            load_motion(tmp_path / name)
    with pytest.raises(BadInput, match="no motion"):
        load_motion(tmp_path / "nowhere.npz")


def test_a_motion_with_other_numbers_has_another_digest() -> None:
    clips = (MOTION.clips[0], MOTION.clips[1] + np.float32(1e-3))
    others = [replace(MOTION, clips=clips), replace(MOTION, dt=0.2)]
    others.append(replace(MOTION, names=("hip", "knee", "height")))
    assert len({MOTION.digest(), *(other.digest() for other in others)}) == 4
