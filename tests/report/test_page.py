"""The HTML page, its figures, and the LaTeX files."""

import dataclasses
import html
import html.parser
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest
from made_results import (
    a_failure,
    a_measured_cell,
    a_result,
    a_span,
    a_trial,
    measured,
    put,
    put_curve,
    put_sweep,
    records,
    with_test,
)

from lra_fnet import report
from lra_fnet.report import accuracy, benchmarks, figures, latex, page, tables, tradeoff
from lra_fnet.report.render.grid import Grid

TEMPLATES = Path(page.__file__).with_name("templates")
STYLE = (TEMPLATES / "style.css").read_text()
VOID = {"meta", "path", "rect", "use", "br", "hr", "img", "input", "link"}
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
    put(root, with_test(360, model="local"))
    put(root, with_test(361, model="dct"))
    put(root, a_failure("OOM", model="transformer", task="pathx"))
    put(root, a_failure("diverged", model="linear", seed=1))
    put(root, a_result(overrides=[f"A.b='{HOSTILE}'"], variant="odd", config=f"# {HOSTILE}\n"))
    put_curve(put(root, a_result(model="performer", peak_bytes=5_000_000)))
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
    return report.build(report.Sources([root]))


@pytest.fixture(scope="module")
def text(everything):
    return page.render(everything)


# The page


