"""Checks that importing, preparing and reading the toy task load no heavy library.

Usage: prepare_lightly.py DATA
"""

import sys

import lra_fnet  # noqa: F401

assert not {"numpy", "gin", "tensorflow_datasets"} & set(sys.modules)

import toy  # noqa: E402

assert not {"jax", "numba"} & set(sys.modules)
toy.tasks.prepare(toy.TOY, sys.argv[1]).arrays("train")
assert not {"jax", "tensorflow"} & set(sys.modules)
