"""What a policy is: its contract, its observations, its actions, its proof."""
