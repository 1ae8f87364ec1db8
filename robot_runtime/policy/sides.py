"""Left and right of a robot, told by names and axes.

The mirror is the robot's sagittal plane: y becomes -y.
"""

from __future__ import annotations

AXIAL = (-1.0, 1.0, -1.0)
"""What mirroring does to an axial vector, such as an angular velocity or a joint's axis."""

_SIDES = (
    ("left", "right"),
    ("l", "r"),
    ("fl", "fr"),
    ("rl", "rr"),
    ("hl", "hr"),
    ("bl", "br"),
    ("lf", "rf"),
    ("lh", "rh"),
)
_OTHER_SIDE = {a: b for a, b in _SIDES} | {b: a for a, b in _SIDES}


def other_side(name: str) -> str | None:
    """The name of the same part on the other side, or None for a part without a side.

    A name is split at underscores; one word of it tells the side: ``FL_hip_joint`` and
    ``FR_hip_joint``, ``left_knee`` and ``right_knee``, ``Left_Knee`` and ``Right_Knee``.
    """
    words = name.split("_")
    for i, word in enumerate(words):
        other = _OTHER_SIDE.get(word.lower())
        if other is not None:
            words[i] = _cased(other, word)
            return "_".join(words)
    return None


def _cased(word: str, like: str) -> str:
    """A word with the capitals of another."""
    if like.isupper():
        return word.upper()
    return word.capitalize() if like.istitle() else word
