"""The actuator law: hand numbers, the torque-speed line, delay, filter, and the stability audit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from robot_runtime.errors import Refused
from robot_runtime.policy.actuator import Actuator, stability_audit
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.spec import ActionSpec, ActuatorSpec, Timing
from robot_runtime.policy.state import JointTargets
from tests.helpers.contracts import make_action, make_joint, quadruped_contract


def one_joint(
    actuator: dict[str, Any] | None = None, dt: float = 0.005, **joint: Any
) -> PolicyContract:
    spec: dict[str, Any] = {
        "form": "explicit_pd",
        "damping": "actuator",
        "delay": 0.0,
        "target_filter": 1.0,
    }
    return quadruped_contract(
        joints=(make_joint("hinge", default_pos=0.0, **joint),),
        timing=Timing(control_dt=4 * dt, pd_dt=dt, physics_dt=dt),
        actuator=ActuatorSpec(**{**spec, **(actuator or {})}),
        action=ActionSpec(terms=(make_action("hinge", ("hinge",)),), hold=(), filter=1.0),
        observation=quadruped_contract().observation[:1],
    )


def target(position: float, velocity: float = 0.0, effort: float = 0.0) -> JointTargets:
    return JointTargets(
        position=np.array([position]), velocity=np.array([velocity]), effort=np.array([effort])
    )


def effort(contract: PolicyContract, q: float, dq: float, targets: JointTargets) -> float:
    return float(Actuator(contract).effort(np.array([q]), np.array([dq]), targets)[0])


def test_pd_and_limit_by_hand() -> None:
    contract = one_joint(kp=20.0, kd=0.5, effort_limit=10.0)
    assert effort(contract, 0.1, 2.0, target(0.3)) == pytest.approx(20 * 0.2 - 0.5 * 2.0)
    assert effort(contract, 0.1, 2.0, target(0.3, 4.0, 1.5)) == pytest.approx(4.0 + 1.0 + 1.5)
    assert effort(contract, 0.0, 0.0, target(3.0)) == 10.0
    assert effort(contract, 0.0, 0.0, target(-3.0)) == -10.0


def test_damping_in_the_joint_is_outside_the_limit() -> None:
    contract = one_joint({"form": "native", "damping": "joint"}, kp=20.0, kd=0.5, effort_limit=10.0)
    assert effort(contract, 0.0, 8.0, target(3.0)) == pytest.approx(10.0 - 4.0)


@pytest.mark.parametrize(
    ("dq", "highest", "lowest"),
    [
        (0.0, 10.0, -10.0),  # stall effort 15 is above the limit
        (10.0, 15 * (1 - 10 / 20), -10.0),
        (20.0, 0.0, -10.0),  # no-load speed: no more push, full brake
        (25.0, 15 * (1 - 25 / 20), -10.0),  # faster: the motor brakes whatever is asked
        (-10.0, 10.0, -15 * (1 - 10 / 20)),
        (100.0, -10.0, -10.0),
    ],
)
def test_four_quadrants_of_the_torque_speed_line(dq: float, highest: float, lowest: float) -> None:
    contract = one_joint(
        kp=1000.0, kd=0.0, effort_limit=10.0, stall_effort=15.0, no_load_speed=20.0
    )
    # float32: six digits of numbers up to 15.
    assert effort(contract, 0.0, dq, target(9.0)) == pytest.approx(highest, abs=1e-5)
    assert effort(contract, 0.0, dq, target(-9.0)) == pytest.approx(lowest, abs=1e-5)


def steps(contract: PolicyContract, positions: list[float]) -> list[float]:
    """Targets in force at every PD step, read off the effort of a unit spring at rest."""
    actuator = Actuator(contract)
    out = []
    for position in positions:
        actuator.set_target(target(position))
        out += [float(actuator.step(np.zeros(1), np.zeros(1))[0]) for _ in range(4)]
    return out


def test_a_target_takes_effect_after_the_delay() -> None:
    contract = one_joint({"delay": 0.015}, kp=1.0, kd=0.0)
    assert steps(contract, [1.0, 2.0, 3.0]) == [1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3]


def test_a_delay_longer_than_a_policy_step() -> None:
    contract = one_joint({"delay": 0.025}, kp=1.0, kd=0.0)
    assert steps(contract, [1.0, 2.0, 3.0]) == [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2]


def test_targets_are_smoothed_at_the_pd_rate() -> None:
    contract = one_joint({"target_filter": 0.5}, kp=1.0, kd=0.0)
    assert steps(contract, [0.0, 1.0])[4:] == [0.5, 0.75, 0.875, 0.9375]


def test_a_reset_forgets_old_targets() -> None:
    contract = one_joint({"delay": 0.015, "target_filter": 0.5}, kp=1.0, kd=0.0)
    actuator = Actuator(contract)
    actuator.set_target(target(5.0))
    actuator.reset()
    actuator.set_target(target(1.0))
    assert actuator.step(np.zeros(1), np.zeros(1)).tolist() == [1.0]


def settle(kp: float, kd: float, inertia: float, dt: float) -> NDArray[np.float64]:
    """A hinge under the law, semi-implicit Euler, 400 steps; positions."""
    contract = one_joint(dt=dt, kp=kp, kd=kd, effort_limit=None)
    actuator = Actuator(contract, lambda a: np.asarray(a, np.float64))
    q, dq, path = np.array([0.1]), np.zeros(1), []
    for _ in range(400):
        torque = actuator.effort(q, dq, target(0.0))
        dq = dq + dt * torque / inertia
        q = q + dt * dq
        path.append(float(q[0]))
        if abs(path[-1]) > 1e6:
            break
    return np.array(path)


def test_the_audit_refuses_what_diverges_and_names_the_number() -> None:
    contract = one_joint(kp=40.0, kd=2.0)
    with pytest.raises(Refused, match=r"joint 'hinge'.*kd\*dt/I = 5 "):
        stability_audit(contract, np.array([0.002]))
    stability_audit(contract, np.array([0.012]))  # with an armature of 0.01: 0.83
    assert abs(settle(40.0, 2.0, 0.012, 0.005)[-1]) < 1e-3


@pytest.mark.parametrize("seed", range(40))
def test_the_audit_agrees_with_the_integrator(seed: int) -> None:
    """Random hinges: refused exactly when semi-implicit Euler blows up."""
    rng = np.random.default_rng(seed)
    kp, kd = 10.0 ** rng.uniform(0, 2.5), 10.0 ** rng.uniform(-1, 1)
    inertia, dt = 10.0 ** rng.uniform(-3, -1.5), 0.005
    margin = kp * dt * dt / inertia + 2 * kd * dt / inertia
    if abs(margin - 4.0) < 0.2:
        pytest.skip("too near the border for 400 steps to show")
    stable = bool(np.abs(settle(kp, kd, inertia, dt)[-50:]).max() < 0.2)
    try:
        stability_audit(one_joint(kp=kp, kd=kd, dt=dt), np.array([inertia]))
        refused = False
    except Refused:
        refused = True
    assert refused != stable


def test_an_implicit_actuator_is_never_refused() -> None:
    contract = one_joint({"form": "native"}, kp=40.0, kd=2.0)
    stability_audit(contract, np.array([1e-5]))
