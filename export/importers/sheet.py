"""What is known about a contract so far: values by path, and which source each one has.

Paths are those of the contract, with the joints' columns as ``joints.kp`` (and ``joints.NAME.kp``
for one joint), observation terms by name (``observation.TERM.scale``) and commands by name
(``commands.lin_vel_x``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from export.importers.reading import Table, is_dict, is_list, shorten, show
from robot_runtime.errors import BadInput

Origin = Literal["user", "file", "model", "inferred", "default"]
"""Where a value comes from: said by the user, a foreign file, the robot model; computed from what
they say; or the format's own convention, which no file states."""

_RANK: dict[Origin, int] = {"user": 4, "file": 3, "model": 2, "inferred": 1, "default": 0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A field that no source states.

    Attributes:
        path: The field.
        meaning: What it is, with its unit.
        likely: Likely values, as YAML.
    """

    path: str
    meaning: str
    likely: tuple[str, ...] = ()

    def line(self) -> str:
        """The YAML line that answers it, with the likely values."""
        first = self.likely[0] if self.likely else "..."
        others = f" (likely: {', '.join(self.likely)})" if len(self.likely) > 1 else ""
        return f"{self.path}: {first}  # {self.meaning}{others}"


class MissingFieldsError(BadInput):
    """Fields that no source states, all of them at once."""

    def __init__(self, questions: Iterable[Question], notes: Iterable[str] = ()) -> None:
        """Say every field's name, what it is and its likely values.

        Args:
            questions: The fields.
            notes: What the user should know so far: keys that were not read may be answers.
        """
        self.questions = tuple(questions)
        self.notes = tuple(notes)
        parts = [
            f"{q.path} ({q.meaning}{'; likely ' + ' or '.join(q.likely) if q.likely else ''})"
            for q in self.questions
        ]
        count = "1 field is" if len(parts) == 1 else f"{len(parts)} fields are"
        super().__init__(
            f"{count} stated by no source, and nothing is guessed; write each as a YAML line into "
            f"a file for --user, or give --set PATH=VALUE: {'; '.join(parts)}"
        )


class Sheet:
    """Collects statements; the strongest source counts, and contradictions are kept as notes."""

    def __init__(self, answers: Mapping[str, tuple[Any, str]] | None = None) -> None:
        """Begin with what the user says.

        Args:
            answers: Value and place (a file, or ``--set``) by path.
        """
        self.values: dict[str, Any] = {}
        self.notes: list[str] = []
        self._origins: dict[str, tuple[Origin, str]] = {}
        self._questions: dict[str, Question] = {}
        self._heard: list[tuple[str, Any, Origin, str]] = []
        for path, (value, where) in (answers or {}).items():
            self.state(path, value, "user", where)

    def state(self, path: str, value: Any, origin: Origin, where: str) -> None:
        """Take down what a source says.

        Args:
            path: The field.
            value: What it says, plain values.
            origin: What kind of source it is.
            where: Which one, for people: a file and its key, or a reason.
        """
        if path in self._origins:
            self._compare(path, value, origin, where)
            if _RANK[origin] <= _RANK[self._origins[path][0]]:
                return
        self.values[path] = value
        self._origins[path] = (origin, where)

    def hear(self, path: str, value: Any, origin: Origin, where: str) -> None:
        """Take down what a source says without believing it: only a contradiction shows.

        Takes what `state` takes.
        """
        self._heard.append((path, value, origin, where))

    def ask(self, path: str, meaning: str, *likely: str) -> None:
        """Take down that a field is needed; it is no question where a source states it."""
        self._questions.setdefault(path, Question(path=path, meaning=meaning, likely=likely))

    def asked(self, path: str) -> bool:
        """Whether a field is needed that no source states yet: then no usual value counts."""
        return path in self._questions and path not in self.values

    def note(self, text: str) -> None:
        """Take down what the user should know."""
        if text not in self.notes:
            self.notes.append(text)

    def unread(self, table: Table, known: str) -> None:
        """Note keys of a file that the importer knows nothing of: a fork may mean something.

        Args:
            table: The file.
            known: The stack's own keys, separated by spaces.
        """
        names = [key for key in table if key not in known.split()]
        if names:
            self.note(f"{table.name}: not read, as the stack has no such keys: {shorten(names)}")

    def __contains__(self, path: str) -> bool:
        """Whether a source states the field."""
        return path in self.values

    def get(self, path: str, absent: Any = None) -> Any:
        """The value of a field, or ``absent``."""
        return self.values.get(path, absent)

    def require(self, path: str, meaning: str, *likely: str) -> Any:
        """The value of a field without which nothing else can be said.

        Raises:
            MissingFieldsError: No source states it; questions so far are asked with it.
        """
        if path not in self.values:
            self.ask(path, meaning, *likely)
            self.settle()
        return self.values[path]

    def settle(self) -> None:
        """Refuse a sheet with open questions.

        Raises:
            MissingFieldsError: All of them.
        """
        still_open = [q for q in self._questions.values() if q.path not in self.values]
        if still_open:
            raise MissingFieldsError(still_open, self.notes)

    def contradictions(self) -> None:
        """Note where what was only heard differs from what counts."""
        for path, value, origin, where in self._heard:
            if path in self._origins:
                self._compare(path, value, origin, where)
        self._heard = []

    def origin(self, path: str) -> tuple[Origin, str] | None:
        """Kind and place of the source of a field."""
        return self._origins.get(path)

    def below(self, prefix: str) -> dict[str, Any]:
        """The values of the paths under a prefix, by the rest of their path, oldest first."""
        start = f"{prefix}."
        return {p.removeprefix(start): v for p, v in self.values.items() if p.startswith(start)}

    def _compare(self, path: str, value: Any, origin: Origin, where: str) -> None:
        other, place = self._origins[path]
        if min(_RANK[origin], _RANK[other]) < _RANK["model"] or alike(value, self.values[path]):
            return
        names = self.values.get("joints.names")
        said = f"{other} ({place}) says {_differing(self.values[path], value, names)}"
        heard = f"{origin} ({where}) says {_differing(value, self.values[path], names)}"
        first = _RANK[other] >= _RANK[origin] or (path, value, origin, where) in self._heard
        self.note(
            f"contradiction: {path}: {said}, {heard}; the {other if first else origin}'s counts"
        )


def alike(left: Any, right: Any) -> bool:
    """Whether two plain values say the same, numbers up to rounding in the sixth digit."""
    if is_dict(left) and is_dict(right):
        return left.keys() == right.keys() and all(alike(left[k], right[k]) for k in left)
    several = [_items(left), _items(right)]
    if several[0] is not None and several[1] is not None:
        pairs = zip(*several, strict=False)
        return len(several[0]) == len(several[1]) and all(alike(a, b) for a, b in pairs)
    for many, one in ((several[0], right), (several[1], left)):
        if many is not None:
            return bool(many) and all(alike(item, one) for item in many)
    if isinstance(left, int | float) and isinstance(right, int | float):
        return abs(left - right) <= 1e-6 * max(1.0, abs(left), abs(right))
    return bool(left == right)


def _items(value: Any) -> list[Any] | None:
    """The items of a list or tuple; None of anything else."""
    if is_list(value):
        return value
    return [*cast("tuple[Any, ...]", value)] if isinstance(value, tuple) else None


def _differing(value: Any, other: Any, names: Any) -> str:
    """What is different, with the joint's name where the values are a column of joints."""
    both = is_list(value) and is_list(other) and len(value) == len(other)
    if not both:
        return show(value)
    places = [i for i, (a, b) in enumerate(zip(value, other, strict=True)) if not alike(a, b)]
    i = places[0]
    fits = is_list(names) and len(names) == len(value)
    label = f" for {names[i]}" if fits else f" at place {i}"
    more = f" (and {len(places) - 1} others)" if len(places) > 1 else ""
    return f"{show(value[i])}{label}{more}"
