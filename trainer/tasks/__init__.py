"""Tasks: what is rewarded, commanded and randomized, as plain functions, and recipes of them."""
