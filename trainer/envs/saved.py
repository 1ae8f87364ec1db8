"""Checks of saved states before anything is overwritten."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def check_shapes(what: str, state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse a saved state that belongs to another environment.

    Raises:
        ValueError: A field is missing or has another shape or dtype; the message names it.
    """
    for name, like in expected.items():
        if name not in state:
            raise ValueError(f"{what}: field '{name}' is missing; there are {sorted(state)}")
        found = state[name]
        if found.shape != like.shape or found.dtype != like.dtype:
            raise ValueError(
                f"{what}: field '{name}' is {found.dtype} of shape {tuple(found.shape)}, "
                f"expected {like.dtype} of shape {tuple(like.shape)}"
            )
