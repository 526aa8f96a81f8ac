"""The census: exact counts, the committed file, and the FNet paper's printed digits."""

import functools
import re

import jax
import pytest
from paths import ROOT

from lra_fnet import config, experiment
from lra_fnet.errors import UserError
from lra_fnet.models.encoder import parameter_count
from lra_fnet.report import census
from lra_fnet.report.accuracy import names as naming
from lra_fnet.report.accuracy import published as tables

CENSUS = ROOT / "results" / "census.md"
MAIN = ("transformer", "linear", "fnet", "performer")
N, D = 512, 768  # the FNet paper's length and its Base width


def cells(text, title):
    """Returns the first table below a heading that begins with `title`, as {first cell: others}."""
    parts = text[text.index(f"## {title}") :].split("\n\n")
    table = next(part for part in parts if part.startswith("|"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {name: row for name, *row in [rows[0], *rows[2:]]}


def rendered(preset):
    """Returns the part of the census about a preset as the code gives it."""
    return "\n".join(grid.markdown() for grid in census.grids(preset))


def committed(preset):
    """Returns the part of the census about a preset as it is committed."""
    text = CENSUS.read_text(encoding="utf-8")
    return text.split(f"## Preset {preset}\n")[1].split("\n## ")[0]


HOW = """run `python -c 'from lra_fnet.report import census; census.write("results/census.md")'`"""


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["paper", "lra-code"])
def test_committed_counts_of_a_preset_are_what_the_code_gives(preset, monkeypatch):
    """The four main models on all tasks, each other one on one task, by turns."""
    _, *table = cells(CENSUS.read_text(encoding="utf-8"), f"Preset {preset}").items()
    counts = {}
    for turn, (name, row) in enumerate(table):
        model = name.strip("`")
        counts[model] = {
            task: None if cell == "n/a" else int(cell.replace(",", ""))
            for task, cell in zip(tables.TASKS, row, strict=True)
        }
        chosen = [*tables.TASKS] if model in MAIN else [[*tables.TASKS][turn % len(row)]]
        for task in chosen:
            if counts[model][task] is None:
                with pytest.raises(UserError):
                    experiment.load(task, model, preset)
            else:
                built = experiment.load(task, model, preset)
                assert census.count(built) == counts[model][task], (model, task, HOW)
    assert list(counts) == naming.models_in_order(config.known("models"))
    refused = re.findall("n/a: (.*)", committed(preset))
    monkeypatch.setattr(census, "lra", lambda preset: (counts, refused))
    assert rendered(preset) in committed(preset), HOW


@pytest.mark.slow
def test_committed_groups_of_parameters_are_what_the_code_gives():
    assert rendered("tuned") in committed("tuned"), HOW


@pytest.mark.slow
def test_rest_of_the_committed_census_is_what_the_code_gives(monkeypatch):
    committed = CENSUS.read_text(encoding="utf-8")
    begin, end = (committed.index(f"## {title}") for title in ("Preset", "The FNet paper"))
    monkeypatch.setattr(census, "grids", lambda preset: [])
    headings = "".join(f"## Preset {preset}\n\n" for preset in census.PRESETS)
    assert committed[:begin] + headings + committed[end:] == census.markdown(), HOW


@pytest.mark.parametrize("model", ["transformer", "fnet_hybrid", "linear", "fnet_original"])
def test_count_equals_that_of_the_whole_traced_model(model):
    built = experiment.load("image", model, "cpu", ["Encoder.num_layers=3"])
    shapes = jax.eval_shape(functools.partial(built.init, 0))
    assert census.count(built) == parameter_count(shapes)


def test_parameters_of_groups_are_the_closed_formula():
    """ListOps, S5's recipe: 16 modes of which 8 are computed, 128 channels, 8 layers."""
    built = experiment.load("listops", "s5", "tuned")
    assert census.group_counts(built) == {"lambda": 8 * 2 * 8, "log_dt": 8 * 8}
    groups = "Optimizer.groups={'b': (0.1, 0.0)}"
    built = experiment.load("listops", "s5", "tuned", [groups])
    assert census.group_counts(built) == {"b": 8 * 2 * 8 * 128}
    assert census.group_counts(experiment.load("listops", "fnet", "tuned")) == {}


def test_census_lists_every_model_and_task_and_the_reason_of_an_empty_cell(monkeypatch):
    def count(built):
        if built.task.name == "pathx":
            raise UserError("too long: set it lower")
        return len(built.task.name)

    monkeypatch.setattr(census, "count", count)
    names = {"models": ["transformer", "fnet"], "tasks": list(tables.TASKS), "presets": ["paper"]}
    monkeypatch.setattr(config, "known", lambda kind, dirs=(): names[kind])
    text = f"## Preset paper\n\n{rendered('paper')}"
    table = cells(text, "Preset paper")
    assert table["Model"] == list(tables.TASKS.values())
    assert table["`fnet`"] == [str(len(task)) for task in list(tables.TASKS)[:5]] + ["n/a"]
    assert set(table) == {"Model", "`transformer`", "`fnet`"}
    assert "n/a: `fnet` on Path-X: too long: set it lower" in text


def test_census_marks_what_lras_rule_excludes(monkeypatch):
    counts = {"transformer": 100, "linear": 111, "fnet": 89, "performer": 110}
    rows = {model: dict.fromkeys(tables.TASKS, number) for model, number in counts.items()}
    monkeypatch.setattr(census, "lra", lambda preset: (rows, []))
    text = rendered("paper")
    for want in ("| `linear` | **+11.0 %** |", "| `fnet` | *-11.0 %* |", "| `performer` | +10.0 %"):
        assert want in text


def printed():
    """Every cell of the FNet paper's two tables: model, width, layers, head, millions."""
    groups = tables.published()["parameters"]
    sizes, params = groups["fnet_model_sizes"], groups["fnet_model_params"]
    for size, row in sizes["rows"].items():
        dim, num_layers = map(int, size.split("x"))
        for model, number in zip(sizes["columns"], row, strict=True):
            if number is not None:
                yield model, dim, num_layers, False, number
    for model, row in params["rows"].items():
        for (dim, num_layers), number in zip((census.BASE, census.LARGE), row, strict=True):
            yield model, dim, num_layers, True, number


def test_every_printed_size_of_the_fnet_paper_is_reproduced():
    seen = 0
    for model, dim, num_layers, head, number in printed():
        size = census.fnet_count(model, dim, num_layers) + head * census.mlm_count(dim)
        biases = 4 * dim * num_layers * (model == "transformer")  # the authors' attention has them
        assert round(size / 1e6) == round((size + biases) / 1e6) == number, (model, dim, num_layers)
        seen += 1
    assert seen == 30 + 12


@pytest.mark.parametrize(
    ("model", "want"),
    [
        ("transformer", 2 * N**2 * D + 4 * N * D**2),
        ("linear", N**2 * D + N * D**2),
        ("random", N**2 * D + N * D**2),
        ("fnet_mat", N**2 * D + N * D**2 + 2 * N * (N + D)),  # real products; see the census
        ("fnet", 0),
        ("ff_only", 0),
    ],
)
def test_products_of_a_mixer_are_the_papers_formula(model, want):
    assert census.multiplications(model, N, D) == want


def test_committed_census_names_every_model():
    text = CENSUS.read_text(encoding="utf-8")
    for preset in ("paper", "lra-code"):
        names = [name.strip("`") for name in cells(text, f"Preset {preset}") if "`" in name]
        assert sorted(names) == config.known("models")
    assert "≠" not in text
