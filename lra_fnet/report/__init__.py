"""Turns run folders into reports: terminal, Markdown, CSV, LaTeX, one HTML page.

`Sources` reads the files, `build` makes the `Report`, which holds everything that is shown. Every
output format is a function of it.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from lra_fnet.errors import UserError
from lra_fnet.machine import disk, progress, terminal
from lra_fnet.report.render import text
from lra_fnet.report.render.text import print_run, print_runs
from lra_fnet.report.sections import Report, build
from lra_fnet.report.sources import Sources

__all__ = ["Report", "Sources", "build", "main", "print_run", "print_runs", "write"]

_OURS = re.compile("<title>.*Long-Range Arena.*: results</title>")  # in the page of every version


def write(report: Report, out_dir: str | Path) -> list[Path]:
    """Writes every form of the report; each file replaces its old version in one step.

    Raises:
      UserError: the folder cannot be written.
    """
    # late: the table after a run needs none of these
    from lra_fnet.report.render import csv, html, latex, markdown

    texts = {
        "index.html": html.render(report),
        "report.md": markdown.everything(report),
        "accuracy.csv": csv.accuracy(report.tables),
        "runs.csv": csv.runs(report.runs, report.sources.readings),
        **({"confusion.csv": counted} if (counted := csv.confusion(report.runs)).strip() else {}),
        **latex.files(report),
    }
    files = {Path(out_dir) / name: content for name, content in texts.items()}
    for file, content in files.items():
        with disk.writable(file, "--out"):
            file.parent.mkdir(parents=True, exist_ok=True)
            disk.replace(file, content)
    return list(files)


def main(roots: Sequence[str | Path], out_dir: str | Path) -> list[Path]:
    """Collects the sources, writes the files and prints the main tables and where all is.

    Damaged files are left out, each with a line on standard error and in the report.

    Raises:
      UserError: no run has a test accuracy or a state to show; the folder holds other files.
    """
    out, page = Path(out_dir), Path(out_dir) / "index.html"
    ours = page.is_file() and _OURS.search(page.read_text("utf-8", "replace"))
    if not ours and any(out.glob("[!.]*")):
        raise UserError(f"{out} holds other files: choose a new folder with --out")
    report = build(Sources(roots))
    for problem in report.sources.problems:
        progress.say(f"left out: {problem}")
    if not (report.presets or report.sources.sweeps or report.fronts):
        where = " or ".join(map(str, roots))
        raise UserError(
            f"expected at least one run with a test accuracy under {where}, found none; "
            "`lra-fnet train --task listops --model fnet --preset cpu` makes one"
        )
    console = terminal.console()
    files = write(report, out_dir)
    for table in text.compact(report.tables):
        console.print(table)
        console.print()
    print(f"everything, variants too, is in {files[0]}, and beside it as md, csv and tex")
    return files
