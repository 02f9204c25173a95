"""Numbers to work out: exercises drawn from a seed, sheets, and marks for each line."""
