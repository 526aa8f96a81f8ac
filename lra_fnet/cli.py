"""`lra-fnet data | train | evaluate | predict | export | sweep | benchmark | report`: thin."""

import argparse
import os
import signal
import sys
from pathlib import Path

from lra_fnet import config
from lra_fnet.errors import Gone, Interrupted, RunFailed, UserError
from lra_fnet.machine import allocator, compile_cache, disk

_PREDICT = """\
Classes of raw inputs by a trained run: one JSON object a line, in the order of the inputs.

  text               a FILE is one text; standard input: one text a line
  listops            FILE or standard input: one expression a line, [MAX 2 9 [MIN 4 7 ] 0 ]
  retrieval          two FILEs, one after the other, are a row; standard input: JSON lines
  image              FILE or standard input is a PNG or JPEG; another size is made 32 x 32
  pathfinder, pathx  FILE or standard input is a PNG or JPEG of the data set's size

JSON lines, for texts with ends of lines in them: {"text": "..."}, of retrieval {"text1": "...",
"text2": "..."}. They stand in a FILE *.jsonl; elsewhere a line that begins with {" is one.

Printed of each input: label, class, probability (of that class), probabilities (of all classes),
truncated (whether it was longer than the run's length, and cut), input (file and line). Lines come
a batch at a time. A bad input ends the command with code 2, behind the answers to those before."""


