"""The committed census and settings against the code, and the FNet paper's printed sizes."""

import pytest
from paths import ROOT

from lra_fnet import config
from lra_fnet.report.accuracy import names
from lra_fnet.report.accuracy.published import published
from tools.documents import census, presets

TABLES = [census.sizes_grid, census.params_grid]
N, D = 512, 768  # the FNet paper's length and its Base width


@pytest.mark.parametrize("preset", census.PRESETS)
def test_committed_counts_are_what_the_code_gives(preset):
    """Of three models; the page has all."""
    text = (ROOT / "results/census.md").read_text("utf-8")
    part = text.split(f"**Preset {preset}**")[1].split("\n**")[0]
    for row in census.lra_grid(preset, ["transformer", "fnet", "linear"]).rows:
        assert f"| {' | '.join(row)} |" in part
    listed = [line.split("`")[1] for line in part.splitlines() if line.startswith("| `")]
    assert listed == names.models_in_order(config.known("models"))


@pytest.mark.parametrize("table", TABLES)
def test_every_printed_size_of_the_fnet_paper_is_reproduced(table):
    text = table().markdown()
    assert "≠" not in text
    assert text in (ROOT / "results/census.md").read_text("utf-8")


def test_biases_of_the_authors_attention_change_no_printed_size():
    for size, (number, *_) in published()["parameters"]["fnet_model_sizes"]["rows"].items():
        dim, num_layers = map(int, size.split("x"))
        count = census.fnet_count("transformer", dim, num_layers)
        assert round((count + 4 * dim * num_layers) / 1e6) == round(count / 1e6) == number


@pytest.mark.parametrize(
    ("model", "want"),
    [
        ("transformer", 2 * N**2 * D + 4 * N * D**2),
        ("linear", N**2 * D + N * D**2),
        ("fnet_mat", N**2 * D + N * D**2 + 2 * N * (N + D)),  # real products; see the census
        ("fnet", 0),
    ],
)
def test_products_of_a_mixer_are_the_papers_formula(model, want):
    assert census.multiplications(model, N, D) == want


@pytest.mark.parametrize("preset", names.PRESETS)
def test_committed_settings_are_what_the_gin_files_give(preset):
    text = (ROOT / "results/presets.md").read_text("utf-8")
    settings, others = presets.grids(preset, ["transformer", "fnet", "s5"])
    assert settings.markdown() in text
    for row in others.rows:
        assert f"| {' | '.join(row)} |" in text
    if preset == "cpu":  # by hand, from gin/presets/cpu/listops.gin
        values = {row[0]: row[1] for row in settings.rows}
        assert (values["Encoder.num_layers"], values["Encoder.dim"]) == ("2", "128")
        rates = {row[0]: row[2] for row in others.rows if row[1] == "`Optimizer.learning_rate`"}
        assert (rates["`fnet`"], rates.get("`transformer`", "")) == ("`0.004`", "")