def test_tags_nest_and_ids_are_unique(text):
    elements = Page(text)
    ids = [attributes["id"] for _, attributes, _ in elements.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert text.startswith("<!DOCTYPE html>")


def test_page_needs_no_network(text):
    elements = Page(text)
    assert not re.search(r"https?:/|//\w+\.\w|@import|url\((?!#)", text)
    assert not elements.all("link")
    assert not elements.all("img")
    assert all("src" not in attributes for _, attributes, _ in elements.elements)
    assert all(attributes["href"].startswith("#") for attributes, _ in elements.all("a"))


def test_every_link_and_tip_has_a_target(text):
    elements = Page(text)
    ids = {attributes["id"] for _, attributes, _ in elements.elements if "id" in attributes}
    assert {unquote(attributes["href"][1:]) for attributes, _ in elements.all("a")} <= ids
    tips = {a["data-tip"] for _, a, _ in elements.elements if a.get("data-tip")}
    assert tips == {attributes["id"] for attributes, _ in elements.all("template")}


def test_names_of_users_are_escaped(text):
    assert HOSTILE not in text
    assert "&lt;/script&gt;" in text
    assert len(Page(text).all("script")) == 1
    assert not Page(text).all("b")


def test_headings_descend_by_one_and_tables_have_captions(text):
    elements = Page(text)
    levels = [int(tag[1]) for tag, *_ in elements.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    in_tips = len(elements.all("template"))
    assert len(elements.all("caption")) == len(elements.all("table")) - in_tips
    assert all("scope" in attributes for attributes, _ in elements.all("th"))


def test_states_counts_and_provenance_are_in_the_page(text):
    words = " ".join(re.sub(r"<[^>]+>", " ", text).split())
    for part in (
        *(
            "OOM",
            "FAIL",
            "n/a",
            "did not train",
            "35.00 / 34.50, 2 seeds",
            "FNet paper",
            "Majority floor",
        ),
        *(
            "95 % intervals of all seeds for these test rows: 3",
            "18.05¶",
            "700 of 2,000",
            "commit 0123456789ab",
        ),
        *("1 x Some CPU (cpu, 2 cores)", "Required attention span", "Trials of the sweep layers"),
    ):
        assert part in words, part


def test_spread_of_a_table_is_computed_once(everything, monkeypatch):
    calls, spread = [], tables.Part.spread.fget
    monkeypatch.setattr(
        tables.Part, "spread", property(lambda part: calls.append(part) or spread(part))
    )
    found = Page(page.render(everything)).all("table")
    shown = [attributes for attributes, _ in found if "accuracy" in attributes.get("class", "")]
    assert len(calls) == len(shown)


def test_tip_of_a_cell_has_the_test_accuracy_of_both_checkpoints(tmp_path):
    put(tmp_path, with_test(600, last=580))
    shown = page.render(report.build(report.Sources([tmp_path])))
    tip = shown[shown.index("<template") :].partition("</template>")[0]
    assert "<p>Checkpoint best on validation: 95 % interval" in tip
    assert re.findall(r"(30\.00|29\.00)", tip) == ["30.00", "29.00"]
    assert tip.index("Test, last step</th>") < tip.index("Train</th>")


def test_variants_of_a_preset_without_other_runs_are_open_and_alone(tmp_path):
    put(tmp_path, a_result(variant="long", overrides=["MAX_LEN=4096"]))
    shown = page.render(report.build(report.Sources([tmp_path])))
    assert "<details open>\n<summary>Variants <small>1 row</small>" in shown
    assert "The same at the last step" not in shown
    put(tmp_path, a_result())
    shown = page.render(report.build(report.Sources([tmp_path])))
    assert "<details>\n<summary>Variants <small>1 row</small>" in shown
    assert "The same at the last step" in shown


def test_each_configuration_is_shown_once(text):
    blocks = [body for _, body in Page(text).all("pre")]
    assert len(blocks) == len(set(blocks)) == 2
    assert f"# {HOSTILE}" in blocks


def test_sections_are_in_order_and_each_is_in_the_table_of_contents(text):
    elements = Page(text)
    ids = [attributes["id"] for attributes, _ in elements.all("section")]
    assert ids == [name for name in page.SECTIONS if name not in ("left-out", "pre-training")]
    links = [a["href"] for a, _ in elements.all("a") if "href" in a and "class" not in a]
    assert links[: len(ids)] == [f"#{name}" for name in ids]
    presets = [a["data-preset"] for a, _ in elements.all("div") if "data-preset" in a]
    assert presets[:2] == ["paper", "cpu"]


def test_every_table_of_the_report_has_a_place_in_the_page(everything, text):
    shown = {words for _, words in Page(text).all("span")}
    for heading, listed in everything.sections.items():
        if heading != "Speed and memory":  # its tables are joined
            assert {grid.title for grid in listed} <= shown, heading


def test_places_of_names_that_differ_in_their_punctuation_are_distinct(tmp_path):
    for preset in ("a_b", "a-b", "中", "国"):
        put(tmp_path, a_result(preset=preset))
    shown = page.render(report.build(report.Sources([tmp_path])))
    test_tags_nest_and_ids_are_unique(shown)
    test_every_link_and_tip_has_a_target(shown)
    assert 'id="accuracy-中"' in shown
    assert 'href="#accuracy-%E4%B8%AD"' in shown


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([a_result(denoise=True, test=None)], "1 run of 1 model on 1 task, under the preset cpu."),
        (
            [a_result(model=m, preset=p) for m, p in (("Mine", "small"), ("mine", "cpu"))],
            "2 runs of 2 models on 1 task, under the presets small, cpu.",
        ),
        ([], "0 runs of 0 models on 0 tasks. Point"),
    ],
)
def test_head_counts_runs_models_tasks_and_presets(tmp_path, results, words):
    for result in results:
        put(tmp_path, result)
    assert words in page.render(report.build(report.Sources([tmp_path])))


def test_speed_ups_of_the_joined_benchmark_say_what_they_are_of():
    cells = [
        measured(model, length, [1.0], what=what)
        for model, what, lengths in (
            ("transformer", "train", (512,)),
            ("fnet", "train", (512, 1024)),
            ("transformer", "infer", (512, 1024)),
        )
        for length in lengths
    ]
    joined, *_ = page._stacked(benchmarks.grids(cells), "All")
    assert joined.notes == [
        "Speed-ups in training are against the faster Transformer measured: `transformer` at 512.",
        "Speed-ups in inference are against the faster Transformer measured: `transformer` at 512, "
        "1,024.",
    ]


