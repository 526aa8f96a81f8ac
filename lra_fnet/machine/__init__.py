"""Access to what the computer offers: progress on a terminal, disk, memory, compilation cache."""
