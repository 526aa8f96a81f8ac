"""Changes one operator, constant or condition at a time and runs the tests that reach its line.

    python tests/mutation/mutate.py map                        once; needs coverage
    python tests/mutation/mutate.py run --seed 0 --count 300   goes on where it was stopped
    python tests/mutation/mutate.py again                      survivors, with every test there is
    python tests/mutation/mutate.py show

`map` runs the fast tests of the modules below and notes which of them execute which line. `run`
draws mutants by a seed, the same number for each group in proportion to its lines; a mutant lives
in the memory of a forked process only, no file is changed. A mutant that no test notices has
survived: write the test that is missing, or see that no caller could notice.

mutmut 3 leaves decorated functions alone, and most of a mixer is below `@nn.compact`; cosmic-ray
starts a process for each mutant, and importing JAX takes longer than the tests of a line.
"""

import argparse
import ast
import collections
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lra_fnet"
FOLDER = ROOT / ".mutation"
GROUPS = {
    "mixers": "models/mixers/*.py",
    "models": "models/*.py",
    "loop": "training/[ls]*.py",
    "report": "report/[acs]*.py",
    "objective": "objective.py",
    "optim": "optim.py",
    "tasks": "tasks/*.py",
    "pipeline": "training/pipeline.py",
    "statistics": "intervals.py",
}
# Compiled by numba: coverage sees none of their lines, and each mutant compiles for half a minute.
# They are held by digests of what they generate.
COMPILED = ("listops_trees.py", "pathfinder_images.py", "xoshiro.py")
TESTS = (
    *("tests/models", "tests/tasks", "tests/test_optim.py", "tests/test_intervals.py"),
    *("tests/test_objective.py", "tests/test_pretrain_objective.py"),
    *(
        "tests/training/test_pipeline.py",
        "tests/training/test_loop.py",
        "tests/run/test_evaluate.py",
    ),
    "tests/report",
)
OPTIONS = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow")
OPTIONS += ("-p", "no:unraisableexception")  # a mutant may leave a file or a socket open
BUDGET = 15.0  # seconds of tests for a mutant, the fastest first
BROKEN = 99  # exit code of a process that could not begin the tests
LEAST_TIMEOUT = 60.0  # seconds
# Run on survivors besides those that reach the line: they use it in separate processes.
OTHERS = ("tests/training/test_devices.py",)
SITE = f"""import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
if words := os.environ.get("LRA_FNET_MUTANT"):
    import mutate
    mutate.install(*words.split())
"""  # sitecustomize.py: processes that a test starts see the mutant too

SWAPPED = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult},
    **{ast.LShift: ast.RShift, ast.RShift: ast.LShift},
    **{ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd},
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
}


def variants(node):
    """Yields (what changes, the changed node) for each mutant of one node of a syntax tree."""

    def changed(**fields):
        new = copy.copy(node)
        for name, value in fields.items():
            setattr(new, name, value)
        return new

    match node:
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op) if type(op) in SWAPPED:
            new = SWAPPED[type(op)]
            yield f"{type(op).__name__} -> {new.__name__}", changed(op=new())
        case ast.Compare(ops=[op]) if type(op) in SWAPPED:
            new = SWAPPED[type(op)]
            yield f"{type(op).__name__} -> {new.__name__}", changed(ops=[new()])
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield f"without {type(node.op).__name__}", operand
        case ast.Constant(value=bool() as value):
            yield f"{value} -> {not value}", changed(value=not value)
        case ast.Constant(value=int() as value):
            yield f"{value} -> {value + 1}", changed(value=value + 1)
        case ast.Constant(value=float() as value):
            new = value * 1.5 or 1.0
            yield f"{value} -> {new}", changed(value=new)
        case ast.If(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.Compare):
            yield "condition negated", changed(test=ast.UnaryOp(ast.Not(), test))
        case ast.Return(value=ast.expr()):
            yield "returns None", changed(value=ast.Constant(None))
        case ast.Expr(value=ast.Call()):
            yield "call left out", ast.Pass()
        case ast.Continue():
            yield "continue -> break", ast.Break()
        case ast.Break():
            yield "break -> continue", ast.Continue()


def skipped(node):
    """Returns whether nothing below a node is changed: messages, types, docstrings."""
    return isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom)


