"""The report as text and files: terminal, Markdown, CSV, LaTeX; README and RESULTS.md."""

import csv as csv_module
import io
import re
import shutil
import subprocess

import numpy as np
import pytest
from made_results import a_failure, a_result, a_trial, put, put_sweep, records, scored, with_test
from rich.console import Console

from lra_fnet import counts, report
from lra_fnet.errors import UserError
from lra_fnet.report.accuracy import build as accuracy
from lra_fnet.report.render import csv, latex, markdown, text
from lra_fnet.report.render.grid import Grid, Marked
from tools.documents import results as documents

RESULTS = [
    with_test(600, last=580),
    with_test(640, seed=1),
    with_test(620, seed=2),
    with_test(361, model="linear"),
    with_test(360, model="random"),
    a_failure("diverged", model="performer"),
    a_failure("OOM", model="transformer", task="image"),
    a_result(overrides=["Run.names=[red]|3"], variant="odd"),
]
TABLES = accuracy.tables(records(*RESULTS))


def built(root, *results):
    for result in results:
        put(root, result)
    return report.build(report.Sources([root]))


def lines_of(csv_text):
    return list(csv_module.DictReader(io.StringIO(csv_text)))


# Grids


def test_a_grid_in_markdown_and_latex():
    row = ["x|y_", Marked("1", "bold"), Marked("2", "italic"), Marked("3", "bold italic")]
    grid = Grid("T", ["a", "b", "c", "d"], [row], ["Note."], words=2)
    assert grid.markdown() == (
        "**T**\n\n| a | b | c | d |\n|---|---|---:|---:|\n| x\\|y_ | **1** | *2* | ***3*** |\n\n"
        "- Note.\n"
    )
    assert latex.tabular(grid).splitlines() == [
        *("% T", "% Note.", r"\begin{tabular}{@{}llrr@{}}", r"\toprule", r"a & b & c & d \\"),
        *(r"\midrule", r"x\textbar{}y\_ & \textbf{1} & \textit{2} & \textbf{\textit{3}} \\"),
        *(r"\bottomrule", r"\end{tabular}"),
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (r"a\b{c}$%&#_", r"a\textbackslash{}b\{c\}\$\%\&\#\_"),
        (
            '~^<>|"`',
            r"\textasciitilde{}\textasciicircum{}\textless{}\textgreater{}\textbar{}"
            r"\textquotedbl{}\textasciigrave{}",
        ),
        ("[x] --name 3 ± 1 → é 学", r"{[}x] -{}-name 3 $\pm$ 1 $\rightarrow$ é {[}U+5B66]"),
    ],
)
def test_latex_prints_special_characters_literally(words, expected):
    assert latex.escape(words) == expected


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
def test_tables_compile(tmp_path):
    files = latex.files(built(tmp_path / "runs", *RESULTS))
    body = "\n\n".join(files.values())
    head = r"\documentclass{article}\usepackage[T1]{fontenc}\usepackage{booktabs}\begin{document}"
    (tmp_path / "all.tex").write_text(head + body + r"\end{document}")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)


# Accuracies


def test_markdown_tables_are_whole():
    """Every row of a table has the header's number of cells; the round trip finds our numbers."""
    for grid in markdown.accuracy(TABLES):
        table = [line for line in grid.markdown().splitlines() if line.startswith("|")]
        assert {line.count("|") for line in table} == {len(grid.head) + 1}
    best, variants = ({row[0]: row[1] for row in grid.rows} for grid in markdown.accuracy(TABLES))
    assert variants == {"FNet, odd": "30.00 (1)"}
    assert best == {
        "Transformer": "-",
        "Linear": "18.05 (1)",
        "FNet": "31.00 ± 1.00 (3)",
        "Performer": "FAIL",
        "Random": "collapsed",
        "Majority floor": "18.00",
    }


def test_published_rows_name_their_source():
    (grid,) = markdown.accuracy(accuracy.tables(records(a_result(preset="tuned"))))
    assert grid.head == ["Model", "Source", "ListOps"]
    assert ["FNet", "FNet paper", "35.33"] in grid.rows


def test_accuracy_csv_holds_states_and_never_a_zero_for_them():
    rows = lines_of(csv.accuracy(TABLES))
    assert all((row["mean"] == "") == (row["state"] != "value") for row in rows)
    ours = {(row["model"], row["column"]): row for row in rows if row["source"] == "ours"}
    fnet = ours["FNet", "listops"]
    assert (float(fnet["mean"]), float(fnet["sd"])) == pytest.approx((31.0, 1.0))
    assert (fnet["seeds"], fnet["runs"], fnet["bold"], fnet["above"]) == ("3", "3", "false", "")
    assert fnet["values"] == "30.0000 32.0000 31.0000"
    states = {key: row["state"] for key, row in ours.items()}
    assert states["Transformer", "image"] == "OOM"
    assert states["Performer", "listops"] == "FAIL"
    assert states["Random", "listops"] == "collapsed"
    assert {row["source"] for row in rows} == {"ours", "reference"}  # none published under cpu


