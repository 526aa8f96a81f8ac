"""The report as text and files: terminal, Markdown, CSV, README, RESULTS.md."""

import csv
import functools
import io
import itertools
import os
import re
import shutil
from pathlib import Path

import pytest
from made_results import a_failure, a_result, put, records, with_test
from paths import ROOT
from rich.console import Console

from lra_fnet import report
from lra_fnet.counts import wilson
from lra_fnet.errors import UserError
from lra_fnet.machine import terminal
from lra_fnet.report import accuracy, figures, page, text
from lra_fnet.report.render.grid import Grid

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


def test_a_table_can_leave_out_empty_columns_of_numbers():
    rows = [["-", "1", "-"], ["-", "-", "-"]]
    assert Grid("", ["A", "B", "C"], rows).filled == Grid("", ["A", "B"], [["-", "1"], ["-", "-"]])


def lines_of(csv_text):
    return list(csv.DictReader(io.StringIO(csv_text)))


def test_markdown_tables_are_whole():
    """Every row of a table has the header's number of cells; the round trip finds our numbers."""
    paragraphs = text.accuracy_markdown(TABLES).split("\n\n")
    lines = [block.splitlines() for block in paragraphs if block.startswith("|")]
    best, variants, *last = [[line.split("|")[1:-1] for line in block] for block in lines]
    assert [len(rows[0]) for rows in (best, variants, *last)] == [3, 2, 3, 2]  # with a result
    for rows in (best, variants, *last):
        assert {len(row) for row in rows} == {len(rows[0])}
    cells = {row[0].strip(): row[1].strip() for row in best}
    assert cells["Model"] == "ListOps"
    assert cells["FNet"] == "31.00 ± 1.00, max 32.00, 3 seeds"
    assert cells["Linear"] == "18.05¶, 1 seed"
    assert cells["Performer"] == "FAIL"
    assert cells["Random"] == "did not train, 1 seed"
    assert cells["Transformer"] == "-"


def test_accuracy_csv_holds_states_and_never_a_zero_for_them():
    rows = lines_of(text.accuracy_csv(TABLES))
    assert all((row["mean"] == "") == (row["state"] != "value") for row in rows)
    ours = {
        (row["model"], row["column"], row["checkpoint"]): row
        for row in rows
        if row["source"] == "ours"
    }
    fnet = ours["FNet", "listops", "best"]
    assert float(fnet["mean"]) == pytest.approx(31.0)
    assert float(fnet["sd"]) == pytest.approx(1.0)
    assert (fnet["maximum"], fnet["seeds"]) == ("32.0", "3")
    assert fnet["values"] == "30.0000 32.0000 31.0000"
    assert float(ours["FNet", "listops", "last"]["mean"]) == pytest.approx((29 + 32 + 31) / 3)
    assert ours["Transformer", "image", "best"]["state"] == "OOM"
    assert ours["Performer", "listops", "best"]["state"] == "FAIL"
    assert ours["Random", "listops", "best"]["state"] == "did not train"
    assert ours["Linear", "listops", "best"]["at_floor"] == "true"
    assert ours["Random", "listops", "best"]["at_floor"] == "true"
    assert {row["source"] for row in rows} == {"ours", "floor"}  # none published under cpu
    assert ours["FNet", "average5", "best"]["state"] == "-"


def test_accuracy_csv_tells_the_baseline_from_the_floor():
    shallow = {name: {"correct": 570, "count": 2000} for name in ("validation", "test")}
    shallow |= {"method": "a rule", "settings": {}}
    runs = records(
        *(with_test(n, model=m, shallow=shallow) for n, m in ((360, "dct"), (700, "s5")))
    )
    rows = [r for r in lines_of(text.accuracy_csv(accuracy.tables(runs))) if r["mean"] or r["sd"]]
    shown = {row["source"]: row["mean"] for row in rows if row["column"] == "listops"}
    assert shown == {"ours": "35.0", "floor": "18.0", "baseline": "28.5"}
    rows = lines_of(text.accuracy_csv(accuracy.tables(runs)))
    (row,) = [r for r in rows if r["state"] == "did not train" and r["checkpoint"] == "best"]
    assert (row["at_floor"], row["at_shallow_baseline"], row["maximum"]) == ("true", "true", "")


