"""Stands in for `lra-fnet train` under a sweep: eight steps without a model, and the same files.

Bindings control it: Fake.accuracy (.05 less at the last step), Fake.seconds of a step, Fake.boot
before it takes the lock, Fake.fail. If the accuracy is below Fake.hold, it waits at step 4 for a
file `go`. Every start and end adds a line to the file `starts` in the folder of runs.
"""

import argparse
import ast
import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

STEPS = 8

parser = argparse.ArgumentParser()
parser.add_argument("command")
for name in ("task", "model", "preset"):
    parser.add_argument(f"--{name}")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--runs", type=Path, default=Path("runs"))
parser.add_argument("--set", action="append", default=[])
parser.add_argument("--no-test", action="store_true")
args, _ = parser.parse_known_args()
settings = {
    name: ast.literal_eval(value) for name, _, value in (s.partition("=") for s in args.set)
}
folder = Path(os.readlink("/proc/self/fd/1")).parent  # of the log
metrics = folder / "metrics.jsonl"


def note(event, step):
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    with (args.runs / "starts").open("a") as log:
        preallocates = os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "true")  # of a GPU's memory
        place = folder.relative_to(args.runs.absolute())
        log.write(f"{event} {place} {step} {cores} {preallocates}\n")


def stop(number, frame):
    global stopped
    if stopped:
        os._exit(128 + number)
    stopped = number


def write_result(state, correct):
    counts = {"step": STEPS, "correct": correct - 50, "count": 1000, "loss": 1.0}
    best = counts | {"step": STEPS - 2, "correct": correct, "loss": 2000.0 - correct}
    sums = {"best": best, "last": counts} if state == "complete" else None
    result = {
        "schema": 1,
        "state": state,
        "task": args.task,
        "model": args.model,
        "preset": args.preset,
        "overrides": sorted(args.set),
        "variant": folder.parent.name.partition("+")[2] or None,
        "seed": args.seed,
        "floor": {"correct": 100, "count": 1000},
        "mixer_length": 16,
        "uses_mask": False,
        "validation_is_test": False,
        "validation": sums,
        "test": None if args.no_test or args.command == "pretrain" else sums,
        "denoise": args.command == "pretrain",
        "train": counts if state == "complete" else None,
        "parameters": 1,
        "device": {"name": "none", "platform": "cpu", "count": 1, "cores": 1},
        "versions": {},
        "commit": None,
        "dirty": None,
        "data_sha256": "",
        "config": "",
    }
    (folder / ".result").write_text(json.dumps(result))
    (folder / ".result").rename(folder / "result.json")


stopped = 0
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
begin = max((json.loads(s)["step"] for s in metrics.open()), default=0) if metrics.exists() else 0
note("start", begin)
time.sleep(settings.get("Fake.boot", 0.0))
lock = (folder / ".lock").open("a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(2)
fail = settings.get("Fake.fail")
if fail == "once" and not (folder / "failed").exists():
    (folder / "failed").touch()
    print("lra-fnet: the disk is full", file=sys.stderr)
    sys.exit(2)
if fail == "crash":
    raise RuntimeError("it broke")
if fail == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
accuracy = settings.get("Fake.accuracy", 0.5) + args.seed / 100
for step in range(begin + 1, STEPS + 1):
    time.sleep(settings.get("Fake.seconds", 0.01))
    with metrics.open("a") as log:
        kind = (
            {"kind": "train", "loss": 1.0}
            if step % 2
            else {
                "kind": "validation",
                "accuracy": accuracy - 0.05 * (step == STEPS),
                "loss": 2 - accuracy,
            }
        )
        log.write(json.dumps({**kind, "step": step}) + "\n")
    holds = step == 4 and accuracy < settings.get("Fake.hold", 0)
    until = time.monotonic() + 300  # a broken sweep fails its test instead of hanging
    while holds and not stopped and time.monotonic() < until:
        if (args.runs / "go").exists():
            break
        time.sleep(0.01)
    if stopped:
        note("saved", step)
        sys.exit(128 + stopped)
write_result("OOM" if fail == "OOM" else "complete", round(1000 * accuracy))
note("end", STEPS)
if fail == "OOM":
    sys.exit("lra-fnet: out of memory")
