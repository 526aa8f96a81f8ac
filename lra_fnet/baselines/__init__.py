"""Shallow baselines: what a rule without a neural network reaches."""