def test_runs_csv_holds_counts_of_every_run(tmp_path):
    rows = {row["folder"]: row for row in lines_of(text.runs_csv(built(tmp_path / "r", *RESULTS)))}
    assert len(rows) == 8
    row = rows["r/cpu/listops/fnet/seed0"]
    counts = (row["test_best_correct"], row["test_best_count"], row["test_last_correct"])
    assert counts == ("600", "2000", "580")
    assert (row["dirty"], row["peak_bytes"], row["variant"]) == ("false", "", "")
    failed = rows["r/cpu/image/transformer/seed0"]
    assert (failed["state"], failed["test_best_correct"], failed["parameters"]) == ("OOM", "", "")
    assert rows["r/cpu/listops/fnet+odd/seed0"]["overrides"] == "Run.names=[red]|3"


def printed(*renderables, width=120):
    stream = io.StringIO()
    console = Console(file=stream, width=width, color_system=None)
    for renderable in renderables:
        console.print(renderable)
    return stream.getvalue()


@pytest.mark.parametrize("width", [40, 80])
def test_terminal_shows_the_presets_own_models_in_few_columns(width):
    output = printed(*text.compact(TABLES), width=width)
    assert "…" not in output
    assert max(map(len, output.splitlines())) <= width
    for part in ("31.00 ± 1.00 (3)", "did not train", "preset cpu", "18.05¶ (1)", "FAIL"):
        assert part in output
    assert "odd" not in output  # a variant
    assert "Pathfinder" not in output  # nothing was run there
    assert text.left_out(TABLES, "p.html") == "1 variant is left out; everything is in p.html"


@pytest.mark.parametrize(
    ("results", "says", "not_said"),
    [
        ([with_test(600)], [], ["not run", "OOM", "FAIL", "n/a", "`did not train`", "2 of 3"]),
        ([a_failure("OOM")], ["`OOM`: out of memory"], ["FAIL"]),
        ([a_failure("diverged")], ["`FAIL`: diverged, or Path-X"], ["OOM"]),
        ([with_test(360), with_test(600, seed=1)], ["`did not train`: the same"], ["OOM"]),
        ([with_test(600), a_failure("OOM", seed=1)], ["`2 of 3`: two of three"], ["`OOM`"]),
        ([with_test(600), with_test(600, task="text", model="s5")], ["`-`: not run"], ["FAIL"]),
    ],
)
def test_legend_of_the_short_cells_explains_what_they_hold(results, says, not_said):
    (table,) = text.compact(accuracy.tables(records(*results)))
    legend = table.notes[0]
    assert all(words in legend for words in says)
    assert not any(words in legend for words in not_said)


def test_spread_below_one_has_no_zero_and_unfinished_seeds_are_counted():
    runs = [with_test(n, seed=s) for s, n in enumerate((600, 604, 608))]
    table = accuracy.tables(records(*runs, a_failure("OOM", seed=3)))
    assert "30.20 ± .20 (3 of 4)" in printed(*text.compact(table))  # 30.0, 30.2, 30.4


def test_main_writes_every_form_and_names_the_page(tmp_path, capsys):
    for result in RESULTS:
        put(tmp_path / "runs", result)
    out = tmp_path / "reports"
    files = report.main([tmp_path / "runs"], out)
    names = ("index.html", "accuracy.md", "report.md", "accuracy.csv", "runs.csv", "tables.csv")
    listed = [out / name for name in names]
    assert [file for file in files if file.parent == out] == listed
    assert sorted(path for path in out.rglob("*") if path.is_file()) == sorted(files)
    shown = capsys.readouterr().out
    assert f"1 variant is left out; everything is in {out / 'index.html'}" in " ".join(
        shown.split()
    )
    assert "also written there: the same as md, csv, tex" in shown
    assert (out / "accuracy.md").stat().st_mode & 0o777 == 0o644


