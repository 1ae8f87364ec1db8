"""Names in checkpoints of rsl_rl: every release's keys become those of release 5, model by model.

Layouts, found by writing files with the releases:

- 1.x and 2.x: one `model_state_dict` (`std`, `actor.0.weight`, `memory_a.rnn...`), observation
  normalizers, where there are any, as dicts of their own beside it;
- 3.x: the same, with the normalizers inside;
- 4.x: one dict per model (`actor_state_dict`, ...) with `std`, `mlp.0.weight`, `rnn.rnn...`;
- 5.x: the same, with `distribution.std_param`.

In all of them a state dict lists parameters in the order in which the optimizer numbers them
(`torch.nn.Module` traverses modules in one order for both), so the file's own order is the map
from optimizer slots to names. It is the only evidence there is: 2.x and 3.x use equal names in
different orders for recurrent networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from robot_runtime.errors import BadInput

FLAT = "model_state_dict"
"""The key of releases 1 to 3."""

SCALAR_STD = "distribution.std_param"
LOG_STD = "distribution.log_std_param"
NORMALIZER = "obs_normalizer."
MLP = "mlp."
RNN = "rnn.rnn."
CNN = "cnns."

_FLAT_PREFIXES = {
    f"{old}{middle}": (role, new)
    for role, net, memory in (
        ("actor", "actor", "memory_a"),
        ("critic", "critic", "memory_c"),
        ("student", "student", "memory_s"),
        ("teacher", "teacher", "memory_t"),
    )
    for old, middle, new in (
        (net, ".", MLP),
        (memory, ".rnn.", RNN),
        (f"{role}_obs_normalizer", ".", NORMALIZER),
        (f"{role}_cnns", ".", CNN),
    )
}
"""Prefix in a flat state dict: the model it belongs to and the prefix there."""

_STD_NAMES = {"std": SCALAR_STD, "log_std": LOG_STD}

_SPLIT_PREFIXES = (MLP, RNN, CNN, NORMALIZER)

_NORMALIZER_DICTS = {
    "obs_norm_state_dict": ("actor", "student"),
    "critic_obs_norm_state_dict": ("critic", "teacher"),
    "privileged_obs_norm_state_dict": ("critic", "teacher"),
}
"""The dicts of 1.x to 2.x beside the model, and whose observations they normalize."""

ROLES = ("actor", "critic", "student", "teacher")
"""The models a checkpoint may hold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyReport:
    """What became of one entry of a file.

    Attributes:
        key: Its place, ``top-level key/key``.
        shape: Shape of a tensor, None for anything else.
        became: Its new place, ``model/key of release 5``; empty where it was left out.
        note: Why, where that needs a word.
    """

    key: str
    shape: tuple[int, ...] | None
    became: str
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """The tensors of a checkpoint under the names of release 5.

    Attributes:
        layout: Which layout the file had, for people.
        models: State dicts by model (`actor`, ...), in the file's order.
        parameters: ``model/key`` of what an optimizer may hold, in the file's order.
        report: What became of each key.
    """

    layout: str
    models: dict[str, dict[str, Tensor]]
    parameters: tuple[str, ...]
    report: tuple[KeyReport, ...]


def name_tensors(content: Mapping[str, Any], where: str) -> Named:
    """Sort the tensors of a checkpoint by model and give them the names of release 5.

    Args:
        content: The file's top-level dict.
        where: The file, for messages.

    Raises:
        BadInput: The layout is none of rsl_rl, or a key is none of its models; the message lists
            the keys that were found.
    """
    split = {role: f"{role}_state_dict" for role in ROLES if f"{role}_state_dict" in content}
    if FLAT in content and not split:
        return _name_flat(content, where)
    if split and FLAT not in content:
        return _name_split(content, split, where)
    raise BadInput(
        f"'{where}' has no layout of rsl_rl 1 to 5: expected '{FLAT}', or 'actor_state_dict' and "
        f"'critic_state_dict', or 'student_state_dict' and 'teacher_state_dict'; found the keys: "
        f"{_keys(content)}"
    )


