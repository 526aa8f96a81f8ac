"""The literature's rows: their means, their sources, and which of ours stand among them."""

import statistics

import pytest
from made_results import a_result, put, records

from lra_fnet.report.accuracy import build as accuracy
from lra_fnet.report.accuracy import literature
from lra_fnet.report.accuracy.cell import TASKS
from lra_fnet.report.accuracy.published import corrected, published
from lra_fnet.report.sections import build
from lra_fnet.report.sources import Sources

ROWS = published()["literature"]["rows"]


def test_printed_means_are_those_of_the_rows():
    """Within the last printed digit; a failed Path-X counts 50."""
    for row in ROWS:
        values = [50.0 if row[task] == "FAIL" else row[task] for task in TASKS]
        for name, number in (("average5", 5), ("average6", 6)):
            if name in row and "n/a" not in values[:number]:
                digits = 0.1 if row["arxiv"] == "2205.14135" or row["model"] == "LRU" else 0.00501
                mean = statistics.fmean(values[:number])
                assert corrected(row[name]) == pytest.approx(mean, abs=digits), row["model"]


def test_every_row_names_source_tier_and_a_described_protocol():
    for row in ROWS:
        assert row["arxiv"]
        assert row["printed_in"]
        assert row["tier"] in ("self", "self, quoted", "others")
        assert row["protocol"] in published()["literature"]["protocols"]


def test_table_is_sorted_and_shows_ours_except_of_uncompared_presets():
    own = {"preset": "tuned", "task": "my_task"}  # its seeds are not those of the row
    results = (
        a_result(preset="tuned"),
        a_result(preset="tuned", seed=1),
        a_result(),
        a_result(**own),
    )
    tables = accuracy.tables(records(*results))
    grid = literature.grid(literature.standings(tables, {}))
    column = list(grid.head).index("Mean of 5")
    means = [float(row[column]) for row in grid.rows if row[column] not in ("-", "n/a")]
    assert means == sorted(means, reverse=True)
    here = [row for row in grid.rows if row[-2] == "here"]
    assert [(row[0], row[1], *row[9:11]) for row in here] == [("FNet", "30.00 (2)", "pixels", "2")]
    assert here == list(grid.rows[-1:])
    assert any(note.startswith("Mean of 6 counts a failed Path-X as 50.") for note in grid.notes)
    mega = next(row for row in grid.rows if row[0] == "Mega")
    assert mega[-5:] == ["88.21", "pixels", "5", "self", "arXiv:2209.10655, Table 2"]
    assert [row[0] for row in grid.rows if row[-1] == "arXiv:2105.03824, Table 4a"] == [
        *("Transformer", "FNet", "Linear")
    ]


def test_submitted_results_are_in_this_table_only_with_their_tier(tmp_path):
    theirs = tmp_path / "results" / "submitted" / "ada"
    put(theirs, a_result(preset="tuned", model="mine"))
    put(theirs, a_result(preset="tuned", model="mine", overrides=["A.b=1"], variant="wide"))
    put(theirs, a_result())  # cpu is compared with nothing
    put(tmp_path / "results", a_result(preset="tuned"))
    put(tmp_path / "results", a_result(preset="tuned", overrides=["A.b=1"], variant="wide"))
    put(tmp_path / "results" / "submitted" / "bob", a_result()).write_text("{")
    report = build(Sources([tmp_path / "results"]))
    rows = [row for row in report.literature.rows if row[-2] in ("submitted", "here")]
    source = "results/submitted/ada, preset tuned"
    assert sorted((row[0], *row[-4:]) for row in rows) == [
        ("FNet", "pixels", "1", "here", "preset tuned"),
        ("mine", "pixels", "1", "submitted", source),
        ("mine, wide", "preset tuned, changed", "1", "submitted", source),
    ]
    assert [run.model for run in report.runs] == ["fnet", "fnet"]
    (problem,) = report.sources.problems
    assert "submitted/bob" in problem


def test_a_submitted_run_under_two_roots_is_one_seed(tmp_path):
    roots = [tmp_path / name for name in ("runs", "results")]
    for root in roots:
        put(root / "submitted" / "ada", a_result(preset="tuned", model="mine"))
    put(roots[1] / "submitted" / "ada", a_result(preset="tuned", model="mine", seed=1))
    report = build(Sources(roots))
    (row,) = [row for row in report.literature.rows if row[-2] == "submitted"]
    assert row[-3] == "2"


def test_tasks_with_different_numbers_of_seeds_show_both():
    results = [a_result(preset="tuned", seed=seed) for seed in range(3)]
    results.append(a_result(preset="tuned", task="text"))
    (own,) = (
        e for e in literature.standings(accuracy.tables(records(*results)), {}) if e.tier == "here"
    )
    assert own.seeds == "1 to 3"
