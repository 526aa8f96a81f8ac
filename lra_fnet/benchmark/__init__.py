"""Measures speed and memory of training steps and of single programs, each in its own process."""

WHATS = ("train", "pretrain", "infer", "mixing")  # what cells measure, see `files.Subject`
