"""The HTML page, its figures, the LaTeX files, and which numbers are bold."""

import html.parser
import itertools
import json
import math
import re
import shutil
import subprocess
import types
from pathlib import Path

import pytest
from made_results import (
    a_failure,
    a_measured_cell,
    a_result,
    a_span,
    a_trial,
    put,
    put_curve,
    put_sweep,
    with_test,
)

from lra_fnet import report
from lra_fnet.report import accuracy as tables
from lra_fnet.report import charts, latex, page, significance, sources, tradeoff

TEMPLATES = Path(page.__file__).with_name("templates")
VOID = {"meta", "br", "line", "path", "circle", "polyline", "polygon", "hr", "img", "input", "link"}
HOSTILE = 'x</script><b>&"quoted"'


class Page(html.parser.HTMLParser):
    """Elements of a page as (tag, attributes, text in it); refuses tags that do not nest."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.found, self._open = [], []
        self.feed(text)
        self.close()
        assert self._open == [], f"left open: {self._open}"

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} says {names} twice"
        self.found.append((tag, dict(attrs), []))
        if tag not in VOID:
            self._open.append((tag, self.found[-1]))

    def handle_startendtag(self, tag, attrs):
        assert tag in VOID, f"<{tag}/> is no empty element"
        self.found.append((tag, dict(attrs), []))

    def handle_endtag(self, tag):
        assert self._open, f"</{tag}> closes nothing"
        opened, _ = self._open.pop()
        assert opened == tag, f"</{tag}> closes <{opened}> at {self.getpos()}"

    def handle_data(self, data):
        if self._open:
            self._open[-1][1][2].append(data)

    def all(self, tag, **wanted):
        return [
            (attributes, "".join(text).strip())
            for name, attributes, text in self.found
            if name == tag and all(attributes.get(k) == v for k, v in wanted.items())
        ]


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Runs of every state and form under two presets, a sweep, a benchmark, a span, curves."""
    root = tmp_path_factory.mktemp("made") / "runs"
    for preset in ("paper", "cpu"):
        for model, best in (("fnet", 700), ("linear", 640)):
            put(root, with_test(best, model=model, preset=preset))
    put_curve(put(root, with_test(690, seed=1, uses_mask=False, validation_is_test=True)))
    put(root, with_test(361, model="local"))
    put(root, a_failure("OOM", model="transformer", task="pathx"))
    put(root, a_failure("diverged", model="linear", seed=1))
    put(root, a_result(overrides=[f"A.b='{HOSTILE}'"], variant="odd", config=f"# {HOSTILE}\n"))
    put_curve(put(root, a_result(model=HOSTILE.replace("/", "_"), peak_bytes=5_000_000)))
    spanned = put(root, a_result(model="transformer"))
    spanned.with_name("attention_span.json").write_text(json.dumps(a_span(3.0)))
    trials = [
        a_trial(0, layers=1, validation=0.3),
        a_trial(1, layers=2, validation=0.33),
        a_trial(2, "linear", layers=2, state="failed", error=HOSTILE),
    ]
    put_sweep(root, "layers", trials, [])
    folder = root / "benchmark" / "b"
    folder.mkdir(parents=True)
    cells = [
        a_measured_cell(model, length, [length / 1e4, length / 2e4])
        for model in ("transformer", "fnet", "linear")
        for length in (512, 1024)
    ]
    (folder / "benchmark.json").write_text(json.dumps(cells))
    found = sources.read([root], root.parent / "reports")
    return found, tables.accuracy_tables(found.results)


@pytest.fixture(scope="module")
def text(everything):
    return page.render(*everything)


# The page


