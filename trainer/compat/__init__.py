"""What other trainers write and expect, read and given: the formats behind `trainer.rsl_rl`."""