def main(arguments: list[str] | None = None) -> int:
    """Runs one command.

    Returns:
      0; 1 where a run failed; 2 for a user's mistake; 75 where another process of the run is
      missing; 128 + signal where a signal stopped it.
    """
    allocator.keep_freed_memory()
    compile_cache.use()
    parser = _parser()
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        args = parser.parse_args(arguments)
        return args.call(args) or 0
    except UserError as error:
        return _tell(error, 2)
    except RunFailed as error:
        return _tell(error, 1)
    except Gone as error:
        return _tell(error, error.code)
    except Interrupted as error:
        return 128 + error.signal
    except KeyboardInterrupt:
        return _tell("stopped; the same command goes on", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _terminated(number, frame):
    """SIGTERM outside of the training loop: ends the process, whatever it does.

    Nothing is lost that SIGKILL would not lose. An exception would be: Python ignores one that is
    raised in a callback of its garbage collector.
    """
    os.write(2, b"lra-fnet: stopped; the same command goes on\n")
    os._exit(128 + number)


def _tell(error, code: int) -> int:
    print(f"lra-fnet: {' '.join(str(error).split())}", file=sys.stderr)
    return code


class _Parser(argparse.ArgumentParser):
    """One line for a wrong argument, as for every other mistake."""

    def error(self, message):
        raise UserError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="lra-fnet", description="The Long-Range Arena with FNet's encoders.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)

    data = commands.add_parser("data", help="prepare and verify a task's data")
    data.add_argument("--task", required=True, help=f"{', '.join(config.known('tasks'))}, or all")
    data.add_argument("--dataset", help="builder config; default: every one that a preset uses")
    data.add_argument("--describe", action="store_true", help="only tell what is prepared")
    _outside(data)
    _where(data)
    data.set_defaults(call=_data)

    train = commands.add_parser("train", help="prepare, train, evaluate: one run")
    _which(train)
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--name", default=None, help="name of the overrides in the run folder")
    train.add_argument("--force", action="store_true", help="move a complete run aside, train anew")
    train.add_argument("--no-test", action="store_true", help="leave the test split closed")
    train.add_argument(
        "--fit", action="store_true", help="take the batch in the slices that fit the device"
    )
    _hosts(train)
    train.set_defaults(call=_train)

    evaluate = commands.add_parser("evaluate", help="score a trained run on test")
    evaluate.add_argument("--run", type=Path, required=True, help="a run folder")
    evaluate.add_argument(
        "--attention-span",
        type=int,
        nargs="?",
        const=1000,
        metavar="ROWS",
        help="instead: LRA's required attention span, on so many validation rows (1000)",
    )
    evaluate.set_defaults(call=_evaluate)

    predict = commands.add_parser(
        "predict",
        help="classes of your own texts, images or expressions, as JSON lines",
        description=_PREDICT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    predict.add_argument("--run", type=Path, required=True, help="a run folder, or an exported one")
    predict.add_argument("files", nargs="*", type=Path, metavar="FILE", help="none: standard input")
    predict.set_defaults(call=_predict)

    export = commands.add_parser("export", help="a trained run as safetensors, config and README")
    export.add_argument("--run", type=Path, required=True, help="a run folder")
    export.add_argument("--out", type=Path, required=True, help="the folder to write")
    export.add_argument("--checkpoint", choices=("best", "last"), default="best")
    export.add_argument("--force", action="store_true", help="replace an earlier export")
    export.set_defaults(call=_export)

    sweep = commands.add_parser(
        "sweep",
        help="several tasks, models and seeds, and axes of bindings",
        description="Runs every model on every task at every point of the axes with every seed; "
        "the same command goes on after a kill, and several at once, on any machines that share "
        "the folder of runs, share the trials. Options take the place of what --sweep says.",
    )
    _add_sweep(sweep)
    sweep.set_defaults(call=_sweep)

    benchmark = commands.add_parser(
        "benchmark",
        help="speed and memory against length; without --lengths the training loop against its "
        "bare program",
    )
    _which(benchmark, many=True, default="transformer,linear,fnet,performer")
    benchmark.add_argument("--lengths", default="", help="tokens, joined with commas: 1024,2048")
    benchmark.add_argument(
        "--what",
        default="",
        help="train, infer, memory (of train), mixing (the sublayer alone; without --lengths the "
        "paper's 512), scaling, pipeline (the training loop; needs data), joined with commas; "
        "default: train,infer with --lengths, else pipeline",
    )
    benchmark.add_argument("--cls", action="store_true", help="each length with CLS too, L + 1")
    benchmark.add_argument(
        "--peer", action="store_true", help="beside PyTorch's models (LRA_FNET_PEER_PYTHON)"
    )
    benchmark.add_argument(
        "--tokens", type=int, default=0, help="a batch of so many at every length"
    )
    benchmark.add_argument(
        "--explain", action="store_true", help="only how the Fourier transform is computed, and why"
    )
    benchmark.add_argument("--devices", default="1,2,4,8", help="of scaling, joined with commas")
    benchmark.add_argument("--out", type=Path, default=Path("reports"))
    benchmark.add_argument("--rounds", type=int, default=5)
    benchmark.add_argument("--seconds", type=float, help="of a round; 2, of pipeline 30")
    benchmark.set_defaults(call=_benchmark)

    report = commands.add_parser("report", help="tables and figures of all results")
    report.add_argument("--runs", type=Path, default=Path("runs"))
    report.add_argument("--results", type=Path, default=Path("results"))
    report.add_argument("--out", type=Path, default=Path("reports"))
    report.add_argument("--readme", type=Path, help="put the tables of --results into this file")
    report.add_argument(
        "--compare",
        nargs=2,
        metavar=("A", "B"),
        help="instead: two run folders, or models as preset/task/model[+variant], side by side",
    )
    report.add_argument("--json", action="store_true", help="of --compare: one JSON object")
    report.set_defaults(call=_report)
    return parser


def _add_sweep(sweep) -> None:
    sweep.add_argument("--sweep", type=Path, metavar="FILE", help="a gin file that binds Sweep")
    sweep.add_argument("--task", help="names joined with commas, or all")
    sweep.add_argument("--models", help="names joined with commas, or all")
    sweep.add_argument("--preset")
    sweep.add_argument("--seeds", type=int, help="seeds 0 .. n - 1 of each")
    _set(sweep)
    for kind, values in (("grid", "[...]"), ("range", '[LOW,HIGH,"log"]')):
        what = {"grid": "every value of a list", "range": "of random and tpe; log if it says so"}
        sweep.add_argument(
            f"--{kind}", action="append", default=[], metavar=f"NAME={values}", help=what[kind]
        )
        sweep.add_argument(
            f"--{kind}s", default="", help=f"several in one string (make's {kind.upper()})"
        )
    sweep.add_argument(
        "--sampler", choices=("grid", "random", "tpe"), help="what draws the points; default: grid"
    )
    sweep.add_argument("--trials", type=int, help="points of each task and model (random, tpe)")
    sweep.add_argument(
        "--prune",
        action="store_true",
        default=None,
        help="stop a point whose first seed is below the median of those before it",
    )
    sweep.add_argument("--name", help="of the sweep's folder; alone, it goes on with that sweep")
    sweep.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="trials at a time, each on its share of the cores; another number of cores gives "
        "equal numbers to rounding only",
    )
    sweep.add_argument("--retry", action="store_true", help="failed trials too, once more")
    sweep.add_argument(
        "--finish", action="store_true", help="select on validation, score the selected on test"
    )
    sweep.add_argument("--dry-run", action="store_true", help="print the commands, nothing else")
    _outside(sweep)
    sweep.add_argument("--runs", type=Path, default=Path("runs"))
    _where(sweep)


def _which(parser, many: bool = False, default: str | None = None) -> None:
    parser.add_argument("--task", required=True)
    if many:
        more = f"; default: {default}; NAME:BINDING is NAME with one more" if default else ""
        parser.add_argument(
            "--models",
            required=default is None,
            default=default,
            help=f"names joined with commas, or all{more}",
        )
    else:
        parser.add_argument("--model", required=True)
    parser.add_argument("--preset", default="paper")
    _set(parser)
    _outside(parser)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    _where(parser)


def _set(parser) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a gin binding"
    )
    parser.add_argument("--gin", default="", help="several bindings in one string (make's GIN)")