def test_only_an_earlier_report_is_replaced(tmp_path):
    put(tmp_path / "runs", a_result())
    out = tmp_path / "site"
    out.mkdir()
    report.main([tmp_path / "runs"], out)
    (out / "notes.txt").touch()
    report.main([tmp_path / "runs"], out)
    (out / "index.html").write_text("mine")
    with pytest.raises(UserError, match="site holds other files: choose a new folder with --out"):
        report.main([tmp_path / "runs"], out)
    assert (out / "index.html").read_text() == "mine"


def test_wrong_readme_is_refused_before_anything_is_written(command, tmp_path):
    put(tmp_path / "runs", a_result())
    words = "none.md is missing: put it back, or name another"
    assert words in command("report", "--readme", "none.md").mistake
    assert not (tmp_path / "reports").exists()


def test_failed_write_keeps_the_old_files(tmp_path, monkeypatch):
    out = tmp_path / "reports"
    report.write(built(tmp_path / "runs", a_result()), out)
    before = {path: path.read_text() for path in out.rglob("*.*")}
    longer = built(tmp_path / "runs", a_result(seed=1))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match=r"index\.html cannot be written \(No space left") as caught:
        report.write(longer, out)
    assert "--out" in str(caught.value)
    assert {path: path.read_text() for path in out.rglob("*.*")} == before


def test_files_of_an_earlier_report_go_and_others_stay(tmp_path):
    out, runs = tmp_path / "reports", tmp_path / "runs"
    report.write(built(runs, a_result(), a_result(preset="small")), out)
    (out / "latex/mine.tex").write_text("my own")
    (out / "trials.csv").write_text("of a sweep that was deleted")
    before = {path.relative_to(out) for path in out.rglob("*.*")}
    shutil.rmtree(runs / "small")
    files = report.write(built(runs), out)
    after = {path.relative_to(out) for path in out.rglob("*.*")}
    assert {file.relative_to(out) for file in files} == after - {Path("latex/mine.tex")}
    gone = {str(path) for path in before - after}
    assert {"trials.csv", "latex/accuracy-small-best.tex"} <= gone


@pytest.mark.parametrize("results", [[], [a_result(test=None)]], ids=["no run", "no test"])
def test_report_without_results_names_a_command_that_makes_one(tmp_path, results):
    for result in results:
        put(tmp_path / "runs", result)
    with pytest.raises(UserError) as caught:
        report.main([tmp_path / "runs", tmp_path / "results"], tmp_path / "reports")
    assert str(caught.value) == (
        f"expected at least one run with a test accuracy under {tmp_path / 'runs'} or "
        f"{tmp_path / 'results'}, found none; "
        "`lra-fnet train --task listops --model fnet --preset cpu` makes one"
    )
    assert not (tmp_path / "reports").exists()


# After a run


def test_run_lines_show_counts_interval_floor_and_published_numbers(monkeypatch):
    shallow = {name: {"correct": 570, "count": 2000} for name in ("validation", "test")}
    shallow |= {"method": "a rule", "settings": {}}
    result = a_result(uses_mask=False, overrides=["A.b=[1]"], variant="v", shallow=shallow)
    (run,) = records(result | {"preset": "tuned"})
    low, high = (100 * end for end in wilson(600, 2000))
    lines = text.run_lines(run)
    assert lines[:7] == [
        "FNet, v ‡ on ListOps, preset tuned, seed 0",
        f"test 30.00 %§ (600 of 2,000; 95 %: {low:.2f} to {high:.2f})",
        "shallow baseline 28.50 %, a rule",
        "majority floor 18.00 %",
        "FNet paper 35.33",
        "trained in 2 min 0 s, 8.5 steps/s",
        "overrides: A.b=[1]",
    ]
    assert "35.33" not in " ".join(text.run_lines(*records(result)))  # preset cpu
    for width in (40, 80):
        stream = io.StringIO()
        made = functools.partial(Console, file=stream, width=width)
        monkeypatch.setattr(terminal, "console", made)
        report.print_run(run)
        folded = stream.getvalue()
        assert max(map(len, folded.splitlines())) <= width
        assert " ".join(folded.split()) == " ".join(lines)  # no number and no name is broken


