"""Many copies of one robot in MuJoCo, stepped together on C threads.

MuJoCo keeps float64 rows; the trainer sees float32 tensors. Model fields that are randomized differ
row by row. Bad rows are noticed within the control step they happen in.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

import mujoco
import mujoco.batch
import numpy as np
import torch
from numpy.typing import NDArray

from robot_runtime.policy.actuator import Actuator
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.state import JointTargets
from trainer.envs.model import base_addresses, joint_addresses, log_warnings
from trainer.envs.saved import check_shapes

_LOGGER = logging.getLogger(__name__)

_STAGE_POS = int(mujoco.mjtStage.mjSTAGE_POS)
_WARNINGS = {
    "contact_overflow": [
        int(mujoco.mjtWarning.mjWARN_CONTACTFULL),
        int(mujoco.mjtWarning.mjWARN_CNSTRFULL),
    ],
    "unstable": [
        int(mujoco.mjtWarning.mjWARN_INERTIA),
        int(mujoco.mjtWarning.mjWARN_BADQPOS),
        int(mujoco.mjtWarning.mjWARN_BADQVEL),
        int(mujoco.mjtWarning.mjWARN_BADQACC),
        int(mujoco.mjtWarning.mjWARN_BADCTRL),
    ],
}
# Beyond these a robot has exploded, though its numbers are still finite.
_MAX_HEIGHT_M = 5.0
_MAX_SPEED = 200.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PhysicsState:
    """State of every row, float32, on the CPU.

    Attributes:
        base_pos_w: Position of the base, world frame, [m], shape (n, 3).
        base_quat: Orientation w, x, y, z, body to world, shape (n, 4).
        base_lin_vel_w: Velocity of the base origin, world frame, [m/s], shape (n, 3).
        base_ang_vel_b: Angular velocity, body frame, [rad/s], shape (n, 3).
        joint_pos: [rad], shape (n, num_joints), contract order.
        joint_vel: [rad/s], shape (n, num_joints), contract order.
    """

    base_pos_w: torch.Tensor
    base_quat: torch.Tensor
    base_lin_vel_w: torch.Tensor
    base_ang_vel_b: torch.Tensor
    joint_pos: torch.Tensor
    joint_vel: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class PhysicsParams:
    """What differs from row to row, float32.

    Attributes:
        friction: Sliding friction of every contact, shape (n,).
        base_mass: Mass of the base body, [kg], its inertia scaled alike, shape (n,).
        kp_scale: Factor on the contract's kp, shape (n, num_joints).
        kd_scale: Factor on the contract's kd, shape (n, num_joints).
        strength: Factor on every effort after its limit, shape (n, num_joints).
    """

    friction: torch.Tensor
    base_mass: torch.Tensor
    kp_scale: torch.Tensor
    kd_scale: torch.Tensor
    strength: torch.Tensor


PARAMS = tuple(field.name for field in fields(PhysicsParams))


class BatchedPhysics:
    """`mujoco.batch.Batch` under the actuators of a contract.

    Attributes:
        num_envs: Number of rows.
        params: Randomized fields of every row; change them with `set_params`.
        nominal: The same fields as the model has them.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        contract: PolicyContract,
        num_envs: int,
        num_threads: int | None = None,
    ) -> None:
        """Allocate the rows, all at the model's zero pose.

        Args:
            model: The robot with the contract's actuators, from `build_model`.
            contract: Names joints and base, declares gains and periods.
            num_envs: Number of rows.
            num_threads: C threads to step on; None for one per usable core. Results are the
                same for any number.
        """
        log_warnings()
        self.num_envs = num_envs
        self._model = model
        self._damping_inside = contract.actuator.damping == "actuator"
        self._batch = mujoco.batch.Batch(model, num_envs, num_threads or usable_cores())
        self._qpos: NDArray[np.float64] = self._batch.bind("qpos")
        self._qvel: NDArray[np.float64] = self._batch.bind("qvel")
        self._ctrl = torch.from_numpy(self._batch.bind("ctrl"))
        self._qpos_t = torch.from_numpy(self._qpos)
        self._qvel_t = torch.from_numpy(self._qvel)
        self._warmstart: NDArray[np.float64] = self._batch.bind("qacc_warmstart")
        self._geom_xpos: NDArray[np.float64] = self._batch.bind("geom_xpos")
        self._body_xpos: NDArray[np.float64] = self._batch.bind("xpos")
        self._force: NDArray[np.float64] = self._batch.bind("actuator_force")
        self._base_qpos, self._base_dof = base_addresses(model, contract.robot.base_body)
        self._height = self._qpos[:, self._base_qpos + 2]
        self._addresses = joint_addresses(model, contract)
        self._joint_qpos = _columns(self._addresses.qpos)
        self._joint_dof = _columns(self._addresses.dof)
        self._home = home_qpos(model)
        self._kp, self._kd = contract.joint_array("kp"), contract.joint_array("kd")
        self._explicit = contract.actuator.form == "explicit_pd"
        self._law = Actuator(contract, lambda x: torch.as_tensor(x, dtype=torch.float32))
        self._physics_per_pd = round(contract.timing.pd_dt / contract.timing.physics_dt)
        self._base_id = int(model.body(contract.robot.base_body).id)
        self._inertia_per_mass = model.body_inertia[self._base_id] / model.body_mass[self._base_id]
        self._faults: dict[str, NDArray[np.bool_]] = {}
        self._expand()
        self.nominal = nominal_params(model, contract, num_envs)
        self.params = nominal_params(model, contract, num_envs)
        self.set_params(np.arange(num_envs), self.params)

    @property
    def model(self) -> mujoco.MjModel:
        """The nominal model, the same for every row but for `params`."""
        return self._model

    def read(self) -> PhysicsState:
        """Return the state of every row as of now."""
        qpos, qvel = self._qpos_t.to(torch.float32), self._qvel_t.to(torch.float32)
        q, v = self._base_qpos, self._base_dof
        return PhysicsState(
            base_pos_w=qpos[:, q : q + 3],
            base_quat=qpos[:, q + 3 : q + 7],
            base_lin_vel_w=qvel[:, v : v + 3],
            base_ang_vel_b=qvel[:, v + 3 : v + 6],
            joint_pos=qpos[:, self._joint_qpos],
            joint_vel=qvel[:, self._joint_dof],
        )

    def step_pd(self, targets: JointTargets) -> None:
        """Advance every row by one PD period.

        Bad rows do not raise; `take_faults` names them.

        Args:
            targets: Joint targets in effect during the period, each (num_envs, num_joints).
        """
        if self._explicit:
            state = self.read()
            kp = self._law.kp * self.params.kp_scale
            kd = self._law.kd * self.params.kd_scale
            effort = self._law.effort(state.joint_pos, state.joint_vel, targets, kp, kd)
            self._ctrl[:] = effort * self.params.strength
        else:
            self._ctrl[:] = targets.position
        try:
            self._batch.step(nstep=self._physics_per_pd)
        except mujoco.batch.SimulationError as error:
            _LOGGER.warning("%s", error)
            self._mark("engine", self._batch.status != 0)

    def take_faults(self) -> dict[str, torch.Tensor]:
        """Rows that went wrong since the last call, by kind, and forget them.

        Returns:
            bool tensors of shape (num_envs,) under ``state`` (not finite or exploded),
            ``unstable`` and ``contact_overflow`` (MuJoCo's warnings) and ``engine`` (MuJoCo
            raised); kinds without a row are left out.
        """
        # Written so that NaN counts as bad: every comparison with it is False.
        fastest, highest = np.abs(self._qvel).max(), np.abs(self._height).max()
        if not (fastest < _MAX_SPEED and highest < _MAX_HEIGHT_M):
            fastest = np.abs(self._qvel).max(axis=1)
            self._mark("state", ~((fastest < _MAX_SPEED) & (np.abs(self._height) < _MAX_HEIGHT_M)))
        warned = self._batch.warning[:, :, 1]
        if warned.any():
            for name, kinds in _WARNINGS.items():
                self._mark(name, warned[:, kinds].any(axis=1))
            self._batch.warning[:] = 0
        found = {k: torch.from_numpy(rows) for k, rows in self._faults.items() if rows.any()}
        self._faults = {}
        return found

    def place_rows(self, rows: NDArray[np.int64], state: PhysicsState) -> None:
        """Put rows into a state, as if they had never moved: no warm start, time zero.

        Args:
            rows: Row numbers, shape (k,).
            state: The state, leading shape (k,); joints that the contract does not name are at
                the model's home.
        """
        self._batch.state[rows] = 0.0
        qpos, qvel = np.empty((len(rows), self._model.nq)), np.zeros((len(rows), self._model.nv))
        qpos[:] = self._home
        q, v = self._base_qpos, self._base_dof
        qpos[:, q : q + 3] = state.base_pos_w.numpy()
        qpos[:, q + 3 : q + 7] = state.base_quat.numpy()
        qvel[:, v : v + 3] = state.base_lin_vel_w.numpy()
        qvel[:, v + 3 : v + 6] = state.base_ang_vel_b.numpy()
        qpos[:, self._addresses.qpos] = state.joint_pos.numpy()
        qvel[:, self._addresses.dof] = state.joint_vel.numpy()
        self._qpos[rows], self._qvel[rows] = qpos, qvel
        self._batch.warning[rows] = 0
        self._batch.forward(rows, stage=_STAGE_POS)

    def lift_rows(self, rows: NDArray[np.int64], height: torch.Tensor) -> None:
        """Move the base of rows up by ``height`` [m], shape (k,); geoms show it after a step."""
        self._qpos[rows, self._base_qpos + 2] += height.numpy()

    def push_rows(self, rows: NDArray[np.int64], velocity_w: torch.Tensor) -> None:
        """Add ``velocity_w`` [m/s], world frame, shape (k, 3), to the base velocity of rows."""
        self._qvel[rows, self._base_dof : self._base_dof + 3] += velocity_w.numpy()

    def geom_pos_w(
        self, geoms: NDArray[np.int64], rows: NDArray[np.int64] | None = None
    ) -> torch.Tensor:
        """Positions of geoms, world frame, [m], as of the last physics step's start.

        Args:
            geoms: Their numbers in the model.
            rows: Rows to look at, shape (k,), or None for all. Of rows just written it is where
                they are now.

        Returns:
            float32, shape (k, len(geoms), 3).
        """
        if rows is None:
            return torch.from_numpy(self._geom_xpos[:, geoms].astype(np.float32))
        return torch.from_numpy(self._geom_xpos[rows[:, None], geoms].astype(np.float32))

    def body_pos_w(self, bodies: NDArray[np.int64]) -> torch.Tensor:
        """Positions of body origins, see above; float32, shape (num_envs, len(bodies), 3)."""
        return torch.from_numpy(self._body_xpos[:, bodies].astype(np.float32))

    def joint_effort(self) -> torch.Tensor:
        """Actuator efforts of the last physics step, [Nm], float32, (num_envs, num_joints)."""
        return torch.from_numpy(self._force.astype(np.float32))

    def set_params(self, rows: NDArray[np.int64], params: PhysicsParams) -> None:
        """Give rows their own physics.

        Args:
            rows: Row numbers, shape (k,).
            params: The new values of these rows, leading shape (k,).
        """
        for name in PARAMS:
            getattr(self.params, name).numpy()[rows] = getattr(params, name).numpy()
        # Every geom, so that the larger of two frictions, which MuJoCo takes, is the drawn one.
        self._friction[rows, :, 0] = params.friction.numpy()[:, None]
        mass = params.base_mass.numpy().astype(np.float64)
        self._mass[rows, self._base_id] = mass
        self._inertia[rows, self._base_id] = self._inertia_per_mass * mass[:, None]
        if not self._explicit:
            self._set_gains(rows, params)
        self._batch.set_const(rows)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Integration rows with warm start and time, and the randomized fields."""
        state = {"rows": torch.from_numpy(self._batch.state.copy())}
        for name in PARAMS:
            state[name] = getattr(self.params, name).clone()
        return state

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Continue exactly where ``state`` was taken.

        Raises:
            ValueError: A field is missing or has another shape.
        """
        check_shapes("physics", state, self.state_dict())
        self._batch.state[:] = state["rows"].numpy()
        self._batch.warning[:] = 0
        self._faults = {}
        params = PhysicsParams(**{name: state[name].clone() for name in PARAMS})
        self.set_params(np.arange(self.num_envs), params)

    def data(self, row: int) -> tuple[mujoco.MjModel, mujoco.MjData]:
        """One row's own model and forwarded data, to render or inspect."""
        model, data = self._batch.get_model(row), self._batch.get_data(row)
        mujoco.mj_forward(model, data)
        return model, data

    def _expand(self) -> None:
        """Give the randomized model fields a value per row."""
        self._friction: NDArray[np.float64] = self._batch.expand("geom_friction")
        self._mass: NDArray[np.float64] = self._batch.expand("body_mass")
        self._inertia: NDArray[np.float64] = self._batch.expand("body_inertia")
        if self._explicit:
            return
        self._gain: NDArray[np.float64] = self._batch.expand("actuator_gainprm")
        self._bias: NDArray[np.float64] = self._batch.expand("actuator_biasprm")
        self._range: NDArray[np.float64] = self._batch.expand("actuator_forcerange")
        self._nominal_range = np.array(self._model.actuator_forcerange)
        if not self._damping_inside:
            self._damping: NDArray[np.float64] = self._batch.expand("dof_damping")

    def _set_gains(self, rows: NDArray[np.int64], params: PhysicsParams) -> None:
        """Scale position actuators: strength multiplies gain, bias and force range alike."""
        strength = params.strength.numpy().astype(np.float64)
        kp = params.kp_scale.numpy() * strength * self._kp
        kd = params.kd_scale.numpy() * strength * self._kd
        self._gain[rows, :, 0] = kp
        self._bias[rows, :, 1] = -kp
        self._range[rows] = strength[:, :, None] * self._nominal_range
        if self._damping_inside:
            self._bias[rows, :, 2] = -kd
        else:
            self._damping[rows[:, None], self._addresses.dof] = kd

    def _mark(self, name: str, rows: NDArray[np.bool_]) -> None:
        known = self._faults.get(name)
        self._faults[name] = rows.copy() if known is None else known | rows


def nominal_params(model: mujoco.MjModel, contract: PolicyContract, num_envs: int) -> PhysicsParams:
    """The model as it is written, for every row."""
    ones = torch.ones(num_envs, len(contract.joints))
    base = model.body(contract.robot.base_body).id
    foot_friction = float(model.geom_friction[:, 0].max())
    return PhysicsParams(
        friction=torch.full((num_envs,), foot_friction),
        base_mass=torch.full((num_envs,), float(model.body_mass[base])),
        kp_scale=ones.clone(),
        kd_scale=ones.clone(),
        strength=ones.clone(),
    )


def home_qpos(model: mujoco.MjModel) -> NDArray[np.float64]:
    """Positions of the model's first keyframe, or its zero pose if it has none; shape (nq,)."""
    return np.array(model.key_qpos[0] if model.nkey else model.qpos0)


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0))


def _columns(addresses: NDArray[np.int64]) -> slice | torch.Tensor:
    """A slice where the addresses are consecutive, which costs no copy; else an index."""
    first = int(addresses[0])
    if np.array_equal(addresses, np.arange(first, first + len(addresses))):
        return slice(first, first + len(addresses))
    return torch.from_numpy(addresses)
