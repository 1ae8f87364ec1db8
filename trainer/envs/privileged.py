"""What the critic sees beside the policy's observation: things no robot measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainer.mirror_table import (
    PLANAR,
    POLAR,
    Reflection,
    concat,
    named_reflection,
    vector_reflection,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivilegedTerm:
    """One part of the privileged observation.

    Attributes:
        name: Its name.
        kind: What it is under reflection: a ``polar`` vector, a ``planar`` velocity (forward, left,
            yaw rate), one number per foot, or a scalar.
    """

    name: str
    kind: Literal["polar", "planar", "feet", "scalar"]


TERMS = (
    PrivilegedTerm(name="base_lin_vel_b", kind="polar"),
    PrivilegedTerm(name="base_height", kind="scalar"),
    PrivilegedTerm(name="mean_error", kind="planar"),
    PrivilegedTerm(name="foot_height", kind="feet"),
    PrivilegedTerm(name="foot_contact", kind="feet"),
    PrivilegedTerm(name="friction", kind="scalar"),
    PrivilegedTerm(name="base_mass", kind="scalar"),
    PrivilegedTerm(name="strength", kind="scalar"),
    PrivilegedTerm(name="delay", kind="scalar"),
)
"""The terms, in order."""


def term_dim(term: PrivilegedTerm, num_feet: int) -> int:
    """Length of a term."""
    return {"polar": 3, "planar": 3, "feet": num_feet, "scalar": 1}[term.kind]


def privileged_dim(num_feet: int) -> int:
    """Length of all terms together."""
    return sum(term_dim(term, num_feet) for term in TERMS)


def privileged_labels(feet: Sequence[str]) -> list[str]:
    """A name for every number, such as ``foot_height[FL_foot]``."""
    parts = {
        "polar": ["x", "y", "z"],
        "planar": ["forward", "left", "yaw"],
        "feet": list(feet),
    }
    return [
        f"{term.name}[{part}]" if part else term.name
        for term in TERMS
        for part in parts.get(term.kind, [""])
    ]


def privileged_reflection(feet: Sequence[str]) -> Reflection:
    """The mirror image of the privileged observation.

    Raises:
        Refused: A foot has no partner on the other side.
    """
    parts = {
        "polar": vector_reflection(POLAR),
        "planar": vector_reflection(PLANAR),
        "feet": named_reflection(feet),
        "scalar": vector_reflection([1.0]),
    }
    return concat([parts[term.kind] for term in TERMS])


def privileged_observation(values: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Concatenate the terms.

    Args:
        values: Each term by name, shape (n, dim) or, for a scalar, (n,).

    Returns:
        float32, shape (n, privileged_dim).
    """
    parts = [values[term.name] for term in TERMS]
    columns = [part[:, None] if part.ndim == 1 else part for part in parts]
    return np.concatenate(columns, axis=-1, dtype=np.float32)