def test_accuracy_csv_has_the_difference_from_no_mixing():
    runs = [scored("fnet", 0), scored("linear", 0) | {"model": "ff_only"}]
    table = accuracy.tables(records(*runs))
    rows = {row["model"]: row for row in lines_of(csv.accuracy(table))}
    (gain,) = (row.cells["listops"].gain for row in table[0].own if row.model == "fnet")
    assert float(rows["FNet"]["gain_mean"]) == gain.mean
    assert float(rows["FNet"]["gain_p_value"]) == gain.p_value
    assert rows["FF-only"]["gain_mean"] == ""


def test_runs_csv_holds_counts_of_every_run(tmp_path):
    made = built(tmp_path / "r", *RESULTS)
    rows = {row["folder"]: row for row in lines_of(csv.runs(made.runs, {}))}
    assert len(rows) == 8
    row = rows["r/cpu/listops/fnet/seed0"]
    counted = (row["test_best_correct"], row["test_best_count"], row["test_last_correct"])
    assert counted == ("600", "2000", "580")
    assert (row["dirty"], row["peak_bytes"], row["variant"]) == ("false", "", "")
    failed = rows["r/cpu/image/transformer/seed0"]
    assert (failed["state"], failed["test_best_correct"], failed["parameters"]) == ("OOM", "", "")
    assert rows["r/cpu/listops/fnet+odd/seed0"]["overrides"] == "Run.names=[red]|3"


@pytest.mark.parametrize("width", [40, 80])
def test_terminal_shows_the_presets_own_models_in_few_columns(width):
    stream = io.StringIO()
    for part in text.compact(TABLES):
        Console(file=stream, width=width, color_system=None).print(part)
    output = stream.getvalue()
    assert "…" not in output
    assert max(map(len, output.splitlines())) <= width
    for part in ("31.00 ± 1.00 (3)", "collapsed", "preset cpu", "18.05 (1)", "FAIL"):
        assert part in output
    assert "odd" not in output  # a variant
    assert "Pathfinder" not in output  # nothing was run there


# Files


def test_main_writes_every_form_and_names_the_page(tmp_path, capsys):
    for result in RESULTS:
        put(tmp_path / "runs", result)
    out = tmp_path / "reports"
    files = report.main([tmp_path / "runs"], out)
    names = ("index.html", "report.md", "accuracy.csv", "runs.csv")
    assert [file for file in files if file.parent == out] == [out / name for name in names]
    assert sorted(path for path in out.rglob("*") if path.is_file()) == sorted(files)
    assert (out / "latex/test-accuracy-preset-cpu-variants.tex") in files
    assert str(out / "index.html") in capsys.readouterr().out
    assert (out / "report.md").stat().st_mode & 0o777 == 0o644


def test_only_an_earlier_report_is_replaced(tmp_path):
    put(tmp_path / "runs", a_result())
    out = tmp_path / "site"
    for _ in range(2):
        report.main([tmp_path / "runs"], out)
        (out / "notes.txt").touch()
    (out / "index.html").write_text("mine")
    with pytest.raises(UserError, match=r"site holds other files: .* --out"):
        report.main([tmp_path / "runs"], out)
    assert (out / "index.html").read_text() == "mine"


@pytest.mark.parametrize("results", [[], [a_result(test=None)]], ids=["no run", "no test"])
def test_report_without_results_names_a_command_that_makes_one(tmp_path, results):
    for result in results:
        put(tmp_path / "runs", result)
    with pytest.raises(UserError, match=r"`lra-fnet train --task listops .*` makes one"):
        report.main([tmp_path / "runs", tmp_path / "results"], tmp_path / "reports")
    assert not (tmp_path / "reports").exists()


def test_names_with_html_or_line_breaks_are_text_in_markdown(tmp_path):
    hostile = "x<script>alert(1)</script>\n\n# y"
    put(tmp_path, a_result(dataset=hostile, overrides=[hostile], variant="v"))
    put(tmp_path, a_result(task="<b>t"))
    put_sweep(tmp_path, hostile.replace("/", ""), [a_trial(0)])
    text_of = markdown.everything(report.build(report.Sources([tmp_path])))
    assert "&lt;script>" in text_of
    assert "<" not in re.sub("</?(details|summary)>", "", text_of)
    assert "\n# y" not in text_of


# After a run


