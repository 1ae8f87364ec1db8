"""The action of a sheet, made complete: its terms, and what joints without an action do."""

from __future__ import annotations

from typing import Any

from export.importers.blocks import Filled, sheet_source
from export.importers.model import ModelFacts
from export.importers.reading import as_number, is_dict, is_list, show
from export.importers.sheet import Sheet
from export.importers.shorthand import bounds, column, matching, read_actions
from robot_runtime.errors import BadInput


def fill_actions(
    sheet: Sheet,
    filled: Filled,
    names: list[str],
    defaults: list[Any],
    model: ModelFacts,
    num_actions: int,
) -> dict[str, Any]:
    """The complete action.

    Args:
        sheet: What is known.
        filled: Gets the source of every filled field.
        names: The policy's joints.
        defaults: Their default positions.
        model: The robot model.
        num_actions: Length of the graph's output.
    """
    said = sheet.below("action")
    many = said.get("terms")
    loose = {k: v for k, v in said.items() if k not in ("terms", "hold", "filter")}
    if many is None:
        terms = read_actions(loose, "action")
    else:
        terms = read_actions(many, "action.terms")
        _override_actions(terms, loose)
    rest = dict(zip(names, defaults, strict=True))
    for i, term in enumerate(terms):
        path = "action" if many is None else f"action.{term['name']}"
        where = f"action.terms.{i}"
        if "joints" not in term:
            term["joints"] = list(names)
            filled[f"{where}.joints"] = "inferred: as many actions as joints"
            if len(terms) > 1 or num_actions != len(names):
                sheet.ask(f"{path}.joints", f"the joints behind the {num_actions} actions")
        _fill_action(sheet, filled, term, path, where, rest, model)
    total = sum(len(term["joints"]) for term in terms)
    if total != num_actions:
        # Where joints are still to be said, that is the question.
        sheet.settle()
        raise BadInput(f"action: {total} joints for the graph's {num_actions} actions")
    return {
        "terms": terms,
        "hold": _hold(sheet, filled, terms, names, rest),
        "filter": sheet.get("action.filter", 1.0),
    }


def _override_actions(terms: list[dict[str, Any]], loose: dict[str, Any]) -> None:
    for path, value in loose.items():
        name, _, field = path.rpartition(".")
        found = [term for term in terms if name in ("", term["name"])]
        if not found or not field:
            known = ", ".join(term["name"] for term in terms)
            raise BadInput(f"action.{path}: no such action term; there are {known}")
        for term in found:
            term[field] = value


def _fill_action(
    sheet: Sheet,
    filled: Filled,
    term: dict[str, Any],
    path: str,
    where: str,
    rest: dict[str, Any],
    model: ModelFacts,
) -> None:
    chosen = term["joints"]
    if not is_list(chosen) or not chosen or not all(isinstance(name, str) for name in chosen):
        raise BadInput(f"{path}.joints: expected names, found {show(chosen)}")
    count = len(chosen)
    if "kind" not in term:
        term["kind"] = "position"
        filled[f"{where}.kind"] = "default: a position target"
    unknown = [name for name in term["joints"] if name not in rest]
    if unknown:
        raise BadInput(f"{path}.joints: '{unknown[0]}' is no joint of the policy")
    sheet.ask(f"{path}.scale", "what one unit of action means, [rad], [rad/s] or [Nm]", "0.25")
    sheet.ask(f"{path}.offset", "the target of a zero action", "default_pos", "0.0")
    for field in ("scale", "offset"):
        if field in term and f"{path}.{field}" not in sheet:
            said = sheet.origin(f"action.{field}") or sheet.origin("action.terms")
            sheet.state(f"{path}.{field}", term[field], *(said or ("inferred", "the action term")))
    offset = term.get("offset", 0.0)
    if offset == "default_pos":
        offset = [0.0 if rest[name] is None else rest[name] for name in term["joints"]]
    term["offset"] = column(offset, term["joints"], f"{path}.offset")
    term["scale"] = column(term.get("scale", 1.0), term["joints"], f"{path}.scale")
    if "relative_to" not in term:
        term["relative_to"] = "offset"
        filled[f"{where}.relative_to"] = "default: targets do not follow the measured position"
    for field in ("raw", "target"):
        value = term.pop(f"{field}_clip", None)
        if value is None:
            for end in ("lower", "upper"):
                filled.setdefault(f"{where}.{field}_{end}", "default: no clip stated")
        if value == "joint_limits":
            value = [[model.joint(n).lower, model.joint(n).upper] for n in term["joints"]]
        if is_dict(value):
            value = [matching(value, n, f"{path}.{field}_clip") for n in term["joints"]]
            value = [v if is_list(v) else [-abs(as_number(v, path)), abs(v)] for v in value]
        pair = bounds(value, count, f"{path}.{field}_clip")
        term[f"{field}_lower"], term[f"{field}_upper"] = pair or (None, None)


def _hold(
    sheet: Sheet,
    filled: Filled,
    terms: list[dict[str, Any]],
    names: list[str],
    rest: dict[str, Any],
) -> list[dict[str, Any]]:
    """Position targets of the joints that no position term drives."""
    positioned = {n for t in terms if t["kind"] == "position" for n in t["joints"]}
    driven = {n for t in terms for n in t["joints"]}
    said: Any = sheet.get("action.hold") or {}
    if said == "default_pos":
        said = {name: rest[name] for name in names if name not in driven}
    if not is_dict(said):
        raise BadInput(
            f"action.hold: expected positions by joint or default_pos, found {show(said)}"
        )
    unknown = [name for name in said if name not in names]
    if unknown:
        raise BadInput(f"action.hold: '{unknown[0]}' is no joint of the policy")
    idle = [name for name in names if name not in driven and name not in said]
    if idle:
        meaning = f"position targets of the joints nobody drives ({', '.join(idle)}), [rad]"
        sheet.ask("action.hold", meaning, "default_pos")
    held = [name for name in names if name not in positioned]
    filled["action.hold"] = sheet_source(sheet, "action.hold", "the default pose")
    return [{"joint": n, "position": as_number(said.get(n, rest[n] or 0.0), n)} for n in held]