def places(tree):
    """Yields (parent, field, index, statement's line, what, changed node) of a module's mutants."""

    def walk(parent, line):
        for field, value in ast.iter_fields(parent):
            if field in ("annotation", "returns", "type_params"):
                continue
            for index, node in enumerate(value if isinstance(value, list) else [value]):
                if not isinstance(node, ast.AST) or skipped(node):
                    continue
                here = node.lineno if isinstance(node, ast.stmt) else line
                for what, new in variants(node):
                    number = index if isinstance(value, list) else None
                    yield parent, field, number, here, getattr(node, "lineno", here), what, new
                yield from walk(node, here)

    yield from walk(tree, 0)


def mutants():
    """Returns {group: [(file, number within the file, statement's line, line, what)]}."""
    found = collections.defaultdict(list)
    for group, pattern in GROUPS.items():
        for path in sorted(PACKAGE.glob(pattern)):
            if path.name in COMPILED:
                continue
            for number, place in enumerate(places(ast.parse(path.read_text()))):
                file = str(path.relative_to(ROOT))
                found[group].append((file, number, *place[3:6]))
    return found


def compiled(file, number):
    """Returns the code of a module with one change."""
    tree = ast.parse((ROOT / file).read_text())
    parent, field, index, _, _, _, new = list(places(tree))[number]
    old = getattr(parent, field) if index is None else getattr(parent, field)[index]
    ast.copy_location(new, old)
    if index is None:
        setattr(parent, field, new)
    else:
        getattr(parent, field)[index] = new
    return compile(ast.fix_missing_locations(tree), str(ROOT / file), "exec")


class Finder(importlib.abc.MetaPathFinder):
    """Gives one module the code of a mutant."""

    def __init__(self, file, code):
        self.name = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        self.code = code

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader.get_code = lambda name: self.code
        return spec


def install(file, number):
    """Puts a mutant in the place of its module, which is not imported yet."""
    sys.meta_path.insert(0, Finder(file, compiled(file, int(number))))


class Contexts:
    """A plugin of pytest that notes each test's lines and seconds."""

    def __init__(self, coverage):
        self.coverage, self.seconds = coverage, {}

    def pytest_runtest_logstart(self, nodeid):
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration
        if report.failed:
            self.seconds[report.nodeid] = float("inf")  # not to be used

    def pytest_runtest_logfinish(self, nodeid):
        self.coverage.switch_context("")


def make_map(tests):
    """Runs tests under coverage and adds what they reach to map.json."""
    import coverage
    import pytest

    measured = coverage.Coverage(data_file=None, include=[str(PACKAGE / "*")], config_file=False)
    plugin = Contexts(measured)
    measured.start()
    options = [option for option in OPTIONS if option != "-x"]
    pytest.main([*options, *tests], [plugin])
    measured.stop()
    data = measured.get_data()
    file = FOLDER / "map.json"
    known = json.loads(file.read_text()) if file.exists() else {"seconds": {}, "lines": {}}
    known["seconds"] |= plugin.seconds
    for path in data.measured_files():
        lines = known["lines"].setdefault(str(Path(path).relative_to(ROOT)), {})
        for line, names in data.contexts_by_lineno(path).items():
            lines[str(line)] = sorted({*lines.get(str(line), ()), *names} - {""})
    FOLDER.mkdir(exist_ok=True)
    file.write_text(json.dumps(known))


def reaching(known, file, statement, line, budget=BUDGET):
    """Returns the tests that reach a line, the fastest first, as many as the budget allows."""
    lines = known["lines"].get(file, {})
    names = {*lines.get(str(line), ()), *lines.get(str(statement), ())}
    if not names:  # executed on import, like a class's constants
        names = {name for reached in lines.values() for name in reached}
    chosen, total = [], 0.0
    for name in sorted(names, key=lambda name: (known["seconds"].get(name, float("inf")), name)):
        total += known["seconds"].get(name, float("inf"))
        if (total > budget and chosen) or total == float("inf"):
            break
        chosen.append(name)
    return chosen, min(total, budget)


