"""From result files to what people read: terminal, Markdown, CSV, LaTeX, one HTML page, README."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.report import accuracy as tables
from lra_fnet.report import sources
from lra_fnet.report.grid import Grid
from lra_fnet.report.results import collect
from lra_fnet.report.sources import Sources
from lra_fnet.report.text import (
    LEGEND,
    print_run,
    render_csv,
    render_grids_csv,
    render_markdown,
    render_runs_csv,
    render_terminal,
    render_trials_csv,
    run_table,
)

__all__ = [
    "BEGIN",
    "END",
    "LEGEND",
    "collect",
    "main",
    "print_run",
    "readme_section",
    "render_csv",
    "render_grids_csv",
    "render_markdown",
    "render_runs_csv",
    "render_terminal",
    "render_trials_csv",
    "run_table",
    "update_readme",
    "write",
]

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


def write(found: Sources, out_dir: str | Path) -> list[Path]:
    """Writes every form of the report; each file replaces its old version in one step.

    Raises:
      UserError: the folder cannot be written.
    """
    from lra_fnet.report import grids, latex, page  # late: the table after a run needs none of them

    accuracy = tables.accuracy_tables(found.results)
    sections = grids.sections(found, accuracy)
    texts = {
        "index.html": page.render(found, accuracy),
        "accuracy.md": "# Accuracy\n\n" + render_markdown(accuracy),
        "report.md": _markdown(accuracy, sections),
        "accuracy.csv": render_csv(accuracy),
        "runs.csv": render_runs_csv(found.results, found.readings),
        "tables.csv": render_grids_csv(sections),
        "trials.csv": render_trials_csv(found.sweeps),
        **latex.files(found, accuracy, sections),
    }
    files = [Path(out_dir) / name for name, text in texts.items() if text.strip()]
    for file in files:
        _write(file, texts[file.relative_to(out_dir).as_posix()])
    return files


def _markdown(accuracy: Sequence[tables.Table], sections: Mapping[str, Sequence[Grid]]) -> str:
    """Everything: the accuracy tables, then the others under their headings."""
    parts = ["# Report", "## Accuracy", render_markdown(accuracy)]
    for heading, found in sections.items():
        parts += [f"## {heading}", *(grid.markdown() for grid in found)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _write(file: Path, text: str) -> None:
    """As `disk.replace`; what the disk refuses is one line."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        disk.replace(file, text)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(
            f"{file}: cannot be written ({reason}); make room or name another"
        ) from error


def readme_section(results: Sequence[dict[str, Any]]) -> str:
    """The README's tables, its two marker lines included. Give it results/ only, never runs/."""
    text = render_markdown(tables.accuracy_tables(results)) or "No measured runs yet.\n"
    return f"{BEGIN}\n\n{text}\n{END}"


def update_readme(path: str | Path, results: Sequence[dict[str, Any]]) -> bool:
    """Puts readme_section in place of what stands between the markers; True if the file changed.

    Raises:
      UserError: the file does not hold each marker once, in order, or cannot be read or written.
    """
    file = Path(path)
    try:
        old = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}); name the README") from error
    if old.count(BEGIN) != 1 or old.count(END) != 1 or old.index(BEGIN) > old.index(END):
        raise UserError(f"{file}: expected one line {BEGIN} and after it one line {END}; add them")
    new = old[: old.index(BEGIN)] + readme_section(results) + old[old.index(END) + len(END) :]
    if new != old:
        _write(file, new)
    return new != old


def main(
    roots: Sequence[str | Path] = ("runs", "results"),
    out_dir: str | Path = "reports",
    console: Console | None = None,
) -> list[Path]:
    """Collects, prints the tables, writes the files and says where they lie.

    Raises:
      UserError: no run has a test accuracy or a state to show, or a result is broken.
    """
    everything = sources.read(roots, out_dir)
    found = tables.accuracy_tables(everything.results)
    if not found and not everything.sweeps:
        where = " or ".join(map(str, roots))
        raise UserError(
            f"expected at least one run with a test accuracy under {where}, found none; "
            "`make lra TASK=listops MODEL=fnet PRESET=cpu` makes one"
        )
    if console is None:
        console = Console()
        if not console.is_terminal:
            console.width = 200  # a file has no edge to fold at
    for table in render_terminal(found):
        console.print(table)
    console.print(Text(LEGEND))
    files = write(everything, out_dir)
    told = {file: "" for file in files if file.parent == Path(out_dir)}
    told[Path(out_dir) / "latex" / "report.tex"] = ", and beside it the tables that it takes in"
    for file, more in told.items():
        console.print(f"wrote {file}{more}", markup=False, highlight=False, soft_wrap=True)
    return files
