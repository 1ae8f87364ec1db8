"""Observation blocks and commands of a sheet, made complete; actions are in `actions.py`.

What the format and its files leave open is filled with the value that changes nothing, and where
there is no such value it is asked for by name.
"""

from __future__ import annotations

from typing import Any

from export.importers.reading import as_number, as_numbers, is_dict, is_list, show
from export.importers.selection import BlockWanted, take_wishes
from export.importers.sheet import Sheet
from export.importers.shorthand import JOINT_SOURCES, PLAIN_TERM, column, read_blocks
from robot_runtime.errors import BadInput

CHANNELS = ("lin_vel_x", "lin_vel_y", "ang_vel_z")
"""The command of a velocity policy."""

_HUGE = 1e30


class Filled(dict[str, str]):
    """Source by contract path of what was filled in here."""


def fill_observation(
    sheet: Sheet, filled: Filled, inputs: list[str], *, clipped: bool
) -> tuple[list[dict[str, Any]], list[BlockWanted | None]]:
    """Complete observation blocks, and what the network takes of each.

    Args:
        sheet: What is known.
        filled: Gets the source of every filled field.
        inputs: The graph's observation inputs.
        clipped: Whether the applied action can differ from the raw one.

    Raises:
        BadInput: A block or term cannot be read.
    """
    sheet.ask("observation", "the observation terms in order, as a list of names and scales")
    if "observation" not in sheet:
        return [], []
    blocks = read_blocks(sheet.get("observation"), "observation")
    theirs = sheet.origin("observation")
    for path, value in sheet.below("observation").items():
        said = sheet.origin(f"observation.{path}")
        # What a format says of its own terms does not hold for a list that the user wrote.
        if theirs and said and (theirs[0] != "user" or said[0] == "user"):
            _override(blocks, path, value)
    stated = [set(block["history"]) for block in blocks]
    wanted = [take_wishes(block, f"observation.{i}") for i, block in enumerate(blocks)]
    for i, block in enumerate(blocks):
        for field in set(block["history"]) - stated[i]:
            where = f"observation.{i}.history.{field}"
            filled[where] = "inferred: one frame, and older values of some of its terms"
    for i, block in enumerate(blocks):
        _fill_block(sheet, filled, block, i, inputs)
        for j, term in enumerate(block["terms"]):
            _fill_term(sheet, filled, term, f"observation.{i}.terms.{j}", clipped)
    return blocks, wanted


def _override(blocks: list[dict[str, Any]], path: str, value: Any) -> None:
    """Apply one deep statement such as ``dof_vel.scale`` or ``0.history.fill``."""
    head, _, rest = path.partition(".")
    chosen = blocks
    if head.isdigit():
        if int(head) >= len(blocks):
            raise BadInput(f"observation.{path}: there are {len(blocks)} blocks")
        chosen = [blocks[int(head)]]
        head, _, rest = rest.partition(".")
    if head in ("clip", "input"):
        for block in chosen:
            block[head] = value
        return
    if head == "scale":
        for term in (term for block in chosen for term in block["terms"]):
            term.setdefault("scale", value)
        return
    if head == "history":
        if not rest and not is_dict(value):
            raise BadInput(f"observation.{path}: expected a mapping, found {show(value)}")
        for block in chosen:
            block["history"] = {**block["history"], **({rest: value} if rest else value)}
        return
    found = [term for block in chosen for term in block["terms"] if term["name"] == head]
    if not found:
        names = ", ".join(term["name"] for block in chosen for term in block["terms"])
        raise BadInput(f"observation.{path}: no term '{head}'; there are {names}")
    for term in found:
        if rest:
            term[rest] = value
        elif is_dict(value):
            term.update(value)
        else:
            raise BadInput(f"observation.{path}: expected fields of the term, found {show(value)}")


def _fill_block(
    sheet: Sheet, filled: Filled, block: dict[str, Any], i: int, inputs: list[str]
) -> None:
    if "input" not in block:
        if len(inputs) == 1:
            block["input"] = inputs[0]
            filled[f"observation.{i}.input"] = "file: the graph's only input"
        else:
            sheet.ask(f"observation.{i}.input", "the graph input that the block feeds", *inputs)
            block["input"] = inputs[0]
    clip = block.setdefault("clip", None)
    if clip is not None:
        block["clip"] = abs(as_number(clip, f"observation.{i}.clip"))
    history = block["history"]
    usual: dict[str, Any] = {"length": 1, "includes_current": True, "stride": 1}
    for field, value in usual.items():
        if field not in history:
            history[field] = value
            filled[f"observation.{i}.history.{field}"] = "default: no history stated"
    long = [t for t in block["terms"] if (t.get("history_length") or 1) > 1]
    remembers = history["length"] != 1 or not history["includes_current"] or bool(long)
    where = f"observation.{i}.history"
    asked = {
        "layout": ("how frames stand together", "term_major", "frame_major"),
        "order": ("which frame comes first", "oldest_first", "newest_first"),
        "fill": ("what stands before the first frame", "first", "zero"),
    }
    for field, (meaning, *likely) in asked.items():
        if field in history:
            continue
        history[field] = likely[0]
        filled[f"{where}.{field}"] = "default: one frame, nothing to lay out"
        if remembers:
            sheet.ask(f"{where}.{field}", f"history of '{block['input']}': {meaning}", *likely)


