"""The shared encoder, its heads, and one file for each mixing mechanism."""
