"""Names of tasks, models, presets and sweeps: found by their gin files, with titles."""

import pytest

from lra_fnet import config, experiment
from lra_fnet.errors import UserError


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("lisstops", "fnet", "cpu"), ["unknown task", "listops", "did you mean listops?"]),
        (("listops", "fnett", "cpu"), ["unknown model 'fnett' (did you mean fnet?); known models"]),
        (
            ("listops", "my_mixer", "cpu"),
            ["performer", "; yours needs its gin file: --gin-dir FOL"],
        ),
        (("listops", "fnet", "gpu"), ["unknown preset", "paper", "cpu", "lra-code"]),
    ],
)
def test_an_unknown_name_fails_with_the_known_ones(names, words):
    with pytest.raises(UserError) as caught:
        experiment.load(*names)
    assert all(word in str(caught.value) for word in words)


def test_folders_of_gin_files_may_be_strings(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/odd.gin").write_text("# Odd: a model.\n")
    assert "odd" in config.known("models", [str(tmp_path)])
    assert config.title("odd", [str(tmp_path)]) == "Odd"


def test_presets_are_folders_of_any_name(tmp_path):
    (tmp_path / "presets/my.v2").mkdir(parents=True)
    (tmp_path / "presets/README.md").touch()
    assert {*config.known("presets", [tmp_path])} - {*config.known("presets")} == {"my.v2"}


def test_a_sweep_is_found_by_its_name_or_path(tmp_path):
    assert config.sweep("lra_table").name == "lra_table.gin"
    (tmp_path / "mine").write_text("")
    assert config.sweep(str(tmp_path / "mine")) == tmp_path / "mine"
    with pytest.raises(UserError, match="or one of image_layers, lra_table, rates; got 'lra'"):
        config.sweep("lra")


def test_title_of_a_model_is_in_the_first_line_of_its_file(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/mine.gin").write_text("# My encoder: made of wood.\n")
    (tmp_path / "models/bare.gin").write_text("# no title\nMIXERS = @Fourier  # a: b\n")
    assert config.title("fnet_mat") == "FNet (DFT matrices)"
    assert config.title("mine", [tmp_path]) == "My encoder"
    assert [config.title(name, [tmp_path]) for name in ("bare", "absent")] == ["bare", "absent"]
    models = config.known("models")
    titles = [config.title(model) for model in models]
    assert len(set(titles)) == len(titles)
    assert not set(titles) & set(models)