@pytest.mark.parametrize(
    ("result", "part"),
    [
        (with_test(361), "test 18.05 %¶ ("),
        (with_test(360), "did not train ("),
        (with_test(361, task="pathx"), "FAIL"),
        (a_failure("OOM"), "test OOM"),
        (a_failure("diverged"), "test FAIL (diverged)"),
        (a_result(test=None), "test -"),
    ],
)
def test_run_lines_show_states(result, part):
    assert part in text.run_lines(*records(result))[1]


def test_scored_runs_of_a_sweep_are_one_table():
    shown = printed(text.fitted(text.runs_grid(records(with_test(600), with_test(620, seed=1)))))
    low, high = (100 * end for end in wilson(620, 2000))
    row = ["ListOps", "FNet", "1", "30.50", "31.00", f"{low:.2f}", "to", f"{high:.2f}", "-"]
    assert row in [line.split() for line in shown.splitlines()]
    floor = a_result()["floor"]["correct"]
    rows = text.runs_grid(records(with_test(floor))).rows
    assert rows[0][4] == "18.00, did not train"


# README and RESULTS.md


def test_readme_shows_the_main_models_and_results_md_everything(tmp_path):
    readme, results = tmp_path / "README.md", tmp_path / "results"
    readme.write_text(f"# Name\n\n{report.BEGIN}\nold\n{report.END}\n\nmore\n")
    others = with_test(900, model="dct"), a_result(model="reformer", uses_mask=False)
    for result in (*RESULTS, *others):
        put(results, result)
    assert report.update_readme(readme, results) == [readme, tmp_path / "RESULTS.md"]
    before, section, after = (
        readme.read_text().replace(report.END, report.BEGIN).split(report.BEGIN)
    )
    assert (before, after) == ("# Name\n\n", "\n\nmore\n")
    assert "| Model | ListOps | Image |\n" in section  # the columns that have a result
    assert "| FNet | 31.00 ± 1.00 (3) |" in section
    assert "| Cosine transform | 45.00 (1) |" in section  # the best
    assert "paper |" not in section
    assert "| Majority floor |" in section
    assert "(RESULTS.md)" in section
    assert str(tmp_path) not in section
    everything = (tmp_path / "RESULTS.md").read_text()
    for other in (
        "Reformer ‡",
        "fnet+odd",
        "checkpoint best on validation",
        ": last step",
        "dddddd",
    ):
        assert other in everything
        assert other not in section
    assert "‡" not in section  # only the Reformer of this test sees the padding
    assert report.update_readme(readme, results) == []
    (tmp_path / "RESULTS.md").write_text("my notes\n")
    with pytest.raises(UserError, match=r"RESULTS.md is not of `lra-fnet report`"):
        report.update_readme(readme, results)
    assert (tmp_path / "RESULTS.md").read_text() == "my notes\n"


@pytest.mark.parametrize(("rule", "shown"), [(500, True), (900, False)])
def test_readme_shows_the_best_model_of_a_task_if_it_is_above_the_baseline(tmp_path, rule, shown):
    readme, results = tmp_path / "README.md", tmp_path / "results"
    readme.write_text(f"{report.BEGIN}\n{report.END}\n")
    counts = {"correct": rule, "count": 2000}
    shallow = {"method": "a rule", "settings": {}, "validation": counts, "test": counts}
    for model, correct in (("fnet", 800), ("linear", 790), ("dct", 900)):
        put(results, with_test(correct, model=model, shallow=shallow))
    report.update_readme(readme, results)
    assert ("| Cosine transform |" in readme.read_text()) == shown
    assert "| Cosine transform |" in (tmp_path / "RESULTS.md").read_text()


