"""Training: objectives, the stream of steps, optimisers, checkpoints."""
