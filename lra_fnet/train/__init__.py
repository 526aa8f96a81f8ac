"""The trainer: batches, the jitted step, scoring, checkpoints, the loop, several hosts."""
