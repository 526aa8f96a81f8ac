"""The HTML page, its figures, and plots as SVG."""

import html.parser
import json
import re
from urllib.parse import unquote

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
    records,
    scored,
    with_test,
)

from lra_fnet import report
from lra_fnet.report.accuracy.build import tables
from lra_fnet.report.render import figures, svg
from lra_fnet.report.render import html as page
from lra_fnet.report.render.svg import Panel, Series
from lra_fnet.report.speed.points import points

VOID = {"meta", "path", "circle", "br", "input"}
HOSTILE = 'x</script><b>&"quoted"'


class Page(html.parser.HTMLParser):
    """Elements of a page as (tag, attributes, text); fails on tags that do not nest."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self._open = [], []
        self.feed(text)
        self.close()
        assert self._open == [], f"left open: {self._open}"

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has {names} twice"
        self.elements.append((tag, dict(attrs), []))
        if tag not in VOID:
            self._open.append((tag, self.elements[-1]))

    def handle_startendtag(self, tag, attrs):
        assert tag in VOID, f"<{tag}/> is not an empty element"
        self.elements.append((tag, dict(attrs), []))

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
            for name, attributes, text in self.elements
            if name == tag and all(attributes.get(k) == v for k, v in wanted.items())
        ]


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A report with every state and form under two presets, sweep, benchmark, span, curves."""
    root = tmp_path_factory.mktemp("made") / "runs"
    for preset in ("paper", "cpu"):
        for model, best in (("fnet", 700), ("linear", 640)):
            put(root, with_test(best, model=model, preset=preset))
    put_curve(put(root, with_test(690, seed=1, uses_mask=False, validation_is_test=True)))
    put(root, with_test(360, model="dct"))
    put(root, a_failure("OOM", model="transformer", task="pathfinder"))
    put(root, a_failure("diverged", model="linear", seed=1))
    put(root, a_result(overrides=[f"A.b='{HOSTILE}'"], variant="odd", config=f"# {HOSTILE}\n"))
    put_curve(put(root, a_result(model="performer", peak_bytes=5_000_000)))
    spanned = put(root, a_result(model="transformer"))
    spanned.with_name("attention_span.json").write_text(json.dumps(a_span(3.0)))
    trials = [a_trial(0, validation=0.3), a_trial(1, "linear", state="failed", error=HOSTILE)]
    put_sweep(root, "layers", trials, [])
    folder = root / "benchmark" / "b"
    folder.mkdir(parents=True)
    cells = [
        a_measured_cell(model, length, [length / 1e4, length / 2e4])
        for model in ("transformer", "fnet", "linear")
        for length in (512, 1024)
    ]
    (folder / "benchmark.json").write_text(json.dumps(cells))
    return report.build(report.Sources([root]))


@pytest.fixture(scope="module")
def text(everything):
    return page.render(everything)