def test_models_without_a_run_under_a_preset_have_no_row_there(everything):
    paper = everything.presets[0].table
    shown, part = tables.measured(paper, paper.parts[0])
    assert {row.label for row in part.rows if row.source} == {"FNet", "Linear"}
    assert "FNet paper" in {row.source for row in part.rows}
    assert list(shown.columns) == ["listops"]


def a_rule(correct):
    """A shallow baseline with this number of correct rows of 2,000."""
    counts = {name: {"correct": correct, "count": 2000} for name in ("validation", "test")}
    return {"method": "m", "settings": {}, **counts}


def test_cells_are_shaded_by_their_distance_from_their_own_baseline():
    counts = {"fnet": 820, "linear": 641, "performer": 600, "local": 580, "dct": 390}
    runs = [with_test(n, model=m, shallow=a_rule(600), preset="paper") for m, n in counts.items()]
    runs += [with_test(620, model="conv", shallow=a_rule(400), preset="paper")]  # on other data
    (table,) = accuracy.tables(records(*runs, with_test(700, task="text", preset="paper")))
    shades = {r.model: page._shade(r.cells["listops"]) for r in table.rows if r.ours}
    assert shades == {  # +11, +2.05, 0, -1, -10.5 and +11 points
        **{"fnet": "above4", "linear": "above2", "performer": "below0"},
        **{"local": "below1", "dct": "below4", "conv": "above4"},
    }
    fnet = next(row for row in table.rows if row.model == "fnet")
    published = next(row for row in table.rows if row.published)
    assert page._shade(fnet.cells["text"]) == ""  # no baseline
    assert page._shade(published.cells["listops"]) == ""


def test_script_is_valid():
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node to parse the script")
    subprocess.run([node, "--check", str(TEMPLATES / "script.js")], check=True)


def test_values_of_a_sweep_may_be_dictionaries(tmp_path):
    axis = "Optimizer.groups"
    values = [{"lambda": (rate, 0.0)} for rate in (0.001, 0.0005)]
    trials = [
        a_trial(number, validation=0.3, overrides=[f"{axis}={value}"])
        for number, value in enumerate(values)
    ]
    put_sweep(tmp_path, "s", trials, axes={axis: values})
    text = page.render(report.build(report.Sources([tmp_path])))
    assert "(0.0005, 0.0)" in text


def test_page_without_curves_sweeps_or_benchmarks_says_so(tmp_path):
    put(tmp_path, a_result())
    text = page.render(report.build(report.Sources([tmp_path])))
    Page(text)
    for part in (
        "No curves: no run of this preset",
        "No sweep.",
        "No benchmark.",
        "not measured for any run",
        "No two main models",
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
    """WCAG 2.2: 4.5 for text (1.4.3), 3 for what is needed to understand a figure (1.4.11)."""
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.S)
    colours = dict(re.findall(r"--(\w+): (#\w{6})", blocks[scheme]))
    assert len(colours) == 7 + len(figures.COLOURS)
    for ground in ("page", "soft"):
        for name in ("text", "muted", "link"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    shades = re.findall(r"\.(above|below)(\d) \{ background: rgb\(var\(--\1\) / (\.\d+)\)", STYLE)
    assert len(shades) == 2 * len(page.STEPS)
    for side, _, strength in shades:
        shade = re.search(rf"--{side}: ([\d ]+)", blocks[scheme])[1].split()
        ground = [int(colours["page"][i : i + 2], 16) for i in (1, 3, 5)]
        mixed = [g + float(strength) * (int(c) - g) for g, c in zip(ground, shade, strict=True)]
        mixed = "#" + "".join(f"{round(c):02x}" for c in mixed)
        assert contrast(colours["text"], mixed) >= 4.5, (side, strength)
    for number in range(len(figures.COLOURS)):
        assert contrast(colours[f"c{number}"], colours["page"]) >= 3, number


def test_titles_of_series_are_text_and_colours_follow_the_style_sheet(text):
    titles = [words for _, words in Page(text).all("title")]
    assert any(title.startswith("Performer: 30.00, 1 seed; 95 % interval") for title in titles)
    assert any(
        title.startswith("FNet: Validation (%) 20 at Optimizer step 200") for title in titles
    )
    svg = "".join(re.findall(r"<svg.*?</svg>", text, re.S))
    assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) <= {"#ffffff"}
    assert "var(--c1)" in svg
    assert "currentColor" in svg


