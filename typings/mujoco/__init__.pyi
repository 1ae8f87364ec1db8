# MuJoCo's Python package is compiled and ships no types: to the checker every name in it is Any.
from typing import Any

def __getattr__(name: str) -> Any: ...
