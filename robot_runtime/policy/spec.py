"""The parts of a contract. Each checks itself; `PolicyContract` checks the whole."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from robot_runtime.policy.codec import ContractError

Source = Literal[
    "base_ang_vel",
    "projected_gravity",
    "base_lin_vel",
    "base_quat",
    "euler_xyz",
    "command",
    "command_active",
    "joint_pos",
    "joint_pos_rel",
    "joint_vel",
    "last_action",
    "phase",
    "phase_sin",
    "phase_cos",
    "phase_sin_cos",
    "constant",
]
"""What an observation term can be computed from."""

MIN_PERIOD = 1e-5
"""Shortest period, [s]: nothing in simulation or on a bus is faster."""

MAX_PERIOD = 1.0
"""Longest period and delay, [s]: a hostile file must not make a queue of a million targets."""

MAX_STATE = 2**22
"""Most numbers in a recurrent state, and in the frames that a history keeps."""

MAX_HISTORY = 1000
"""Longest history, and longest stride in it, [policy steps]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RobotRef:
    """The robot a policy was trained on.

    Attributes:
        name: Name of the robot model.
        model_sha256: Hash of its model files, hexadecimal; empty where the model is unknown.
        base_body: Body whose pose and velocity are "the base".
    """

    name: str
    model_sha256: str
    base_body: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Joint:
    """One joint, found by its name wherever the policy runs.

    Attributes:
        name: Name in the robot model and in drivers.
        motor: Index on the vendor's bus, or None where drivers go by name.
        axis: Unit rotation axis in the base's frame with every joint at zero, so that a flipped
            joint is noticed; None where the source does not state it.
        default_pos: Position that "relative" positions and offsets refer to, [rad].
        lower: Lowest position, [rad], or None.
        upper: Highest position, [rad], or None.
        velocity_limit: Highest speed that is plausible, [rad/s], or None.
        effort_limit: Largest effort the motor gives, [Nm], or None.
        stall_effort: Effort at zero speed of the torque-speed line, [Nm], or None for no line.
        no_load_speed: Speed at which that line reaches zero, [rad/s], or None for no line.
        kp: Stiffness, [Nm/rad].
        kd: Damping, [Nm s/rad].
    """

    name: str
    motor: int | None
    axis: tuple[float, float, float] | None
    default_pos: float
    lower: float | None
    upper: float | None
    velocity_limit: float | None
    effort_limit: float | None
    stall_effort: float | None
    no_load_speed: float | None
    kp: float
    kd: float

    def __post_init__(self) -> None:
        """Refuse gains and limits that no motor has."""
        _require_name("name", self.name)
        where = f"joint {self.name!r}"
        for field in ("kp", "kd"):
            if not getattr(self, field) >= 0.0:
                raise ContractError(f"{where}: {field} = {getattr(self, field)} is negative")
        limits = ("velocity_limit", "effort_limit", "stall_effort", "no_load_speed")
        for field in limits:
            value = getattr(self, field)
            if value is not None and not value > 0.0:
                raise ContractError(f"{where}: {field} = {value} is not positive")
        if (self.stall_effort is None) != (self.no_load_speed is None):
            raise ContractError(f"{where}: stall_effort and no_load_speed need each other")
        if self.lower is not None and self.upper is not None and not self.lower < self.upper:
            raise ContractError(f"{where}: lower {self.lower} is not below upper {self.upper}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Periods. Training and deployment must share the first two.

    Attributes:
        control_dt: Period of the policy, [s].
        pd_dt: Period at which PD efforts are evaluated anew, [s]; divides ``control_dt``.
        physics_dt: Physics step of training, [s]; divides ``pd_dt``.
    """

    control_dt: float
    pd_dt: float
    physics_dt: float

    def __post_init__(self) -> None:
        """Refuse periods that do not divide each other."""
        for field in ("control_dt", "pd_dt", "physics_dt"):
            if not MIN_PERIOD <= getattr(self, field) <= MAX_PERIOD:
                raise ContractError(
                    f"timing.{field}: {getattr(self, field)} s is not in {MIN_PERIOD:g} ... "
                    f"{MAX_PERIOD:g} s"
                )
        _require_multiple("timing.control_dt", self.control_dt, "pd_dt", self.pd_dt)
        _require_multiple("timing.pd_dt", self.pd_dt, "physics_dt", self.physics_dt)


@dataclass(frozen=True, kw_only=True, slots=True)
class ActuatorSpec:
    """How joint targets become efforts.

    Attributes:
        form: ``explicit_pd``: the law of `actuator.py`, evaluated every ``pd_dt`` and held.
            ``native``: a MuJoCo position actuator, the same law evaluated every physics step
            with its damping integrated implicitly.
        damping: Where ``kd`` sits in the native form: in the ``actuator``, inside the effort
            limit, or in the ``joint``, outside it and in place of the model's own damping.
        delay: Time from a target to its effect, [s]; a multiple of ``pd_dt``.
        target_filter: Low-pass of the targets at every PD step, new = c * target + (1 - c) * old,
            with c in (0, 1]; 1 is none.
    """

    form: Literal["explicit_pd", "native"]
    damping: Literal["actuator", "joint"]
    delay: float
    target_filter: float

    def __post_init__(self) -> None:
        """Refuse a negative delay and a filter that never moves."""
        if not 0.0 <= self.delay <= MAX_PERIOD:
            raise ContractError(f"actuator.delay: {self.delay} s is not in 0 ... {MAX_PERIOD:g} s")
        if not 0.0 < self.target_filter <= 1.0:
            raise ContractError(f"actuator.target_filter: {self.target_filter} not in (0, 1]")
        if self.form == "explicit_pd" and self.damping == "joint":
            raise ContractError("actuator.damping: 'joint' belongs to the native form")


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservationTerm:
    """One quantity the network sees: ``scale * clip(value)`` or ``clip(scale * value)``.

    Attributes:
        name: Name for people and messages, unique in its block.
        source: What it is computed from, see `observation.py`.
        scale: One factor, or one per feature.
        clip: Lower and upper bound, or None.
        clip_first: Whether the clip comes before the scale.
        noise: Half-width of the uniform noise of training, before clip and scale; one number or
            one per feature. Never applied in deployment.
        history_length: Frames of this term where they differ from the block's, or None.
        joints: The joints of a joint term in order, or None for all.
        channels: The channels of a command term in order, or those whose norm makes it
            ``command_active``, or None for all.
        stage: Which last action: the network's ``raw`` output or the ``applied`` one.
        frame: Frame of an angular or linear velocity.
        sensor: Measured at the ``base`` origin or at the ``imu`` (see `ImuSpec`).
        value: The numbers of a ``constant`` term, or the one threshold above which the command's
            norm counts as ``command_active``; None for every other source.
    """

    name: str
    source: Source
    scale: tuple[float, ...]
    clip: tuple[float, float] | None
    clip_first: bool
    noise: tuple[float, ...]
    history_length: int | None
    joints: tuple[str, ...] | None
    channels: tuple[str, ...] | None
    stage: Literal["raw", "applied"]
    frame: Literal["body", "world"]
    sensor: Literal["base", "imu"]
    value: tuple[float, ...] | None

    def __post_init__(self) -> None:
        """Refuse an empty scale, a reversed clip and a history of nothing."""
        _require_name("observation term", self.name)
        if (self.value is not None) != (self.source in ("constant", "command_active")):
            raise ContractError(
                f"term {self.name!r}: value belongs to 'constant' and 'command_active' alone"
            )
        if self.value is not None and (not self.value or self._needs_one_number()):
            raise ContractError(f"term {self.name!r}: value {self.value} has another length")
        if not self.scale or not self.noise:
            raise ContractError(f"term {self.name!r}: scale and noise need a number each")
        if self.clip is not None and not self.clip[0] < self.clip[1]:
            raise ContractError(f"term {self.name!r}: clip {self.clip} is not (lower, upper)")
        if self.history_length is not None and not 1 <= self.history_length <= MAX_HISTORY:
            raise ContractError(
                f"term {self.name!r}: history_length {self.history_length} is not in 1 ... "
                f"{MAX_HISTORY}"
            )
        if any(not n >= 0.0 for n in self.noise):
            raise ContractError(f"term {self.name!r}: noise {self.noise} is negative")

    def _needs_one_number(self) -> bool:
        return self.source == "command_active" and self.value is not None and len(self.value) != 1


@dataclass(frozen=True, kw_only=True, slots=True)
class HistorySpec:
    """How past frames are laid out. The history holds scaled values.

    Attributes:
        length: Frames in the observation; 1 is no history.
        layout: ``term_major``: all frames of the first term, then all of the second.
            ``frame_major``: one whole frame after the other.
        order: Which frame comes first.
        fill: What stands for frames before the first: the ``first`` frame, or ``zero``.
        includes_current: Whether the current frame is among them.
        stride: Policy steps between two frames.
    """

    length: int
    layout: Literal["term_major", "frame_major"]
    order: Literal["oldest_first", "newest_first"]
    fill: Literal["first", "zero"]
    includes_current: bool
    stride: int

    def __post_init__(self) -> None:
        """Refuse lengths and strides below one."""
        for field in ("length", "stride"):
            if not 1 <= getattr(self, field) <= MAX_HISTORY:
                raise ContractError(
                    f"history.{field}: {getattr(self, field)} is not in 1 ... {MAX_HISTORY}"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservationBlock:
    """Terms that share a history; blocks of the same input are concatenated in order.

    Attributes:
        input: Name of the network's input tensor.
        terms: The terms, in order.
        history: Their history.
        clip: Bound on the absolute value of every feature after scaling, or None.
    """

    input: str
    terms: tuple[ObservationTerm, ...]
    history: HistorySpec
    clip: float | None

    def __post_init__(self) -> None:
        """Refuse an empty block, and lengths per term where frames are whole."""
        _require_name("observation input", self.input)
        if not self.terms:
            raise ContractError(f"observation block of {self.input!r} has no terms")
        if self.clip is not None and not self.clip > 0.0:
            raise ContractError(f"observation block of {self.input!r}: clip {self.clip} <= 0")
        own = [t.name for t in self.terms if t.history_length is not None]
        if own and self.history.layout == "frame_major":
            raise ContractError(f"term {own[0]!r}: frame_major history has one length for all")

    def length_of(self, term: ObservationTerm) -> int:
        """Frames of one of the block's terms."""
        return self.history.length if term.history_length is None else term.history_length


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionTerm:
    """A part of the network's output: ``target = offset + scale * clip(action)``, then clipped.

    Attributes:
        name: Name for people and messages.
        kind: What the target is: a joint ``position``, ``velocity`` or feed-forward ``effort``.
        joints: The joints, in the order of the output's elements.
        scale: Factor per joint.
        offset: Offset per joint, [rad], [rad/s] or [Nm].
        relative_to: Added to a position target: nothing (``offset`` alone), or the position
            ``measured`` at the policy step.
        raw_lower: Lower bound on the raw action per joint, or None.
        raw_upper: Upper bound on the raw action per joint, or None.
        target_lower: Lower bound on the target per joint, or None.
        target_upper: Upper bound on the target per joint, or None.
    """

    name: str
    kind: Literal["position", "velocity", "effort"]
    joints: tuple[str, ...]
    scale: tuple[float, ...]
    offset: tuple[float, ...]
    relative_to: Literal["offset", "measured"]
    raw_lower: tuple[float, ...] | None
    raw_upper: tuple[float, ...] | None
    target_lower: tuple[float, ...] | None
    target_upper: tuple[float, ...] | None

    def __post_init__(self) -> None:
        """Refuse columns of different lengths and reversed bounds."""
        _require_name("action term", self.name)
        where = f"action term {self.name!r}"
        columns = ("scale", "offset", "raw_lower", "raw_upper", "target_lower", "target_upper")
        for field in columns:
            values = getattr(self, field)
            if values is not None and len(values) != len(self.joints):
                raise ContractError(
                    f"{where}: {field} has {len(values)} numbers for {len(self.joints)} joints"
                )
        for low, high in (("raw_lower", "raw_upper"), ("target_lower", "target_upper")):
            lower, upper = getattr(self, low), getattr(self, high)
            if (lower is None) != (upper is None):
                raise ContractError(f"{where}: {low} and {high} need each other")
            if lower is not None and any(a >= b for a, b in zip(lower, upper, strict=True)):
                raise ContractError(f"{where}: {low} is not below {high} everywhere")
        if self.relative_to == "measured" and self.kind != "position":
            raise ContractError(f"{where}: only a position can be relative to the measured one")


@dataclass(frozen=True, kw_only=True, slots=True)
class HoldTarget:
    """A joint that keeps one position target.

    Attributes:
        joint: Name of the joint.
        position: Its target, [rad].
    """

    joint: str
    position: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionSpec:
    """How the network's output becomes joint targets.

    Attributes:
        terms: Parts of the output, in order.
        hold: Targets of joints that no position term drives.
        filter: Low-pass of the clipped action at every policy step,
            new = c * action + (1 - c) * old with c in (0, 1]; 1 is none. Starts at zero.
    """

    terms: tuple[ActionTerm, ...]
    hold: tuple[HoldTarget, ...]
    filter: float

    def __post_init__(self) -> None:
        """Refuse a policy without actions and a filter that never moves."""
        if not self.terms:
            raise ContractError("action.terms: a policy needs at least one")
        if not 0.0 < self.filter <= 1.0:
            raise ContractError(f"action.filter: {self.filter} is not in (0, 1]")


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandChannel:
    """One number an operator may ask for.

    Attributes:
        name: ``lin_vel_x``, ``lin_vel_y`` [m/s], ``ang_vel_z`` [rad/s] of the base in its own
            heading frame, or any other name.
        lower: Lowest value.
        upper: Highest value.
        max_rate: Largest change per second, or None.
    """

    name: str
    lower: float
    upper: float
    max_rate: float | None

    def __post_init__(self) -> None:
        """Refuse a reversed range and a rate that never moves."""
        _require_name("command", self.name)
        if not self.lower <= self.upper:
            raise ContractError(f"command {self.name!r}: {self.lower} is above {self.upper}")
        if self.max_rate is not None and not self.max_rate > 0.0:
            raise ContractError(f"command {self.name!r}: max_rate {self.max_rate} <= 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseClock:
    """The gait clock: phase = elapsed / period + start + offset, in cycles.

    Attributes:
        period: Length of a gait cycle, [s].
        offsets: Phase offset of each output, [cycles]; one per foot or one for all.
        start: Phase at the first observation, [cycles].
        stand: What the clock does while the robot is asked to stand: ``run`` on, give ``zero``
            for every output of the clock, or stay ``fixed`` at ``stand_phase``.
        stand_channels: The command channels that decide it, in order, or None for all.
        stand_norm: When it is: their ``euclidean`` norm is at most the threshold, or those of the
            first two and of the third are, each alone (``separate``).
        stand_threshold: That threshold.
        stand_phase: Phase of every output while standing fixed, [cycles].
        restart: Phase at the first step after standing, [cycles], from where the clock goes on;
            None where standing does not stop its counting.
    """

    period: float
    offsets: tuple[float, ...]
    start: float
    stand: Literal["run", "zero", "fixed"]
    stand_channels: tuple[str, ...] | None
    stand_norm: Literal["euclidean", "separate"]
    stand_threshold: float
    stand_phase: float
    restart: float | None

    def __post_init__(self) -> None:
        """Refuse a clock that does not turn."""
        if not self.period > 0.0:
            raise ContractError(f"phase.period: {self.period} s is not positive")
        if not self.offsets:
            raise ContractError("phase.offsets: a clock needs at least one")
        if not self.stand_threshold >= 0.0:
            raise ContractError(f"phase.stand_threshold: {self.stand_threshold} is negative")
        if self.restart is not None and self.stand == "run":
            raise ContractError("phase.restart: a clock that runs on never restarts")
        if self.stand_channels is not None and not self.stand_channels:
            raise ContractError("phase.stand_channels: name at least one, or give null for all")


@dataclass(frozen=True, kw_only=True, slots=True)
class ImuSpec:
    """Where the base's attitude and rates are measured.

    Attributes:
        site: Name of the site or sensor in the robot model; empty where nothing is stated.
        position: Its position in the base body, [m].
        quat: Its mounting, unit quaternion w, x, y, z, IMU to base.
        quaternion_order: Order in which a ``base_quat`` term gives its numbers.
    """

    site: str
    position: tuple[float, float, float]
    quat: tuple[float, float, float, float]
    quaternion_order: Literal["wxyz", "xyzw"]

    def __post_init__(self) -> None:
        """Refuse a mounting that is no rotation."""
        norm = math.sqrt(sum(q * q for q in self.quat))
        if abs(norm - 1.0) > 1e-6:
            raise ContractError(f"imu.quat: norm {norm:.6g} is not 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class RecurrentState:
    """A state tensor that the graph hands back to itself.

    Attributes:
        input: Name of the input tensor.
        output: Name of the output tensor.
        shape: Its shape; zeros at the start.
    """

    input: str
    output: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse a state of nothing and one that fills the memory."""
        _require_name("recurrent state", self.input)
        if any(n < 1 for n in self.shape) or math.prod(self.shape) > MAX_STATE:
            raise ContractError(f"recurrent state {self.input!r}: shape {list(self.shape)[:8]}")


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkSpec:
    """The graph.

    Attributes:
        output: Name of the output tensor with the action.
        normalizer: Whether the observation normalizer is inside the graph, or there is none.
        states: Recurrent state, in order.
    """

    output: str
    normalizer: Literal["in_graph", "none"]
    states: tuple[RecurrentState, ...]


def require_unique(what: str, names: tuple[str, ...]) -> None:
    """Refuse a name that stands twice.

    Raises:
        ContractError: The message has the name.
    """
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise ContractError(f"{what} {twice[0]!r} stands there twice")


def _require_name(what: str, name: str) -> None:
    if not name:
        raise ContractError(f"{what}: the name is empty")


def _require_multiple(what: str, whole: float, name: str, part: float) -> None:
    ratio = whole / part
    if abs(ratio - round(ratio)) > 1e-6 or round(ratio) < 1:
        raise ContractError(f"{what}: {whole} s is not a multiple of {name} {part} s")
