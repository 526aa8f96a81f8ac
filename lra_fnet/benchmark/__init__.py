"""Speed and memory: of the loop, of single programs against the length, and beside peers."""
