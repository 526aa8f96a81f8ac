"""The settings of the presets side by side, against the committed file and the gin files."""

import pytest
from paths import ROOT

from lra_fnet.report import presets
from lra_fnet.report.accuracy import names as naming

HOW = (
    """run `python -c 'from lra_fnet.report import presets; presets.write("results/presets.md")'`"""
)


@pytest.mark.parametrize("preset", naming.PRESETS)
def test_committed_settings_are_what_the_gin_files_give(preset, monkeypatch):
    """Those that models share, and those of three models at the presets that are measured."""
    text = (ROOT / "results" / "presets.md").read_text(encoding="utf-8")
    models = ["transformer", "fnet", "s5"] if preset in ("small", "cpu") else []
    monkeypatch.setattr(naming, "models_in_order", lambda names: models)
    settings, others = presets.grids(preset)
    assert settings.markdown() in text, HOW
    part = text.split(f"**{others.title}**")[-1].split("\n\n**")[0].splitlines()
    for line in others.markdown().splitlines():
        assert not line.startswith("| `") or line in part, (line, HOW)
    if preset == "cpu":  # by hand, from gin/presets/cpu/listops.gin
        values = {row[0]: row[1] for row in settings.rows}
        assert (values["data set"], values["layers, width"]) == ("`short_128`", "2, 128")
        assert values["steps (epochs)"] == "3,000 (1)"  # of 32 rows: 96,000
        rates = {row[0]: row[2] for row in others.rows if row[1] == "`Optimizer.learning_rate`"}
        assert (rates["`fnet`"], rates.get("`transformer`", "")) == ("`0.004`", "")


@pytest.mark.slow
def test_the_whole_committed_file_is_what_the_gin_files_give():
    assert (ROOT / "results" / "presets.md").read_text(encoding="utf-8") == presets.markdown(), HOW


def test_shared_model_has_no_file_of_its_own():
    files = [path.name for path in (ROOT / "gin" / "presets").rglob("*.gin")]
    assert not [name for name in files if presets.SHARED in name]
