"""Turns run folders into reports: terminal, Markdown, CSV, LaTeX, one HTML page, README.

`Sources` reads the files, `build` makes the `Report`, which holds everything that is shown. Every
output format is a function of it.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from lra_fnet.errors import UserError
from lra_fnet.machine import disk, progress, terminal
from lra_fnet.report import headers, text
from lra_fnet.report.contents import Report, build
from lra_fnet.report.sources import Sources
from lra_fnet.report.text import print_run, print_runs

__all__ = [
    "BEGIN",
    "END",
    "Report",
    "Sources",
    "build",
    "main",
    "print_run",
    "print_runs",
    "read_readme",
    "update_readme",
    "write",
]

_OURS = re.compile("<title>.*Long-Range Arena.*: results</title>")  # in the page of every version
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
LITERATURE = (
    "Generated from `lra_fnet/report/published.json` and the committed results by\n"
    "`lra-fnet report --readme README.md`."
)
ABOUT = "Generated from the committed results by `lra-fnet report --readme README.md`."


def write(report: Report, out_dir: str | Path) -> list[Path]:
    """Writes every form of the report; each file replaces its old version in one step.

    Files of an earlier report that this one does not have are deleted.

    Raises:
      UserError: the folder cannot be written.
    """
    from lra_fnet.report import latex, page  # the table after a run needs neither

    texts = {
        "index.html": page.render(report),
        "accuracy.md": "# Accuracy\n\n" + text.accuracy_markdown(report.tables),
        "report.md": text.markdown(report),
        "accuracy.csv": text.accuracy_csv(report.tables),
        "runs.csv": text.runs_csv(report),
        "tables.csv": text.tables_csv(report),
        "trials.csv": text.trials_csv(report),
        **latex.files(report),
    }
    out = Path(out_dir)
    files = {out / name: content for name, content in texts.items() if content.strip()}
    document = out / "latex/report.tex"
    old = disk.read_text(document) if document.exists() else ""
    tables = {document.with_name(f"{name}.tex") for name in re.findall(r"\\fitted{([^{}#]+)}", old)}
    for file, content in files.items():
        _write(file, content, "--out")
    for file in (tables | {out / name for name in texts}) - files.keys():
        with disk.writable(file, "--out"):
            file.unlink(missing_ok=True)
    return list(files)


def _write(file: Path, content: str, option: str) -> None:
    with disk.writable(file, option):
        file.parent.mkdir(parents=True, exist_ok=True)
        disk.replace(file, content)


def read_readme(readme: Path) -> str:
    """Returns the README's text, which holds each marker once and in order.

    Raises:
      UserError: it does not, or the file cannot be read.
    """
    text = disk.read_text(readme)
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise UserError(f"{readme}: expected one line {BEGIN} followed by one line {END}; add them")
    return text


def update_readme(path: str | Path, results: str | Path) -> list[Path]:
    """Writes everything generated from the results: the README's tables and the files next to it.

    They are RESULTS.md, docs/literature.md and docs/figure.svg (of the preset with the most models
    that have a run) if the README names them, and the headers of the presets.

    Args:
      path: the README.
      results: the folder with the committed results. runs/ is not shown, because a reader of the
        repository does not have it.

    Returns:
      The files that changed.

    Raises:
      UserError: see `read_readme`; the results are damaged, or a file cannot be written.
    """
    readme = Path(path)
    old = read_readme(readme)
    sources = Sources([results])
    if not sources.runs:
        raise UserError(f"--results {results} holds no run, and would empty {readme}: name another")
    if sources.problems:
        raise UserError(f"{readme} would lack a result: {sources.problems[0]}")
    report = build(sources)
    section = f"{BEGIN}\n\n{text.main_models(report)}\n{END}"
    texts = {
        readme: old[: old.index(BEGIN)] + section + old[old.index(END) + len(END) :],
        readme.with_name("RESULTS.md"): text.markdown(report, "Results", ABOUT),
        **headers.files(sources, readme.parent / "gin/presets"),
    }
    if "docs/literature.md" in old:
        words = f"# Literature\n\n{LITERATURE}\n\n{report.literature.markdown()}"
        texts[readme.parent / "docs" / "literature.md"] = words
    shown = text.compared(report)
    if "docs/figure.svg" in old and shown:
        from lra_fnet.report import figures

        largest = max(shown, key=lambda preset: sum(row.measured for row in preset.table.rows))
        if drawn := figures.above_baseline(largest.table, largest.points):
            texts[readme.parent / "docs" / "figure.svg"] = figures.drawn(drawn, "svg").decode()
    for page in (readme.with_name("RESULTS.md"), readme.parent / "docs" / "literature.md"):
        there = page.read_text("utf-8", "replace") if page in texts and page.exists() else ""
        if there and "Generated from" not in there:
            raise UserError(f"{page} is not of `lra-fnet report`, which replaces it: move it away")
    changed = [f for f, new in texts.items() if not f.exists() or f.read_bytes() != new.encode()]
    for file in changed:
        _write(file, texts[file], "--readme")
    return changed


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
    if not (report.presets or report.sweeps or report.fronts):
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
    kinds = ", ".join(dict.fromkeys(file.suffix.strip(".") for file in files[1:]))
    console.print(Text(text.left_out(report.tables, str(files[0])), overflow="fold"))
    console.print(Text(f"also written there: the same as {kinds}", overflow="fold"))
    return files
