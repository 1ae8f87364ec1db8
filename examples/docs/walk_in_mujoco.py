"""Run one command in MuJoCo with the loop that ships, and look at the figures.

python examples/docs/walk_in_mujoco.py POLICY.onnx
"""

import sys

from robot_runtime.control.teleop import parse_command
from robot_runtime.policy.file import open_policy
from sim2sim.evaluate import run_scenario
from sim2sim.model import build_model, find_model
from sim2sim.scenarios import command_scenario

policy = open_policy(sys.argv[1])
contract = policy.contract
sim = build_model(contract, find_model(contract, None))
for finding in sim.findings:
    print(f"{finding.subject}: {finding.text}")
scenario, notes = command_scenario(contract, parse_command(contract, "0.5,0,0"), duration=3.0)
result = run_scenario(policy, sim, scenario)
print(result.failure or "on its feet", f"after {result.metrics.duration:.1f} s")
for segment in result.metrics.segments:
    print(f"asked {segment.command}, error {segment.lin_vel_error:.2f} m/s")
