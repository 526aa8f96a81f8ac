"""Every number of published.json is the one that its source prints."""

import re
import statistics

import pytest
from paths import TESTS

from lra_fnet.report.accuracy import published as tables

DATA = TESTS / "data"  # quotations of the papers' tables


def test_published_averages_are_the_means_of_their_rows():
    """Checks every accuracy against the printed (or corrected) average, to its two digits."""
    for source, table in tables.published()["accuracy"].items():
        for model, row in table["rows"].items():
            values = [tables.corrected(row[task]) for task in tables.TASKS if task != "pathx"]
            average = tables.corrected(row["average5"])
            assert average == pytest.approx(statistics.fmean(values), abs=0.00501), (source, model)


def printed_table(label):
    """Returns the cells of a table of the FNet paper, line by line, without bold and underline."""
    tex = (DATA / "fnet_paper_tables.tex").read_text(encoding="utf-8")
    body = tex[tex.index(f"\\label{{{label}}}") :].partition("\\end{tabular}")[0]
    plain = re.sub(r"\\(textbf|underline|hline)|[{}]", "", body)
    return [[cell.strip() for cell in line.split("&")] for line in plain.split("\\\\")]


def printed_cells(label):
    """Returns the lines of `printed_table` that begin with a model's name."""
    return [line for line in printed_table(label) if line[0].partition(" (")[0] in NAMES]


def as_printed(number):
    return number["printed"] if isinstance(number, dict) else number


def agree(cells, numbers, speedups=None):
    """Returns whether cells print these numbers or states, with these speed-ups in parentheses."""
    speedups = speedups or [None] * len(numbers)
    got = []
    for number, speedup in zip(numbers, speedups, strict=True):
        got.append((as_printed(number), speedup))
    want = []
    for cell in cells:
        value, _, factor = cell.partition(" (")
        value = value if value in ("OOM", "FAIL") else float(value)
        want.append((value, float(factor.rstrip("x)")) if factor else None))
    return got == want


NAMES = {
    "Transformer": "transformer",
    "Linear": "linear",
    "FNet": "fnet",
    "FNet (FFT)": "fnet",
    "FNet (mat)": "fnet_mat",
    "Self-attention": "transformer",
    "Local Attention": "local",
    "Local": "local",
    "Sparse Trans.": "sparse",
    "Sparse": "sparse",
    "Longformer": "longformer",
    "Linformer": "linformer",
    "Reformer": "reformer",
    "Sinkhorn Trans.": "sinkhorn",
    "Sinkhorn": "sinkhorn",
    "Synthesizer": "synthesizer",
    "BigBird": "bigbird",
    "Linear Trans.": "linear_transformer",
    "Performer": "performer",
}


def test_published_accuracies_are_those_of_the_fnet_paper():
    accuracy = tables.published()["accuracy"]
    seen = []
    for name, *cells in printed_cells("tab:lra_accuracy"):
        name, _, mark = name.partition(" (")
        group = "fnet" if mark == "ours)" else "fnet_quoting_lra"
        row = accuracy[group]["rows"][NAMES[name]]
        assert list(row) == [*tables.TASKS, "average5"]
        assert agree(cells, list(row.values())), (name, cells)
        seen.append((group, NAMES[name]))
    assert len(seen) == 14
    assert {group: set(accuracy[group]["rows"]) for group, _ in seen} == {
        group: {model for g, model in seen if g == group} for group, _ in seen
    }


def test_corrected_quotes_are_lras_own_numbers():
    """What FNet's paper quotes is LRA's table, once the misprints are corrected."""
    accuracy = tables.published()["accuracy"]
    quoted, lra = (
        {m: [tables.corrected(v) for v in row.values()] for m, row in accuracy[g]["rows"].items()}
        for g in ("fnet_quoting_lra", "lra")
    )
    assert quoted == lra
    synthesizer = accuracy["fnet_quoting_lra"]["rows"]["synthesizer"]["retrieval"]
    assert (synthesizer["printed"], synthesizer["corrected"]) == (64.67, 54.67)


