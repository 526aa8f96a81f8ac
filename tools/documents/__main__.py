"""Writes the generated documents that are named, or all of them."""

import argparse
import importlib

DOCUMENTS = ("census", "models", "presets", "results", "sweeps")

parser = argparse.ArgumentParser("python -m tools.documents", description=__doc__)
parser.add_argument("names", nargs="*", help=f"of {', '.join(DOCUMENTS)}")
for name in parser.parse_args().names or DOCUMENTS:
    importlib.import_module(f"tools.documents.{name}").write()
