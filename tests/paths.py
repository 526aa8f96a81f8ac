"""Where the tests find the files of the project."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
OUTSIDE = TESTS / "outside"  # a task that is not part of the package, with its gin files
EXAMPLES = ROOT / "examples"
SHARED = ROOT.parent / "shared"  # real data that may lie beside a checkout

# The task `parity` at its tiny preset, for the command line.
PARITY = ["--task", "parity", "--preset", "cpu", "--gin-dir", str(OUTSIDE)]
