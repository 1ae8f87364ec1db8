"""From a checkpoint or a foreign policy to a policy file that proves itself."""

# Before onnxruntime, which listens to what this sets.
import robot_runtime as robot_runtime