IN_A_BROWSER = """
const form = document.getElementById("filter");
const table = document.querySelector("#result table.sortable");
const seen = (selector) => [...document.querySelectorAll(selector)]
  .filter((element) => element.getClientRects().length > 0)
  .map((element) => element.textContent.replace(/[^\\w ]/g, "").trim());
const shown = (chosen) => {
  for (const name of ["model", "task", "preset"]) form.elements[name].value = chosen[name] ?? "";
  form.dispatchEvent(new Event("input"));
  return [".accuracy tbody tr:not(.published) th", ".accuracy thead th", "h3"]
    .map((cells) => [...new Set(seen(`#accuracy ${cells}`))]);
};
const order = (column) => {
  table.querySelectorAll("thead button")[column].click();
  return [...table.tBodies].map((body) => body.rows[0].cells[0].textContent);
};
document.title = JSON.stringify({
  shown: [{}, { model: "fnet" }, { task: "Text" }, { preset: "cpu" }, {}].map(shown),
  orders: [0, 0, 0, 1, 1, 1, 2].map(order),
});
"""


@pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is not installed")
def test_filter_and_sorting_in_a_browser(tmp_path):
    """A script in the page works its controls and writes down what is then to be seen."""
    root = tmp_path / "runs"
    rights = {"fnet": (700, 900), "linear": (710, 800), "performer": (690, 700)}
    for (model, right), preset in itertools.product(rights.items(), ("paper", "cpu")):
        for task, best in zip(("listops", "text"), right, strict=True):
            put(root, with_test(best, model=model, preset=preset, task=task))
    text = page.render(report.build(report.Sources([root])))
    path = tmp_path / "index.html"
    path.write_text(text.replace("</body>", f"<script>{IN_A_BROWSER}</script></body>"))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    done = subprocess.run([*command, path.as_uri()], capture_output=True, text=True, timeout=60)
    title = re.search("<title>(.*?)</title>", done.stdout)
    assert title is not None, done.stderr
    found = json.loads(html.unescape(title[1]))
    models, columns = ["Linear", "FNet", "Performer"], ["Model", "ListOps", "Text"]
    presets = ["Preset paper", "Preset cpu"]
    assert found["shown"] == [
        [models, columns, presets],
        [["FNet"], columns, presets],
        [models, ["Model", "Text"], presets],
        [models, columns, presets[1:]],
        [models, columns, presets],
    ]
    names, numbers = sorted(models), ["Linear", "FNet", "Performer"]
    assert found["orders"] == [
        *(names, names[::-1], models),
        *(numbers, numbers[::-1], models),
        ["FNet", "Linear", "Performer"],
    ]


# Figures


def test_bold_shows_in_the_page_and_in_latex(tmp_path):
    for model, n in (("fnet", 640), ("linear", 520)):
        for seed in range(3):
            put(tmp_path, with_test(n + seed - 1, model=model, seed=seed))
    built = report.build(report.Sources([tmp_path]))
    (preset,) = built.presets
    body = latex.accuracy(preset.table, preset.table.parts[0], preset.marks["best"])
    assert r"\textbf{32.00}" in body
    assert r"\textbf{26.00}" not in body
    text = page.render(built)
    assert (
        len(re.findall(r'<td class=" best', text)) == 3
    )  # first screen, best on validation, last step
    against = preset.marks["best"].against["linear", None, "listops"]
    assert "Against the highest, FNet: -6.00 points (95 % interval of this pair alone: " in text
    assert against.p_value < 0.001
    words = "Some row is significantly better: p &lt; 0.001 for the hypothesis that no other row is"
    assert f"{words} better, adjusted for the number of rows" in text


