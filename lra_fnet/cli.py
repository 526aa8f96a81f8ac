"""Trains and compares encoders on the Long-Range Arena.

`lra-fnet COMMAND --help` describes a command and shows an example.

Example:
  lra-fnet train --task listops --model fnet --preset cpu
"""

import argparse
import contextlib
import dataclasses
import functools
import inspect
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lra_fnet import __version__, config, settings
from lra_fnet.benchmark import WHATS
from lra_fnet.errors import Interrupted, RunFailed, UserError, one_line, out_of_memory
from lra_fnet.machine import allocator, compile_cache, memory, signals
from lra_fnet.sweep import SAMPLERS


def main(arguments: list[str] | None = None) -> int:
    """Runs one command.

    Returns:
      0 for success; 1 if a run failed; 2 for a user's mistake; 75 if another process of the run is
      missing; 128 + signal if a signal stopped it; 141 if the reader of its output is gone.
    """
    try:
        with signals.handled(signals.stop_at_once):
            allocator.keep_freed_memory()
            compile_cache.use()
            try:
                args = parser().parse_args(arguments)
                memory.check_limits()
                return args.call(args) or 0
            finally:
                sys.stdout.flush()
    except (UserError, RunFailed) as error:
        return _fail(error, error.code)
    except Interrupted as error:
        return 128 + error.signal
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (OSError, MemoryError) as error:  # a limit of the process, or a disk that is gone
        return _fail(error, UserError.code)
    except RuntimeError as error:
        if not (problem := out_of_memory(error)):
            raise
        cure = "use a larger device, or a CPU (JAX_PLATFORMS=cpu)"
        return _fail(f"{problem}: {cure}", RunFailed.code)


def _fail(reason: BaseException | str, code: int) -> int:
    line = "".join(c if c.isprintable() else "?" for c in one_line(reason))
    print(f"lra-fnet: {line}", file=sys.stderr)  # a stranger's file may hold terminal codes
    return code


# The parser. Options that several commands have are declared once, in `_SHARED`.


def _text(about: str, default: Any = None, kind: Callable[[str], Any] = str, **keywords) -> dict:
    """Declares an option or an argument with a value, which may not be empty."""

    def parse(text):
        if not text:
            raise argparse.ArgumentTypeError("expects a value, got none")
        return kind(text)

    parse.__name__ = getattr(kind, "__name__", "").strip("_")  # for argparse's message
    return {"help": about, "default": default, "type": parse, **keywords}


def _number(
    about: str,
    default: float | None = None,
    least: float = 0,
    kind: type = int,
    most: float = math.inf,
) -> dict:
    def parse(text):
        with contextlib.suppress(ValueError):
            if least <= kind(text) <= most and kind(text) < math.inf:
                return kind(text)
        number = "whole number" if kind is int else "number"
        limits = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
        raise argparse.ArgumentTypeError(f"expects a {number} {limits}, got {text!r}")

    return {"help": about, "default": default, "type": parse}


def _switch(about: str, default: bool | None = False) -> dict:
    return {"help": about, "default": default, "action": "store_true"}


def _list(about: str, **keywords) -> dict:
    return {"help": about, "default": [], "action": "append", **keywords}


def _integers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _bindings(about: str, dest: str) -> dict:
    """Declares an option for several bindings, which adds them to those of the option `dest`."""
    option = _text(about, default=[], kind=config.split_bindings, metavar="BINDINGS")
    return {**option, "action": "extend", "dest": dest}


def _named(text: str) -> str:
    """Returns a path as text; a URL, and the name of a module or a run, as it is."""
    return text if "://" in text else str(settings.path(text))


