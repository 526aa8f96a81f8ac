"""What the computer offers: progress on a terminal, disk, memory, the compilation cache."""