def test_run_lines_show_counts_interval_baseline_floor_and_published_numbers():
    right = np.arange(2000) < 640
    rule = {name: {"correct": 640, "count": 2000} for name in ("validation", "test")}
    rule |= {"method": "a rule", "settings": {}, "correct_bits": counts.encode(right)}
    result = a_result(shallow=rule, preset="tuned")
    assert text.run_lines(*records(result)) == [
        "FNet on ListOps, preset tuned, seed 0",
        "test 30.00 % (600 of 2,000; 95 %: 28.03 to 32.05)",
        "shallow baseline 32.00 %, a rule",
        "not significantly above the shallow baseline",
        "majority floor 18.00 %",
        "FNet paper 35.33",
        "trained in 0:02:00, 8.5 steps/s",
    ]
    other = result | {"overrides": ["A.b=[1]"], "variant": "v"}  # other settings than the paper's
    assert "FNet paper 35.33" not in text.run_lines(*records(other))


@pytest.mark.parametrize(
    ("result", "part"),
    [
        (a_failure("OOM"), "test OOM"),
        (a_failure("diverged"), "test FAIL (diverged)"),
        (a_result(test=None), "test -"),
        (with_test(360), "test 18.00 %, collapsed (360 of 2,000"),
        (with_test(361, task="pathx"), "test 18.05 %, FAIL (361 of 2,000"),
    ],
)
def test_run_lines_show_states(result, part):
    assert part in text.run_lines(*records(result))[1]


def test_recall_by_class_and_balanced_accuracy_are_shown():
    """Of classes with rows, by their names."""
    result = a_result(config="TASK/Csv.labels = ('no', 'yes', 'so')\n")
    result["test"]["best"]["confusion"] = [[500, 300, 0], [1100, 100, 0], [0, 0, 0]]
    (run,) = records(result)
    want = ["35.42", "50.00", "yes 8.33, no 62.50"]
    assert [number in "\n".join(text.run_lines(run)) for number in want] == [True] * 3
    counted = ["{label} {answer} {rows}".format(**row) for row in lines_of(csv.confusion([run]))]
    assert counted == ["no no 500", "no yes 300", "yes no 1100", "yes yes 100"]


def test_of_many_classes_the_ten_of_lowest_recall_are_shown():
    result = with_test(sum(range(40)), count=1600, floor={"correct": 40, "count": 1600})
    rows = np.diag(range(40)) + np.diag(range(40, 0, -1))[:, ::-1]
    result["test"]["best"]["confusion"] = rows.tolist()
    (line,) = (x for x in text.run_lines(*records(result)) if "recall" in x)
    assert line.split(", ")[10:] == ["9 22.50", "others more"]


def test_scored_runs_of_a_sweep_are_shown_though_they_are_variants(capsys):
    changes = {"overrides": ["Encoder.num_layers=1"], "variant": "x-01234567"}
    report.print_runs(records(with_test(600, **changes), with_test(640, seed=1, **changes)))
    lines = capsys.readouterr().out.splitlines()
    assert ["FNet,", "Encoder.num_layers=1", "31.00", "(2)"] in [line.split() for line in lines]


# The repository's documents


@pytest.fixture
def repository(tmp_path):
    """A repository with a README and some results; returns the new texts by name."""
    begin, end = documents.BEGIN, documents.END
    (tmp_path / "README.md").write_text(f"Before\n{begin}\nold\n{end}\nAfter\n")

    def files(*results):
        for result in results:
            put(tmp_path / "results", result)
        made = documents.files(tmp_path)
        return {str(file.relative_to(tmp_path)): words for file, words in made.items()}

    return files


def test_readme_shows_main_models_controls_and_the_best_on_validation(repository):
    def three(model, correct, validation):
        score = {"step": 900, "correct": validation, "count": 2000, "loss": 1.0}
        both = {"best": score, "last": score | {"step": 1000}}
        return [with_test(correct, seed=s, model=model, validation=both) for s in range(3)]

    models = {"fnet": 600, "ff_only": 500, "s5": 700, "mamba": 900, "lru": 800}
    chosen = {"lru": 950}  # mamba is higher on test alone
    results = [run for m, n in models.items() for run in three(m, n, chosen.get(m, 610))]
    texts = repository(*results, with_test(700, preset="small"), RESULTS[-1])
    readme = texts["README.md"]
    assert re.findall(r"^\| ([\w-]+.*?) \|", readme, re.M)[1:] == [
        *("FNet", "LRU", "FF-only", "Majority floor")
    ]
    assert readme.startswith("Before\n")
    assert readme.endswith("\nAfter\n")
    assert "old" not in readme
    assert "**40.00" not in readme  # bold is for RESULTS.md
    assert "| **45.00 ± .00 (3)** |" in texts["RESULTS.md"]
    assert "preset small" in texts["RESULTS.md"]
    assert "odd" not in texts["RESULTS.md"].partition("## Training")[0]
    assert len(lines_of(texts["results/runs.csv"])) == len(results) + 2
