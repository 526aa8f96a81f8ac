"""The report: results collected, broken files, tables in every form, files written, README."""

import csv
import io
import json
import math
import os
import re
import subprocess
import sys

import pytest
from made_results import a_failure, a_result, collected, put, with_test
from paths import ROOT
from rich.console import Console

from lra_fnet import intervals, report
from lra_fnet.errors import UserError
from lra_fnet.report import accuracy as tables
from lra_fnet.report import sources

# Collecting


def test_a_run_in_two_roots_counts_once_and_the_first_root_wins(tmp_path):
    put(tmp_path / "runs", with_test(600))
    put(tmp_path / "results", with_test(640))
    put(tmp_path / "results", with_test(700, seed=1))
    results = report.collect([tmp_path / "runs", tmp_path / "results"])
    found = [(run["folder"], run["test"]["best"]["correct"]) for run in results]
    assert found == [
        ("runs/cpu/listops/fnet/seed0", 600),
        ("results/cpu/listops/fnet/seed1", 700),
    ]


def test_folders_moved_aside_and_missing_roots_hold_no_runs(tmp_path):
    file = put(tmp_path / "runs", a_result())
    file.parent.rename(file.parent.with_name(".seed0.moved-20250101-000000-000000"))
    put(tmp_path / "runs", a_result(seed=12)).parent.rename(file.parent.with_name("seed12.old"))
    assert report.collect([tmp_path / "runs", tmp_path / "absent"]) == []


def without(key):
    result = a_result()
    del result[key]
    return result


def with_bits(checkpoint, right):
    result = a_result()
    result["test"][checkpoint]["correct_bits"] = intervals.encode(right)
    return result


