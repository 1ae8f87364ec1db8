"""The ground floor: open a policy file, prove it, and run it on a robot.

It needs numpy, onnxruntime and array_api_compat, and imports nothing from trainer, export or
sim2sim.
"""
