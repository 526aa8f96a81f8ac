"""What a terminal shows: tables that fit, plain text in pipes, bars that tell the truth."""

import io
import itertools
import re
import sys

import pytest
from rich.console import Console

from lra_fnet.machine import progress, terminal

HEAD = ["Model", "ListOps", "Text"]
ROWS = [["Transformer", "32.97 ± .89 (3)", "did not train"], ["FNet", "1.00\n2 seeds", "-"]]


def printed(table, width):
    stream = io.StringIO()
    Console(file=stream, width=width).print(table)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_table_is_columns_where_it_fits_and_one_line_a_cell_elsewhere():
    table = terminal.Fitted(HEAD, ROWS, title="Accuracy", notes=["A note that is long."])
    row = "Transformer 32.97 ± .89 (3) did not train"
    wide = next(w for w in itertools.count(20) if row in " ".join(printed(table, w)))
    assert max(map(len, printed(table, wide))) <= wide
    assert wide <= len(row) + 2
    assert printed(table, wide - 1) == [
        "Accuracy",
        "Transformer",
        "  ListOps  32.97 ± .89 (3)",
        "  Text     did not train",
        "FNet",
        "  ListOps  1.00, 2 seeds",
        "A note that is long.",
    ]
    narrow = len("  Text     did not train") - 1
    assert "  Text  did not train" in printed(table, narrow)
    assert max(map(len, printed(table, narrow))) <= narrow


@pytest.mark.parametrize("no_color", ["", "1"])
def test_pipes_and_no_color_give_plain_text(monkeypatch, no_color):
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm-256color")
    for is_terminal in (True, False):
        stream = io.StringIO()
        console = terminal.console(file=stream, force_terminal=is_terminal)
        console.print(terminal.Fitted(HEAD, ROWS, title="Accuracy"))
        assert ("\x1b" in stream.getvalue()) == (is_terminal and not no_color)
        assert console.width == terminal.FILE_WIDTH or is_terminal


@pytest.fixture
def clock(monkeypatch):
    """The time that a bar sees, in seconds."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_time_left_is_that_of_the_rate_without_what_compiles_first(clock, monkeypatch):
    lines = []
    monkeypatch.setattr(progress, "say", lines.append)
    monkeypatch.setattr(progress.Bar, "seconds_a_line", 0.0)
    with progress.Bar("training", 1000, unit="steps") as bar:
        for second, done in ((20, 10), (22, 30), (30, 110)):  # 20 s to compile, then 10 a second
            clock[0] = second
            bar.update(done)
        bar.update(1000, "loss 1.0")
    assert lines == [
        "training: 10 of 1,000 steps",
        "training: 30 of 1,000 steps",
        "training: 110 of 1,000 steps, 1 min 29 s left",
        "training: 1,000 of 1,000 steps, loss 1.0, 0 s left",
        "training: 1,000 steps in 30 s (loss 1.0)",
    ]


def test_time_left_leaves_out_what_comes_before_the_first_units(clock, monkeypatch):
    """A resumed training may begin with an evaluation."""
    lines = []
    monkeypatch.setattr(progress, "say", lines.append)
    monkeypatch.setattr(progress.Bar, "seconds_a_line", 0.0)
    with progress.Bar("training", 200, 100, unit="steps") as bar:
        for second, done in ((5, 100), (600, 100), (601, 101), (611, 111)):
            clock[0] = second
            bar.update(done)
    assert lines[:-1] == [
        "training: 100 of 200 steps",
        "training: 100 of 200 steps",
        "training: 101 of 200 steps",
        "training: 111 of 200 steps, 1 min 29 s left",
    ]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_bar_keeps_title_counts_and_elapsed_time_at_every_width(clock, monkeypatch, width):
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr(progress, "console", console)
    monkeypatch.setattr(progress.sys, "stderr", type("Terminal", (), {"isatty": lambda _: True})())
    bar = progress.Bar("training", 2000, unit="steps")
    for second, done in ((1, 10), (61, 1000)):
        clock[0] = second
        bar.update(done, "loss 1.234, accuracy 0.456, validation 0.345, 25.5 steps/s")
    console.print(bar._bar.get_renderable())
    (line,) = [line for line in stream.getvalue().splitlines() if line.strip()]
    assert len(line) <= width
    assert "training" in line
    assert "1,000 of 2,000" in line
    assert re.search(r"\d:\d\d:\d\d", line)
    assert ("1 min 0 s left" in line, "25.5 steps/s" in line) == (width > 40, width > 80)


@pytest.mark.parametrize(
    ("called", "on_path", "says"),
    [
        (".venv/bin/lra-fnet", False, ".venv/bin/lra-fnet"),
        (".venv/bin/lra-fnet", True, ".venv/bin/lra-fnet"),  # another one
        ("/opt/a b/lra-fnet", False, "'/opt/a b/lra-fnet'"),
        ("path/lra-fnet", True, "lra-fnet"),
        ("pytest", False, "lra-fnet"),
    ],
)
def test_a_command_to_type_is_called_as_this_one_was(monkeypatch, tmp_path, called, on_path, says):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    if on_path:
        (tmp_path / "path").mkdir()
        (tmp_path / "path/lra-fnet").touch(0o755)
    assert terminal.command(["train", "--set", "a=b c"]) == f"{says} train --set 'a=b c'"