def _outside(parser) -> None:
    parser.add_argument("--import", dest="imports", action="append", default=[], metavar="MODULE")
    parser.add_argument("--gin-dir", type=Path, action="append", default=[], help="more gin files")


def _where(parser) -> None:
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--source", default=None, help="raw files: a folder, a file or a URL")


def _hosts(parser) -> None:
    """Adds the options of a run on several hosts; environment variables give their defaults."""
    parser.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        default=os.environ.get("LRA_FNET_COORDINATOR"),
        help="for a run in several processes: the host of process 0, and a free port there",
    )
    for name, text in (
        ("processes", "number of processes"),
        ("process", "index of this process, from 0"),
        ("join-seconds", "how long to wait until all processes have joined (default: 50)"),
    ):
        variable = f"LRA_FNET_{name.upper().replace('-', '_')}"
        parser.add_argument(f"--{name}", type=int, default=os.environ.get(variable), help=text)
    parser.add_argument(
        "--hosts",
        choices=["auto"],
        default=os.environ.get("LRA_FNET_HOSTS"),
        help="take all three from the cluster: SLURM, Open MPI, Cloud TPU or Kubernetes",
    )


def _jobs(args, models: list[str], **fields):
    from lra_fnet.run.job import Job

    overrides = tuple(args.set + config.split_bindings(args.gin))
    for model in models:
        yield Job(
            task=args.task,
            model=model,
            preset=args.preset,
            overrides=overrides,
            runs=args.runs,
            data=args.data,
            source=args.source,
            imports=tuple(args.imports),
            gin_dirs=tuple(args.gin_dir),
            **fields,
        )


def _data(args) -> None:
    from lra_fnet.tasks import prepare

    for module in args.imports:
        config.import_module(module)
    if args.describe:
        prepare.describe(args.task, args.data, gin_dirs=args.gin_dir)
    else:
        prepare.command(
            args.task, args.dataset or None, args.data, args.source or None, args.gin_dir
        )


def _train(args) -> None:
    from lra_fnet.train import hosts

    hosts.JOIN_SECONDS = args.join_seconds or hosts.JOIN_SECONDS
    where = hosts.place(args.coordinator, args.processes, args.process, bool(args.hosts))
    with hosts.join(where):  # forks, so nothing that starts threads is imported before
        from lra_fnet import report
        from lra_fnet.run import job

        one = next(
            _jobs(
                args,
                [args.model],
                seed=args.seed,
                name=args.name or None,
                force=args.force,
                test=not args.no_test,
                fit=args.fit,
            )
        )
        result = job.run(one)
    if not hosts.first():
        return
    if result["test"] is not None:
        report.print_run(result)
    print(f"run folder: {one.folder}")


def _evaluate(args) -> None:
    if args.attention_span is not None:
        from lra_fnet.machine import progress
        from lra_fnet.run import attention_span

        found = attention_span.span(args.run, args.attention_span)
        progress.console.print(attention_span.table(found))
        print(f"wrote {args.run / 'attention_span.json'}")
        return
    from lra_fnet import report
    from lra_fnet.run import job

    report.print_run(job.evaluate_run(args.run))


def _predict(args) -> None:
    from lra_fnet.run import predict

    predict.main(args.run, args.files)


def _export(args) -> None:
    from lra_fnet.run import export

    export.main(args.run, args.out, args.checkpoint, force=args.force)
    print(f"exported to {args.out}")


def _sweep(args) -> int:
    from lra_fnet import report
    from lra_fnet.sweep import finish, scheduler

    plan = _plan(args)
    if args.dry_run:
        scheduler.dry_run(plan, retry=args.retry)
        return 0
    if not args.finish:
        return scheduler.run(plan, jobs=args.jobs, retry=args.retry)
    for result in finish.finish(plan):
        report.print_run(result)
    print(f"selected: {plan.folder / 'selected.json'}")
    return 0


