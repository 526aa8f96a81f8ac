"""`lra-fnet` with fake_train.py in place of real training, as a process that tests can kill."""

import os
import sys
from pathlib import Path

from lra_fnet import cli, tasks
from lra_fnet.sweep import plan, scheduler

scheduler.PROGRAM = (sys.executable, str(Path(__file__).parents[1] / "fake_train.py"))
scheduler.SECONDS_A_LOOK = float(os.environ.get("LOOK", "0.02"))
plan.built = lambda job: plan.Built("", 8, tasks.make("listops"))
sys.exit(cli.main(sys.argv[1:]))
