"""`lra-fnet data` and `lra-fnet describe`: prepare the sets of tasks, and list what they hold."""

from collections.abc import Sequence
from pathlib import Path

from lra_fnet import config, tasks
from lra_fnet.baselines import shallow
from lra_fnet.data.sources import megabytes
from lra_fnet.data.store import Prepared
from lra_fnet.errors import UserError, unknown
from lra_fnet.machine import progress, terminal
from lra_fnet.machine.terminal import Fitted
from lra_fnet.tasks import sets

_COLUMNS = (
    *("set", "rows", "tokens p10 / p50 / p90 / max", "classes", "majority floor", "on disk"),
    *("best shallow baseline on test, by length", "made from", "licence"),
)


def command(
    task: str,
    dataset: str | None,
    data_dir: Path,
    source: Path | str | None,
    gin_dirs: Sequence[Path] = (),
    *,
    force: bool = False,
) -> None:
    """Prepares and verifies the sets of one task or of "all", and prints what each holds.

    Shallow baselines are computed at the lengths that presets use. With "all", sets that cannot be
    prepared are listed at the end, each with the reason; those of the user's own texts are left
    out.

    Args:
        task: a name with a file in gin/tasks, or "all".
        dataset: one of the task's configs; None takes those that the presets use, or the first one
            if a source is given for a task that downloads nothing.
        data_dir: folder of the prepared sets.
        source: the raw files, for tasks that read some: a folder, a file or a URL.
        gin_dirs: folders with more gin files.
        force: whether to prepare sets anew that are there.

    Raises:
        UserError: for an unknown task or set, or a set that cannot be made or does not verify.
    """
    if task == "all" and source is not None:
        raise UserError("--source belongs to one task: name it with --task")
    missing, ready = [], 0
    console = terminal.console()
    for name in _names(task, gin_dirs):
        for chosen in [dataset] if dataset else datasets(name, source, gin_dirs):
            value = tasks.make(name, chosen)
            there = value.folder(data_dir).exists() and not force
            if task == "all" and value.needs_source and not there:
                continue
            try:
                sets.prepare(value, data_dir, source=source, force=force)
                prepared = sets.verify(value, data_dir)
                longest = max(facts["lengths"]["max"] for facts in prepared.splits.values())
                for length in lengths(value, gin_dirs, longest) if value.baselines else ():
                    shallow.ensure(sets.open(tasks.make(name, chosen, length), data_dir))
                drawing = sets.illustrate(prepared)
            except UserError as error:
                if task != "all":
                    raise
                progress.say(f"missing: {name}/{chosen}: {error}")
                missing.append(f"{name}/{chosen}")
                continue
            ready += 1
            title = f"{name}/{chosen} from {prepared.source}, every record verified"
            console.print(Fitted(_COLUMNS, [_row(prepared)], title=title))
            if drawing:
                progress.say(f"examples: {drawing}")
    if missing:
        raise UserError(f"{ready} sets are ready, {len(missing)} are missing: {', '.join(missing)}")


def describe(task: str, data_dir: Path, gin_dirs: Sequence[Path] = ()) -> None:
    """Prints one line for each prepared set, and for each set that a preset needs.

    Raises:
        UserError: for an unknown task, or a damaged set.
    """
    rows = []
    for name in _names(task, gin_dirs):
        needed = datasets(name, None, gin_dirs)
        first = tasks.make(name)
        there = sorted(path.name for path in first.folder(data_dir).parents[1].glob("*"))
        for chosen in dict.fromkeys([*first.configs, *filter(first.configs.get, there)]):
            value = tasks.make(name, chosen)
            if value.folder(data_dir).exists():
                rows.append(_row(sets.open(value, data_dir)))
            elif chosen in needed:
                rows.append([f"{name}/{chosen}", "-", *[""] * 5, "not prepared", ""])
    notes = [
        "rows: train / validation / test; tokens: of the training texts as stored; floor: always "
        "answering the most frequent test label"
    ]
    terminal.console().print(Fitted(_COLUMNS, rows, notes=notes))


def _names(task: str, gin_dirs: Sequence[Path]) -> list[str]:
    known = config.known("tasks", gin_dirs)
    if task == "all":
        return sorted(known, key=lambda name: ([*tasks.BUILT_IN, name].index(name), name))
    if task not in known:
        raise UserError(f"{unknown('task', task, [*known, 'all'])}; {config.YOURS}")
    return [task]


def datasets(name: str, source: Path | str | None, gin_dirs: Sequence[Path]) -> list[str]:
    """Returns the sets of a task to prepare if none is named."""
    configs = list(tasks.make(name).configs)
    if source is not None and tasks.make(name).remote is None:
        return configs[:1]  # a source replaces the publisher's file, if there is one
    used = config.lengths(name, gin_dirs)
    named = [chosen for chosen in configs if chosen in used] or configs[:1]
    return [one for one in named if not tasks.make(name, one).needs_source] or named


def lengths(task: tasks.Task, gin_dirs: Sequence[Path], longest: int) -> list[int]:
    """Returns the lengths at which presets read a set; its full length if none does.

    A data set that no preset names gets the lengths of the task's other sets, unless it is only
    read whole. Lengths that cut no text, as `longest` is shorter, are merged into the smallest.
    """
    full, by_set = task.configs[task.config], config.lengths(task.name, gin_dirs)
    named = by_set.get(task.config)
    used = sorted(named or set().union(*by_set.values()))
    chosen = used if named or (full in used and not task.read_whole) else [full]
    cutting = [n for n in chosen if n < longest]
    return cutting + [n for n in chosen if n not in cutting][:1]


def _row(prepared: Prepared) -> list[str]:
    """Returns the cells of a set under `_COLUMNS`."""
    task, floor = prepared.task, prepared.floor
    lengths = prepared.splits[task.splits[0]]["lengths"]
    paths = prepared.folder.rglob("*")
    baselines = [
        f"{length:,}: {best.test.accuracy:.2f} %, {best.method}"
        for length, results in shallow.read_all(prepared).items()
        for best in shallow.leaders(results)
    ]
    return [
        f"{task.name}/{task.config}",
        " / ".join(f"{rows:,}" for rows in prepared.rows.values())
        + (", validation is test" if task.validation_is_test else ""),
        " / ".join(f"{lengths[key]:,.0f}" for key in ("p10", "p50", "p90", "max")),
        str(task.num_classes),
        f"{floor.correct:,}/{floor.count:,} = {floor.accuracy:.2f} %",
        megabytes(sum(path.stat().st_size for path in paths if path.is_file())),
        "\n".join(baselines),
        prepared.source,
        task.licence,
    ]
