"""A command that takes a second to save after SIGTERM; it writes the files `ready` and `saved`."""

import signal
import sys
import time
from pathlib import Path


def save(*_):
    time.sleep(1)
    Path("saved").touch()
    sys.exit(143)


signal.signal(signal.SIGTERM, save)
Path("ready").touch()
time.sleep(60)