def test_tags_nest_and_ids_are_unique(text):
    found = Page(text)
    ids = [attributes["id"] for _, attributes, _ in found.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert text.startswith("<!DOCTYPE html>")


def test_the_page_asks_nothing_of_a_network(text):
    found = Page(text)
    assert not re.search(r"https?://|//\w+\.\w|@import|url\(", text)
    assert not found.all("link")
    assert not found.all("img")
    assert all("src" not in attributes for _, attributes, _ in found.found)
    assert all(attributes["href"].startswith("#") for attributes, _ in found.all("a"))


def test_every_link_and_tip_leads_somewhere(text):
    found = Page(text)
    ids = {attributes["id"] for _, attributes, _ in found.found if "id" in attributes}
    assert {attributes["href"][1:] for attributes, _ in found.all("a")} <= ids
    tips = {a["data-tip"] for _, a, _ in found.found if a.get("data-tip")}
    assert tips == {attributes["id"] for attributes, _ in found.all("template")}


def test_what_a_user_named_is_text_and_nothing_else(text):
    assert HOSTILE not in text
    assert "&lt;/script&gt;" in text
    assert len(Page(text).all("script")) == 1
    assert not Page(text).all("b")


def test_headings_descend_by_one_and_tables_have_captions(text):
    found = Page(text)
    levels = [int(tag[1]) for tag, *_ in found.found if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    in_tips = len(found.all("template"))
    assert len(found.all("caption")) == len(found.all("table")) - in_tips
    assert all("scope" in attributes for attributes, _ in found.all("th"))


def test_states_counts_and_provenance_stand_in_the_page(text):
    words = " ".join(re.sub(r"<[^>]+>", " ", text).split())
    for part in (
        *("OOM", "FAIL", "n/a", "max 35.00, 2 seeds", "FNet paper", "Majority floor"),
        *("95 % interval for these test rows: 3", "700 of 2,000", "commit 0123456789ab"),
        *("1 x Some CPU (cpu, 2 cores)", "Required attention span", "Trials of the sweep layers"),
        *("Training speed (steps/s)", "make lra TASK=text", "1 of 2 seeds"),
    ):
        assert part in words, part


def test_each_configuration_stands_once(text):
    blocks = [body for _, body in Page(text).all("pre")]
    assert len(blocks) == len(set(blocks)) == 2
    assert f"# {HOSTILE}" in blocks


def test_presets_have_sections_of_their_own(text):
    titles = [
        attributes["data-title"]
        for attributes, _ in Page(text).all("section")
        if "data-title" in attributes
    ]
    assert titles == ["Preset paper", "Preset cpu"]


def test_the_script_is_whole():
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node to read the script")
    subprocess.run([node, "--check", str(TEMPLATES / "script.js")], check=True)


def test_a_page_without_curves_sweeps_or_benchmarks_says_so(tmp_path):
    put(tmp_path, a_result())
    found = sources.read([tmp_path])
    text = page.render(found, tables.accuracy_tables(found.results))
    Page(text)
    for part in (
        "None: no run of this preset",
        "No sweep.",
        "No benchmark.",
        "Not measured",
        "No two models",
    ):
        assert part in text


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_have_contrast(scheme):
    """WCAG 2.2: 4.5 for text (1.4.3), 3 for what a figure is understood by (1.4.11)."""
    blocks = re.findall(r":root \{(.*?)\}", (TEMPLATES / "style.css").read_text(), re.S)
    colours = dict(re.findall(r"--(\w+): (#\w{6})", blocks[scheme]))
    assert len(colours) == 7 + charts.COLOURS
    for ground in ("page", "soft"):
        for name in ("text", "muted", "link"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    for number in range(charts.COLOURS):
        assert contrast(colours[f"c{number}"], colours["page"]) >= 3, number


def test_contrast_is_that_of_the_guidelines_examples():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


# Figures


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (19.7, 34.4, [20, 25, 30]), (-0.03, 0.021, [-0.02, 0, 0.02])],
)
def test_ticks_are_round_numbers_in_the_range(low, high, wanted):
    assert charts.linear_ticks(low, high, 6 if wanted[-1] == 10 else 4) == wanted


def test_a_scale_puts_its_ends_at_the_ends_and_a_logarithm_in_between():
    scale = charts.Scale(1, 100, 50, 250, log=True)
    assert [scale(v) for v in (1, 10, 100)] == [50, 150, 250]
    assert charts.Scale(0, 4, 300, 100)(1) == 250  # upside down, as y is
    assert [place for place, _ in scale.ticks(3)] == [50, 150, 250]


def test_one_value_alone_has_a_scale():
    assert math.isfinite(charts.fitted([5.0], 0, 100)(5.0))
    assert math.isfinite(charts.fitted([0.0, 0.0], 0, 100)(0.0))


def test_labels_keep_their_distance_their_order_and_the_box():
    places = [10.0, 11.0, 12.0, 90.0, 99.0]
    moved = charts.spread(places, 12, 0, 100)
    assert all(b - a >= 12 - 1e-9 for a, b in itertools.pairwise(moved))
    assert moved[0] >= 0
    assert moved[-1] <= 100
    assert charts.spread([20.0, 60.0], 12, 0, 100) == [20.0, 60.0]


def test_labels_of_bubbles_cover_neither_each_other_nor_discs():
    discs = [(100.0 + 7 * i % 40, 100.0 + 11 * i % 30, 5.0 + i) for i in range(8)]
    names = [f"Model {i}" for i in range(8)]
    found = charts.beside(discs, names, (0, 600, 0, 400))
    half = charts.LINE / 2
    boxes = [(a.x, a.y - half, a.x + charts.TEXT * len(a.text), a.y + half) for a in found]
    for i, (x, y, x2, y2) in enumerate(boxes):
        for a, b, a2, b2 in boxes[:i]:
            assert x >= a2 - 0.2 or a >= x2 - 0.2 or y >= b2 - 0.2 or b >= y2 - 0.2


def test_the_first_63_models_differ_in_colour_or_marker():
    assert len({charts.style(index) for index in range(63)}) == 63
    assert charts.COLOURS * len(charts.MARKERS) == 63


def test_a_discs_area_is_the_memory():
    made = [
        tradeoff.Point(f"m{i}", 30.0 + i, 5.0 + i, memory, "m", None)
        for i, memory in enumerate((4_000_000_000, 1_000_000_000))
    ]
    found = tradeoff.Tradeoff("listops", "T", "N.", made)
    chart = charts.bubbles(found, {"m0": 0, "m1": 1}, {})
    big, small = (series.marks[0].radius for series in chart.series)
    assert (big / small) ** 2 == pytest.approx(4)


def test_a_line_is_the_mean_of_its_seeds_and_the_band_their_range():
    seeds = [[(0, 0.0), (10, 10.0)], [(0, 2.0), (10, 20.0), (20, 5.0)]]
    chart = charts.lines("T", {"m": seeds}, {"m": 0}, ("x", "y"))
    (series,) = chart.series
    (first, last) = (tuple(map(float, p.split(","))) for p in series.lines[0].split())
    ends = [tuple(map(float, p.split(","))) for p in series.band.split()]
    assert len(ends) == 4
    assert first[1] == pytest.approx((ends[0][1] + ends[3][1]) / 2, abs=0.1)
    assert last[1] == pytest.approx((ends[1][1] + ends[2][1]) / 2, abs=0.1)
    assert series.says == "y 15 at x 10"


def test_a_long_curve_is_thinned_to_means():
    found = charts.thinned([(step, float(step % 2)) for step in range(1, 1001)], most=100)
    assert len(found) == 100
    assert found[0] == (10, 0.5)
    assert found[-1] == (1000, 0.5)
    assert charts.thinned([(1, 2.0)]) == [(1, 2.0)]


def test_a_swept_value_that_is_no_number_has_a_place_of_its_own():
    groups = {"m": [("@A", 1.0), ("@B", 2.0), ("@A", 3.0)]}
    chart = charts.scatter("T", groups, {"m": 0}, ("x", "y"))
    assert [label for _, label in chart.x_ticks] == ["@A", "@B"]
    assert len(chart.series[0].marks) == 3
    assert len(chart.series[0].lines[0].split()) == 2  # the means of both values


# Which numbers are bold


class Difference(types.SimpleNamespace):
    pass


def a_module_that_says(p_values, bits=None):
    """A module of tests: p by the two sides' means in %, told by which test was asked."""

    def told(a, b):
        mean = a - b
        return Difference(mean=mean, low=mean - 1, high=mean + 1, p_value=p_values[round(a, 2)])

    def seeds(a, b):
        return told(sum(a) / len(a), sum(b) / len(b)) if min(len(a), len(b)) > 1 else None

    return types.SimpleNamespace(
        seeds=seeds,
        bits=lambda counts: (bits or {}).get(counts["correct"]),
        paired=lambda a, b: told(100 * sum(a) / len(a), 100 * sum(b) / len(b)),
        unpaired=lambda a, n, b, m: told(100 * a / n, 100 * b / m),
        holm=lambda p: [min(1.0, len(p) * x) for x in p],
    )


def marked(tmp_path, monkeypatch, p_values, *results, bits=None):
    for result in results:
        put(tmp_path, result)
    monkeypatch.setattr(significance, "tests", a_module_that_says(p_values, bits))
    found = sources.read([tmp_path])
    (table,) = tables.accuracy_tables(found.results)
    runs = {run["folder"]: run for run in found.results}
    return significance.best(table.rows, list(tables.TASKS), runs)


def test_bold_is_the_highest_and_what_no_test_tells_from_it(tmp_path, monkeypatch):
    marks = marked(
        *(tmp_path, monkeypatch, {31.0: 0.04, 28.0: 0.001}),
        with_test(640),
        with_test(620, model="linear"),  # p = 0.04 becomes 0.08 by the correction
        with_test(560, model="local"),
    )
    assert marks.bold == {("fnet", None, "listops"), ("linear", None, "listops")}
    against = marks.against["local", None, "listops"]
    assert (against.best, against.p_value, against.told_apart) == ("FNet", 0.002, True)
    assert against.test == significance.UNPAIRED
    assert "unpaired two-proportion (2)" in marks.note


def test_the_test_is_over_seeds_then_over_rows_then_unpaired(tmp_path, monkeypatch):
    rows = {640: [True] * 32 + [False] * 68, 600: [True] * 30 + [False] * 70}
    one = (with_test(640), with_test(600, model="linear"))
    p_values = {30.0: 0.5, 29.0: 0.5}
    marks = marked(tmp_path / "a", monkeypatch, p_values, *one, bits=rows)
    assert [a.test for a in marks.against.values()] == [significance.PAIRED]
    marks = marked(tmp_path / "b", monkeypatch, p_values, *one, bits={640: rows[640]})
    assert [a.test for a in marks.against.values()] == [significance.UNPAIRED]
    two = (with_test(640, seed=1), with_test(600, model="linear", seed=1))
    marks = marked(tmp_path / "c", monkeypatch, p_values, *one, *two, bits=rows)
    assert [a.test for a in marks.against.values()] == [significance.WELCH]
    marks = marked(tmp_path / "d", monkeypatch, p_values, *one, two[0], bits=rows)
    assert [a.test for a in marks.against.values()] == [significance.UNPAIRED]


def test_nothing_is_bold_alone_on_other_data_or_without_a_whole_value(tmp_path, monkeypatch):
    marks = marked(
        *(tmp_path, monkeypatch, {}),
        with_test(640),
        with_test(700, model="linear", data_sha256="e" * 64),
        with_test(690, model="performer"),
        a_failure("OOM", model="performer", seed=1),  # not whole
        with_test(361, model="local"),  # FAIL
    )
    assert marks.bold == frozenset()
    assert marks.note == ""


def test_bold_shows_in_the_page_and_in_latex(tmp_path, monkeypatch):
    marks = marked(
        *(tmp_path, monkeypatch, {30.0: 0.001}), with_test(640), with_test(600, model="linear")
    )
    found = sources.read([tmp_path])
    (table,) = tables.accuracy_tables(found.results)
    assert r"\textbf{32.00}" in latex.accuracy(table, table.rows, marks)
    assert r"\textbf{30.00}" not in latex.accuracy(table, table.rows, marks)
    text = page.render(found, [table])
    assert len(re.findall(r'<td class="best', text)) == 2  # best on validation, last step
    assert "Below the best, FNet: -2.00 points" in text
    assert "p = 0.001" in text


# LaTeX


def test_latex_prints_what_stands_there():
    assert latex.escape(r"50 % of a_b & {x} #1 $2 ~ ^ \n") == (
        r"50 \% of a\_b \& \{x\} \#1 \$2 \textasciitilde{} \textasciicircum{} \textbackslash{}n"
    )
    assert latex.escape("1 ± 2 ‡ --no 中") == r"1 $\pm$ 2 $\ddagger$ -{}-no [U+4E2D]"


def test_every_line_of_a_tabular_has_as_many_cells_as_its_head(everything):
    found, accuracies = everything
    files = latex.files(found, accuracies, {})
    assert len(files) == 5
    for name, body in files.items():
        if name != "latex/report.tex":
            rows = [line for line in body.splitlines() if line.endswith(r"\\")]
            assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1
            assert body.count(r"\toprule") == body.count(r"\bottomrule") == 1
            columns = re.search(r"\{@\{\}(\w+)@\{\}\}", body)
            assert columns is not None
            assert len(columns[1]) == len(re.findall(r"(?<!\\)&", rows[0])) + 1


def test_the_document_takes_in_every_table(everything):
    found, accuracies = everything
    from lra_fnet.report import grids

    files = latex.files(found, accuracies, grids.sections(found, accuracies))
    taken = re.findall(r"\\fitted\{([\w-]+)\}", files["latex/report.tex"])
    assert sorted(f"latex/{name}.tex" for name in taken) == sorted(
        set(files) - {"latex/report.tex"}
    )


def test_the_document_compiles(everything, tmp_path):
    pdflatex = shutil.which("pdflatex")
    if pdflatex is None:
        pytest.skip("no pdflatex to compile with")
    report.write(everything[0], tmp_path)
    command = [pdflatex, "-interaction=nonstopmode", "-halt-on-error", "report.tex"]
    done = subprocess.run(command, cwd=tmp_path / "latex", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "latex" / "report.pdf").stat().st_size > 10_000
