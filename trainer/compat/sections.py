"""Sections of configurations of rsl_rl, taken key by key, and the parts that networks share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from robot_runtime.errors import BadInput
from trainer.compat.images import CnnSettings, read_cnn
from trainer.compat.report import Reports

CONVOLUTIONAL = ("CNNModel", "ActorCriticCNN")
"""Classes that see images."""

RECURRENT = ("RNNModel", "ActorCriticRecurrent")
"""Classes with a memory, for both networks in releases 1 to 3 and for one in 4 and 5."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """The recurrent layers of a network.

    Attributes:
        kind: `lstm` or `gru`.
        hidden: Width of each layer.
        layers: Number of layers.
    """

    kind: str
    hidden: int
    layers: int


class Section:
    """A section of a configuration whose keys are taken one by one."""

    def __init__(self, name: str, values: Mapping[str, Any], reports: Reports) -> None:
        self.name = name
        self._values = dict(values)
        self._reports = reports

    def take(self, key: str, default: Any, note: str) -> Any:
        """Return a setting, report it, and forget it."""
        path = f"{self.name}.{key}"
        if self._values.get(key) is None:
            self._values.pop(key, None)
            self._reports.add(path, default, "default", note)
            return default
        value = self._values.pop(key)
        self._reports.add(path, value, "mapped", note)
        return value

    def has(self, key: str) -> bool:
        """Return whether a setting is stated and not taken yet."""
        return self._values.get(key) is not None

    def pop(self, key: str) -> Any:
        """Return a setting, None where it is absent, without a report."""
        return self._values.pop(key, None)

    def rest(self) -> None:
        """Refuse what was not taken, unless it is switched off."""
        for key, value in self._values.items():
            path = f"{self.name}.{key}"
            # mjlab states the sizes of recurrent layers also where there are none.
            if value is None or value is False or key.startswith("rnn_"):
                self._reports.add(path, value, "ignored", "switched off")
            else:
                self._reports.add(path, value, "refused", "no release of rsl_rl has this setting")


def read_cnns(name: Any, section: Section, key: str) -> Mapping[str, CnnSettings]:
    """Read the convolutions of a network, if its class has any."""
    if simple_name(name) not in CONVOLUTIONAL or not section.has(key):
        return {}
    config = section.take(key, None, "network.encoders")
    where = f"{section.name}.{key}"
    if all(isinstance(value, Mapping) for value in config.values()):
        return {group: read_cnn(one, f"{where}.{group}") for group, one in config.items()}
    return {"": read_cnn(config, where)}


def simple_name(name: Any) -> str:
    """Return the name of a class without its module."""
    return str(getattr(name, "__name__", name)).replace(":", ".").rpartition(".")[2]


def read_memory(name: Any, section: Section) -> Memory | None:
    """Read the recurrent layers of a network, if its class has any."""
    if simple_name(name) not in RECURRENT:
        return None
    kind = str(section.take("rnn_type", "lstm", "network.kind")).lower()
    # Up to release 2.2 the width has another name.
    key = "rnn_hidden_size" if section.has("rnn_hidden_size") else "rnn_hidden_dim"
    hidden = section.take(key, 256, "network.rnn_hidden")
    layers = section.take("rnn_num_layers", 1, "network.rnn_layers")
    if kind not in ("lstm", "gru"):
        raise BadInput(f"{section.name}.rnn_type = {kind!r}: there are: lstm, gru")
    return Memory(kind=kind, hidden=int(hidden), layers=int(layers))