@pytest.mark.parametrize(
    ("label", "num_lines", "groups"),
    [
        ("tab:lra_training_speed", 4, ["fnet_gpu_training_speed", "fnet_gpu_training_memory"]),
        ("tab:lra_inference_speeds", 4, ["fnet_gpu_inference_speed"]),
        (
            "tab:lra_training_speed_tpu",
            15,
            ["fnet_tpu_training_speed", "fnet_tpu_inference_speed", "fnet_tpu_training_memory"],
        ),
    ],
)
def test_published_efficiency_is_that_of_the_fnet_paper(label, num_lines, groups):
    """A line of Table 4b holds two groups side by side; Table 7 lists three below each other."""
    (head,) = [line[1:] for line in printed_table(label) if line[0].endswith("Seq. length")]
    lines = printed_cells(label)
    assert len(lines) == num_lines
    first = tables.published()["efficiency"][groups[0]]
    side_by_side = len(lines[0]) - 1 > len(first["lengths"])
    seen = 0
    for position, name in enumerate(groups):
        group = tables.published()["efficiency"][name]
        assert group["label"] == label
        assert [str(as_printed(n)) for n in group["lengths"]] == head[: len(group["lengths"])]
        width, height = len(group["lengths"]), len(group["rows"])
        part = lines if side_by_side else lines[position * height :][:height]
        shift = 1 + position * width if side_by_side else 1
        for line in part:
            model = NAMES[line[0]]
            speedups = group.get("speedup", {}).get(model)
            assert agree(line[shift : shift + width], group["rows"][model], speedups), (name, line)
            seen += width
    assert seen == sum(len(line) - 1 for line in lines)


def test_published_mixing_times_are_those_of_the_fnet_paper():
    mixing = tables.published()["mixing"]
    lines = printed_cells("tab:mixing_speeds")
    assert len(lines) == 6
    for name, *cells in lines:
        name, _, size = name.partition(" (")
        size, model = size.rstrip(")").lower(), NAMES[name]
        speedups = mixing["speedup"][size].get(model)
        assert agree(cells, mixing["rows"][size][model], speedups), (name, size)


def test_published_parameters_are_those_of_the_fnet_paper():
    groups = tables.published()["parameters"]
    sizes, params = groups["fnet_model_sizes"], groups["fnet_model_params"]
    lines = [line for line in printed_table(sizes["label"]) if line[0].isdigit()]
    assert len(lines) == len(sizes["rows"]) == 8
    for (dim, layers, *cells), (size, row) in zip(lines, sizes["rows"].items(), strict=True):
        assert size == f"{dim}x{layers}"
        assert ["-" if number is None else str(number) for number in row] == cells
    names = NAMES | {"BERT": "transformer", "Random": "random", "FF-only": "ff_only"}
    lines = [line for line in printed_table(params["label"]) if line[0] in names]
    assert len(lines) == len(params["rows"]) == 6
    for name, operations, *cells in lines:
        assert [f"${number}$M" for number in params["rows"][names[name]]] == cells
        formula = params["operations"][names[name]].replace(" ", "").replace("d", "d_h")
        assert re.sub(r"[ $+\\]", "", operations) in formula.replace("+", "")


def test_published_lra_numbers_are_those_of_the_lra_paper():
    """Table 1 and Table 2; the average of a row may name the README's number after the paper's."""
    section = (DATA / "lra_tables.md").read_text(encoding="utf-8")
    rows = {}
    for line in section.splitlines():
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and name in NAMES:
            model = "linear_transformer" if name == "Linear" else NAMES[name]
            rows.setdefault(model, []).append(cells)
    data = tables.published()
    accuracy = data["accuracy"]["lra"]["rows"]
    speed, memory = (
        data["efficiency"][f"lra_tpu_training_{what}"]["rows"] for what in ("speed", "memory")
    )
    assert set(rows) == set(accuracy)
    for model, lines in rows.items():
        (table_1,) = [cells for cells in lines if len(cells) == 6]
        row = accuracy[model]
        assert row["pathx"] == "FAIL"
        tasks = [row[task] for task in tables.TASKS if task != "pathx"]
        assert tasks == [float(cell) for cell in table_1[:5]]
        assert as_printed(row["average5"]) == float(table_1[5].split()[0])
        efficiency = [cells for cells in lines if len(cells) == 2]
        assert [list(map(float, c[0].split("/"))) for c in efficiency] == (
            [speed[model]] if model in speed else []
        )
        peaks = [list(map(float, c[1].split("/"))) for c in efficiency if c[1]]
        assert peaks == ([memory[model]] if model in memory else [])


def test_published_pretraining_is_that_of_the_fnet_paper():
    names = {"BERT": "transformer", "Linear": "linear", "FNet": "fnet", "Random": "random"}
    names |= {"FF-only": "ff_only", "FNet-Hybrid": "fnet_hybrid", "FNet-H": "fnet_hybrid"}
    sizes = {"B": "base", "Base": "base", "L": "large", "Large": "large"}
    groups = tables.published()["pretraining"]
    for key, columns in (("fnet_pretraining_metrics", 5), ("fnet_pretraining_speed", 2)):
        rows, seen = groups[key]["rows"], 0
        for name, *printed in printed_table(groups[key]["label"]):
            model, _, size = name.rpartition("-")
            if model in names:
                want = [cell.partition(" (")[0] for cell in printed[:columns]]
                want = [cell if cell == "OOM" else float(cell) for cell in want]
                assert rows[sizes[size]][names[model]] == want, name
                seen += 1
        assert seen == sum(map(len, rows.values())) == 10
