"""`lra-fnet` with fake_train.py in place of real training, as a process that tests can kill."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

from lra_fnet import cli, tasks
from lra_fnet.sweep import plan, scheduler

FAKE = (sys.executable, str(Path(__file__).parents[1] / "fake_train.py"))
BUILT = SimpleNamespace(config="", run=SimpleNamespace(num_steps=8), task=tasks.make("listops"))

if __name__ == "__main__":
    scheduler.PROGRAM = FAKE
    scheduler.SECONDS_A_LOOK = float(os.environ["LOOK"])
    plan.built = lambda job: BUILT
    sys.exit(cli.main(sys.argv[1:]))
