"""A policy file against MuJoCo: it judges what ships, so it never imports torch or trainer."""

# Before onnxruntime, which listens to what this sets.
import robot_runtime as robot_runtime
