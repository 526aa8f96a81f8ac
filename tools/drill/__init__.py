"""Runs every command under injected faults and counts the outcomes: `python -m tools.drill`."""

import collections
import functools
import gc
import importlib
import multiprocessing
import operator
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lra_fnet.machine.progress import Bar, duration, say
from tools import hasty
from tools.drill import faults, stage
from tools.drill.stage import HERE, ROOT, SHIM, build

_BAD = ("wrong", "traceback", "hang")
_COLUMNS = ("equal", "refused", *_BAD)
ABOUT = """\
What `make drill` counted. After each fault the same command runs without it: its numbers are
equal to those of an undisturbed run, or it refuses with one line and exit code 2. Wrong is another
number without a word, or a stranger's code that ran; a traceback is any other end; a hang lasts
more than a minute."""
_MODULES = """
    flax optax array_record.python.array_record_data_source tensorboardX
    tensorflow_datasets
    lra_fnet.report lra_fnet.report.compare lra_fnet.tasks.command lra_fnet.training.hosts
    lra_fnet.run.execute lra_fnet.run.model tools.drill.toy
""".split()  # noqa: SIM905 (a line is easier to read than a list)

_shared: dict[str, Any] = {}  # cases, states and facts, for the processes of the pool


def main(seed: int, only: int | None, sample: int | None, jobs: int, out: Path) -> int:
    """Plays the cases of a seed, writes the table, and returns the exit code.

    Args:
      seed: of the cases and of the runs in them.
      only: the number of a case to play alone, with all that its commands said.
      sample: how many cases to play, spread over all faults; None for all.
      jobs: cases at a time.
      out: the Markdown file to write.
    """
    if SHIM not in os.environ:
        return _preload(seed, only, sample, jobs, out)
    os.environ.pop("LD_PRELOAD", None)
    for name in _MODULES:
        importlib.import_module(name)
    for name in ("features.Tensor", "core.DatasetInfo", "proto.tf_example_pb2"):  # lazy
        operator.attrgetter(name)(sys.modules["tensorflow_datasets"])
    begun = time.monotonic()
    cores = sorted(os.sched_getaffinity(0))
    _pin(cores)
    folder = tempfile.mkdtemp(prefix="lra-fnet-drill-")  # a TemporaryDirectory ends with any fork
    try:
        cases = _prepare(Path(folder), seed)
        chosen = _spread(cases, seed)[:sample] if only is None else [only]
        print(f"seed {seed}: {len(cases)} cases, {len(chosen)} to play", flush=True)
        played = _play_all(chosen, jobs, cores, aloud=only is not None)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    counts = f"{len(chosen):,} of {len(cases):,} cases, {duration(time.monotonic() - begun)}"
    table = _table(f"Seed {seed}, {counts}", played)
    print(table)
    if only is None:
        _write(out, table)
    bad = [number for number, verdict, _ in played if verdict in _BAD]
    if bad:
        print(f"{len(bad)} cases failed: {', '.join(map(str, bad[:20]))}")
    return bool(bad)


def _write(out: Path, table: str) -> None:
    out.write_text(f"# Drill\n\n{ABOUT}\n\n{table}\n{(HERE / 'found.md').read_text()}")
    print(f"wrote {out}")


def _preload(seed, only, sample, jobs, out) -> int:
    """Runs the same command in a process that has the shim; returns its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        shim = str(build(Path(folder)))
        words = ["--seed", seed, "--jobs", jobs, "--out", out]
        words += [] if only is None else ["--case", only]
        words += [] if sample is None else ["--sample", sample]
        settings = {"JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1"}
        settings |= {"XLA_FLAGS": hasty.FLAGS}  # changes no call on a file
        settings |= {"LD_PRELOAD": shim, SHIM: shim, "PYTHONPATH": str(ROOT)}
        # As for a user. JAX's own limit is a time, so that the load would choose the files.
        settings |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        # Else the keys of compiled programs contain the folder, and a copied cache serves nobody.
        settings |= {"JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none"}
        # Pytest's and a user's own cache would be used in place of the drill's.
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "LRA_FNET_"))}
        command = [sys.executable, "-m", "tools.drill", *map(str, words)]
        return subprocess.run(command, env=kept | settings).returncode


def _prepare(root: Path, seed: int) -> list:
    """Makes the states, counts the calls of each scene, and returns the cases."""
    say("making the undisturbed runs")
    facts = stage.make(root, seed)
    new = functools.partial(_stage, root, seed=seed)
    kinds = {
        scene: faults.count(new(f"count {scene}", state), scene)
        for scene, (state, *_) in faults.SCENES.items()
    }
    calls = {(scene, stage.FILES): len(called) for scene, called in kinds.items()}
    calls |= {(scene, "w"): called.count("w") for scene, called in kinds.items()}
    facts["hosts"] = faults.hosts_facts(new("hosts", "bare"))
    cases = faults.cases(seed, root, calls)
    _shared.update(cases=cases, facts=facts, new=new)
    gc.freeze()  # so that forks share the memory
    return cases


def _spread(cases: list, seed: int) -> list[int]:
    """Returns the numbers of all cases in such an order that each beginning has all faults."""
    numbers = random.Random(seed).sample(range(len(cases)), len(cases))
    seen: collections.Counter = collections.Counter()
    ranks = []
    for number in numbers:
        ranks.append((seen[cases[number].group], number))
        seen[cases[number].group] += 1
    return [number for _, number in sorted(ranks)]


def _stage(root: Path, name: str, state: str, seed: int) -> stage.Stage:
    shutil.copytree(root / state, root / name, symlinks=True)
    return stage.Stage(root / name, seed)


def _play_all(numbers, jobs: int, cores, *, aloud: bool) -> list[tuple[int, str, str]]:
    """Plays cases in `jobs` processes; returns number, verdict and log of each."""
    played = []
    pool = multiprocessing.get_context("fork").Pool(jobs, _pin, [cores])
    with pool, Bar("drill", len(numbers), unit="cases") as bar:
        for result in pool.imap_unordered(_play, numbers):
            played.append(result)
            number, verdict, log = result
            if aloud or verdict in _BAD:
                case = _shared["cases"][number]
                print(f"case {number}: {verdict}: {case.group}: {case.title}\n{log}", flush=True)
            bar.update(len(played))
    return sorted(played)


def _pin(cores: Sequence[int]) -> None:
    """Puts a process of the pool on one core: numbers depend on how many there are."""
    os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})


def _play(number: int) -> tuple[int, str, str]:
    case = _shared["cases"][number]
    place = _shared["new"](f"case{number}", case.state)
    try:
        verdict = case.play(place, _shared["facts"]).name.lower()
    except Exception:  # of the drill itself
        verdict = "traceback"
        place.log.append(f"the drill itself: {traceback.format_exc()}")
    shutil.rmtree(place.folder, ignore_errors=True)
    return number, verdict, "\n".join(place.log)


def _table(title: str, played: list[tuple[int, str, str]]) -> str:
    """Returns the Markdown table of verdicts by fault."""
    counts: dict[str, collections.Counter] = {}
    for number, verdict, _ in played:
        for group in (_shared["cases"][number].group, "all"):
            counts.setdefault(group, collections.Counter())[verdict] += 1
    counts["all"] = counts.pop("all")
    rows = [("fault", "tried", *_COLUMNS), ("---", *["---:"] * (1 + len(_COLUMNS)))]
    rows += [(name, c.total(), *(c[column] for column in _COLUMNS)) for name, c in counts.items()]
    lines = ("| " + " | ".join(map(str, row)) + " |" for row in rows)
    return "\n".join([f"## {title}\n", *lines, ""])
