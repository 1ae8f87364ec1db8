"""Which files make up an rl_sar policy, and what its older files mean.

Files of three ages are about. Today ``joint_names`` are those of the motors and policy joint ``i``
is motor ``joint_mapping[i]``. Before that, names stood in the policy's order, and
``state_mapping[i]`` was the motor of policy joint ``i``, ``command_mapping`` the reverse. The
oldest have no mapping and name controllers instead of joints; where they say ``framework:
isaacsim`` with ``rows`` and ``cols``, every list of joints is written leg by leg and read joint by
joint.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.importers.foreign import Foreign
from export.importers.model import ModelFacts
from export.importers.reading import Table, is_list, show
from export.importers.sheet import Origin, Sheet
from robot_runtime.errors import BadInput

_COLUMNS = (
    "clip_actions_lower",
    "clip_actions_upper",
    "rl_kp",
    "rl_kd",
    "fixed_kp",
    "fixed_kd",
    "torque_limits",
    "default_dof_pos",
    "joint_controller_names",
)
"""Lists with one item per joint, as the oldest files transpose them."""

_TRAINERS = ("_isaacgym", "_isaacsim")
"""What the oldest files append to a robot's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SarFiles:
    """The files of one policy.

    Attributes:
        base: The robot's file; without items where the policy's says everything.
        policy: The policy's file.
        name: Its name, ``ROBOT/POLICY``, or the robot's in the oldest files.
    """

    base: Table
    policy: Table
    name: str

    @property
    def robot(self) -> str:
        """The robot's name."""
        found = self.name.split("/")[0]
        for ending in _TRAINERS:
            found = found.removesuffix(ending)
        return found

    @property
    def both(self) -> Table:
        """Both files as the stack reads them: the policy's items override the robot's."""
        return Table(self.policy.name, {**self.base.data, **self.policy.data})

    def where(self, key: str) -> str:
        """The name of a field for messages and provenance."""
        return (self.policy if key in self.policy else self.base).where(key)


def find_files(foreign: Foreign, sheet: Sheet) -> SarFiles:
    """The policy's file and that of its robot, each with one section.

    Raises:
        BadInput: There is no policy among the files, or several; or its robot's file is missing.
    """
    policies: dict[str, Table] = {}
    bases: dict[str, Table] = {}
    paths: dict[str, Path] = {}
    for path, table in foreign.tables().items():
        for key in table:
            section = Table(f"{path.parent.name}/{path.name}", table.table(key).data)
            if key in paths:
                raise BadInput(
                    f"rl_sar: section '{key}' stands in '{paths[key]}' and in '{path}': give one"
                )
            (policies if "model_name" in section or "/" in key else bases)[key] = section
            paths[key] = path
    wanted = sheet.get("name")
    if wanted in policies:
        policies = {wanted: policies[wanted]}
    if len(policies) != 1:
        found = ", ".join((*policies, *bases)) or "none"
        raise BadInput(
            "rl_sar: expected one policy (a config.yaml with the section 'ROBOT/POLICY') and its "
            f"robot's base.yaml, found the sections {found}: give the files of one, or say which "
            "with name: ROBOT/POLICY"
        )
    ((name, policy),) = policies.items()
    robot = name.split("/")[0]
    base = bases.get(robot)
    if base is None and bases:
        raise BadInput(f"rl_sar: base.yaml is of '{next(iter(bases))}', the policy of '{name}'")
    if base is None and not {"dt", "decimation"} <= policy.data.keys():
        # The stack keeps it in the robot's folder, above those that the policy's name lists.
        folders = paths[name].resolve().parents[: len(name.split("/"))]
        near = [folder / "base.yaml" for folder in folders if (folder / "base.yaml").is_file()]
        hint = f": give it too{f' ({near[0]})' if near else ''}"
        raise BadInput(f"rl_sar: the base.yaml of '{robot}' is missing{hint}")
    found = SarFiles(base=base or Table(policy.name, {}), policy=policy, name=name)
    return SarFiles(base=_by_joint(found.base), policy=_by_joint(policy), name=name)


