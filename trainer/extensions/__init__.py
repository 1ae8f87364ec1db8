"""Rewards beside the task's: curiosity and motion priors."""
