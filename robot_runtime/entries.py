"""Loading what other packages have registered: verbs, drivers, models, tasks, networks."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

from robot_runtime.errors import BadInput


def load_entry(entry: EntryPoint) -> Any:
    """Return what an entry point names.

    Raises:
        BadInput: Its module does not exist or does not have it.
        ImportError: A package that the module needs is not installed.
    """
    try:
        return entry.load()
    except (AttributeError, ModuleNotFoundError) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else entry.module
        # A package that the module asks for is another matter: an extra may bring it.
        if missing is None or not f"{entry.module}.".startswith(f"{missing}."):
            raise
        raise BadInput(
            f"entry point '{entry.name}' of the group '{entry.group}' names '{entry.value}', "
            f"which does not load: {error}"
        ) from error
