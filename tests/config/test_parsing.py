"""Mistakes in gin text: one line, with a hint."""

import re

import gin
import pytest

from lra_fnet import config, experiment
from lra_fnet.config import parsing
from lra_fnet.errors import UserError


def test_a_model_whose_module_is_not_imported_says_how(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/nowhere.gin").write_text("MIXERS = @Nowhere\n")
    texts = config.texts("listops", "nowhere", "cpu", [tmp_path])
    with pytest.raises(UserError, match=r"'@Nowhere'\. If it is in a module of yours, .* --import"):
        config.load(texts)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("Encoder.num_layer = 2", "Encoder.num_layers"),
        ("Encoderr.dim = 2", "Encoder"),
        ("MIXERS = @Fourrier", "Fourier"),
    ],
)
def test_hint_names_the_misspelt_word_wherever_it_stands(line, name):
    experiment.load("listops", "fnet", "cpu")
    with pytest.raises(UserError, match=rf"did you mean {name}\?"):
        parsing.parse(f"Encoder.dim = 64\n{line}\n", "my.gin")


def test_class_with_the_name_of_another_gives_one_line():
    gin.external_configurable(dict, "Encoder", module="elsewhere")
    try:
        with pytest.raises(UserError) as caught:
            parsing.parse("Encoder.dim = 4", "my.gin")
    finally:
        gin.config._REGISTRY.pop("elsewhere.Encoder")
    assert re.fullmatch(
        r"my\.gin: Ambiguous selector 'Encoder', matches \[[^\]]*\]: give your class another name, "
        r"or @gin.configurable\(module=\.\.\.\)",
        str(caught.value),
    )