_folder = functools.partial(_text, kind=settings.path)
_NAMES = "names separated by commas, or all"
_SIDE = _text("a run folder, or preset/task/model[+variant]", kind=_named)
_IMPORT = {"import": _list("a module or .py file", dest="imports", type=_named, metavar="MODULE")}
_GIN_DIR = {
    "gin_dir": _list("your gin files", dest="gin_dirs", type=settings.path, metavar="FOLDER")
}
_SHARED = {
    "run": {"run": _folder("a run folder", required=True), **_IMPORT},
    "task": {
        "task": _text("the task's name", required=True),
        "preset": _text(
            "paper (default), lra-code, tuned, small, cpu; for corpus cpu-pretrain or "
            "paper-pretrain; or your own",
            "paper",
        ),
    },
    "bindings": {
        "set": _list("a gin binding, such as Run.num_steps=100", metavar="NAME=VALUE"),
        "gin": _bindings("several bindings in one string, separated by spaces", "set"),
    },
    "outside": {**_IMPORT, **_GIN_DIR},
    "gin_dir": _GIN_DIR,
    "runs": {"runs": _folder("folder of all runs (default: runs)", "runs")},
    "results": {"results": _folder("folder of more results (default: results)", "results")},
    "data": {"data": _folder("folder of the prepared sets (default: data)", "data")},
    "source": {"source": _text("the raw files: a folder, a file or a URL", kind=_named)},
    "out": {"out": _folder("the folder to write (default: reports)", "reports")},
}
_HOSTS = {  # environment variables give the defaults, such as LRA_FNET_PROCESSES
    "coordinator": _text(
        "for several processes: the host of process 0 and a free port there", metavar="HOST:PORT"
    ),
    "processes": _number("number of processes"),
    "process": _number("index of this process, from 0"),
    "join_seconds": _number("seconds to wait for all processes to join (default: 60)"),
    "hosts": _text(
        "take --coordinator, --processes and --process from the cluster: SLURM, Open MPI, Cloud "
        "TPU or Kubernetes",
        choices=("auto",),
    ),
}


class Parser(argparse.ArgumentParser):
    """Reports a wrong argument as a one-line UserError, like every other mistake."""

    def error(self, message):
        """Raises a UserError."""
        raise UserError(f"{message} (see {self.prog} --help)")


def _document(documented) -> dict:
    """Returns the keywords of a parser that shows a docstring, and its "Example:" at the end."""
    about, _, example = (inspect.getdoc(documented) or "").partition("Example:\n")
    formatter = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=28)
    return {
        "description": about.strip(),
        "epilog": f"example:\n{example}",
        "formatter_class": formatter,
        "allow_abbrev": False,  # `--forc` is not `--force`
    }


_TASKS = ", ".join(config.known("tasks"))
_ONE_RUN = {
    "model": _text(", ".join(config.known("models")), required=True),
    "seed": _number(
        "seed of weights, batches and dropout; fixed features have their own (default: 0)",
        0,
        most=2**32 - 1,
    ),
    "name": _text("a name for the overrides, part of the run folder's name"),
    "force": _switch("move the run of this name aside and train from the start"),
    "devices": _number("devices of a CPU (default: as many cores as divide the batch)", 0, 1),
}
_INIT = _text(
    "start from the encoder of this run; auto: the pre-trained one with the same options",
    kind=_named,
    metavar="RUN",
)
_ITS_DATA = _folder("folder of the prepared data sets (default: the one that the run names)")


VERBS: dict[str, tuple[Callable, str, dict[str, dict]]] = {}  # in the order of the file


def _verb(shared: str, **options: dict) -> Callable[[Callable], Callable]:
    """Declares a command with the docstring of its function as its --help.

    Args:
      shared: names of groups of `_SHARED`.
      **options: those of the command alone: `no_test={...}` is --no-test, `FILE={...}` an argument.
    """

    def declare(call):
        VERBS[call.__name__.strip("_")] = call, shared, options
        return call

    return declare


def parser() -> Parser:
    """Returns the parser of all commands."""
    parser = Parser(prog="lra-fnet", **_document(sys.modules[__name__]))
    parser.add_argument("--version", action="version", version=f"lra-fnet {__version__}")
    parser.set_defaults(call=lambda args: parser.print_help(sys.stderr) or 2)
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    for verb, (call, shared, options) in VERBS.items():
        keywords = _document(call)
        summary = keywords["description"].partition("\n")[0]
        added = verbs.add_parser(verb, help=summary, **keywords)
        added.set_defaults(call=call)
        for group in (*(_SHARED[name] for name in shared.split()), options):
            for name, keywords in group.items():
                option = f"--{name.replace('_', '-')}" if name.islower() else name
                added.add_argument(option, **keywords)
        for name in _HOSTS.keys() & options.keys():
            added.set_defaults(**{name: os.environ.get(f"LRA_FNET_{name.upper()}") or None})
    return parser


def _whats(text: str) -> list[str]:
    whats = text.split(",")
    if wrong := [what for what in whats if what not in WHATS]:
        raise argparse.ArgumentTypeError(f"expects some of {', '.join(WHATS)}, got {wrong[0]!r}")
    return list(dict.fromkeys(whats))