def _plan(args):
    """The sweep that the arguments describe, or that goes on under their --name."""
    from lra_fnet.run.job import Job
    from lra_fnet.sweep import plan

    given = {
        "tasks": _names(args, "task", "tasks"),
        "models": _names(args, "models", "models"),
        **{name: getattr(args, name) for name in ("preset", "seeds", "sampler", "prune")},
    }
    axes = [plan.grid_axis(text) for text in args.grid + config.split_bindings(args.grids)]
    axes += [plan.range_axis(text) for text in args.range + config.split_bindings(args.ranges)]
    overrides = args.set + config.split_bindings(args.gin)
    if args.name and not (args.sweep or args.task):
        if axes or overrides or any(value is not None for value in given.values()):
            raise UserError(
                f"--name {args.name} alone goes on with that sweep: only --trials, --jobs, --retry "
                "and --finish go with it; --task or --sweep begins another"
            )
        return plan.load(args.runs, args.name, args.trials)
    swept = plan.read(
        args.sweep,
        {name: values for axis in axes for name, values in axis.items()},
        overrides,
        trials=args.trials,
        **given,
    )
    shared = Job(
        task="",
        model="",
        preset="",
        runs=args.runs,
        data=args.data,
        source=args.source,
        imports=tuple(args.imports),
        gin_dirs=tuple(args.gin_dir),
    )
    return plan.Plan(swept, plan.folder_name(swept, args.name), shared)


def _names(args, option: str, kind: str) -> list[str] | None:
    """Names joined with commas, or all of a kind; None where the option is not given."""
    text = getattr(args, option)
    if text == "all":
        return config.known(kind, args.gin_dir)
    return [name for name in text.split(",") if name] if text else None


def _models(args) -> list[str]:
    return _names(args, "models", "models") or []


def _benchmark(args) -> None:
    known = ("train", "infer", "memory", "mixing", "scaling", "pipeline")
    whats = (args.what or ("train,infer" if args.lengths else "pipeline")).split(",")
    if wrong := [what for what in whats if what not in known]:
        raise UserError(f"--what expects some of {', '.join(known)}, got {wrong[0]!r}")
    lengths, devices = _numbers(args, "lengths"), _numbers(args, "devices")
    if args.tokens < 0:
        raise UserError(f"--tokens expects a whole number of at least 0, got {args.tokens}")
    if args.rounds < 1 or (args.seconds is not None and args.seconds <= 0):
        raise UserError(
            f"--rounds expects 1 or more and --seconds more than 0, got {args.rounds} and "
            f"{args.seconds}"
        )
    from lra_fnet.benchmark import cells, overhead
    from lra_fnet.report import benchmark_figures as figures
    from lra_fnet.report import benchmarks as tables

    shared = cells.Cell(
        *("train", "ours", args.task, "", args.preset, 0),
        overrides=tuple(args.set + config.split_bindings(args.gin)),
        imports=tuple(args.imports),
        gin_dirs=tuple(map(str, args.gin_dir)),
        seconds=args.seconds or 2.0,
        tokens=args.tokens,
    )
    if args.explain:
        from lra_fnet.benchmark import explain

        explain.main(shared, lengths, cls=args.cls)
        return
    models = _models(args)
    programs = dict.fromkeys("train" if what == "memory" else what for what in whats)
    measured = [what for what in programs if what in cells.WHATS]
    plan = cells.plan(shared, models, measured, lengths, cls=args.cls, peer=args.peer)
    scaled = cells.plan(shared, models, ["train"], lengths) if "scaling" in whats else []
    jobs = list(_jobs(args, models)) if "pipeline" in whats else []
    for job in jobs:
        job.load()  # a mistake shows before anything is measured
    if plan:

        def save(found):
            with disk.writable(args.out, "--out"):
                args.out.mkdir(parents=True, exist_ok=True)
                disk.write_json(args.out / "benchmark.json", found)
                disk.replace(args.out / "benchmark.md", tables.render(found))

        found = cells.run(plan, args.rounds, save)
        figures.draw(found, args.out)
        print(tables.render(found), end="")
    for cell in scaled:
        from lra_fnet.benchmark import scaling

        scaling.main(cell, devices, args.out)
    for job in jobs:
        overhead.loop_overhead(job, args.rounds, args.seconds or 30.0)


def _numbers(args, name: str) -> list[int]:
    """Whole numbers from 1 on, joined with commas; none of an empty text."""
    text = getattr(args, name)
    words = text.split(",") if text else []
    if not all(word.isdecimal() and int(word) for word in words):
        raise UserError(f"--{name} expects whole numbers like 1024,2048, got {text!r}")
    return [int(word) for word in words]


def _report(args) -> None:
    if args.json and not args.compare:
        raise UserError("--json expects --compare A B: give it, or leave --json out")
    if args.compare:
        from lra_fnet.report import compare

        first, second = args.compare
        compare.main(first, second, [args.runs, args.results], as_json=args.json)
        return
    from lra_fnet import report

    report.main([args.runs, args.results], args.out)
    if args.readme and report.update_readme(args.readme, report.collect([args.results])):
        print(f"updated {args.readme}")


if __name__ == "__main__":
    sys.exit(main())