def _fill_term(
    sheet: Sheet, filled: Filled, term: dict[str, Any], where: str, clipped: bool
) -> None:
    name = term["name"]
    if "scale" not in term:
        term["scale"] = [1.0]
        filled[f"{where}.scale"] = "default: no scale stated"
    scale = term["scale"]
    chosen: Any = term.get("joints") or sheet.get("joints.names")
    if is_dict(scale) and term["source"] in JOINT_SOURCES and is_list(chosen):
        scale = column(scale, chosen, f"observation.{name}.scale")
    term["scale"] = (
        as_numbers(scale, f"observation.{name}.scale")
        if is_list(scale)
        else [as_number(scale, f"observation.{name}.scale")]
    )
    for field, value in PLAIN_TERM.items():
        if field not in term:
            term[field] = list(value) if is_list(value) else value
            filled[f"{where}.{field}"] = "default: none stated"
    term["clip"] = _clip(term["clip"], f"observation.{name}.clip")
    if not is_list(term["noise"]):
        term["noise"] = [term["noise"]]
    if isinstance(term["value"], int | float) and not isinstance(term["value"], bool):
        term["value"] = [float(term["value"])]
    if term["value"] is None and term["source"] in ("constant", "command_active"):
        # Of a term whose source is still to be said only that is asked.
        if not sheet.asked(f"observation.{name}.source"):
            sheet.ask(f"observation.{name}.value", "its numbers, or the threshold of the norm")
        term["value"] = [0.0]
    if "clip_first" not in term:
        term["clip_first"] = True
        filled[f"{where}.clip_first"] = "default: no clip, or nothing to scale"
        if term["clip"] is not None and set(term["scale"]) != {1.0}:
            sheet.ask(f"observation.{name}.clip_first", "clip before the scale", "true", "false")
    if "stage" not in term:
        term["stage"] = "raw"
        filled[f"{where}.stage"] = "default: raw and applied action are the same"
        if term["source"] == "last_action" and clipped:
            sheet.ask(f"observation.{name}.stage", "which last action", "raw", "applied")


def _clip(value: Any, where: str) -> list[float] | None:
    """Lower and upper bound, or None; an endless side becomes 1e30."""
    if value is None:
        return None
    if not is_list(value):
        reach = abs(as_number(value, where))
        return [-reach, reach]
    if len(value) != 2:
        raise BadInput(f"{where}: expected [lower, upper], found {show(value)}")
    sides: list[float] = []
    for item, side in zip(value, (-_HUGE, _HUGE), strict=True):
        endless = isinstance(item, float) and abs(item) == float("inf")
        sides.append(side if endless else as_number(item, where))
    return None if sides == [-_HUGE, _HUGE] else sides


def sheet_source(sheet: Sheet, path: str, usual: str) -> str:
    """The source of a path, or that it is the usual value."""
    found = sheet.origin(path)
    return f"default: {usual}" if found is None else f"{found[0]}: {found[1]}"


def fill_commands(
    sheet: Sheet, filled: Filled, observation: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The complete command channels, in the order in which terms use them."""
    used: dict[str, None] = {}
    for term in (t for block in observation for t in block["terms"]):
        if term["source"] in ("command", "command_active"):
            used.update(dict.fromkeys(term["channels"] or ()))
            if term["channels"] is None and term["source"] == "command":
                used.update(dict.fromkeys(sheet.get("commands.names", CHANNELS)))
    used.update(dict.fromkeys(sheet.get("phase.stand_channels") or ()))
    order = [name for name in sheet.get("commands.names", CHANNELS) if name in used]
    order += [name for name in used if name not in order]
    return [_command(sheet, filled, name, i) for i, name in enumerate(order)]


def check_commands(sheet: Sheet, commands: list[dict[str, Any]]) -> None:
    """Refuse what the user says of a command that no term uses.

    Raises:
        BadInput: The message lists those that are used.
    """
    used = [command["name"] for command in commands]
    for name in sheet.below("commands"):
        said = sheet.origin(f"commands.{name}")
        if name.removesuffix(".max_rate") not in (*used, "names") and said and said[0] == "user":
            known = ", ".join(used) or "none"
            raise BadInput(f"commands.{name}: no term uses that command; used: {known}")


def _command(sheet: Sheet, filled: Filled, name: str, i: int) -> dict[str, Any]:
    path = f"commands.{name}"
    sheet.ask(path, "what an operator may ask for, [lowest, highest]", "[-1.0, 1.0]")
    value, rate = sheet.get(path, [-1.0, 1.0]), sheet.get(f"{path}.max_rate")
    if is_dict(value):
        rate, value = value.get("max_rate", rate), value.get("range")
    if not is_list(value) or len(value) != 2:
        raise BadInput(f"{path}: expected [lowest, highest], found {show(value)}")
    lower, upper = as_numbers(value, path)
    source = sheet_source(sheet, path, "asked for")
    filled[f"commands.{i}"] = source
    if rate is None:
        filled[f"commands.{i}.max_rate"] = "default: no slew limit stated"
    return {"name": name, "lower": lower, "upper": upper, "max_rate": rate}