def _names(args, option: str, kind: str) -> list[str] | None:
    """Returns names separated by commas, or all of a kind; None if the option is not given.

    All tasks are LRA's six: the others read the user's own files.
    """
    text = getattr(args, option)
    if text == "all" and kind == "tasks":
        from lra_fnet import tasks

        return list(tasks.BUILT_IN)
    if text == "all":
        return config.known(kind, args.gin_dirs)
    return config.split_names(text or "") or None


def _beginning(args):
    """Returns the job of the options, with the pre-trained run that --init names."""
    from lra_fnet.run import job

    return job.beginning(_job(args, init=None), args.init)


def _job(args, **fields):
    """Returns the job of the options that are named like its fields."""
    from lra_fnet.run.job import Job

    given = vars(args) | {"overrides": args.set} | fields
    if any(given.get(name) for name in ("coordinator", "processes", "process", "hosts")):
        given["devices"] = None
    names = [field.name for field in dataclasses.fields(Job) if field.name in given]
    return Job(**{name: given[name] for name in names})


def _existing(args, *options: str) -> dict[Path, None]:
    """Returns the folders of these options; only one that the user did not name may be missing."""
    folders = {option: getattr(args, option) for option in options}
    for option, folder in folders.items():
        if folder not in (None, Path(option)) and not folder.is_dir():
            raise UserError(f"--{option} expects a folder, {folder} does not exist: name another")
    return dict.fromkeys(folders.values())


def _run(args, asked):
    """Trains a run, with the other processes if there are any; returns its record to the first."""
    asked.check()
    from lra_fnet.training import hosts

    given = args.coordinator, args.processes, args.process
    with hosts.join(*given, detect=bool(args.hosts), join_seconds=args.join_seconds):
        from lra_fnet.run import execute

        result = execute.run(asked)
    return result if hosts.first() else None


# The verbs. Each docstring is the command's --help. Each function imports the modules that it
# needs, so that `--help` starts at once.


@_verb(
    "outside data source",
    task=_text(f"{_TASKS}, or all", required=True),
    dataset=_text("one data set; default: all sets that the presets use and --source provides"),
    force=_switch("prepare existing sets again, for example after --source has changed"),
)
def _data(args) -> None:
    """Prepares a task's data, verifies every record and computes shallow baselines.

    Example:
      lra-fnet data --task listops
    """
    from lra_fnet.tasks import command

    config.import_modules(args.imports)
    command.command(
        args.task, args.dataset, args.data, args.source, args.gin_dirs, force=args.force
    )


@_verb("gin_dir", KIND={"choices": ("tasks", "models", "presets"), "help": "what to list"})
def _list_(args) -> None:
    """Lists the tasks, models or presets, each with the first sentence of its file.

    Example:
      lra-fnet list models
    """
    from rich.table import Table
    from rich.text import Text

    from lra_fnet.machine import terminal

    listed = Table.grid("name", "about", padding=(0, 2))
    listed.columns[0].no_wrap = True
    for name in config.known(args.KIND, args.gin_dirs):
        listed.add_row(name, Text(config.about(args.KIND, name, args.gin_dirs)))
    terminal.console(highlight=False).print(listed)


@_verb("outside data", task=_text(f"{_TASKS}, or all (default)", "all"))
def _describe(args) -> None:
    """Describes the prepared data: rows, lengths, floors, sizes, licences.

    Example:
      lra-fnet describe
    """
    from lra_fnet.tasks import command

    _existing(args, "data")
    config.import_modules(args.imports)
    command.describe(args.task, args.data, args.gin_dirs)


@_verb(
    "task bindings outside runs data source",
    **{name: _ONE_RUN[name] for name in ("model", "seed", "name")},
    pretrain=_switch("show the settings of lra-fnet pretrain"),
    init=_INIT,
)
def _settings(args) -> None:
    """Shows every setting that a run would have, with the file and line that bind it.

    "default" is bound by no file: of the class, or derived from the rows. A number after the place
    is bound there: durations, and warm-up and decay, follow Run.num_steps.

    Example:
      lra-fnet settings --task text --model fnet --preset cpu --set Run.num_steps=500
    """
    from lra_fnet.machine import device, terminal

    asked = _job(args, denoise=True) if args.pretrain else _beginning(args)
    asked.check()
    device.require()
    terminal.console().print(asked.settings())


