"""Read a policy file with onnxruntime and NumPy alone, and run its recorded observations.

python examples/docs/read_policy.py POLICY.onnx
"""

import base64
import io
import json
import sys

import numpy as np
import onnxruntime as ort

session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
metadata = session.get_modelmeta().custom_metadata_map
contract = json.loads(metadata["surefoot.contract"])
trace = np.load(io.BytesIO(base64.b64decode(metadata["surefoot.trace"])), allow_pickle=False)
print(contract["name"], "for", ", ".join(joint["name"] for joint in contract["joints"]))
print(json.loads(trace["meta"].tobytes())["origin"], len(trace["start"]), "rows")

(block,) = contract["observation"]
feed = {block["input"]: trace["observation"]}
(action,) = session.run([contract["network"]["output"]], feed)
print("largest difference", np.abs(action - trace["network_action"]).max())
