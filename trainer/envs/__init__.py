"""Environments: batched MuJoCo, the robot environment on it, and adapters."""
