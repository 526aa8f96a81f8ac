"""What a terminal shows: tables that fit, and bars with the time that is left."""

import io
import re

from rich.console import Console

from lra_fnet.machine import progress, terminal

HEAD = ["Model", "ListOps", "Text"]
ROWS = [["Transformer", "32.97 ± .89 (3)", "did not train"], ["FNet", "1.00\n2 seeds", "-"]]


def printed(table, width):
    stream = io.StringIO()
    Console(file=stream, width=width).print(table)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_table_is_a_line_a_row_where_it_fits_and_wraps_elsewhere():
    table = terminal.Fitted(HEAD, ROWS, title="Accuracy", notes=["A note that is long."])
    row = "Transformer 32.97 ± .89 (3) did not train"
    assert row in " ".join(printed(table, len(row) + 2))
    narrow = printed(table, len(row) - 1)
    assert {*row.split()} <= {*" ".join(narrow).split()}
    assert (narrow[0], narrow[-1]) == ("Accuracy", "A note that is long.")


def test_pipes_get_plain_text_in_wide_lines():
    stream = io.StringIO()
    console = terminal.console(file=stream)
    console.print(terminal.Fitted(HEAD, ROWS, title="Accuracy"))
    assert "\x1b" not in stream.getvalue()
    assert console.width == terminal.FILE_WIDTH


def test_bar_prints_counts_and_notes_without_a_terminal(capfd):
    with progress.Bar("training", 1000, unit="steps") as bar:
        bar.seconds_a_line = 0.0
        bar.update(10)
        bar.update(1000, "loss 1.0")
    first, second, last = capfd.readouterr().err.splitlines()
    assert re.match(r"training: 10 of 1,000 steps", first)
    assert re.match(r"training: 1,000 of 1,000 steps, loss 1\.0", second)
    assert last == "training: 1,000 steps in 0:00:00"


def test_durations_are_for_people():
    times = {45: "0:00:45", 190.4: "0:03:10", 267_840: "3 days, 2:24:00"}
    assert {seconds: progress.duration(seconds) for seconds in times} == times


def test_command_is_quoted_for_a_shell():
    assert terminal.command(["train", "--set", "a=b c"]) == "lra-fnet train --set 'a=b c'"
