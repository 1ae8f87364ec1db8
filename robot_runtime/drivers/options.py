"""What a driver can be told with ``--option name=value``: said once, listed, and read strictly."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from robot_runtime.errors import BadInput

Value = float | str
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One option of a driver.

    Attributes:
        name: Its name.
        help: What it means, with its unit; where the default is no number or word, what happens
            without it.
        kind: `float` for a number, `str` for a text.
        default: Its value if it is not given; None: see `help`, or it must be given.
        choices: The only texts it may be; empty: any.
        needed: Whether it must be given.
    """

    name: str
    help: str
    kind: type[float] | type[str] = str
    default: Value | None = None
    choices: tuple[str, ...] = ()
    needed: bool = False

    @property
    def type_text(self) -> str:
        """What it may be, in words."""
        if self.choices:
            return "|".join(self.choices)
        return "NUMBER" if self.kind is float else "TEXT"

    @property
    def default_text(self) -> str:
        """What it is if it is not given, in words."""
        if self.default is None:
            return "must be given" if self.needed else "optional"
        shown = self.default if isinstance(self.default, str) else f"{self.default:g}"
        return f"default {shown}"

    def read(self, text: str, who: str) -> Value:
        """Return the value that a text means.

        Raises:
            BadInput: It means none.
        """
        if self.choices and text not in self.choices:
            known = ", ".join(self.choices)
            raise BadInput(f"{who}: {self.name} = {text!r} is not one of {known}")
        if self.kind is str:
            return text
        try:
            return float(text)
        except ValueError:
            raise BadInput(f"{who}: {self.name} = {text!r} is not a number") from None


def takes(options: Sequence[Option]) -> Callable[[F], F]:
    """Say which options a driver has, for ``surefoot run --robot NAME --help``.

    Args:
        options: All of them; its function reads them with `read_options`.
    """

    def mark(driver: F) -> F:
        driver.options = tuple(options)  # type: ignore[attr-defined]
        return driver

    return mark


def options_of(driver: Callable[..., Any]) -> tuple[Option, ...] | None:
    """Return the options of a driver; None if it does not say."""
    said: tuple[Option, ...] | None = getattr(driver, "options", None)
    # A class, say, may have something else of that name.
    return said if isinstance(said, tuple) else None


def read_options(
    who: str, options: Sequence[Option], given: Mapping[str, str]
) -> dict[str, Value | None]:
    """Return a value for every option, by name; None where none is given and there is no default.

    Args:
        who: The robot, to begin messages with.
        options: All options there are.
        given: What the user gave.

    Raises:
        BadInput: One does not exist, is missing or means nothing; the message says what exists.
    """
    known = {option.name: option for option in options}
    for name in given:
        if name not in known:
            listed = ", ".join(known) or "it takes none"
            raise BadInput(f"{who}: no option {name!r}; known: {listed}")
    missing = [one for name, one in known.items() if one.needed and name not in given]
    if missing:
        asked = " ".join(f"--option {one.name}={one.type_text} ({one.help})" for one in missing)
        raise BadInput(f"{who}: give {asked}")
    return {
        name: option.read(given[name], who) if name in given else option.default
        for name, option in known.items()
    }


def describe(name: str, driver: Callable[..., Any]) -> str:
    """Return the options of a driver as lines: name, type, default and meaning.

    Args:
        name: The driver's name.
        driver: The driver.
    """
    options = options_of(driver)
    if options is None:
        return f"The driver {name!r} does not say which options it takes.\n"
    if not options:
        return f"The driver {name!r} takes no options.\n"
    lines = [f"options of the driver {name!r}:"]
    for one in options:
        meaning = textwrap.fill(one.help, 96, initial_indent=" " * 6, subsequent_indent=" " * 6)
        lines += [f"  --option {one.name}={one.type_text} ({one.default_text})", meaning]
    return "\n".join(lines) + "\n"
