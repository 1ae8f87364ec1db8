"""Curricula: how hard a task is, raised as it is learned. Rules are plain functions.

A rule maps the current level and the metrics of an iteration to the next level; what a level means
is the task's. Nothing else is remembered, so the levels are the whole state of a curriculum: they
are in the checkpoint, and a resumed run goes on with them. The first reset of the environment
happens at the levels a curriculum starts with, and moves none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from robot_runtime.errors import BadInput

Rule = Callable[[float, Mapping[str, float]], float]
"""Level in [0, 1] and metrics of the iteration to the next level."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesson:
    """One thing that gets harder.

    Attributes:
        name: Its name; the level is logged as ``curriculum/NAME``.
        rule: The next level.
        apply: Makes a level count from the next draw on.
        start: The level to begin with, in [0, 1].
    """

    name: str
    rule: Rule
    apply: Callable[[float], None]
    start: float = 0.0

    def __post_init__(self) -> None:
        """Check the start.

        Raises:
            BadInput: It is outside [0, 1].
        """
        if not 0.0 <= self.start <= 1.0:
            raise BadInput(f"lesson '{self.name}': start = {self.start}: must lie in 0 ... 1")


class Curriculum:
    """Lessons and the level of each."""

    def __init__(
        self, lessons: Sequence[Lesson], *, at_full: Callable[[], None] | None = None
    ) -> None:
        """Begin every lesson at its start, which counts at once.

        Args:
            lessons: The lessons.
            at_full: What else the full difficulty needs, see `finish`.

        Raises:
            BadInput: Two lessons have the same name.
        """
        names = [lesson.name for lesson in lessons]
        if len(set(names)) < len(names):
            raise BadInput(f"lessons must have different names, not {', '.join(names)}")
        self._lessons = tuple(lessons)
        self._at_full = at_full
        self._levels = {lesson.name: lesson.start for lesson in lessons}
        self._apply()

    def update(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Move every level as its rule says, after an iteration.

        Args:
            metrics: What the iteration has logged.

        Returns:
            The new levels, to log.
        """
        for lesson in self._lessons:
            level = lesson.rule(self._levels[lesson.name], metrics)
            self._levels[lesson.name] = min(max(level, 0.0), 1.0)
        self._apply()
        return {f"curriculum/{name}": level for name, level in self._levels.items()}

    def finish(self) -> None:
        """Go to the full difficulty at once, as a policy is to be evaluated."""
        self._levels = dict.fromkeys(self._levels, 1.0)
        self._apply()
        if self._at_full is not None:
            self._at_full()

    def state_dict(self) -> dict[str, float]:
        """Return the levels by name."""
        return dict(self._levels)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue with levels that `state_dict` returned.

        Raises:
            ValueError: They are of other lessons.
        """
        if set(state) != set(self._levels):
            raise ValueError(
                f"curriculum: lessons {sorted(state)}, expected {sorted(self._levels)}"
            )
        self._levels = {name: float(state[name]) for name in self._levels}
        self._apply()

    def _apply(self) -> None:
        for lesson in self._lessons:
            lesson.apply(self._levels[lesson.name])


def when_below(metric: str, good: float, *, bad: float | None = None, step: float = 0.01) -> Rule:
    """Return a rule that goes up while a metric is small, and down while it is large.

    Args:
        metric: Name of the metric, an error say. An iteration without it moves nothing.
        good: Below this the level rises.
        bad: Above this it falls; None: never.
        step: By how much.
    """

    def rule(level: float, metrics: Mapping[str, float]) -> float:
        value = metrics.get(metric)
        if value is None:
            return level
        if value < good:
            return level + step
        return level - step if bad is not None and value > bad else level

    return rule


def over_env_steps(begin: float, end: float) -> Rule:
    """Return a rule that rises from 0 to 1 between two counts of environment steps."""

    def rule(level: float, metrics: Mapping[str, float]) -> float:
        del level
        return (metrics["progress/env_steps"] - begin) / (end - begin)

    return rule


def share_between(low: float, high: float, level: float) -> float:
    """Return ``low`` at level 0, ``high`` at level 1, and what lies between them in between."""
    return low + (high - low) * level
