"""Measures speed and memory of the training loop and of single programs, ours and PyTorch's."""

WHATS = ("train", "pretrain", "infer", "mixing")  # what cells measure, see `files.Setting`
