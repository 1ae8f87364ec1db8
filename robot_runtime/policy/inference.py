"""A policy's graph in onnxruntime: one thread, buffers made once, names and lengths checked.

A graph may come from a stranger. `robot_runtime.policy.onnx_graph` refuses what cannot be bounded;
here onnxruntime's memory is capped, and the first step has a time limit.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from robot_runtime.errors import BadInput
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.onnx_graph import check_graph, read_graph

MAX_MEMORY = 2**29
"""Most that all graphs of a process may take for weights and intermediate values, [bytes]."""

MAX_FIRST_STEP = 3.0
"""Longest first step, [s]: no robot waits that long, whatever the machine is busy with."""

_FLOAT = "tensor(float)"


class OnnxNetwork:
    """Observation in, raw action out: the `Network` of a policy file.

    Not thread-safe: the buffers belong to the object. One object runs one robot.

    Attributes:
        dynamic: Whether the graph takes any batch at once (and `batch` does not have to loop).
        step_seconds: How long a step took here while loading, the best of three, [s].
    """

    def __init__(self, model: bytes, contract: PolicyContract) -> None:
        """Load the graph and check it against the contract.

        The graph runs once on zeros, so that a graph that only claims its shapes is found out
        here, and so that the first step on the robot is not a slow one.

        Args:
            model: An ONNX model with its weights inside.
            contract: The contract with the names and lengths of inputs, states and output.

        Raises:
            BadInput: onnxruntime cannot load or run the graph, or a tensor has another name,
                length or type than the contract's; the message names it.
        """
        check_graph(read_graph(model))
        # Loading computes whatever depends on constants alone, however long that takes. So first
        # without that, and only a graph whose step ends in time is loaded as it will run.
        for folding in (False, True):
            try:
                self._bind(_load(model, folding=folding), contract)
            except UnicodeDecodeError:
                raise BadInput("the graph has an input or output whose names are no text") from None
            self._warm_up()
        self.step_seconds = min(self._timed_step() for _ in range(3))
        self.reset()

    def _bind(self, session: ort.InferenceSession, contract: PolicyContract) -> None:
        """Check a session against the contract and make its buffers."""
        graph_inputs = {arg.name: arg for arg in session.get_inputs()}
        graph_outputs = {arg.name: arg for arg in session.get_outputs()}
        _check_names(contract, graph_inputs, graph_outputs)
        self._session = session
        self._binding = session.io_binding()
        self._inputs: list[_Part] = []
        start = 0
        for name, dim in contract.inputs().items():
            hint = f"; the contract's terms: {term_table(contract, name)}"
            shape = _batch_of_one("input", graph_inputs[name], dim, hint)
            values = self._bind_input(name, dim, shape)
            part = _Part(name=name, start=start, stop=start + dim, values=values, shape=shape)
            self._inputs.append(part)
            start += dim
        self._dim = start
        output = graph_outputs[contract.network.output]
        hint = f"; the contract's actions: {', '.join(contract.action_joints)}"
        shape = _batch_of_one("output", output, contract.num_actions, hint)
        self._action = self._bind_output(output.name, contract.num_actions, shape)
        self._output_name = output.name
        self._states = [
            self._bind_state(graph_inputs[state.input], graph_outputs[state.output], state.shape)
            for state in contract.network.states
        ]
        carriers = [graph_inputs[part.name] for part in self._inputs]
        self.dynamic = not self._states and all(
            arg.shape and not isinstance(arg.shape[0], int) for arg in [*carriers, output]
        )

    def reset(self) -> None:
        """Set recurrent states to zero, as at the start of an episode."""
        for state, _ in self._states:
            state.fill(0.0)

    def __call__(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Run one step; recurrent states move on.

        Args:
            obs: Observation of the contract, float32, shape ``(observation_dim,)``.

        Returns:
            Raw action, a fresh array, float32, shape ``(num_actions,)``.
        """
        if obs.shape != (self._dim,):
            raise ValueError(f"observation has shape {obs.shape}, expected ({self._dim},)")
        for part in self._inputs:
            part.values[:] = obs[part.start : part.stop]
        self._session.run_with_iobinding(self._binding)
        for state, following in self._states:
            state[:] = following
        return np.array(self._action)

    def batch(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Run independent observations.

        Args:
            obs: Observations, float32, shape ``(n, observation_dim)``.

        Returns:
            Raw actions, float32, shape ``(n, num_actions)``: at once where the graph allows it,
            one after another where its batch is fixed; a recurrent graph starts each row at zero.
        """
        if obs.ndim != 2 or obs.shape[1] != self._dim:
            raise ValueError(f"observations have shape {obs.shape}, expected (n, {self._dim})")
        if self.dynamic and len(obs):
            feed = {
                part.name: np.reshape(obs[:, part.start : part.stop], (len(obs), *part.shape[1:]))
                for part in self._inputs
            }
            actions: NDArray[np.float32] = self._session.run([self._output_name], feed)[0]
            return np.reshape(actions, (len(obs), self._action.size))
        actions = np.empty((len(obs), self._action.size), dtype=np.float32)
        for i, row in enumerate(obs):
            self.reset()
            actions[i] = self(row)
        self.reset()
        return actions

    def _bind_state(
        self, given: ort.NodeArg, taken: ort.NodeArg, shape: tuple[int, ...]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Buffers of a recurrent state: the one that goes in, and the one that comes out."""
        for what, arg in (("input", given), ("output", taken)):
            fits = len(arg.shape) == len(shape) and all(
                not isinstance(have, int) or have == want
                for have, want in zip(arg.shape, shape, strict=True)
            )
            if not fits or arg.type != _FLOAT:
                raise BadInput(
                    f"state {what} {arg.name!r} is {_describe(arg)}, the contract says float32 of "
                    f"shape {list(shape)}"
                )
        size = math.prod(shape)
        return self._bind_input(given.name, size, shape), self._bind_output(taken.name, size, shape)

    def _bind_input(self, name: str, size: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
        values = np.zeros(size, np.float32)
        # onnxruntime reads and writes the memory of a NumPy array on the CPU in place.
        value = ort.OrtValue.ortvalue_from_numpy(np.reshape(values, shape))
        self._binding.bind_ortvalue_input(name, value)
        return values

    def _bind_output(self, name: str, size: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
        values = np.zeros(size, np.float32)
        value = ort.OrtValue.ortvalue_from_numpy(np.reshape(values, shape))
        self._binding.bind_ortvalue_output(name, value)
        return values

    def _warm_up(self) -> None:
        """Run once on zeros, with a time limit."""
        options = ort.RunOptions()
        # onnxruntime looks at the flag between operators.
        watch = threading.Timer(MAX_FIRST_STEP, setattr, (options, "terminate", True))
        watch.daemon = True
        watch.start()
        try:
            self._session.run_with_iobinding(self._binding, options)
        except Exception as error:
            if options.terminate:
                raise BadInput(
                    f"a step of the graph takes longer than {MAX_FIRST_STEP} s"
                ) from None
            raise BadInput(f"the graph does not run: {one_line(error)}") from None
        finally:
            watch.cancel()

    def _timed_step(self) -> float:
        begin = time.perf_counter()
        self(np.zeros(self._dim, np.float32))
        return time.perf_counter() - begin


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """One input tensor: which part of the observation it takes, its buffer, its shape."""

    name: str
    start: int
    stop: int
    values: NDArray[np.float32]
    shape: tuple[int, ...]


def term_table(contract: PolicyContract, input_name: str) -> str:
    """The terms behind an input with their lengths, such as ``gravity 3, joint_pos 12x3``."""
    parts: list[str] = []
    for block in contract.observation:
        if block.input == input_name:
            for term in block.terms:
                frames = block.length_of(term)
                dim = contract.term_dim(term)
                parts.append(f"{term.name} {dim}" + (f"x{frames}" if frames > 1 else ""))
    return ", ".join(parts)


def one_line(error: Exception, limit: int = 300) -> str:
    """The message of a library's exception, short and on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _load(model: bytes, *, folding: bool) -> ort.InferenceSession:
    options = ort.SessionOptions()
    # Worker threads keep normal priority while a real-time loop waits for them, and spinning ones
    # take the core from it. One thread in sequence is also the fastest for networks of this size.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if _memory_is_capped():
        options.add_session_config_entry("session.use_env_allocators", "1")
    # Only fatal messages on stderr: what fails is raised, and said once.
    options.log_severity_level = 4
    try:
        return ort.InferenceSession(
            model,
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=[] if folding else ["ConstantFolding"],
        )
    except Exception as error:
        raise BadInput(
            f"onnxruntime {ort.__version__} cannot load the graph: {one_line(error)}"
        ) from None


@functools.cache
def _memory_is_capped() -> bool:
    """Give onnxruntime one allocator with a limit for this process; False where it has one."""
    place = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    # -1: onnxruntime's own choice. Strategy 1 takes what is asked for, not the next power of two.
    limits = {
        "max_mem": MAX_MEMORY,
        "arena_extend_strategy": 1,
        "initial_chunk_size_bytes": -1,
        "max_dead_bytes_per_chunk": -1,
    }
    with contextlib.suppress(Exception):
        ort.create_and_register_allocator(place, ort.OrtArenaCfg(limits))
        return True
    return False


def _check_names(
    contract: PolicyContract, inputs: dict[str, ort.NodeArg], outputs: dict[str, ort.NodeArg]
) -> None:
    states = contract.network.states
    wanted_inputs = [*contract.inputs(), *(state.input for state in states)]
    wanted_outputs = [contract.network.output, *(state.output for state in states)]
    for what, wanted, found in (
        ("input", wanted_inputs, inputs),
        ("output", wanted_outputs, outputs),
    ):
        for name in wanted:
            if name not in found:
                raise BadInput(
                    f"the graph has no {what} {name!r} of the contract; it has {', '.join(found)}"
                )
    for name in inputs:
        if name not in wanted_inputs:
            raise BadInput(
                f"the graph has an input {name!r} that the contract does not feed; the contract "
                f"has {', '.join(wanted_inputs)}"
            )


def _batch_of_one(what: str, arg: ort.NodeArg, dim: int, hint: str) -> tuple[int, ...]:
    """The shape of a tensor that holds ``dim`` numbers, with a batch of one."""
    last = len(arg.shape) - 1
    # A free axis is the batch, or the vector itself where it comes last.
    shape = tuple(
        size if isinstance(size, int) else dim if i == last else 1
        for i, size in enumerate(arg.shape)
    )
    if arg.type != _FLOAT or math.prod(shape) != dim:
        raise BadInput(f"{what} {arg.name!r} is {_describe(arg)}, expected {dim} float32{hint}")
    return shape


def _describe(arg: ort.NodeArg) -> str:
    return f"{arg.type} of shape [{', '.join(str(size) for size in arg.shape)}]"