@_verb(
    "task bindings outside runs data source",
    **_ONE_RUN,
    no_test={"help": "do not score the test split", "action": "store_false", "dest": "test"},
    init=_INIT,
    **_HOSTS,
)
def _train(args) -> None:
    """Trains or resumes one run and scores it on the test set; prepares the data if needed.

    With --init, the run starts from the encoder of another, of `lra-fnet pretrain` or this command,
    and its folder is .../<model>+pretrained/seed<k> (+pretrained-NAME with --name). Run.num_steps
    counts the steps of both runs.

    Example:
      lra-fnet train --task listops --model fnet --preset cpu --seed 1
    """
    asked = _beginning(args)
    if not (result := _run(args, asked)):
        return
    if result.score("test"):
        from lra_fnet import report

        report.print_run(result)
    print(f"run folder: {asked.folder}")


@_verb("task bindings outside runs data source", **_ONE_RUN, **_HOSTS)
def _pretrain(args) -> None:
    """Trains a model to predict masked tokens or pixels of the task's own training rows.

    No test row is read, and no label except that of corpus, the order of sentences. The checkpoint
    is selected by its loss on masked tokens of the validation rows. The run folder is
    .../<model>@denoise/seed<k>; `lra-fnet train --init` starts from its encoder. Pre-training takes
    the fraction Denoising.share of Run.num_steps.

    Example:
      lra-fnet pretrain --task image --model fnet --preset cpu
    """
    asked = _job(args, denoise=True)
    if not (result := _run(args, asked)):
        return
    score = result.score("validation")
    assert score is not None
    print(
        f"validation: loss {score.loss / score.count:.4f}, {score.accuracy:.2f} % of "
        f"{score.count:,} masked tokens right, at step {score.step}"
    )
    if score.rows and score.order_correct is not None:
        order = 100 * score.order_correct / score.rows
        print(f"sentence order: {order:.2f} % of {score.rows:,} rows right")
    if (rule := result.baseline) is not None:
        print(f"shallow baseline: {rule.validation.accuracy:.2f} % of masked tokens, {rule.method}")
    print(f"run folder: {asked.folder}")


@_verb("run", data=_ITS_DATA)
def _evaluate(args) -> None:
    """Scores a trained run on the test set, or shows its score if it has one.

    Example:
      lra-fnet evaluate --run runs/cpu/listops/fnet/seed0
    """
    from lra_fnet.machine import device
    from lra_fnet.run import job

    begun, _ = job.finished(args.run)
    device.use(begun.cpu_devices, exactly=False)
    from lra_fnet import report
    from lra_fnet.run import evaluate

    report.print_run(evaluate.evaluate(args.run, args.imports, args.data))


@_verb("run", data=_ITS_DATA, rows=_number("number of validation rows (default: 1000)", 1000, 1))
def _span(args) -> None:
    """Measures the required attention span, as LRA defines it, of a run with softmax attention.

    Example:
      lra-fnet span --run runs/cpu/listops/transformer/seed0 --rows 200
    """
    from lra_fnet.machine import terminal

    _existing(args, "run")
    from lra_fnet.run import span

    measured = span.measure_run(args.run, args.rows, args.imports, args.data)
    terminal.console().print(span.table(measured))
    print(f"wrote {args.run / 'attention_span.json'}")


@_verb("run", FILE=_text("default: standard input", kind=settings.path, nargs="*"))
def _predict(args) -> None:
    """Classifies your own texts, images or expressions.

    Prints one JSON object per line, in the order of the inputs.

      text               one text per line
      listops            one expression per line: [MAX 2 9 [MIN 4 7 ] 0 ]
      retrieval          one JSON object per line: {"text1": "...", "text2": "..."}
      image              FILEs in PNG or JPEG; other sizes are resized to 32 x 32
      pathfinder, pathx  FILEs in PNG or JPEG of the data set's size
      csv                as text, or as retrieval for two texts; a FILE *.csv, *.tsv or *.jsonl is a
                         table with the columns text, or text1 and text2
      images             FILEs in PNG or JPEG; other sizes are resized

    A text that contains line breaks is given as a JSON object on one line: {"text": "..."}.

    Each output line has label, class, probability (of that class), probabilities (of all classes),
    truncated (whether the input was longer than the run's length and was cut) and input (file and
    line). Lines are printed a batch at a time. An invalid input ends the command with exit code 2,
    after the answers to the inputs before it.

    Example:
      lra-fnet predict --run runs/cpu/text/fnet/seed0 reviews.txt
    """
    from lra_fnet.machine import device

    _existing(args, "run")
    device.use_cores(0)
    from lra_fnet.run import model

    model.predict_files(args.run, args.FILE, args.imports)


