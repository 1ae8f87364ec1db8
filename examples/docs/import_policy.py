"""Make a policy file of an ONNX model from elsewhere and a contract that you wrote for it.

python examples/docs/import_policy.py MODEL.onnx CONTRACT.json OUTPUT.onnx
"""

import sys
from pathlib import Path

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.extremes import synthesize
from robot_runtime.policy.file import write_policy
from robot_runtime.policy.inference import OnnxNetwork

model = Path(sys.argv[1]).read_bytes()
contract = PolicyContract.from_json(Path(sys.argv[2]).read_text())
network = OnnxNetwork(model, contract)
policy = write_policy(
    sys.argv[3],
    model,
    contract=contract,
    trace=synthesize(contract, network, reset=network.reset),
    provenance={"source": Path(sys.argv[1]).name},
    report={},
)
print(policy.path.name, policy.trace.origin, policy.trace.rows, "rows")
