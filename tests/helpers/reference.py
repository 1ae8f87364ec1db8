"""A slow, obvious policy path in float64: rotation matrices, Python loops, one robot at a time.

It shares no line with the code under test and is what that code is compared with.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.spec import ObservationBlock, ObservationTerm

Vector = NDArray[np.float64]


def rotation_matrix(quat: Vector) -> Vector:
    """Body-to-world matrix of a unit quaternion w, x, y, z, as in any textbook."""
    w, x, y, z = quat
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def _cycles(angle: float) -> float:
    # Rounded first: a hair before the end of a cycle is its end.
    return round(angle / (2 * math.pi), 8) % 1.0


class ReferencePolicy:
    """The path from state to efforts, remembered as plain lists."""

    def __init__(self, contract: PolicyContract) -> None:
        self.contract = contract
        self.frames: list[list[dict[str, Vector]]] = [[] for _ in contract.observation]
        self.raw = np.zeros(contract.num_actions)
        self.applied = np.zeros(contract.num_actions)
        self.command = np.zeros(len(contract.commands))
        self.sent: list[dict[str, Vector]] = []
        self.smooth: dict[str, Vector] | None = None
        self.stood = False
        self.clock_zero = 0.0

    def observe(self, state: dict[str, Vector], asked: Vector, elapsed: float) -> Vector:
        self.command = self._shape_command(asked)
        self._run_clock(elapsed)
        parts: list[float] = []
        for block, frames in zip(self.contract.observation, self.frames, strict=True):
            frames.append(
                {t.name: self._finish(block, t, self._term(t, state, elapsed)) for t in block.terms}
            )
            parts += self._lay_out(block, frames)
        return np.array(parts)

    def act(self, raw: Vector, joint_pos: Vector) -> dict[str, Vector]:
        """Targets by kind, each in contract order."""
        spec = self.contract.action
        names = self.contract.joint_names
        targets = {
            "position": self.contract.joint_array("default_pos"),
            "velocity": np.zeros(len(names)),
            "effort": np.zeros(len(names)),
        }
        for held in spec.hold:
            targets["position"][names.index(held.joint)] = held.position
        i = 0
        applied = np.zeros(len(raw))
        for term in spec.terms:
            for k, joint in enumerate(term.joints):
                value = raw[i]
                if term.raw_lower is not None and term.raw_upper is not None:
                    value = min(max(value, term.raw_lower[k]), term.raw_upper[k])
                applied[i] = spec.filter * value + (1 - spec.filter) * self.applied[i]
                target = term.offset[k] + term.scale[k] * applied[i]
                if term.relative_to == "measured":
                    target += joint_pos[names.index(joint)]
                if term.target_lower is not None and term.target_upper is not None:
                    target = min(max(target, term.target_lower[k]), term.target_upper[k])
                targets[term.kind][names.index(joint)] = target
                i += 1
        self.raw, self.applied = raw, applied
        return targets

    def efforts(self, targets: dict[str, Vector], joint_pos: Vector, joint_vel: Vector) -> Vector:
        """Efforts of the PD steps of one policy step, shape (decimation, joints)."""
        delay = round(self.contract.actuator.delay / self.contract.timing.pd_dt)
        if not self.sent:
            self.sent = [targets] * delay
        rows = []
        for _ in range(self.contract.decimation):
            self.sent.append(targets)
            active = self.sent[len(self.sent) - 1 - delay]
            c = self.contract.actuator.target_filter
            old = self.smooth or active
            self.smooth = {k: c * active[k] + (1 - c) * old[k] for k in active}
            rows.append(
                [self._effort(j, self.smooth, joint_pos, joint_vel) for j in range(len(joint_pos))]
            )
        return np.array(rows)

    def _effort(self, j: int, target: dict[str, Vector], q: Vector, dq: Vector) -> float:
        joint = self.contract.joints[j]
        spring = joint.kp * (target["position"][j] - q[j]) + target["effort"][j]
        damping = joint.kd * (target["velocity"][j] - dq[j])
        upper = math.inf if joint.effort_limit is None else joint.effort_limit
        lower = -upper
        if joint.stall_effort is not None and joint.no_load_speed is not None:
            reach = joint.no_load_speed * (1 + upper / joint.stall_effort)
            speed = min(max(dq[j], -reach), reach) / joint.no_load_speed
            upper = min(upper, joint.stall_effort * (1 - speed))
            lower = max(lower, joint.stall_effort * (-1 - speed))
        if self.contract.actuator.damping == "joint":
            return min(max(spring, lower), upper) + damping
        return min(max(spring + damping, lower), upper)

    def _shape_command(self, asked: Vector) -> Vector:
        out = []
        for channel, value, old in zip(self.contract.commands, asked, self.command, strict=True):
            new = min(max(value, channel.lower), channel.upper)
            if channel.max_rate is not None:
                step = channel.max_rate * self.contract.timing.control_dt
                new = min(max(new, old - step), old + step)
            out.append(new)
        return np.array(out)

    def _term(self, term: ObservationTerm, state: dict[str, Vector], elapsed: float) -> Vector:
        contract = self.contract
        world = rotation_matrix(state["base_quat"])
        mount = rotation_matrix(np.array(contract.imu.quat))
        names = contract.joint_names
        rows = [names.index(n) for n in (term.joints or names)]
        if term.source in ("base_ang_vel", "base_lin_vel"):
            vec = state[term.source + "_b"]
            if term.source == "base_lin_vel" and term.sensor == "imu":
                vec = vec + np.cross(state["base_ang_vel_b"], contract.imu.position)
            if term.frame == "world":
                return world @ vec
            return mount.T @ vec if term.sensor == "imu" else vec
        if term.source == "projected_gravity":
            gravity = world.T @ np.array([0.0, 0.0, -1.0])
            return mount.T @ gravity if term.sensor == "imu" else gravity
        if term.source == "base_quat":
            return self._quat(term, state["base_quat"])
        if term.source == "command":
            order = contract.command_names
            return self.command[[order.index(c) for c in (term.channels or order)]]
        if term.source == "joint_pos":
            return state["joint_pos"][rows]
        if term.source == "joint_pos_rel":
            return np.array([state["joint_pos"][r] - contract.joints[r].default_pos for r in rows])
        if term.source == "joint_vel":
            return state["joint_vel"][rows]
        if term.source == "last_action":
            return self.raw if term.stage == "raw" else self.applied
        if term.source == "euler_xyz":
            return self._euler(world @ mount if term.sensor == "imu" else world)
        if term.source == "command_active":
            assert term.value is not None
            counted = self._channels(term.channels)
            return np.array([float(np.linalg.norm(counted) > term.value[0])])
        if term.source == "constant":
            return np.array(term.value)
        if term.source == "phase_sin_cos":
            pairs = zip(self._phase(math.sin, elapsed), self._phase(math.cos, elapsed), strict=True)
            return np.array([value for pair in pairs for value in pair])
        waves = {"phase_sin": math.sin, "phase_cos": math.cos}
        return self._phase(waves.get(term.source, _cycles), elapsed)

    def _euler(self, matrix: Vector) -> Vector:
        roll = math.atan2(matrix[2, 1], matrix[2, 2])
        pitch = math.asin(-matrix[2, 0])
        return np.array([roll, pitch, math.atan2(matrix[1, 0], matrix[0, 0])])

    def _channels(self, names: tuple[str, ...] | None) -> Vector:
        order = self.contract.command_names
        return np.array([self.command[order.index(name)] for name in names or order])

    def _standing(self) -> bool:
        clock = self.contract.phase
        assert clock is not None
        command = self._channels(clock.stand_channels)
        parts = [command] if clock.stand_norm == "euclidean" else [command[:2], command[2:3]]
        return all(float(np.linalg.norm(p)) <= clock.stand_threshold for p in parts)

    def _run_clock(self, elapsed: float) -> None:
        clock = self.contract.phase
        if clock is None or clock.restart is None:
            return
        if self.stood and not self._standing():
            # The phase now is `restart`; phase = (elapsed - zero) / period + start.
            self.clock_zero = elapsed - (clock.restart - clock.start) * clock.period
        self.stood = self._standing()

    def _quat(self, term: ObservationTerm, quat: Vector) -> Vector:
        if term.sensor == "imu":
            a, b = quat, np.array(self.contract.imu.quat)
            w = a[0] * b[0] - float(np.dot(a[1:], b[1:]))
            quat = np.array([w, *(a[0] * b[1:] + b[0] * a[1:] + np.cross(a[1:], b[1:]))])
        last = self.contract.imu.quaternion_order == "xyzw"
        return np.array([*quat[1:], quat[0]]) if last else quat

    def _phase(self, wave: Any, elapsed: float) -> Vector:
        clock = self.contract.phase
        assert clock is not None
        standing = self._standing()
        out = []
        for offset in clock.offsets:
            cycles = (elapsed - self.clock_zero) / clock.period + clock.start + offset
            if standing and clock.stand == "fixed":
                cycles = clock.stand_phase
            value = wave(2 * math.pi * cycles)
            out.append(0.0 if standing and clock.stand == "zero" else value)
        return np.array(out)

    def _finish(self, block: ObservationBlock, term: ObservationTerm, value: Vector) -> Vector:
        out = []
        for i, x in enumerate(value):
            scale = (term.scale * len(value))[i] if len(term.scale) == 1 else term.scale[i]
            if term.clip is not None and term.clip_first:
                x = min(max(x, term.clip[0]), term.clip[1])
            x = x * scale
            if term.clip is not None and not term.clip_first:
                x = min(max(x, term.clip[0]), term.clip[1])
            if block.clip is not None:
                x = min(max(x, -block.clip), block.clip)
            out.append(x)
        return np.array(out)

    def _lay_out(self, block: ObservationBlock, frames: list[dict[str, Vector]]) -> list[float]:
        history = block.history

        def at(age: int, name: str) -> list[float]:
            if age < len(frames):
                return list(frames[-1 - age][name])
            if history.fill == "zero":
                return [0.0] * len(frames[0][name])
            return list(frames[0][name])

        def ages(length: int) -> list[int]:
            first = 0 if history.includes_current else 1
            out = [first + k * history.stride for k in range(length)]
            return out if history.order == "newest_first" else list(reversed(out))

        parts: list[float] = []
        if history.layout == "frame_major":
            for age in ages(history.length):
                for term in block.terms:
                    parts += at(age, term.name)
            return parts
        for term in block.terms:
            for age in ages(term.history_length or history.length):
                parts += at(age, term.name)
        return parts
