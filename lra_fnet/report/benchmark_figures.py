"""Time and memory against the length on logarithmic axes, with the fitted exponents."""

from collections.abc import Sequence
from pathlib import Path

from lra_fnet.report import benchmarks as tables

# Okabe and Ito's colours, told apart with any colour vision; black for what remains.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
FIGURES = (
    ("train_time", "train", "seconds", "s a training step"),
    ("infer_time", "infer", "seconds", "s a batch of inference"),
    ("train_memory", "train", "peak_bytes", "peak bytes of training"),
)


def draw(found: Sequence[tables.Result], out: Path) -> list[Path]:
    """Writes each figure that has a line, as SVG and PNG, into `out`; returns their paths."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator, StrMethodFormatter

    written = []
    for name, what, value, title in FIGURES:
        cells = [cell for cell in found if cell["what"] == what and cell["side"] == "ours"]
        rows = {label: tables.curve(cells, label, value) for label in tables.labels(cells)}
        rows = {label: row for label, row in rows.items() if len(row[0]) > 1}
        if not rows:
            continue
        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axes = figure.subplots()
        for index, (label, (lengths, numbers)) in enumerate(rows.items()):
            slope = tables.exponent(lengths, numbers)
            axes.loglog(
                lengths,
                numbers,
                label=f"{label}: L^{slope:.2f}",
                color=COLOURS[index % len(COLOURS)],
                marker=MARKERS[index % len(MARKERS)],
                markersize=5,
            )
        ticks = sorted({length for lengths, _ in rows.values() for length in lengths})
        axes.set_xticks(ticks)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_xlabel("L, tokens")
        axes.set_ylabel(title)
        axes.grid(True, which="major", alpha=0.3)
        figure.legend(loc="outside right upper", frameon=False)
        with rc_context({"svg.hashsalt": "lra-fnet"}):  # the same bytes for the same numbers
            for kind, metadata in (("svg", {"Date": None}), ("png", None)):
                path = out / f"{name}.{kind}"
                figure.savefig(path, dpi=150, metadata=metadata)
                written.append(path)
    return written