def test_latex_tells_of_seeds_that_did_not_train_or_have_no_number(tmp_path):
    for seed, result in enumerate([with_test(640), with_test(520), a_failure("diverged")]):
        put(tmp_path, {**result, "seed": seed})
    built = report.build(report.Sources([tmp_path]))
    (preset,) = built.presets
    body = latex.accuracy(preset.table, preset.table.parts[0], preset.marks["best"])
    assert r"{\tiny(2 of 3)}" in body
    (row, *_) = (r for r in preset.table.parts[0].rows if r.cells["listops"].seeds)
    cell = dataclasses.replace(row.cells["listops"], constant=1)
    assert latex._cell(cell, bold=False).endswith(r"{\tiny(2 of 3, 1 did not train)}")


def drawn(axes):
    """Returns the lines of a figure by label, as lists of points."""
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines}


def test_line_is_the_mean_of_its_seeds_and_the_band_their_range():
    seeds = [[(0, 0.0), (10, 10.0)], [(0, 2.0), (10, 20.0), (20, 5.0)]]
    (axes,) = figures.lines({"m": seeds}, ("x", "y")).axes
    assert drawn(axes) == {"m": [[0, 1], [10, 15]]}
    corners = {tuple(point) for point in axes.collections[0].get_paths()[0].vertices.tolist()}
    assert corners == {(0, 0), (0, 2), (10, 10), (10, 20)}
    assert axes.lines[0].get_gid() == "title:m: y 15 at x 10"


def test_long_curve_is_thinned_to_means():
    thinned = figures.thinned([(step, float(step % 2)) for step in range(1, 1001)], most=100)
    assert len(thinned) == 100
    assert thinned[0] == (10, 0.5)
    assert thinned[-1] == (1000, 0.5)
    assert figures.thinned([(1, 2.0)]) == [(1, 2.0)]


def test_main_models_have_a_colour_everywhere_and_others_are_grey():
    points = {"Linear": [(1, 2.0)], "FNet": [(1, 1.0)], "Local Attention": [(1, 3.0)]}
    (axes,) = figures.scatter(points, ("x", "y")).axes
    colours = {line.get_label(): line.get_color() for line in axes.lines if line.get_gid()}
    assert colours == dict(zip(points, [*figures.COLOURS[1:3], figures.COLOURS[-1]], strict=True))
    names = ["linear", "fnet", "local"]
    drawn = figures.growth({name: [(1, 2.0), (2, 3.0)] for name in names}, "y")
    assert [line.get_color() for line in drawn.axes[0].lines] == list(colours.values())


def test_learning_curves_name_few_models_in_a_legend_and_many_at_their_ends():
    few, many = (
        figures.lines({f"m{i}": [[(0, 1.0)]] for i in range(count)} | {"FNet": [[(0, 2.0)]]}, "xy")
        for count in (figures.NAMED, figures.NAMED + 1)
    )
    words = [text.get_text() for text in few.legends[0].get_texts()]
    assert words == ["FNet", "m0", "m1", "m2", "m3"]
    markers = {line.get_marker() for line in few.axes[0].lines}
    assert len(markers) == figures.NAMED + 1
    assert not many.legends
    assert {text.get_text() for text in many.axes[0].texts} == {*words, "m4"}


def test_other_models_are_one_entry_of_the_legend_of_points():
    points = {f"m{i}": [(1, 1.0)] for i in range(figures.NAMED + 1)} | {"FNet": [(1, 2.0)]}
    figure = figures.scatter(points, ("x", "y"))
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["FNet", "other models"]


