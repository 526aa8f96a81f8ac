"""Gives the readers new inputs for as long as wanted, and lists what they did not refuse well.

    python tests/fuzz/long.py --minutes 10 --seed 1              random inputs, all targets in turn
    python tests/fuzz/long.py --minutes 10 --engine atheris      guided by coverage, one by one

Prints the number of inputs of each target and, for each different failure (exception and place in
the package), the shortest input. Ends with 1 if there is one. `--only NAME` takes one target.
"""

import argparse
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ROUND = 100  # inputs of a target before the next one's turn


def place_of(error):
    """Returns the exception's type and the innermost frame in the package, or else in the tests."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if str(ROOT) in f.filename]
    inside = [f for f in frames if "/lra_fnet/" in f.filename] or frames
    where = f"{Path(inside[-1].filename).relative_to(ROOT)}:{inside[-1].lineno}" if inside else "?"
    return f"{type(error).__name__} at {where}"


class Tally:
    """Counts inputs, and keeps the shortest input of each failure."""

    def __init__(self):
        self.inputs: dict[str, int] = {}
        self.failures: dict[tuple[str, str], tuple[str, str]] = {}

    def check(self, target, value):
        """Gives a target an input; a failure is noted, not raised."""
        self.inputs[target.name] = self.inputs.get(target.name, 0) + 1
        try:
            target.check(value)
        except Exception as error:
            key, text = (target.name, place_of(error)), repr(value)
            if key not in self.failures or len(text) < len(self.failures[key][0]):
                self.failures[key] = text, f"{error}"

    def give(self, target):
        """Returns a function that gives a target an input."""

        def give(value):
            self.check(target, value)

        return give

    def show(self):
        for name, number in sorted(self.inputs.items()):
            print(f"{name:30} {number:8,}")
        print(f"{sum(self.inputs.values()):,} inputs, {len(self.failures)} failures")
        for (name, place), (text, error) in sorted(self.failures.items()):
            print(f"\n{name}: {place}\n  {error[:300]!r}\n  input: {text[:1500]}")


def random_inputs(targets, minutes, seed):
    """Gives each target in turn a round of inputs until the time is over."""
    import hypothesis

    tally, end, number = Tally(), time.monotonic() + 60 * minutes, seed
    while time.monotonic() < end:
        number += 1
        for target in targets:
            settings = hypothesis.settings(
                max_examples=ROUND,
                database=None,
                deadline=None,
                phases=[hypothesis.Phase.generate],
                suppress_health_check=list(hypothesis.HealthCheck),
            )
            hypothesis.seed(number)(settings(hypothesis.given(target.inputs)(tally.give(target))))()
            if time.monotonic() > end:
                break
    tally.show()
    return bool(tally.failures)


def guided(target, minutes):
    """Fuzzes one target with atheris, which never returns: it ends the process."""
    import atheris
    import hypothesis

    tally, end = Tally(), time.monotonic() + 60 * minutes

    settings = hypothesis.settings(database=None, deadline=None)
    give = settings(hypothesis.given(target.inputs)(tally.give(target)))

    def one(data):
        give.hypothesis.fuzz_one_input(data)
        if time.monotonic() > end:
            tally.show()
            sys.stdout.flush()
            os._exit(bool(tally.failures))

    atheris.Setup([sys.argv[0], "-max_len=16384", "-rss_limit_mb=0", "-timeout=0"], one)
    atheris.Fuzz()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--engine", choices=["hypothesis", "atheris"], default="hypothesis")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(HERE), str(HERE.parent)]
    if options.engine == "atheris":
        import atheris

        with atheris.instrument_imports(include=["lra_fnet"]):
            from targets import TARGETS
    else:
        from targets import TARGETS
    chosen = [TARGETS[name] for name in options.only or sorted(TARGETS)]
    if options.engine == "hypothesis":
        return random_inputs(chosen, options.minutes, options.seed)
    if len(chosen) == 1:
        return guided(chosen[0], options.minutes)
    words = ["--engine", "atheris", "--minutes", str(options.minutes / len(chosen))]
    commands = [[sys.executable, __file__, *words, "--only", target.name] for target in chosen]
    return max(subprocess.run(command).returncode for command in commands)


if __name__ == "__main__":
    sys.exit(main())
