"""Checkpoints of rsl_rl 1.x to 5.x: weights without a graph, and without a contract.

The network's shape is read off the weights (`trainer/rsl_rl_checkpoints.py`) and written with our
own writer. What no weight tells, the nonlinearity and, in some files, the head, is taken from the
run's ``agent.yaml`` where it is given, and else asked for by name; as is the whole contract, as in
`custom`. The training framework orders joints its own way, so their names are asked for too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray

from export.importers.foreign import Foreign
from export.importers.graph import Graph, make_graph
from export.importers.reading import Table, as_number, as_numbers, is_dict, show
from export.importers.sheet import Sheet
from robot_runtime.errors import BadInput, Refused
from robot_runtime.policy.spec import RecurrentState

if TYPE_CHECKING:
    from trainer.compat.models import Head, Hints, RslRlModel
    from trainer.rsl_rl_checkpoints import ForeignCheckpoint

SETTINGS = ("activation", "head", "action_range", "norm_eps")
"""What a user may say of the network below ``network``, beside the contract's own fields."""

_HEADS = {
    "BetaDistribution": "beta",
    "HeteroscedasticGaussianDistribution": "state_dependent_std",
}
_STATES = {"lstm": ("h", "c"), "gru": ("h",), "": ()}


def read(foreign: Foreign, sheet: Sheet) -> Graph:
    """Take the policy out of a checkpoint; see the head of this module.

    Raises:
        BadInput: Not a checkpoint of rsl_rl, or one whose policy no plain graph describes.
        Refused: The run's settings speak of a normalizer that is not there, or the reverse.
        MissingFieldsError: Nothing says what the last layer's numbers are.
    """
    # Only here: reading a checkpoint needs torch, and most imports do not.
    from export.handwritten import observation_dim, write_chain
    from export.onnx import TARGETS
    from trainer.networks.graph_spec import NoGraphSpecError
    from trainer.rsl_rl_checkpoints import read_rsl_rl_checkpoint

    path = foreign.network()
    settings = _agent(foreign)
    if settings is not None:
        _state_settings(sheet, settings)
    hints = _hints(sheet)
    checkpoint = read_rsl_rl_checkpoint(path, hints)
    model = checkpoint.model(checkpoint.policy_role)
    _ask(sheet, model, path, acts=checkpoint.policy_role == "actor")
    try:
        spec = model.graph_spec()
    except NoGraphSpecError as error:
        raise BadInput(f"{path.name}: no graph can be written of it: {error}") from None
    _check_normalizer(settings, normalized=spec.normalization is not None, path=path)
    states = tuple(
        RecurrentState(input=f"{name}_in", output=f"{name}_out", shape=shape)
        for name, shape in zip(_STATES[model.architecture.rnn], spec.state_shapes, strict=True)
    )
    target = TARGETS["ort-1.10"]
    data = write_chain(
        spec,
        inputs={"obs": observation_dim(spec)},
        output="actions",
        states=states,
        opset=target.opset,
        ir_version=target.ir_version,
    )
    graph = make_graph(onnx.load_model_from_string(data), path.name, {})
    return Graph(
        model=graph.model,
        name=graph.name,
        inputs=graph.inputs,
        outputs=graph.outputs,
        states=states,
        normalized=spec.normalization is not None,
        metadata={},
        reference=lambda _: TorchReference(model),
        settings=SETTINGS,
        details=tuple(_describe(checkpoint)),
    )