def test_names_at_the_ends_of_curves_do_not_overlap_and_keep_their_order():
    curves = {f"m{i}": [(1, 1.0), (2, 2.0 + i / 1e3)] for i in range(30)}
    figure = figures.growth(curves | {"low": [(1, 1e-3), (2, 2e-3)]}, "y", fitted=False)
    places = {text.get_text(): text.get_position()[1] for text in figure.axes[0].texts}
    heights = [places[f"m{i}"] for i in range(30)]
    gaps = [b - a for a, b in itertools.pairwise([places["low"], *heights])]
    assert min(gaps) * (figure.get_figheight() - 0.6) >= 8 / 72  # inches; the text has 8 points
    assert places["low"] >= 0
    assert max(heights) <= 1.0001


def test_curves_of_pytorch_are_in_the_figure():
    cells = [
        measured("fnet", length, [length * factor], side=side)
        for side, factor in (("ours", 1.0), ("eager", 2.0), ("compiled", 1.5))
        for length in (512, 1024)
    ]
    title, figure = figures.measured(cells)["train_time"]
    assert title == "Training, batches of 4"
    styles = {
        line.get_label().partition(":")[0]: line.get_linestyle() for line in figure.axes[0].lines
    }
    assert styles == {"fnet": "-", "fnet, PyTorch eager": ":", "fnet, PyTorch compiled": "--"}


def test_first_figure_shows_points_above_the_baseline_on_the_device_of_the_main_models():
    other = {"name": "Other CPU", "platform": "cpu", "count": 1, "cores": 2}
    runs = [with_test(600, model="fnet"), with_test(640, model="linear")]  # 30 %, 32 %
    runs += [with_test(660, model="dct")]
    runs += [with_test(440, model=m) for m in ("local", "sparse", "longformer", "bigbird")]
    runs = [run | {"shallow": a_rule(500)} for run in runs]  # 25 %
    runs[2]["shallow"] = a_rule(480)  # its data are others
    for run in runs[3:]:
        run["device"] = other
    (table,) = accuracy.tables(records(*runs))
    figure = figures.above_baseline(table, tradeoff.points(table))
    assert figure is not None
    (axes,) = figure.axes
    marks = {(line.get_xdata()[0], round(line.get_ydata()[0], 6)) for line in axes.lines[1::2]}
    assert marks == {(8.5, 5.0), (8.5, 7.0), (8.5, 9.0)}  # fnet, linear, dct: not the other device
    colours = [line.get_color() for line in axes.lines[1::2]]
    assert len(set(colours)) == 3
    assert [text.get_text() for text in axes.texts] == ["Cosine transform"]  # the best
    (table,) = accuracy.tables(
        records(*(run | {"floor": {"correct": 800, "count": 2000}} for run in runs))
    )
    figure = figures.above_baseline(table, tradeoff.points(table))
    assert figure is not None
    assert not figure.axes[0].texts  # no model is above the majority floor
    (none,) = accuracy.tables(records(with_test(600)))
    assert figures.above_baseline(none, tradeoff.points(none)) is None


def test_first_screen_has_the_main_models_and_the_best_of_each_task(tmp_path):
    for model, best in (("fnet", 600), ("linear", 640), ("dct", 660), ("local", 620)):
        put(tmp_path, with_test(best, model=model))
    page_text = page.render(report.build(report.Sources([tmp_path])))
    section = page_text[page_text.index('<section id="result">') :].partition("</section>")[0]
    assert [
        name for name in ("FNet", "Linear", "Cosine transform", "Local") if name in section
    ] == [
        *("FNet", "Linear", "Cosine transform"),
    ]
    assert 'href="#result"' in page_text
    assert "4 runs of 4 models on 1 task, under the preset cpu." in page_text


