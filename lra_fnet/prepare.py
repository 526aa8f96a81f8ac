"""`make data`: prepares a task's sets, reads every record back, and tells what they hold."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from lra_fnet import config, progress, tasks
from lra_fnet.errors import UserError
from lra_fnet.tasks import Prepared


def command(task: str, dataset: str | None, data_dir: Path, source: Path | None) -> None:
    """Prepares and verifies one task or "all" of them, and prints the table of their sets.

    Args:
      task: a name with a file in gin/tasks, or "all".
      dataset: one of the task's configs; None takes every one, or with a source the full one.
      data_dir: where prepared sets live.
      source: folder with the raw files, for tasks that read some.

    Raises:
      UserError: an unknown task or set; a set that cannot be made or does not verify.
    """
    names = config.known("tasks") if task == "all" else [task]
    if names[0] not in config.known("tasks"):
        raise UserError(f"unknown task {task!r}; known: {', '.join(config.known('tasks'))}, all")
    missing = []
    sets = []
    for name in names:
        configs = list(tasks.make(name).configs)
        if source is not None:
            configs = configs[:1]  # raw files hold the full set
        for chosen in [dataset] if dataset else configs:
            value = tasks.make(name, chosen)
            try:
                value.prepare(data_dir, source=source)
                sets.append(value.verify(data_dir))
            except UserError as error:
                if task != "all":
                    raise
                missing.append(f"{name}/{chosen}: {error}")
    console = Console(soft_wrap=True)
    for prepared in sets:
        console.print(_table(prepared))
    for line in missing:
        progress.say(f"missing: {line}")
    if missing:
        raise UserError(f"{len(missing)} of {len(missing) + len(sets)} sets are missing, see above")


def _table(prepared: Prepared) -> Table:
    task = prepared.task
    correct, count = prepared.floor
    size = sum(path.stat().st_size for path in prepared.folder.rglob("*") if path.is_file())
    table = Table(
        "split",
        "rows",
        "rows of each label",
        "tokens p10 / p50 / p90 / max",
        "sha256",
        title=f"{task.name}/{task.config} from {prepared.source}, every record verified",
        caption=f"{prepared.folder}, {size / 1e6:.1f} MB; majority floor on test "
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
