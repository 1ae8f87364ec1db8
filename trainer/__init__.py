"""The PPO trainer: rollouts in, checkpoints out."""
