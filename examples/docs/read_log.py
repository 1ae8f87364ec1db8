"""Look into a flight log with NumPy alone, then replay it through its policy, bit for bit.

python examples/docs/read_log.py FLIGHT.npz POLICY.onnx
"""

import sys
from pathlib import Path

import numpy as np

from robot_runtime.control.flightlog import read_log
from robot_runtime.control.replay import check_policy, replay_log
from robot_runtime.policy.file import open_policy

with np.load(sys.argv[1], allow_pickle=False) as log:
    walking = log["step"] > 0
    error = np.abs(log["sent_position"] - log["joint_pos"])[walking]
    print(f"{walking.sum()} policy steps, largest joint error {error.max():.2f} rad")

log, policy = read_log(Path(sys.argv[1])), open_policy(sys.argv[2])
check_policy(log, policy.sha256, sys.argv[2])
result = replay_log(log, policy)
print("equal" if result.good else result.difference)