def test_tags_nest_and_every_link_has_a_target(text):
    elements = Page(text)
    ids = [attributes["id"] for _, attributes, _ in elements.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {unquote(attributes["href"][1:]) for attributes, _ in elements.all("a")} <= {*ids}
    assert text.startswith("<!DOCTYPE html>")


def test_page_needs_no_network(text):
    elements = Page(text)
    found = re.findall(r"https?:/\S*|//\w+\.\w|@import|url\((?!#)", text)
    assert set(found) <= {'http://www.w3.org/2000/svg"'}
    assert not elements.all("link")
    assert all("src" not in attributes for _, attributes, _ in elements.elements)


def test_names_of_users_are_escaped(text):
    assert HOSTILE not in text
    assert "&lt;/script&gt;" in text
    assert len(Page(text).all("script")) == 1
    assert not Page(text).all("b")


def test_states_counts_and_provenance_are_in_the_page(text):
    words = " ".join(re.sub(r"<[^>]+>", " ", text).split())
    for part in (
        *("OOM", "collapsed", "FNet paper", "Majority floor", "34.75 (2)"),
        *("Some CPU", "Required attention span", "Trials of the sweep layers", "Training, steps/s"),
    ):
        assert part in words, part


def test_every_table_of_the_report_has_a_place_in_the_page(everything, text):
    shown = " ".join(words for _, words in Page(text).all("summary"))
    for heading, listed in everything.sections.items():
        assert all(grid.title in shown for grid in listed), heading
    headings = [words for _, words in Page(text).all("h2")]
    assert headings[:2] == ["Result", "Accuracy"]
    assert headings[-2:] == ["Literature", "Learning curves"]


def test_bold_and_italic_cells_have_a_class(tmp_path):
    rule = {name: {"correct": 620, "count": 2000} for name in ("validation", "test")}
    rule |= {"method": "m", "settings": {}}
    for model, n in (("fnet", 640), ("linear", 520)):
        for seed in range(3):
            put(tmp_path, with_test(n + seed, model=model, seed=seed, shallow=rule))
    cells = Page(page.render(report.build(report.Sources([tmp_path])))).all(
        "td", **{"class": "italic"}
    )
    assert {words for _, words in cells} == {"26.05 ± .05 (3)"}


# Plots


@pytest.mark.parametrize(
    ("ends", "log", "ticks"),
    [
        ((0, 1), False, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        ((-21, 9), False, [-20, -10, 0]),
        ((2, 30), True, [2, 5, 10, 20]),
        ((0.01, 2000), True, [0.01, 0.1, 1, 10, 100, 1000]),
        ((55, 75), True, [55, 60, 65, 70, 75]),
    ],
)
def test_ticks_are_round_and_few(ends, log, ticks):
    assert svg.ticks(*ends, log) == pytest.approx(ticks)


def drawn(plot):
    """The series of a plot as (class, title, points of the line, circles)."""
    found = []
    for colour, inside in re.findall(r'<g class="(c\d)"><title>(.*?)</g>', plot):
        title, _, rest = inside.partition("</title>")
        circles = [tuple(map(int, c)) for c in re.findall(r'cx="(-?\d+)" cy="(-?\d+)"', rest)]
        found.append((colour, title, circles))
    return found


def test_places_are_linear_in_the_values_or_in_their_logarithms():
    steps = [(1.0, 0.0), (10.0, 5.0), (100.0, 10.0)]
    plot = svg.plot([Panel("t", "x", "y", [Series(steps, 0, "a <b>")], log_x=True)], "T")
    ((colour, title, circles),) = drawn(plot)
    assert (colour, title) == ("c0", "a &lt;b&gt;")
    (x1, y1), (x2, y2), (x3, y3) = circles
    assert abs(x2 - x1 - (x3 - x2)) <= 1
    assert abs(y1 - y2 - (y2 - y3)) <= 1
    assert svg.LEFT < x1 < x3 < svg.LEFT + svg.WIDTH
    assert svg.TOP < y3 < y1 < svg.TOP + svg.HEIGHT


def test_file_of_a_plot_is_whole_and_has_its_colours():
    plot = svg.plot([Panel("t", "x", "y", [Series([(1, 2)], 3, "")])], "T", [("FNet", 3)])
    text = svg.standalone(plot)
    assert text.startswith('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ')
    assert "--c3: #" in text
    Page(text)


# Figures


def test_first_figure_shows_points_above_no_mixing_on_the_device_of_the_main_models():
    other = {"name": "Other CPU", "platform": "cpu", "count": 1, "cores": 2}
    names = {"fnet": ["fnet", "dct"], "linear": ["ff_only", "linear", "local"]}
    runs = [scored(m, s) | {"model": name} for m, of in names.items() for s, name in enumerate(of)]
    runs[-1]["device"] = other
    (table,) = tables(records(*runs))
    plot = figures.above_no_mixing(table, points(table))
    shown = [(colour, title.partition(":")[0]) for colour, title, _ in drawn(plot)]
    assert sorted(shown) == [("c1", "Linear"), ("c2", "FNet"), ("c4", "Cosine transform")]
    texts = re.findall(r">([^<>]+)</text>", plot)
    assert texts.count("FNet") == 2  # the best, and the legend's
    assert texts[-3:] == ["Linear", "FNet", "other models"]
    (none,) = tables(records(*(run for run in runs if run["model"] != "ff_only")))
    assert figures.above_no_mixing(none, points(none)) == ""


def test_learning_curve_is_the_mean_of_its_seeds():
    seeds = [[(0, 0.0), (10, 10.0)], [(0, 2.0), (10, 20.0), (20, 5.0)]]
    apart = [[(1, 1.0)], [(2, 4.0), (3, 8.0)]]
    plot = figures.learning("ListOps", {"fnet": seeds, "dct": apart})
    assert [title for _, title, _ in drawn(plot)] == ["Cosine transform: 8 at 3", "FNet: 15 at 10"]
    lines = [re.findall(r"(\d+) (\d+)", line) for line in re.findall(r'd="(M\d[^VHh"]*)"', plot)]
    rises = [(int(b[0]) > int(a[0]), int(b[1]) < int(a[1])) for a, b in lines]
    assert rises == [(True, True)] * 2
