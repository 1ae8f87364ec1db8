"""The verbs of the trainer: train, demo."""
