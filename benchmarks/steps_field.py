"""Who crosses a field of steps: policies at a constant forward speed, on blocks of one height.

    python benchmarks/steps_field.py RUN_ROUGH RUN_FLAT --height 0.04

Half of the field's square blocks are boxes that stand out of the floor, with edges as steep as
edges are. Robots start on a free square in its middle, each with a heading of its own, and are to
walk straight on. A robot has crossed when it is `--distance` from its start and has not fallen.
The file that ships runs in the loop that ships (`surefoot export`, then `sim2sim` in MuJoCo, at its
physics step of 5 ms at most); all of the robot touches the steps, not its feet alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.walk_quality import export
from robot_runtime.control.teleop import parse_command
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.file import open_policy
from robot_runtime.robots import load_model
from sim2sim.evaluate import Job, RunResult, run_scenarios
from sim2sim.scenarios import Scenario, drawn_command_scenario

SEED = 1000
FREE = 0.6
"""Half of the side of the square in the middle that stays flat, [m]."""


def scene(robot: str, height: float, side: float, reach: float) -> str:
    """A robot's model with steps on its floor.

    Args:
        robot: Name of the robot model.
        height: Of the steps, [m].
        side: Of a block, [m].
        reach: How far the field reaches along x and y, [m].
    """
    rng = np.random.default_rng(SEED)
    edge = np.arange(-reach, reach, side) + side / 2.0
    boxes = [
        f'<geom type="box" pos="{x:g} {y:g} 0" size="{side / 2:g} {side / 2:g} {height:g}" '
        'contype="1" conaffinity="0" condim="3" friction="0.8 0.02 0.01"/>'
        for x in edge
        for y in edge
        # Drawn for every block, so that the field does not depend on the free square.
        if rng.integers(0, 2) and max(abs(x), abs(y)) > FREE
    ]
    if height == 0.0:
        boxes = []
    model = load_model(robot).xml_path
    return f'<mujoco><include file="{model}"/><worldbody>{"".join(boxes)}</worldbody></mujoco>'


def scenarios(contract: PolicyContract, speed: float, seconds: float, count: int) -> list[Scenario]:
    """Straight on, from drawn starts."""
    command = parse_command(contract, f"{speed},0,0")
    return [drawn_command_scenario(contract, command, seconds, SEED, i) for i in range(count)]


def has_crossed(result: RunResult, distance: float) -> bool:
    """Whether a robot was as far from its start before it fell, if it fell."""
    assert result.trajectory is not None, "every run is kept"
    position = result.trajectory.truth.base_pos_w[:, :2]
    return bool((np.linalg.norm(position - position[0], axis=-1) >= distance).any())


def main() -> None:
    """Print a line per policy and height."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("policy", nargs="+", type=Path, help="policy file, or run folder")
    parser.add_argument("--height", type=float, nargs="+", default=[0.0, 0.04], help="[m]")
    parser.add_argument("--side", type=float, default=0.4, help="of a block [m]")
    parser.add_argument("--distance", type=float, default=5.0, help="[m]")
    parser.add_argument("--speed", type=float, default=0.5, help="[m/s]")
    parser.add_argument("--seconds", type=float, default=20.0, help="time to cross")
    parser.add_argument("--robots", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    paths: list[Path] = [export(path) if path.is_dir() else path for path in options.policy]
    for path in paths:
        contract = open_policy(path).contract
        runs = scenarios(contract, options.speed, options.seconds, options.robots)
        for height in options.height:
            # A robot that walks too fast must not leave the field before its time is up.
            reach = 2.0 * options.speed * options.seconds
            with tempfile.TemporaryDirectory() as temporary:
                file = Path(temporary) / "steps.xml"
                file.write_text(scene(contract.robot.name, height, options.side, reach))
                job = Job(policy=path, scene=file, physics_dt=None)
                results = run_scenarios(job, runs, workers=options.workers, keep=lambda _: True)
            crossed = sum(has_crossed(result, options.distance) for result in results)
            fell = sum(bool(result.failure) for result in results)
            print(
                f"{path}: {height * 100:.0f} cm: {crossed} of {len(results)} cross, {fell} fall",
                flush=True,
            )


if __name__ == "__main__":
    main()