def _name_flat(content: Mapping[str, Any], where: str) -> Named:
    """Name the tensors of releases 1 to 3."""
    state = _state_dict(content, FLAT, where)
    models: dict[str, dict[str, Tensor]] = {}
    report: list[KeyReport] = []
    stochastic = "student" if any(key.startswith("student.") for key in state) else "actor"
    for key, value in state.items():
        role, name = _flat_name(key, stochastic)
        if not name:
            raise BadInput(
                f"'{where}': key '{key}' of '{FLAT}' belongs to no model of rsl_rl 1 to 3; found "
                f"the keys: {_keys(state)}"
            )
        models.setdefault(role, {})[name] = value
        report.append(_kept(f"{FLAT}/{key}", value, f"{role}/{name}"))
    inside = any(NORMALIZER in row.became for row in report)
    layout = "rsl_rl 1.x to 3.x"
    if inside:
        layout = "rsl_rl 3.x"
    for key, roles in _NORMALIZER_DICTS.items():
        if key not in content:
            continue
        if inside:
            raise BadInput(f"'{where}' has normalizers inside '{FLAT}' and in '{key}' as well")
        layout = "rsl_rl 1.x or 2.x"
        role = next((role for role in roles if role in models), None)
        if role is None:
            raise BadInput(f"'{where}' has '{key}' and no model it could belong to")
        for name, value in _state_dict(content, key, where).items():
            models[role][NORMALIZER + name] = value
            note = "folded into the model"
            report.append(_kept(f"{key}/{name}", value, f"{role}/{NORMALIZER}{name}", note))
    return _named(layout, models, report, [row.became for row in report])


def _flat_name(key: str, stochastic: str) -> tuple[str, str]:
    """Return model and new name of a key of releases 1 to 3; empty names where there is none."""
    if key in _STD_NAMES:
        return stochastic, _STD_NAMES[key]
    for prefix, (role, new) in _FLAT_PREFIXES.items():
        if key.startswith(prefix):
            return role, new + key.removeprefix(prefix)
    return "", ""


def _name_split(content: Mapping[str, Any], split: Mapping[str, str], where: str) -> Named:
    """Name the tensors of releases 4 and 5."""
    models: dict[str, dict[str, Tensor]] = {}
    report: list[KeyReport] = []
    layout = "rsl_rl 4.x or 5.x"
    for role, top in split.items():
        models[role] = {}
        state = _state_dict(content, top, where)
        for key, value in state.items():
            name = _STD_NAMES.get(key, key)
            if name in (SCALAR_STD, LOG_STD):
                layout = "rsl_rl 4.x" if key in _STD_NAMES else "rsl_rl 5.x"
            elif not key.startswith(_SPLIT_PREFIXES):
                raise BadInput(
                    f"'{where}': key '{key}' of '{top}' belongs to no model of "
                    f"rsl_rl 4 or 5; found the keys: {_keys(state)}"
                )
            models[role][name] = value
            report.append(_kept(f"{top}/{key}", value, f"{role}/{name}"))
    return _named(layout, models, report, [row.became for row in report])


def _named(
    layout: str, models: dict[str, dict[str, Tensor]], report: list[KeyReport], order: list[str]
) -> Named:
    parameters = tuple(name for name in order if not is_buffer(name.partition("/")[2]))
    return Named(layout=layout, models=models, parameters=parameters, report=tuple(report))


def is_buffer(key: str) -> bool:
    """Return whether a key is of something that no optimizer steps.

    That is the statistics of normalizers, and of batch normalization between convolutions.
    """
    statistics = (".running_mean", ".running_var", ".num_batches_tracked")
    return key.startswith(NORMALIZER) or key.endswith(statistics)


def _kept(key: str, value: Tensor, became: str, note: str = "") -> KeyReport:
    return KeyReport(key=key, shape=tuple(value.shape), became=became, note=note)


def _state_dict(content: Mapping[str, Any], key: str, where: str) -> dict[str, Tensor]:
    """Return a state dict, after checking that it is one."""
    state = content[key]
    if not isinstance(state, Mapping) or not state:
        raise BadInput(f"'{where}': '{key}' is no state dict, it holds a {type(state).__name__}")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            kind = type(value).__name__
            raise BadInput(f"'{where}': '{key}' holds a {kind} under {name!r}, not a tensor")
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise BadInput(f"'{where}': '{key}/{name}' has numbers that are not finite")
    return dict(state)


def _keys(found: Mapping[str, Any]) -> str:
    """Return the keys of a dict as text, shortened if there are very many."""
    keys = [str(key) for key in found]
    more = f", and {len(keys) - 60} more" if len(keys) > 60 else ""
    return ", ".join(keys[:60]) + more if keys else "none"