def test_readme_names_shallow_baselines_only_of_tasks_that_it_shows(tmp_path):
    readme, results = tmp_path / "README.md", tmp_path / "results"
    readme.write_text(f"{report.BEGIN}\n{report.END}\n")
    counts = {"correct": 570, "count": 2000}
    shallow = {"method": "a rule", "settings": {}, "validation": counts, "test": counts}
    variant = {"overrides": ["A.b=1"], "variant": "v", "task": "retrieval"}
    for result in (
        *(with_test(600, model=model, shallow=shallow) for model in ("fnet", "linear")),
        with_test(600, shallow=shallow, **variant),
    ):
        put(results, result)
    report.update_readme(readme, results)
    line = "hallow baseline, chosen on validation: ListOps: a rule"
    assert f"- Preset cpu: s{line}.\n" in readme.read_text()
    assert f"S{line}; Retrieval: a rule.\n" in (tmp_path / "RESULTS.md").read_text()


def test_readme_gets_the_figure_that_it_links_to(tmp_path):
    readme, results = tmp_path / "README.md", tmp_path / "results"
    readme.write_text(f"![figure](docs/figure.svg)\n{report.BEGIN}\n{report.END}\n")
    for model in ("fnet", "transformer"):
        shutil.copytree(ROOT / "results/cpu/text" / model, results / "cpu/text" / model)
    figure = tmp_path / "docs" / "figure.svg"
    assert figure in report.update_readme(readme, results)
    drawn = figure.read_text()
    for words in ("Transformer", "FNet", "Points above shallow baseline", "Steps/s of the fastest"):
        assert words in drawn
    assert report.update_readme(readme, results) == []


def test_readme_of_two_presets_has_the_notes_once(tmp_path):
    shallow = {name: {"correct": 570, "count": 2000} for name in ("validation", "test")}
    shallow |= {"method": "a rule", "settings": {}}
    results = [
        a_result(preset=preset, shallow=shallow, model=model)
        for preset in ("cpu", "small")
        for model in ("fnet", "linear")
    ]
    words = text.main_models(built(tmp_path / "runs", *results))
    first, second = words.split("**Test accuracy (%), preset ")[1:]
    assert (first.partition("*")[0], second.partition("*")[0]) == ("small", "cpu")
    assert "| FNet | FNet paper | 35.33 |" in first
    assert "paper |" not in second
    assert "- " not in first.replace("| - ", "")
    assert words.count("Mean test accuracy over seeds, in %") == 1
    assert words.count("§ At least one seed is not clearly") == 1
    for preset in ("small", "cpu"):
        assert (
            f"- Preset {preset}: shallow baseline, chosen on validation: ListOps: a rule." in words
        )


def test_readme_says_once_how_the_numbers_of_all_its_papers_were_obtained(tmp_path):
    models = {"small": ("fnet", "linear"), "tuned": ("fnet", "performer")}
    results = [a_result(preset=p, model=m) for p, names in models.items() for m in names]
    words = text.main_models(built(tmp_path, *results))
    assert len(re.findall("- Published numbers: FNet paper: .*; LRA paper: ", words)) == 1
    assert words.count("Published numbers") == 1


def test_presets_of_one_or_two_tasks_are_not_shown_first(tmp_path):
    results = [
        a_result(preset=preset, model=model, task=task)
        for preset, shown in (("small", ["text", "image"]), ("cpu", ["text", "image", "listops"]))
        for model in ("fnet", "linear")
        for task in shown
    ]
    made = built(tmp_path, *results)
    assert [table.preset for table in made.tables] == ["small", "cpu"]
    assert [preset.table.preset for preset in text.compared(made)] == ["cpu"]
    few = built(tmp_path / "few", *results[:4])
    assert [preset.table.preset for preset in text.compared(few)] == ["small"]
    first = page._first(made)
    assert first is not None
    assert first[0].table.preset == "cpu"