def alive(file, number, tests, timeout):
    """Runs tests on a mutant in a forked process; returns "killed", "timeout" or "survived"."""
    child = os.fork()
    if child == 0:
        os.setsid()
        os.environ |= {"PYTHONPATH": f"{FOLDER}:{ROOT}", "LRA_FNET_MUTANT": f"{file} {number}"}
        log = os.open(FOLDER / "last.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = BROKEN
        try:
            install(file, number)
            import pytest

            code = int(pytest.main([*OPTIONS, *tests]))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if os.waitstatus_to_exitcode(status) == BROKEN:
                raise RuntimeError((FOLDER / "last.log").read_text())
            return "survived" if status == 0 else "killed"
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def prepare():
    """Imports what every mutant's process needs; returns what `map` has found."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "sitecustomize.py").write_text(SITE)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(FOLDER / "jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")
    for name in ("flax.linen", "gin", "jax", "optax", "pytest", "rich.console", "scipy.stats"):
        importlib.import_module(name)  # once; but no device, whose threads do not survive a fork
    return json.loads((FOLDER / "map.json").read_text())


def again(minutes):
    """Gives survivors all tests that reach them, and those in other processes."""
    known, file = prepare(), FOLDER / "results.jsonl"
    entries = [json.loads(line) for line in file.open()]
    end = time.monotonic() + 60 * minutes
    for entry in entries:
        if entry["state"] != "survived" or entry.get("again") or time.monotonic() > end:
            continue
        path, number, statement, line, what = entry["mutant"]
        tests, _ = reaching(known, path, statement, line, float("inf"))
        tests += OTHERS if "/training/" in path else ()
        entry["state"] = alive(path, number, tests, 600)
        entry["again"] = True
        print(entry["state"], f"{path}:{line}", what, f"({len(tests)} tests)", flush=True)
        file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def run(seed, count, minutes, groups):
    """Draws and runs mutants for some minutes; results.jsonl keeps what was run."""
    known = prepare()
    file = FOLDER / "results.jsonl"
    done = {tuple(json.loads(line)["mutant"][:2]) for line in file.open()} if file.exists() else ()
    end = time.monotonic() + 60 * minutes
    drawn = []  # one of each group in turn, so that a run that is stopped is a sample too
    for group, whole in mutants().items():
        sample = random.Random(f"{seed} {group}").sample(whole, len(whole))
        chosen = sample[: count.get(group, 0)] if group in groups else ()
        drawn += [(place / len(chosen), group, mutant) for place, mutant in enumerate(chosen)]
    for _, group, mutant in sorted(drawn):
        if mutant[:2] in done:
            continue
        if time.monotonic() > end:
            return
        path, number, statement, line, what = mutant
        tests, seconds = reaching(known, path, statement, line)
        begin, state = time.monotonic(), "survived"
        if tests:
            state = alive(path, number, tests, max(LEAST_TIMEOUT, 6 * seconds))
        took = round(time.monotonic() - begin, 1)
        entry = {"group": group, "mutant": mutant, "state": state}
        with file.open("a") as results:
            results.write(json.dumps(entry | {"tests": len(tests), "seconds": took}) + "\n")
        print(state, f"{path}:{line}", what, f"({len(tests)} tests, {took} s)", flush=True)


def show():
    """Prints the score of each group and module, and the mutants that survived."""
    entries = [json.loads(line) for line in (FOLDER / "results.jsonl").open()]
    modules = collections.defaultdict(collections.Counter)
    for entry in entries:
        for name in (entry["group"], "  " + entry["mutant"][0]):
            modules[entry["group"], name][entry["state"]] += 1
    for (_, name), states in sorted(modules.items(), key=lambda item: (item[0][0], item[0][1])):
        caught, total = states.total() - states["survived"], states.total()
        print(f"{name:45} {caught:4} of {total:4} = {100 * caught / total:3.0f} %")
    for entry in entries:
        if entry["state"] == "survived":
            path, number, _, line, what = entry["mutant"]
            text = (ROOT / path).read_text().splitlines()[line - 1].strip()
            print(f"{path}:{line} #{number} ({entry['tests']} tests) {what}: {text}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["map", "run", "again", "show", "one"])
    parser.add_argument("--tests", nargs="*", default=TESTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=300, help="mutants of all groups together")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--groups", nargs="*", default=list(GROUPS))
    parser.add_argument("--mutant", nargs=2, metavar=("FILE", "NUMBER"))
    options = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    if options.what == "map":
        make_map(options.tests)
    elif options.what == "show":
        show()
    elif options.what == "again":
        again(options.minutes)
    elif options.what == "one":
        prepare()
        file, number = options.mutant
        print(alive(file, int(number), options.tests, 600))
    else:
        whole = {group: len(found) for group, found in mutants().items()}
        share = {group: (number / sum(whole.values())) ** 0.5 for group, number in whole.items()}
        parts = {g: round(options.count * s / sum(share.values())) for g, s in share.items()}
        run(
            options.seed,
            {g: min(parts[g], whole[g]) for g in parts},
            options.minutes,
            options.groups,
        )


if __name__ == "__main__":
    main()
