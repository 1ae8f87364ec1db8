"""The ground floor: open a policy file, prove it, and run it on a robot.

It needs numpy, onnxruntime and array_api_compat, and imports nothing from trainer, export or
sim2sim.
"""

import os

# From 1.29 on, onnxruntime keeps a database in the home folder, which all of its processes share,
# and threads that send what is in it over the network. It asks for this when it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
