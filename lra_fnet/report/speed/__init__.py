"""Tables of speed and memory."""
