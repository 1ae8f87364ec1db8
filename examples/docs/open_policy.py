"""Open a policy file with all its checks, and compute one policy step by hand.

python examples/docs/open_policy.py POLICY.onnx
"""

import sys

import numpy as np

from robot_runtime.policy.file import open_policy
from robot_runtime.policy.pipeline import PolicyPipeline
from robot_runtime.policy.state import RobotState

policy = open_policy(sys.argv[1])
contract = policy.contract
pipeline = PolicyPipeline(contract, policy.network())
standing = RobotState(
    time=0.0,
    base_quat=np.array([1.0, 0.0, 0.0, 0.0]),
    base_ang_vel_b=np.zeros(3),
    base_lin_vel_b=None,
    joint_pos=contract.joint_array("default_pos"),
    joint_vel=np.zeros(len(contract.joints)),
)
step = pipeline.step(standing, np.zeros(len(contract.commands)), elapsed=0.0)
for name, target in zip(contract.joint_names, step.targets.position, strict=True):
    print(f"{name:<16} {target:+.3f} rad")
