"""The verbs of the ground floor: run, inspect, replay."""
