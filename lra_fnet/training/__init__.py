"""Training: batches, steps, the loop, checkpoints and several processes."""
