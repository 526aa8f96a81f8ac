"""`python -m tools.drill`, from the checkout (Linux, needs cc)."""

import argparse
import sys
from pathlib import Path

from tools import drill

parser = argparse.ArgumentParser("python -m tools.drill", description=drill.ABOUT)
parser.add_argument("--seed", type=int, default=1, help="chooses among the calls, bytes and bits")
parser.add_argument("--case", type=int, help="play this case alone and print what it said")
parser.add_argument("--sample", type=int, help="number of cases, spread over all faults")
parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
parser.add_argument("--out", type=Path, default=Path("results/drill.md"), help="file to write")
args = parser.parse_args()
sys.exit(drill.main(args.seed, args.case, args.sample, args.jobs, args.out))
