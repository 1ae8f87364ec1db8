"""What became of each setting of a foreign configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from robot_runtime.errors import Refused
from trainer.compat.features import CLASSES, MISSING

Status = Literal["mapped", "default", "ignored", "refused"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingReport:
    """What became of one setting.

    Attributes:
        key: Its place, such as ``algorithm.lam``.
        value: What it said.
        status: `mapped`: it does what it did. `default`: it was absent and has rsl_rl's default.
            `ignored`: it changes nothing here. `refused`: it cannot be done.
        note: What it became, or why.
    """

    key: str
    value: Any
    status: Status
    note: str

    def __str__(self) -> str:
        """Return it as one line of a table."""
        return f"{self.status:8} {self.key} = {_short(self.value)}: {self.note}"


@dataclass(kw_only=True, slots=True)
class Reports:
    """The reports of a configuration while it is read."""

    rows: list[SettingReport] = field(default_factory=list)

    def add(self, key: str, value: Any, status: Status, note: str) -> None:
        """Add a report."""
        self.rows.append(SettingReport(key=key, value=value, status=status, note=note))

    def lack(self, feature: str, key: str, value: Any) -> None:
        """Report that a setting asks for a feature which is not there, if it is not."""
        if feature in MISSING:
            self.add(key, value, "refused", MISSING[feature])

    def name_class(self, key: str, value: Any) -> None:
        """Report a `class_name`."""
        name = value if isinstance(value, str) else getattr(value, "__name__", str(value))
        simple = name.replace(":", ".").rpartition(".")[2]
        known = simple in CLASSES and (name == simple or "rsl_rl" in name)
        if not known:
            self.lack("custom_class", key, name)
        elif CLASSES[simple] in MISSING:
            self.lack(CLASSES[simple], key, name)
        else:
            self.add(key, name, "mapped", "")

    def demand(self) -> None:
        """Refuse if anything was refused.

        Raises:
            Refused: Names every setting that was.
        """
        refused = [row for row in self.rows if row.status == "refused"]
        if refused:
            listed = "; ".join(f"{row.key} = {_short(row.value)} ({row.note})" for row in refused)
            raise Refused(f"the configuration asks for what is not there: {listed}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
