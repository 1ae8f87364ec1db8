"""Objects that configurations name, such as ``package.module:function``."""

from __future__ import annotations

import importlib
from typing import Any

from robot_runtime.errors import BadInput


def find_object(name: str, what: str) -> Any:
    """Import what is named ``package.module:Name`` or ``package.module.Name``.

    Args:
        name: The name.
        what: What it is meant to be, for the message.

    Raises:
        BadInput: There is no such thing.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        module, _, attribute = name.rpartition(".")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(f"no {what} '{name}': {error}") from error
    return found
