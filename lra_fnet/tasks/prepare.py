"""`make data`: prepares the sets of tasks, reads every record back, and tells what they hold."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lra_fnet import config, tasks
from lra_fnet.errors import UserError
from lra_fnet.machine import progress
from lra_fnet.tasks import Prepared, Task
from lra_fnet.tasks.sources import megabytes


def command(
    task: str,
    dataset: str | None,
    data_dir: Path,
    source: Path | str | None,
    gin_dirs: Sequence[Path] = (),
) -> None:
    """Prepares and verifies the sets of one task or "all", and prints what each holds.

    What "all" cannot have is listed at the end with the reason; the rest is prepared.

    Args:
      task: a name with a file in gin/tasks, or "all".
      dataset: one of the task's configs; None takes those that the presets use, or with a source
        the first.
      data_dir: where prepared sets live.
      source: the raw files, for tasks that read some: a folder, a file or a URL.
      gin_dirs: folders with more gin files.

    Raises:
      UserError: an unknown task or set; a set that cannot be made or does not verify.
    """
    if task == "all" and source is not None:
        raise UserError("SOURCE belongs to one task: name it with TASK=")
    missing, count = [], 0
    console = Console(soft_wrap=True)
    for name in _names(task, gin_dirs):
        for chosen in [dataset] if dataset else _sets(name, source, gin_dirs):
            try:
                value = tasks.make(name, chosen)
                value.prepare(data_dir, source=source)
                prepared = value.verify(data_dir)
            except UserError as error:
                if task != "all":
                    raise
                progress.say(f"missing: {name}/{chosen}: {error}")
                missing.append(f"{name}/{chosen}")
                continue
            count += 1
            console.print(_table(prepared))
            if drawing := value.illustrate(prepared):
                progress.say(f"examples: {drawing}")
    if missing:
        raise UserError(
            f"{count} sets are ready, {len(missing)} missing for the reasons above: "
            f"{', '.join(missing)}"
        )


def describe(
    task: str, data_dir: Path, console: Console | None = None, gin_dirs: Sequence[Path] = ()
) -> None:
    """Prints one line for each set that is prepared, and for each that a preset needs.

    Raises:
      UserError: an unknown task, or a damaged set.
    """
    table = Table(
        "set",
        "rows",
        "tokens p10 / p50 / p90 / max",
        "classes",
        "majority floor",
        "on disk",
        "made from",
        "licence",
        caption="rows: train / validation / test; tokens: of the training texts, uncut; "
        "floor: always answering the most frequent test label",
        box=None,
        header_style="bold",
    )
    for name in _names(task, gin_dirs):
        needed = _sets(name, None, gin_dirs)
        for chosen in tasks.make(name).configs:
            value = tasks.make(name, chosen)
            if value.folder(data_dir).exists():
                table.add_row(*_facts(value.open(data_dir)))
            elif chosen in needed:
                table.add_row(f"{name}/{chosen}", "-", "", "", "", "", "not prepared", "")
    (console or Console(soft_wrap=True, width=200)).print(table)


def _facts(prepared: Prepared) -> tuple[str, ...]:
    task = prepared.task
    correct, count = prepared.floor
    lengths = prepared.length_quantiles[task.splits[0]]
    marked = ", validation is test" if task.validation_is_test else ""
    return (
        f"{task.name}/{task.config}",
        " / ".join(f"{prepared.rows[split]:,}" for split in task.splits) + marked,
        " / ".join(f"{lengths[key]:,.0f}" for key in ("p10", "p50", "p90", "max")),
        str(task.num_classes),
        f"{100 * correct / count:.2f} %",
        megabytes(_size(prepared.folder)),
        prepared.source,
        task.licence,
    )


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _names(task: str, gin_dirs: Sequence[Path]) -> list[str]:
    known = config.known("tasks", gin_dirs)
    if task == "all":
        return sorted(known, key=lambda name: ([*tasks.BUILT_IN, name].index(name), name))
    if task not in known:
        raise UserError(f"unknown task {task!r}; known: {', '.join(known)}, all")
    return [task]


def _sets(name: str, source: Path | str | None, gin_dirs: Sequence[Path]) -> list[str]:
    """The sets of a task that `make data` makes where none is named."""
    configs = list(tasks.make(name).configs)
    if source is not None:
        return configs[:1]  # raw files hold the full set
    used = config.datasets(name, gin_dirs)
    return [chosen for chosen in configs if chosen in used] or configs[:1]


def _table(prepared: Prepared) -> Table:
    task: Task = prepared.task
    correct, count = prepared.floor
    table = Table(
        "split",
        "rows",
        "rows of each label",
        "tokens p10 / p50 / p90 / max",
        "sha256",
        title=f"{task.name}/{task.config} from {prepared.source}, every record verified",
        caption=f"{prepared.folder}, {megabytes(_size(prepared.folder))}; majority floor on test "
        f"{correct}/{count} = {100 * correct / count:.2f} %",
    )
    for split, rows in prepared.rows.items():
        lengths = prepared.length_quantiles[split]
        table.add_row(
            split,
            str(rows),
            " ".join(map(str, prepared.label_counts[split])),
            " / ".join(f"{lengths[key]:.0f}" for key in ("p10", "p50", "p90", "max")),
            prepared.sha256[split][:16],
        )
    return table
