"""Speed and memory: of the loop, of single programs against the length, and beside peers."""

WHATS = ("train", "pretrain", "infer", "mixing")  # what cells measure, see `files.Setting`