def _by_joint(table: Table) -> Table:
    """The lists of the oldest files in the order in which their program keeps them."""
    if table.data.get("framework") != "isaacsim" or "rows" not in table or "cols" not in table:
        return table
    rows, cols = table.count("rows"), table.count("cols")
    data = dict(table.data)
    for key in _COLUMNS:
        value: Any = data.get(key)
        if not is_list(value) or not value:
            continue
        if len(value) != rows * cols:
            raise BadInput(
                f"{table.where(key)}: {len(value)} items, rows and cols say {rows} x {cols}"
            )
        data[key] = [value[r * cols + c] for c in range(cols) for r in range(rows)]
    return Table(table.name, data)


def state_joints(files: SarFiles, sheet: Sheet, model: ModelFacts, count: int) -> list[str]:
    """State names and motors of the policy's joints, in its order.

    Raises:
        BadInput: A list does not fit, or a joint is not the model's.
    """
    both = files.both
    names, origin, where = _names(files, sheet, model)
    if "joint_mapping" in both:
        mapping = _mapping(files, "joint_mapping", count)
        if max(mapping) >= len(names):
            raise BadInput(
                f"{files.where('joint_mapping')}: motor {max(mapping)}, but there are "
                f"{len(names)} names in {where}"
            )
        names = [names[i] for i in mapping]
        where = f"{where} through {files.where('joint_mapping')}"
        sheet.state("joints.motor", mapping, "file", files.where("joint_mapping"))
    elif "state_mapping" in both:
        mapping = _mapping(files, "state_mapping", count)
        back = _mapping(files, "command_mapping", count) if "command_mapping" in both else None
        if back is not None and any(back[motor] != i for i, motor in enumerate(mapping)):
            raise BadInput(
                f"{files.where('command_mapping')}: {show(back)} does not lead back from "
                f"state_mapping {show(mapping)}"
            )
        sheet.state("joints.motor", mapping, "file", files.where("state_mapping"))
    if len(names) != count:
        raise BadInput(f"{where}: {len(names)} names, num_of_dofs is {count}")
    sheet.state("joints.names", names, origin, where)
    for name in sheet.get("joints.names"):
        model.joint(name)
    return list(sheet.get("joints.names"))


def _mapping(files: SarFiles, key: str, count: int) -> list[int]:
    mapping = files.both.indices(key)
    if len(mapping) != count:
        raise BadInput(f"{files.where(key)}: has {len(mapping)} numbers for {count} joints")
    if key != "joint_mapping" and sorted(mapping) != list(range(count)):
        raise BadInput(f"{files.where(key)}: {show(mapping)} is no order of {count} joints")
    return mapping


def _names(files: SarFiles, sheet: Sheet, model: ModelFacts) -> tuple[list[str], Origin, str]:
    """Joint names, or what they are called after their controllers, with their source."""
    for table in (files.policy, files.base):
        if "joint_names" in table:
            return table.names("joint_names"), "file", table.where("joint_names")
        if "joint_controller_names" in table:
            return (*_controlled(table, model), table.where("joint_controller_names"))
    meaning = "names of the policy's joints, in its order"
    said = sheet.require("joints.names", meaning, f"[{', '.join(model.driven)}]")
    return list(said), "user", "joints.names"


def _controlled(table: Table, model: ModelFacts) -> tuple[list[str], Origin]:
    stems = [n.removesuffix("_controller") for n in table.names("joint_controller_names")]
    endings = [f"{stem}_joint" for stem in stems]
    known = set(model.joint_names)
    # Robots of the stack differ in whether their joints end in "_joint".
    named_so = known.issuperset(stems) and not known.issuperset(endings)
    return (stems if named_so else endings), "inferred"
