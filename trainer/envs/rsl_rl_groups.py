"""What environments in the style of rsl_rl return, as observation groups by name.

Three interfaces are in use: rsl_rl 1.x (legged_gym) returns bare tensors, 2.x a tensor and
``extras["observations"]``, 3.x to 5.x a TensorDict of groups. Nothing here needs tensordict: what
has keys and items is a dict of groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_runtime.errors import Refused
from trainer.networks.actor_critic import ACTOR_GROUP

Groups = dict[str, Any]
"""Observation groups by the environment's names; the used ones are ``(num_envs, dim)``."""

CRITIC = "critic"


@dataclass(frozen=True, kw_only=True, slots=True)
class ObsForm:
    """In what form an environment gives observations.

    Attributes:
        kind: The type of what holds the groups; None for bare tensors.
        shapes: Shape of each group without the leading axis of environments.
        device: Where they are.
    """

    kind: type | None
    shapes: Mapping[str, tuple[int, ...]]
    device: torch.device


BRAX_FINAL = "AutoResetWrapper_final_obs"
"""The key under which the wrappers of brax and MuJoCo Playground keep the last observation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageGroups:
    """The images that networks see, as observation groups of their own.

    Attributes:
        shapes: Channels, height and width of each group.
        actor: Groups that the actor sees, images last; empty without images.
        critic: The same of the critic.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    actor: tuple[str, ...] = ()
    critic: tuple[str, ...] = ()


def is_dict(value: Any) -> bool:
    """Return whether a value is a dict, a TensorDict or the like."""
    return hasattr(value, "keys") and hasattr(value, "items") and not isinstance(value, Tensor)


def groups_of(obs: Any, extras: Mapping[str, Any] | None, privileged: Any = None) -> Groups:
    """Return the observation groups, whatever the interface.

    Args:
        obs: What came as the observation: a tensor, or groups by name.
        extras: The extras that came with it.
        privileged: What rsl_rl 1.x returns as second observation.

    Raises:
        Refused: This is no observation.
    """
    if is_dict(obs):
        return dict(obs.items())
    if not isinstance(obs, Tensor):
        raise Refused(
            f"the environment's observation is a {type(obs).__name__}; expected a tensor, or "
            "groups by name (a dict or a TensorDict)"
        )
    more = (extras or {}).get("observations") or {}
    groups = {name: value for name, value in more.items() if value is not None}
    if isinstance(privileged, Tensor):
        groups[CRITIC] = privileged
    return {**groups, ACTOR_GROUP: obs}


def resolve_sets(
    groups: Mapping[str, Any],
    obs_groups: Mapping[str, Sequence[str]] | None,
    needed: Sequence[str] = (),
) -> dict[str, list[str]]:
    """Return which of the environment's groups each network sees.

    As in rsl_rl, a set that is not configured is the group of the same name, or else the group
    `policy`.

    Args:
        groups: The environment's groups.
        obs_groups: The configuration's sets: `actor` (3.x: `policy`), `critic` and others.
        needed: Further sets that have to be there, configured or not.

    Returns:
        Groups by set; the actor's set is called `policy`. The critic has a set of its own only if
        it sees something else than the actor.

    Raises:
        Refused: A set is empty, names a group that is not there, or cannot be resolved.
    """
    sets = {name: list(names) for name, names in (obs_groups or {}).items()}
    if "actor" in sets and ACTOR_GROUP in sets and sets["actor"] != sets[ACTOR_GROUP]:
        raise Refused(f"obs_groups has both 'actor' and '{ACTOR_GROUP}', and they differ")
    actor = sets.pop("actor", None) or sets.pop(ACTOR_GROUP, None) or _default("actor", groups)
    critic = sets.pop(CRITIC, None) or _default(CRITIC, groups, actor)
    sets.pop(ACTOR_GROUP, None)
    for name in needed:
        sets[name] = sets.get(name) or _default(name, groups, actor)
    found = {ACTOR_GROUP: actor, **({CRITIC: critic} if critic != actor else {}), **sets}
    for name, members in found.items():
        missing = [group for group in members if group not in groups]
        if missing or not members:
            what = f"group '{missing[0]}' is not there" if missing else "it is empty"
            raise Refused(f"observation set '{name}': {what}; the groups are {sorted(groups)}")
        for group in members:
            _check(name, group, groups[group])
    return found