def test_intervals_show_ours_seeds_published_and_floor():
    shallow = {name: {"correct": 570, "count": 2000} for name in ("validation", "test")}
    changes = {"preset": "paper", "shallow": shallow | {"method": "a rule", "settings": {}}}
    counts = {"fnet": [580, 620], "linear": [640]}
    results = [
        with_test(n, model=model, seed=seed, **changes)
        for model, numbers in counts.items()
        for seed, n in enumerate(numbers)
    ]
    (table,) = accuracy.tables(records(*results))
    cell = next(row.cells["listops"] for row in table.rows if row.label == "FNet")
    figure = figures.intervals(table, "listops")
    assert figure is not None
    (axes,) = figure.axes
    points = [sorted({x for x, _ in line.get_xydata().tolist()}) for line in axes.lines]
    assert points[-6:] == [[cell.low, cell.high], [30], [29, 31], [35.33], [18], [28.5]]
    assert cell.low < 29
    assert cell.high > 31
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Linear", "FNet"]
    assert figures.intervals(table, "text") is None


@pytest.mark.parametrize(
    ("values", "ticks", "scale"),
    [
        (["@A", "@B"], ["@A", "@B"], "linear"),
        ([1, 2, 4], ["1", "2", "4"], "linear"),
        ([0.001, 0.1], ["0.001", "0.1"], "log"),
    ],
)
def test_values_of_a_sweep_have_ticks_points_and_means(values, ticks, scale):
    groups = {"m": [(value, score) for score in (1.0, 3.0) for value in values]}
    (axes,) = figures.scatter(groups, ("x", "y")).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ticks
    assert axes.get_xscale() == scale
    points, means = (line.get_xydata().tolist() for line in axes.lines)
    assert len(points) == 2 * len(values)
    assert [y for _, y in means] == [2.0] * len(values)


def test_same_numbers_give_the_same_bytes_and_ids_do_not_collide():
    curves = {"m $x$": [[(0, 1.0), (1, 2.0)]]}
    first, again = (figures.inline(figures.lines(curves, ("x", "y")), "k", "T") for _ in range(2))
    assert first == again
    other = figures.inline(figures.lines(curves, ("x", "y")), "other", "T")
    ids = [set(re.findall(r' id="([^"]*)"', svg)) for svg in (first, other)]
    assert ids[0]
    assert ids[0].isdisjoint(ids[1])
    assert "m $x$</text>" in first  # not read as a formula


# LaTeX


def test_latex_prints_special_characters_literally():
    assert latex.escape(r"50 % of a_b & {x} #1 $2 ~ ^ \n") == (
        r"50 \% of a\_b \& \{x\} \#1 \$2 \textasciitilde{} \textasciicircum{} \textbackslash{}n"
    )
    assert latex.escape("1 → 2") == r"1 $\rightarrow$ 2"
    assert latex.escape("1 ± 2 ‡ --no 中") == r"1 $\pm$ 2 $\ddagger$ -{}-no {[}U+4E2D]"


def test_every_line_of_a_tabular_has_as_many_cells_as_its_head(everything):
    files = latex.files(everything)
    for name, body in files.items():
        if name != "latex/report.tex":
            rows = [line for line in body.splitlines() if line.endswith(r"\\")]
            assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1
            assert body.count(r"\toprule") == body.count(r"\bottomrule") == 1
            columns = re.search(r"\{@\{\}(\w+)@\{\}\}", body)
            assert columns is not None
            assert len(columns[1]) == len(re.findall(r"(?<!\\)&", rows[0])) + 1


def test_document_includes_every_table(everything):
    files = latex.files(everything)
    assert "latex/accuracy-cpu-last.tex" in files
    taken = re.findall(r"\\fitted\{([\w-]+)\}", files["latex/report.tex"])
    assert sorted(f"latex/{name}.tex" for name in taken) == sorted(
        set(files) - {"latex/report.tex"}
    )


def test_document_explains_the_signs_of_its_tables(tmp_path):
    put(tmp_path, with_test(640, model="reformer", uses_mask=False))
    files = latex.files(report.build(report.Sources([tmp_path])))
    assert r"$\ddagger$" in files["latex/accuracy-cpu-best.tex"]
    assert "Padding changes this model's output" in files["latex/report.tex"]