class TorchReference:
    """The policy as torch module, with its state."""

    def __init__(self, model: RslRlModel) -> None:
        """Take the module."""
        self._model = model
        self.reset()

    def reset(self) -> None:
        """Begin an episode."""
        self._state = self._model.initial_state(1)

    def step(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Run one observation, shape ``(observation_dim,)``; the state moves on."""
        import torch

        with torch.no_grad():
            action, self._state = self._model(torch.tensor(obs[None]), self._state)
        return np.array(action[0].numpy(), np.float32)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Agent:
    """The settings of a run, ``agent.yaml``.

    Attributes:
        policy: Those of the model that acts.
        everything: The whole file.
        normalized: Whether they speak of a normalizer; None where they are silent.
        where: Where they do.
    """

    policy: Table
    everything: Table
    normalized: bool | None
    where: str


def _agent(foreign: Foreign) -> _Agent | None:
    """The run's settings, None where no file has them."""
    for found in foreign.tables().values():
        part = next((key for key in ("policy", "actor", "student") if key in found), None)
        if part is None or not is_dict(found.get(part)):
            continue
        policy = found.table(part)
        places = (
            (policy, "obs_normalization"),
            (policy, "actor_obs_normalization"),
            (policy, "student_obs_normalization"),
            (found, "empirical_normalization"),
        )
        said = [(table, key) for table, key in places if key in table]
        return _Agent(
            policy=policy,
            everything=found,
            normalized=said[0][0].flag(said[0][1], False) if said else None,
            where=said[0][0].where(said[0][1]) if said else "",
        )
    return None


def _state_settings(sheet: Sheet, agent: _Agent) -> None:
    policy, everything = agent.policy, agent.everything
    if "activation" in policy:
        where = policy.where("activation")
        sheet.state("network.activation", policy.text("activation"), "file", where)
    if "distribution_cfg" in policy:
        head = policy.table("distribution_cfg")
        kind = head.text("class_name").rpartition(":")[2].rpartition(".")[2]
        if kind in _HEADS:
            sheet.state("network.head", _HEADS[kind], "file", head.where("class_name"))
        if kind == "BetaDistribution" and "action_range" in head:
            span = head.numbers("action_range", 2)
            sheet.state("network.action_range", span, "file", head.where("action_range"))
    elif policy.flag("state_dependent_std", False):
        where = policy.where("state_dependent_std")
        sheet.state("network.head", "state_dependent_std", "file", where)
    if "clip_actions" in everything:
        where = everything.where("clip_actions")
        sheet.state("action.raw_clip", everything.number("clip_actions"), "file", where)


def _hints(sheet: Sheet) -> Hints:
    """What is known beside the weights; likely values stand where a question will be asked."""
    from trainer.compat.models import Hints

    head: Any = sheet.get("network.head", "state_dependent_std")
    span = as_numbers(sheet.get("network.action_range", [-1.0, 1.0]), "network.action_range", 2)
    sheet.state("network.norm_eps", 0.01, "default", "rsl_rl's, in all releases")
    activation = sheet.get("network.activation", "elu")
    if not isinstance(activation, str) or not isinstance(head, str):
        raise BadInput(f"network: expected names, found {show(activation)} and {show(head)}")
    given: Head | None = None if head == "gaussian" else head  # type: ignore[assignment]
    return Hints(
        activation=activation,
        head=given,
        action_range=(span[0], span[1]),
        norm_eps=as_number(sheet.get("network.norm_eps"), "network.norm_eps"),
    )


def _ask(sheet: Sheet, model: RslRlModel, path: Path, *, acts: bool) -> None:
    """Ask for what the weights leave open, and refuse what they contradict."""
    from trainer.compat.models import ANSWERS, WIDE_HEADS

    shape = model.architecture
    if shape.hidden:
        sheet.ask("network.activation", "nonlinearity between the layers", "elu", "relu", "tanh")
    said, origin = sheet.get("network.head"), sheet.origin("network.head")
    if shape.head in WIDE_HEADS:
        # A student may be deterministic, an actor of rsl_rl is not.
        answers = WIDE_HEADS if acts else ANSWERS
        meaning = f"what the {shape.out_dim} numbers of the last layer are; the file has no std"
        sheet.ask("network.head", meaning, *answers)
        # Whatever else could be asked depends on how many actions there are.
        if said is None:
            sheet.settle()
    elif said not in (None, shape.head) and origin is not None:
        raise BadInput(
            f"network.head: {origin[0]} ({origin[1]}) says '{said}', but the weights of "
            f"{path.name} are those of '{shape.head}'"
        )
    if shape.head == "beta":
        meaning = "interval that the Beta distribution is stretched to"
        sheet.ask("network.action_range", meaning, "[-1.0, 1.0]")
    if not shape.normalized and (sheet.origin("network.norm_eps") or ("",))[0] == "user":
        raise BadInput(f"network.norm_eps: {path.name} holds no normalizer for the policy")


def _check_normalizer(settings: _Agent | None, *, normalized: bool, path: Path) -> None:
    if settings is None or settings.normalized is None or settings.normalized == normalized:
        return
    raise Refused(
        f"{settings.where} says {'true' if settings.normalized else 'false'}, but {path.name} "
        f"holds {'a' if normalized else 'no'} normalizer for the observations: they are not of "
        "one run, or it was lost"
    )


def _describe(checkpoint: ForeignCheckpoint) -> list[str]:
    """What was found, and what became of each key."""
    return [line for line in checkpoint.describe().splitlines() if "not in the file" not in line]