def split_images(
    sets: Mapping[str, list[str]], groups: Mapping[str, Any]
) -> tuple[dict[str, list[str]], ImageGroups]:
    """Give images sets of their own, because networks join the rest and convolve each of them.

    Args:
        sets: Groups by set, as `resolve_sets` returns them.
        groups: The environment's groups; images are ``(num_envs, channels, height, width)``.

    Raises:
        Refused: A network sees nothing but images, or a name is taken.
    """
    seen: dict[str, tuple[list[str], list[str]]] = {}
    for name in (ACTOR_GROUP, CRITIC):
        members = sets.get(name, sets[ACTOR_GROUP])
        images = [group for group in members if groups[group].ndim == 4]
        plain = [group for group in members if group not in images]
        if images and not plain:
            raise Refused(f"observation set '{name}': nothing but images, {images}")
        seen[name] = plain, images
    shapes = {group: tuple(groups[group].shape[1:]) for _, images in seen.values()
              for group in images}  # fmt: skip
    if not shapes:
        return dict(sets), ImageGroups()
    taken = sorted(set(shapes) & set(sets))
    if taken:
        raise Refused(f"observation groups of images have the names of sets: {taken}")
    (actor, of_actor), (critic, of_critic) = seen[ACTOR_GROUP], seen[CRITIC]
    own = {} if critic == actor else {CRITIC: critic}
    rest = {name: names for name, names in sets.items() if name not in seen}
    found = {ACTOR_GROUP: actor, **own, **rest, **{name: [name] for name in shapes}}
    return found, ImageGroups(
        shapes=shapes,
        actor=(ACTOR_GROUP, *of_actor),
        critic=(CRITIC if own else ACTOR_GROUP, *of_critic),
    )


def compose(groups: Mapping[str, Any], sets: Mapping[str, Sequence[str]]) -> dict[str, Tensor]:
    """Return the observations of each set; a set that lacks a group is left out."""
    return {
        name: torch.cat([groups[group] for group in members], dim=-1)
        if len(members) > 1
        else groups[members[0]].flatten(1)
        for name, members in sets.items()
        if all(group in groups for group in members)
    }


def final_groups(extras: Mapping[str, Any], groups: Groups, done: Tensor) -> Groups | None:
    """Return the last observations of the episodes that ended, in any of the forms in use.

    - Isaac Lab: ``extras["final_obs"]``, groups of all environments, or one entry per environment
      with None where nothing ended, as gymnasium has it;
    - mjlab: ``extras["terminal"] = {"env_ids": ..., "observations": ...}``, rows of those that did;
    - MuJoCo Playground: ``extras["AutoResetWrapper_final_obs"]``, groups of all environments.

    Args:
        extras: The extras of the step.
        groups: The observations of the step, after resets.
        done: Where an episode ended, bool, ``(num_envs,)``.

    Returns:
        Groups of all environments, right in the rows that ended; None if the extras hold none.

    Raises:
        Refused: They hold something else than these forms.
    """
    terminal = extras.get("terminal")
    if terminal is not None and is_dict(terminal) and "env_ids" in terminal:
        rows = torch.as_tensor(terminal["env_ids"], device=done.device).long()
        return _scatter(groups, rows, groups_of(terminal["observations"], None))
    found = extras.get("final_obs", extras.get(BRAX_FINAL))
    if found is None:
        return None
    if isinstance(found, np.ndarray) and found.dtype == object:
        rows = done.nonzero().squeeze(-1)
        each = [groups_of(found[i], None) for i in rows.tolist()]
        names = each[0] if each else []
        stacked = {name: torch.stack([one[name] for one in each]) for name in names}
        return _scatter(groups, rows, stacked)
    return groups_of(found, None)


def _scatter(groups: Groups, rows: Tensor, values: Groups) -> Groups:
    """Return copies of the groups with `values` in `rows`; groups without values are left out."""
    full = {}
    for name, value in values.items():
        if name in groups and isinstance(value, Tensor):
            full[name] = groups[name].clone()
            full[name][rows] = value.to(full[name].dtype)
    return full


def _default(name: str, groups: Mapping[str, Any], otherwise: list[str] | None = None) -> list[str]:
    """Return the groups of a set that is not configured."""
    found = next((group for group in (name, ACTOR_GROUP) if group in groups), None)
    if found is not None:
        return [found]
    if otherwise is not None:
        return otherwise
    raise Refused(
        f"obs_groups does not say which groups the {name} sees, and there is neither '{name}' nor "
        f"'{ACTOR_GROUP}' among {sorted(groups)}"
    )


def _check(name: str, group: str, value: Any) -> None:
    image = name in (ACTOR_GROUP, CRITIC) and isinstance(value, Tensor) and value.ndim == 4
    if not image and (not isinstance(value, Tensor) or value.ndim != 2):
        what = f"has shape {tuple(value.shape)}" if isinstance(value, Tensor) else "has parts"
        raise Refused(f"observation set '{name}': group '{group}' {what}; expected (num_envs, dim)")