BROKEN = {
    "cut off": ('{"schema": 1,', r"not a readable result \(Expecting property name .*\)"),
    "not text": (b"\xff\xfe", r"not a readable result \('utf-8' codec .*\)"),
    "a list": ([], "expected a JSON object, got a list"),
    "other schema": (a_result(schema=2), "expected schema 1, got 2"),
    "no key": (without("floor"), "'floor' is missing"),
    "no measurement": (without("parameters"), "'parameters' is missing"),
    "text for number": (a_result(seed="0"), "'seed' should be int, is \"0\""),
    "bool for number": (a_result(seed=False), "'seed' should be int, is false"),
    "state": (a_result(state="done"), 'expected a state of complete, OOM, diverged, got "done"'),
    "too many right": (with_test(2001), "test best: 2001 correct of 2000 rows is impossible"),
    "negative": (with_test(600, last=-1), "test last: -1 correct of 2000 rows is impossible"),
    "no rows": (
        a_result(floor={"correct": 0, "count": 0}),
        "floor: 0 correct of 0 rows is impossible",
    ),
    "rows left out": (with_test(600, count=1999), "test best: 1999 rows, the floor has 2000"),
    "too few bits": (
        with_bits("best", [True] * 600),
        "test best: 'correct_bits' does not fit: 75 bytes, 2000 rows take 250",
    ),
    "other bits": (
        with_bits("last", [True] * 601 + [False] * 1399),
        "test last: 'correct_bits' does not fit: 601 right rows, 'correct' says 580",
    ),
    "no best": (
        a_result(validation={"last": {"step": 1, "correct": 1, "count": 2}}),
        "validation best should hold correct and count, is null",
    ),
    "device": (a_result(device={"name": "x"}), "device: 'platform' is missing"),
    "no variant": (a_result(overrides=["Run.num_steps=1"]), "a run with overrides needs a variant"),
    "overrides": (
        a_result(overrides=[1], variant="x"),
        r"'overrides' should be strings, are \[1\]",
    ),
    "other folder": (
        a_result(seed=3),
        "it says cpu/listops/fnet/seed3, its folder is cpu/listops/fnet/seed0",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_result_is_one_line_that_names_the_file(tmp_path, case):
    content, problem = BROKEN[case]
    file = put(tmp_path / "runs", a_result())
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UserError) as caught:
        report.collect([tmp_path / "runs"])
    remedy = "move its folder away, or run that run again with FORCE=1"
    assert re.fullmatch(f"{re.escape(str(file))}: {problem}; {remedy}", str(caught.value))


# Files and terminal


def results_of_all_kinds(tmp_path):
    return collected(
        tmp_path,
        with_test(600, last=580),
        with_test(640, seed=1),
        with_test(361, model="linear"),
        a_failure("OOM", model="transformer", task="pathx"),
        a_result(overrides=["Run.names=[red]|3"], variant="odd"),
    )


def test_markdown_tables_are_whole(tmp_path):
    """Every row of a table has the header's number of cells; the round trip finds our numbers."""
    text = report.render_markdown(tables.accuracy_tables(results_of_all_kinds(tmp_path)))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [line.split("|")[1:-1] for line in lines]
    assert {len(row) for row in rows} == {10}
    found = {(row[0].strip(), row[1].strip()): row[2].strip() for row in rows[: len(rows) // 2]}
    assert found["FNet", "ours"] == "31.00 ± 1.41, max 32.00, 2 seeds"
    assert found["Linear", "ours"] == "FAIL"
    assert found["Transformer", "ours"] == "-"


def test_csv_round_trip_holds_states_and_never_a_zero_for_them(tmp_path):
    text = report.render_csv(tables.accuracy_tables(results_of_all_kinds(tmp_path)))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert all((row["mean"] == "") == (row["state"] != "value") for row in rows)
    ours = {
        (row["model"], row["column"], row["checkpoint"]): row
        for row in rows
        if row["source"] == "ours"
    }
    fnet = ours["FNet", "listops", "best"]
    assert float(fnet["mean"]) == pytest.approx(31.0)
    assert float(fnet["sd"]) == pytest.approx(math.sqrt(2))
    assert (fnet["maximum"], fnet["seeds"]) == ("32.0", "2")
    assert float(ours["FNet", "listops", "last"]["mean"]) == pytest.approx(30.5)
    assert ours["Transformer", "pathx", "best"]["state"] == "OOM"
    assert ours["Linear", "listops", "best"]["state"] == "FAIL"
    assert ours["FNet", "average5", "best"]["state"] == "-"


def test_runs_csv_holds_counts_of_every_run(tmp_path):
    results = results_of_all_kinds(tmp_path)
    rows = list(csv.DictReader(io.StringIO(report.render_runs_csv(results))))
    assert len(rows) == len(results) == 5
    by_folder = {row["folder"]: row for row in rows}
    row = by_folder["runs/cpu/listops/fnet/seed0"]
    got = (row["test_best_correct"], row["test_best_count"], row["test_last_correct"])
    assert got == ("600", "2000", "580")
    assert (row["dirty"], row["peak_bytes"], row["variant"]) == ("false", "", "")
    failed = by_folder["runs/cpu/pathx/transformer/seed0"]
    assert (failed["state"], failed["test_best_correct"], failed["parameters"]) == ("OOM", "", "")
    assert by_folder["runs/cpu/listops/fnet+odd/seed0"]["overrides"] == "Run.names=[red]|3"


def printed(*renderables, width=120):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    for renderable in renderables:
        console.print(renderable)
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def test_the_terminal_shows_everything_at_80_columns(tmp_path):
    found = report.render_terminal(tables.accuracy_tables(results_of_all_kinds(tmp_path)))
    assert len(found) == 2  # best on validation, last step
    text = printed(*found, width=80)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    for part in ("31.00±1.41", "max 32.00", "35.33", "Run.names=[red]|3", "preset cpu"):
        assert part in text


def test_main_writes_every_form_and_says_where(tmp_path):
    results_of_all_kinds(tmp_path)
    out = tmp_path / "reports"
    stream = io.StringIO()
    files = report.main([tmp_path / "runs"], out, Console(file=stream, width=200))
    assert [file for file in files if file.parent == out] == [
        out / name
        for name in (
            *("index.html", "accuracy.md", "report.md"),
            *("accuracy.csv", "runs.csv", "tables.csv"),
        )
    ]
    assert sorted(path for path in out.rglob("*") if path.is_file()) == sorted(files)
    told = [file for file in files if file.parent == out] + [out / "latex" / "report.tex"]
    assert all(f"wrote {file}" in stream.getvalue() for file in told)
    assert (out / "accuracy.md").stat().st_mode & 0o777 == 0o644


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path, monkeypatch):
    out = tmp_path / "reports"
    collected(tmp_path, a_result())
    report.write(sources.read([tmp_path / "runs"]), out)
    before = {path: path.read_text() for path in out.rglob("*.*")}
    put(tmp_path / "runs", a_result(seed=1))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError) as caught:
        report.write(sources.read([tmp_path / "runs"]), out)
    expected = f"{out / 'index.html'}: cannot be written (No space left on device)"
    assert str(caught.value) == f"{expected}; make room or name another"
    assert {path: path.read_text() for path in out.rglob("*.*")} == before


@pytest.mark.parametrize("results", [[], [a_result(test=None)]], ids=["no run", "no test"])
def test_no_results_name_the_command_that_makes_one(tmp_path, results):
    for result in results:
        put(tmp_path / "runs", result)
    with pytest.raises(UserError) as caught:
        report.main([tmp_path / "runs", tmp_path / "results"], tmp_path / "reports")
    assert str(caught.value) == (
        f"expected at least one run with a test accuracy under {tmp_path / 'runs'} or "
        f"{tmp_path / 'results'}, found none; "
        "`make lra TASK=listops MODEL=fnet PRESET=cpu` makes one"
    )
    assert not (tmp_path / "reports").exists()


def test_run_table_shows_counts_interval_floor_and_published():
    low, high = (100 * end for end in tables.wilson(600, 2000))
    text = printed(report.run_table(a_result(uses_mask=False, overrides=["A.b=[1]"], variant="v")))
    for part in ("fnet+v ‡", "ListOps", "cpu", "30.00 %", "600 of 2000", "18.00 %", "35.33", "n/a"):
        assert part in text
    assert f"95 %: {low:.2f} to {high:.2f}" in text
    assert "Overrides: A.b=[1]" in text
    assert "FAIL" not in text


@pytest.mark.parametrize(
    ("result", "part"),
    [
        (with_test(361), "FAIL"),
        (a_failure("OOM"), "OOM"),
        (a_failure("diverged"), "FAIL (diverged)"),
        (a_result(test=None), " - "),
    ],
)
def test_run_table_shows_states(result, part):
    assert part in printed(report.run_table(result))


def test_print_run_prints_the_table():
    console = Console(file=io.StringIO(), width=100)
    report.print_run(a_result(), console)
    assert "600 of 2000" in console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


# README


def test_readme_section_replaces_what_stands_between_the_markers(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"# Name\n\n{report.BEGIN}\nold\n{report.END}\n\nmore\n")
    results = collected(tmp_path, a_result())
    assert report.update_readme(readme, results) is True
    section = report.readme_section(results)
    assert readme.read_text() == f"# Name\n\n{section}\n\nmore\n"
    assert str(tmp_path) not in section
    assert report.update_readme(readme, results) is False


def test_readme_section_without_results_says_so():
    assert "No measured runs yet." in report.readme_section([])


@pytest.mark.parametrize(
    "text",
    [
        "",
        report.BEGIN,
        f"{report.END}\n{report.BEGIN}",
        f"{report.BEGIN}{report.BEGIN}{report.END}",
        f"{report.BEGIN}{report.END}{report.END}",
    ],
)
def test_a_readme_without_its_markers_is_refused(tmp_path, text):
    readme = tmp_path / "README.md"
    readme.write_text(text)
    with pytest.raises(UserError, match="expected one line <!-- results:begin --> and after it"):
        report.update_readme(readme, [])
    assert readme.read_text() == text


def test_importing_report_imports_no_jax():
    """A table must come in a moment, on a machine without an accelerator's driver too."""
    heavy = "{'jax', 'flax', 'tensorflow', 'tensorflow_datasets'} & set(sys.modules)"
    code = f"import sys, lra_fnet.report; assert not {heavy}, {heavy}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