@_verb(
    "run",
    out=_folder("the folder to write", required=True),
    checkpoint=_text("best on validation (default), or last", "best", choices=("best", "last")),
    force=_switch("replace an earlier export"),
)
def _export(args) -> None:
    """Writes a trained run as safetensors, config and README.

    Example:
      lra-fnet export --run runs/cpu/listops/fnet/seed0 --out fnet-listops
    """
    _existing(args, "run")
    from lra_fnet.run import model

    model.export(args.run, args.out, args.checkpoint, args.imports, force=args.force)
    print(f"exported to {args.out}")


@_verb(
    "outside",
    data=_ITS_DATA,
    replay=_number("repeat this number of initial training steps and compare the losses", 0),
    PATH=_text("a run folder, an export, or a folder of results", kind=settings.path, nargs="+"),
)
def _verify(args) -> int:
    """Checks results: a row for each run, a column for each check; exit code 1 if any fails.

      result  result.json is complete and consistent: schema, counts against bits, steps, sha256
      config  the configuration is the one that task, model, preset and overrides give today
      data    the rows are those of data/expected.json, or of the prepared set
      code    the commit is known, no file differed from it, and no other code or machine was used
      replay  the first steps, trained again, give the losses in metrics.jsonl

    A check is "ok", "note" (with a remark below the table), "not there" (a file that it needs is
    missing, or --replay) or "FAILED". 1 % of a loss may differ, as it does on another kind of
    machine.

    Example:
      lra-fnet verify runs/cpu/listops/fnet/seed0 --replay 100
    """
    from lra_fnet.run import verify

    _existing(args, "data")
    found = tuple(args.imports), tuple(args.gin_dirs)
    return verify.main(args.PATH, verify.Options(args.data, *found, args.replay))


@_verb(
    "bindings outside runs data source",
    sweep=_text(
        f"{', '.join(config.known('sweeps'))}, or your own file", kind=_named, metavar="FILE"
    ),
    task=_text(f"{_NAMES} six of LRA"),
    models=_text(f"{_NAMES}; default: transformer,linear,fnet,performer"),
    preset=_text("default: paper"),
    seeds=_number("number of seeds: 0 to n - 1; default: 1", least=1),
    grid=_list("an axis: every value of a list", metavar="NAME=[...]"),
    grids=_bindings("several --grid in one string", "grid"),
    range=_list('an axis for random and tpe; "log" is optional', metavar='NAME=[LOW,HIGH,"log"]'),
    ranges=_bindings("several --range in one string", "range"),
    sampler=_text("how points are chosen (default: grid)", choices=SAMPLERS),
    trials=_number("points per task and model; random and tpe need it", least=1),
    prune=_switch("stop a point whose first seed is below the median of earlier points", None),
    pretrain=_switch("each trial is a run of lra-fnet pretrain", None),
    init=_text(
        "start every trial from this pre-trained run; auto: from the run with the same task, "
        "model, preset, seed and --set",
        kind=_named,
        metavar="RUN",
    ),
    name=_text("the sweep's name; --name alone resumes that sweep"),
    jobs=_number("trials at a time, which share the cores (default: 1)", 1, 1),
    retry=_switch("run failed trials once more"),
    dry_run=_switch("print the commands of the trials and stop"),
)
def _sweep(args) -> int | None:
    r"""Trains several tasks, models, seeds and settings.

    Trains every model on every task with every seed, at every point of the given axes. The same
    command resumes the sweep after a kill. Several such commands, started at once on any machines
    that share the folder of runs, divide the trials among them. Options override the file of
    --sweep. Trials that run on a different number of cores (--jobs) give equal results only up to
    rounding.

    With --pretrain, the trials are runs of `lra-fnet pretrain`, compared by their loss on masked
    tokens of the validation rows. With --init, the axes are settings of the second stage.

    Example:
      lra-fnet sweep --task listops --models fnet,linear --seeds 3 --preset cpu \
          --grid 'Encoder.num_layers=[1,2]'
    """
    from lra_fnet.sweep import axes, plan, scheduler

    given = {
        "tasks": _names(args, "task", "tasks"),
        "models": _names(args, "models", "models"),
        **{
            name: getattr(args, name)
            for name in ("preset", "seeds", "sampler", "prune", "pretrain", "init")
        },
    }
    given_axes = dict(
        axes.axis(name, text) for name in ("grid", "range") for text in vars(args)[name]
    )
    if args.name and not (args.sweep or args.task):
        outside = args.imports or args.gin_dirs or args.source or args.data != Path("data")
        if given_axes or args.set or outside or any(value is not None for value in given.values()):
            raise UserError(
                f"--name {args.name} alone resumes that sweep: give only --trials, --jobs or "
                "--retry with it; --task or --sweep starts another"
            )
        planned = plan.load(args.runs, args.name, args.trials)
    else:
        file = args.sweep and config.sweep(args.sweep, args.gin_dirs)
        swept = plan.read(file, given_axes, args.set, trials=args.trials, **given)
        shared = _job(args, model="", task="", preset="", name=None, overrides=(), init=None)
        planned = plan.Plan(swept, plan.folder_name(swept, args.name), shared)
    if args.dry_run:
        return scheduler.dry_run(planned)
    return scheduler.run(planned, jobs=args.jobs, retry=args.retry)