def test_figure_of_the_readme_is_of_the_preset_with_the_most_models_that_ran(tmp_path, monkeypatch):
    """Under small, four models have numbers in papers, and the two that ran have more cells."""
    readme, results, drawn = tmp_path / "README.md", tmp_path / "results", []
    readme.write_text(f"docs/figure.svg\n{report.BEGIN}\n{report.END}\n")
    for model, task in itertools.product(("fnet", "transformer"), ("text", "image")):
        put(results, a_result(preset="small", model=model, task=task))
    for model in ("fnet", "linear", "performer"):
        put(results, a_result(model=model))
    monkeypatch.setattr(figures, "above_baseline", lambda table, _: drawn.append(table.preset))
    report.update_readme(readme, results)
    assert drawn == ["cpu"]


def test_readme_without_results_says_so(tmp_path):
    assert text.main_models(built(tmp_path)) == "No measured runs yet.\n"


def test_a_wrong_folder_or_a_damaged_result_leaves_the_readme_as_it_is(tmp_path):
    readme, results = tmp_path / "README.md", tmp_path / "results"
    words = f"{report.BEGIN}\nold\n{report.END}"
    readme.write_text(words)
    with pytest.raises(UserError, match=r"resluts holds no run, and would empty .*README.md"):
        report.update_readme(readme, tmp_path / "resluts")
    put(results, with_test(600))
    put(results, with_test(640, seed=1))
    file = next(results.rglob("seed1/result.json"))
    file.write_text(file.read_text()[:100])
    with pytest.raises(UserError, match=r"README.md would lack a result: .*seed1/result.json"):
        report.update_readme(readme, results)
    assert readme.read_text() == words
    assert not (tmp_path / "RESULTS.md").exists()


@pytest.mark.parametrize(
    "words",
    [
        "",
        report.BEGIN,
        f"{report.END}\n{report.BEGIN}",
        f"{report.BEGIN}{report.BEGIN}{report.END}",
        f"{report.BEGIN}{report.END}{report.END}",
    ],
)
def test_readme_without_its_markers_is_refused(tmp_path, words):
    readme = tmp_path / "README.md"
    readme.write_text(words)
    with pytest.raises(UserError, match="expected one line <!-- results:begin --> followed by"):
        report.update_readme(readme, tmp_path)
    assert readme.read_text() == words
    assert not (tmp_path / "RESULTS.md").exists()


def test_readme_that_is_not_utf_8_is_refused_and_a_generated_file_is_written_anew(tmp_path):
    put(tmp_path / "results", a_result())
    readme, results = tmp_path / "README.md", tmp_path / "RESULTS.md"
    readme.write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"README.md cannot be read \(.*\): save it as UTF-8, or n"):
        report.update_readme(readme, tmp_path / "results")
    readme.write_text(f"{report.BEGIN}{report.END}")
    results.write_bytes(report.ABOUT.encode() + b"\xff")
    assert results in report.update_readme(readme, tmp_path / "results")
    assert results.read_text().startswith("# Results")


def test_readme_shows_presets_that_compare_two_main_models(tmp_path):
    results, readme = tmp_path / "results", tmp_path / "README.md"
    readme.write_text(f"{report.BEGIN}\n{report.END}\n")
    put(results, with_test(600))
    put(results, with_test(600, model="conv"))
    report.update_readme(readme, results)
    assert "No measured runs yet." in readme.read_text()
    put(results, with_test(600, model="linear"))
    report.update_readme(readme, results)
    assert "**Test accuracy (%), preset cpu**" in readme.read_text()
