"""Augmentation functions in the style of rsl_rl, read off as a mirror table.

Such a function returns a batch and its mirror image, one below the other, for observations or for
actions. What it does to each number is found by giving it numbers that are all different.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from robot_runtime.errors import Refused
from trainer.compat.names import find_object
from trainer.envs.rsl_rl_groups import ObsForm
from trainer.symmetry import Mirror, MirrorTable

ROWS = 3
"""Rows of what a function is tried on: numbers that tell their place, random ones, zeros."""


def read_mirror_table(
    function: str | Callable[..., Any],
    env: Any,
    sets: Mapping[str, Sequence[str]],
    form: ObsForm,
    num_actions: int,
) -> MirrorTable:
    """Return what an augmentation function does, as signed permutations.

    Args:
        function: The function, or its name; called as rsl_rl does, with `env`, `obs` and
            `actions`, and with `obs_type` where observations are bare tensors.
        env: The environment, for the function.
        sets: Observation groups by set, as the networks see them.
        form: In what form the environment gives observations.
        num_actions: Number of actions.

    Raises:
        BadInput: The function cannot be found.
        Refused: It fails, or does something else than one reflection; the message says what.
    """
    call = find_object(function, "augmentation function") if isinstance(function, str) else function
    members = list(dict.fromkeys(name for names in sets.values() for name in names))
    flat = [name for name in members if len(form.shapes[name]) != 1]
    if flat:
        raise Refused(f"symmetry: the observation groups {flat} are images")
    probe = _probe(num_actions, form.device)
    more = {} if form.kind else {"obs_type": "policy"}
    try:
        images = _images(call, env, members, form)
        _, image = call(env=env, obs=None, actions=probe.clone(), **more)
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise Refused(f"symmetry: the augmentation function fails: {text}") from error
    parts = {name: _mirror(images[name], form.shapes[name][0], name, form) for name in members}
    return MirrorTable(
        obs={name: Mirror.joined([parts[part] for part in names]) for name, names in sets.items()},
        action=_mirror(image, num_actions, "actions", form),
    )


def _images(
    call: Callable[..., Any], env: Any, members: Sequence[str], form: ObsForm
) -> Mapping[str, Any]:
    """Return what a function makes of each observation group."""
    if form.kind is None:
        # Up to release 2 the groups come one at a time, and the function is told which.
        return {
            name: call(
                env=env, obs=_probe(form.shapes[name][0], form.device), actions=None, obs_type=name
            )[0]
            for name in members
        }
    # Groups that no network sees may be images; they are there and empty.
    parts = {
        name: _probe(shape[0], form.device)
        if name in members
        else torch.zeros(ROWS, *shape, device=form.device)
        for name, shape in form.shapes.items()
    }
    given: Any = parts
    if hasattr(form.kind, "batch_size"):
        given = form.kind(parts, batch_size=[ROWS])
    return call(env=env, obs=given, actions=None)[0]


def _probe(dim: int, device: torch.device) -> Tensor:
    """Return numbers to try a function on, ``(ROWS, dim)``."""
    generator = torch.Generator().manual_seed(dim)
    places = torch.arange(1.0, dim + 1.0)
    rows = torch.stack([places, torch.randn(dim, generator=generator), torch.zeros(dim)])
    return rows.to(device)


def _mirror(found: Any, dim: int, name: str, form: ObsForm) -> Mirror:
    """Return the reflection that takes `_probe` to the second half of what was found.

    Raises:
        Refused: There is none.
    """
    probe = _probe(dim, form.device)
    if not isinstance(found, Tensor) or found.shape[1:] != probe.shape[1:]:
        raise Refused(f"symmetry: the augmentation function gives no images of '{name}'")
    if len(found) != 2 * ROWS:
        raise Refused(
            f"symmetry: the augmentation function gives {len(found) / ROWS:g} versions of '{name}'"
            " with the original; there can be two, the original and its mirror image"
        )
    if not torch.equal(found[:ROWS], probe):
        raise Refused(f"symmetry: the augmentation function does not return '{name}' itself first")
    image = found[ROWS:]
    index = image[0].abs().round().long() - 1
    usable = bool(((index >= 0) & (index < dim)).all())
    sign = image[0].sign()
    if not usable or not torch.allclose(probe[:, index] * sign, image, rtol=1e-5, atol=1e-6):
        raise Refused(
            f"symmetry: what the augmentation function does to '{name}' is no exchange of numbers "
            "and signs"
        )
    try:
        return Mirror.of(index.tolist(), sign.tolist())
    except ValueError as error:
        raise Refused(f"symmetry: the augmentation function, '{name}': {error}") from error
