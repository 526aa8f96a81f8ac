"""The prepared set of a task: made, opened, verified and drawn."""

import os
from pathlib import Path

from lra_fnet.data import sources, store
from lra_fnet.data.store import Prepared
from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.machine.progress import say
from lra_fnet.tasks.task import PixelTask, Task, make


def prepare(
    task: Task,
    data_dir: str | Path,
    source: str | Path | None = None,
    jobs: int | None = None,
    *,
    force: bool = False,
) -> Prepared:
    """Makes the set of a task if it is not there, with progress on stderr, and opens it.

    A set appears whole or not at all, even if the process is killed or the disk is full. A second
    process waits for the first.

    Args:
        task: the task, whose `config` names the set.
        data_dir: folder of all prepared sets; downloads go to its `downloads`.
        source: raw files: a folder, a file or a URL. None uses the set that is there, from any
            source, or else generates or downloads it.
        jobs: processor cores to use, all by default; the rows do not depend on it.
        force: makes the set again, which replaces the old one when it is complete. A URL is
            downloaded again, unless its file is the publisher's.

    Raises:
        UserError: if the folder cannot be written, the disk is full, a download fails, a raw file
            is bad, the existing set is damaged or was not made from `source` as it is now, or the
            rows are not those of data/expected.json.
    """
    if task.read_whole and task.max_len != (whole := task.configs[task.config]):
        raise UserError(
            f"{task.name}: expected max_len = {whole}, got {task.max_len}: set MAX_LEN={whole}"
        )
    folder = task.folder(data_dir)

    def write(part: Path) -> None:
        other = open(make(*task.beside), data_dir) if task.beside else None
        downloads = folder.parents[2] / "downloads"
        path = sources.locate(source, task.remote, downloads, force=force)
        if path is None and task.reads:
            raise UserError(
                f"{task.name}/{task.config} reads your own files: give --source {task.reads}"
            )
        cores = jobs or len(os.sched_getaffinity(0))
        with sources.readable(path or task.name):
            raw = task.raw_beside(other, path, cores) if other else task.raw(path, cores)
        url = sources.own_url(source, task.remote)
        store.make(part, task.settle(raw.details), raw, path, url)

    def exists() -> bool:
        return not force and store.read_fingerprint(folder) is not None

    store.write_once(folder, exists, write)
    prepared = open(task, data_dir)
    if source is not None and not prepared.is_from(source):
        sources.check_exists(source)
        raise UserError(
            f"{folder} does not hold the rows of {source} as it is now (made from: "
            f"{prepared.url or prepared.source}): `{store.again(task, data_dir, source)}` prepares "
            "the set anew; without a source, it is used as it is, and DATASET=NAME keeps both"
        )
    return prepared


def open(task: Task, data_dir: str | Path) -> Prepared:
    """Returns the prepared set after comparing file sizes and fingerprint; reads no record.

    Raises:
        UserError: if the set is not prepared, or its files are not those that were written.
    """
    return store.open_set(task, task.folder(data_dir))


def verify(task: Task, data_dir: str | Path) -> Prepared:
    """Reads every record of the prepared set and recomputes counts and sha256 of each split.

    Raises:
        UserError: as for `open`; also if a record cannot be read, or the rows are not those of
            fingerprint.json or data/expected.json.
    """
    prepared = open(task, data_dir)
    store.verify(prepared)
    return prepared


def illustrate(prepared: Prepared) -> Path | None:
    """Draws the first 32 training images with their labels, unless the file is there.

    Returns:
        The file, next to the set; None for a task whose rows are no images.
    """
    task, path = prepared.task, prepared.folder.parent / "contact_sheet.png"
    if not isinstance(task, PixelTask):
        return None
    if path.exists() and path.stat().st_mtime >= prepared.folder.stat().st_mtime:
        return path
    from matplotlib.figure import Figure  # late: takes a second

    rows = store.read(prepared, task.splits[0])
    figure = Figure(figsize=(12, 7), dpi=200, layout="constrained")
    axes = figure.subplots(4, 8).ravel()
    for axis in axes:
        axis.set_axis_off()
    for axis, ((values,), label) in zip(axes, rows, strict=False):
        axis.imshow(values.reshape(task.side, task.side), "gray", vmin=0, vmax=255)
        axis.set_title(task.class_names[label], parse_math=False)
    try:
        with disk.writable(path, "--data"), disk.partial(path) as part:
            figure.savefig(part, format="png")
    except UserError as error:  # a shared folder that cannot be written
        say(f"no examples: {error}")
        return None
    return path