@_verb(
    "runs",
    name=_text("the name that the sweep printed", required=True),
    without_failed=_switch("leave out points that have a failed trial"),
)
def _finish(args) -> None:
    """Selects the best points of a sweep on validation and scores them on test.

    For each task and model, selects the point with the best mean validation accuracy over its seeds
    and scores the runs of that point on test, once.

    Example:
      lra-fnet finish --name listops-lr
    """
    from lra_fnet.sweep import plan

    planned = plan.load(args.runs, args.name, None)
    from lra_fnet import report
    from lra_fnet.sweep import finish

    report.print_runs(finish.finish(planned, without_failed=args.without_failed))
    print(f"selected: {planned.folder / 'selected.json'}")


@_verb("runs results out")
def _report(args) -> None:
    """Writes tables and figures of all results.

    Example:
      lra-fnet report --out reports
    """
    from lra_fnet import report

    report.main(list(_existing(args, "runs", "results")), args.out)


@_verb("runs results", json=_switch("print one JSON object"), A=_SIDE, B=_SIDE)
def _compare(args) -> None:
    """Compares two models or two runs, with a significance test.

    Example:
      lra-fnet compare cpu/listops/fnet cpu/listops/transformer
    """
    from lra_fnet.report import compare

    compare.main(args.A, args.B, list(_existing(args, "runs", "results")), as_json=args.json)


@_verb(
    "task bindings outside runs",
    name=_text("the results' folder in RUNS/benchmark (default: derived from the options)"),
    models=_text(f"{_NAMES}; NAME:BINDING adds a binding", "transformer,linear,fnet,performer"),
    lengths=_text("in tokens", [], _integers, metavar="N,N"),
    tokens=_number("tokens per batch, the same at all lengths", 0),
    cls=_switch("also measure each length plus a CLS token"),
    what=_text(f"any of {','.join(WHATS)} (default: train,infer)", "train,infer", kind=_whats),
    devices=_text(
        "numbers of devices, each a row (default: the machine's)", [], _integers, metavar="N,N"
    ),
    rounds=_number("number of measurements (default: 5)", 5, 1),
    seconds=_number("seconds per measurement (default: 2)", 2.0, 0.001, float),
)
def _benchmark(args) -> None:
    """Measures speed and memory of models against sequence length.

    Example:
      lra-fnet benchmark --task text --models fnet,transformer --preset cpu --lengths 512,1024
    """
    from lra_fnet.benchmark import case, command
    from lra_fnet.report.speed import tables

    shared = case.Case(
        what="train",
        side="ours",
        task=args.task,
        model="",
        preset=args.preset,
        length=0,
        overrides=tuple(args.set),
        imports=tuple(args.imports),
        gin_dirs=tuple(map(str, args.gin_dirs)),
        seconds=args.seconds,
        tokens=args.tokens,
    )
    models = _names(args, "models", "models") or []
    cells = case.plan(shared, models, args.what, args.lengths, cls=args.cls, devices=args.devices)
    command.main(cells, args.rounds, args.runs, args.name, tables.render)
