"""The report as CSV, with numbers as they were computed; an empty field is no number."""

import csv
import functools
import io
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lra_fnet.report.accuracy.table import Table
from lra_fnet.run.result import Record

_CELL = "state mean sd seeds low high baseline above bold"
_GAIN = "gain.mean gain.low gain.high gain.p_value"
_RUN = """
folder state preset task model variant seed overrides
validation.best.step validation.best.correct validation.best.count
validation.last.step validation.last.correct validation.last.count
test.best.step test.best.correct test.best.count
test.last.step test.last.correct test.last.count
train.correct train.count floor.correct floor.count
mixer_length uses_mask validation_is_test parameters steps_per_second peak_bytes wall_seconds
denoise init.run init.steps init.wall_seconds
"""
_MACHINE = "device.name device.platform device.count device.cores commit dirty data_sha256 versions"


def accuracy(tables: Sequence[Table]) -> str:
    """Returns one line per cell: a number only where the cell has a value, else its state."""
    return _csv(
        {
            "preset": table.preset,
            "model": row.label,
            "variant": row.variant,
            "source": row.source or "reference",
            "column": column,
            **fields(row.cells[column], _CELL),
            "runs": len(row.cells[column].runs),
            "values": [f"{value:.4f}" for value in row.cells[column].values],
            **fields(row.cells[column], _GAIN),
        }
        for table in tables
        for row, column in itertools.product([*table.rows, *table.variants], table.columns)
    )


def runs(records: Sequence[Record], readings: Mapping[str, int]) -> str:
    """Returns one line per run, with counts, cost and provenance.

    Args:
      records: the runs.
      readings: how often the test split was read, by run folder.
    """
    return _csv(
        fields(run, _RUN) | {"test_readings": readings.get(run.folder)} | fields(run, _MACHINE)
        for run in records
    )


def confusion(records: Sequence[Record]) -> str:
    """Returns one line per run, label and answer that some test rows of the best step have."""
    return _csv(
        {"folder": run.folder, "label": names[label], "answer": names[answer], "rows": rows}
        for run in records
        if (score := run.score("test")) and score.confusion
        for names in [run.classes or range(len(score.confusion))]
        for label, answers in enumerate(score.confusion)
        for answer, rows in enumerate(answers)
        if rows
    )


def _csv(rows: Iterable[dict[str, Any]]) -> str:
    """Returns CSV with a header.

    None is an empty field, true and false are lower case, words of a list are separated by a space,
    and a dictionary is JSON.
    """

    def field(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return " ".join(value)
        if isinstance(value, bool | dict):
            return json.dumps(value, sort_keys=True)
        return value

    lines = [{name: field(value) for name, value in row.items()} for row in rows]
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def fields(value: Any, paths: str) -> dict[str, Any]:
    """Returns attributes such as `test.best.step` by name, as test_best_step.

    Each attribute of None is None.
    """

    def attribute(path: str) -> Any:
        return functools.reduce(
            lambda v, n: None if v is None else getattr(v, n), path.split("."), value
        )

    return {path.replace(".", "_"): attribute(path) for path in paths.split()}