def test_names_of_files_are_short_and_long_tables_are_split(everything):
    names = [name.removeprefix("latex/") for name in latex.files(everything)]
    assert max(map(len, names)) <= 48
    grid = Grid("Rows, many", ["a"], [[str(i)] for i in range(latex.LONG + 1)])
    report_ = dataclasses.replace(everything, unfinished=grid)
    files = latex.files(report_)
    assert files["latex/rows.tex"].count(r" \\") == latex.LONG + 1  # the head too
    assert files["latex/rows-2.tex"].count(r" \\") == 2
    assert r"\caption{Rows, many, continued}" in files["latex/report.tex"]


def test_notes_of_a_preset_that_has_variants_only_are_in_the_document(tmp_path):
    put(tmp_path, with_test(600, variant="long", overrides=["A.b=1"]))
    document = latex.files(report.build(report.Sources([tmp_path])))["latex/report.tex"]
    after = document[document.index(r"\fitted{accuracy-cpu-variants-best}") :]
    assert r"FNet, long: \code{A.b=1}" in after[: after.index("caption")]
    assert document.count(r"\code{A.b=1}") == 1


def test_a_long_table_of_accuracies_is_split(tmp_path, monkeypatch):
    monkeypatch.setattr(latex, "LONG", 2)
    for model in ("fnet", "linear"):
        put(tmp_path, with_test(600, model=model))
    files = latex.files(report.build(report.Sources([tmp_path])))
    assert "Majority floor" not in files["latex/accuracy-cpu-best.tex"]
    assert "Majority floor" in files["latex/accuracy-cpu-best-2.tex"]
    assert "best on validation, continued" in files["latex/report.tex"]


def test_presets_whose_names_differ_in_punctuation_alone_keep_their_tables(tmp_path):
    for preset, best in (("my-set", 640), ("my_set", 520)):
        put(tmp_path, with_test(best, preset=preset))
    files = latex.files(report.build(report.Sources([tmp_path])))
    assert "32.00" in files["latex/accuracy-my-set-best.tex"]
    assert "26.00" in files["latex/accuracy-my-set-best-2.tex"]
    assert r"\fitted{accuracy-my-set-best-2}" in files["latex/report.tex"]


def test_document_compiles(everything, tmp_path):
    pdflatex = shutil.which("pdflatex")
    if pdflatex is None:
        pytest.skip("no pdflatex to compile with")
    report.write(everything, tmp_path)
    command = [pdflatex, "-interaction=nonstopmode", "-halt-on-error", "report.tex"]
    done = subprocess.run(command, cwd=tmp_path / "latex", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
    assert (tmp_path / "latex" / "report.pdf").stat().st_size > 10_000


def test_bars_of_the_first_figure_are_the_intervals_above_the_baseline():
    runs = [with_test(n, model=model) for model, n in (("fnet", 600), ("linear", 640))]
    (table,) = accuracy.tables(records(*(run | {"shallow": a_rule(500)} for run in runs)))  # 25 %
    figure = figures.above_baseline(table, tradeoff.points(table))
    assert figure is not None
    bars = {tuple(line.get_ydata()) for line in figure.axes[0].lines[2::2]}
    cells = [row.cells["listops"] for row in table.own]
    assert bars == {(cell.low - 25, cell.high - 25) for cell in cells}


def test_bold_of_the_last_step_is_that_of_its_own_numbers_in_latex(tmp_path):
    for model, best, last in (("fnet", 640, 520), ("linear", 520, 640)):
        for seed in range(3):
            put(tmp_path, with_test(best + seed, model=model, seed=seed, last=last + seed))
    made = latex.files(report.build(report.Sources([tmp_path])))
    for kind, label in (("best", "FNet"), ("last", "Linear")):
        lines = made[f"latex/accuracy-cpu-{kind}.tex"].splitlines()
        bold = [line for line in lines if r"\textbf" in line]
        assert [line.partition("$")[0].partition(" &")[0] for line in bold] == [label]
