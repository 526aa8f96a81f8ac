"""Modules and files that --import names."""

import pytest

from lra_fnet import config, experiment
from lra_fnet.errors import UserError


def test_file_that_changed_since_it_was_imported_is_refused(tmp_path):
    file = tmp_path / "imported_once.py"
    file.write_text("x = 1\n")
    for _ in range(2):
        config.import_modules([str(file)])
    file.write_text("x = 2\n")
    with pytest.raises(UserError, match=r"imported_once.py has changed since it was imported"):
        config.import_modules([str(file)])


def test_a_user_registers_a_mixer_from_outside(tmp_path):
    module = tmp_path / "halving.py"
    module.write_text(
        "import gin\n"
        "from lra_fnet.models.mixer import Mixer\n"
        "@gin.configurable\n"
        "class Halving(Mixer):\n"
        "    uses_mask = True\n"
        "    factor: float\n"
        "    def __call__(self, x, mask, *, train):\n"
        "        return self.factor * x\n"
    )
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "halving.gin").write_text("MIXERS = @Halving\nHalving.factor = 0.5\n")
    built = experiment.load("listops", "halving", "cpu", imports=[str(module)], gin_dirs=[tmp_path])
    assert built.model.encoder.uses_mask
    assert "Halving.factor = 0.5" in built.config


def test_a_run_uses_the_modules_of_its_configurables_or_those_without_any(tmp_path):
    """One of these mixers is made by a function, which only a reference in the config names."""
    module, patch = tmp_path / "doubling.py", tmp_path / "patching.py"
    module.write_text(
        "import gin\n"
        "from lra_fnet.models.mixer import Mixer\n"
        "class Plain(Mixer):\n"
        "    uses_mask = True\n"
        "    def __call__(self, x, mask, *, train):\n"
        "        return 2 * x\n"
        "@gin.configurable\n"
        "class Doubling(Plain):\n"
        "    pass\n"
        "@gin.configurable\n"
        "def doubled(**sizes):\n"
        "    return Plain(**sizes)\n"
    )
    patch.write_text("names = ['Fourier', print, int]\n")
    (tmp_path / "models").mkdir()
    for name in ("Doubling", "doubled"):
        (tmp_path / "models" / f"{name}.gin").write_text(f"MIXERS = @{name}\n")
    imports = (str(module), str(patch), "json")
    both = ["MIXERS=(@Fourier, @Doubling)", "Encoder.num_layers=2"]
    for model, overrides, expected in (
        ("fnet", [], imports[1:]),
        ("Doubling", [], imports),
        ("doubled", [], imports),
        ("fnet", both, imports),
    ):
        built = experiment.load(
            "listops", model, "cpu", overrides, imports=imports, gin_dirs=[tmp_path]
        )
        assert config.used_imports(imports, built.config) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def broken(:", "SyntaxError: invalid syntax (odd.py, line 1)"),
        ("raise ValueError('a\\nb')", "ValueError: a b"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import nothing_like_it", "ModuleNotFoundError: No module named 'nothing_like_it'"),
        (None, "'odd.py' does not exist"),
    ],
)
def test_an_import_with_a_mistake_fails_with_one_line(text, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "odd.py").write_text(text)
    for _ in range(2):  # a failed import is not taken for a complete one
        with pytest.raises(UserError) as caught:
            config.import_modules(["odd.py"])
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_import_of_a_file_that_is_named_like_a_loaded_module_fails_with_one_line(tmp_path):
    """Python would take the loaded one for it."""
    first, second, library = (tmp_path / name for name in ("a/twin.py", "b/twin.py", "random.py"))
    for path in (first, second, library):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    for _ in range(2):
        config.import_modules([str(first)])
    for path in (second, library):
        with pytest.raises(UserError, match=f"{path}: another module is named {path.stem}: rename"):
            config.import_modules([str(path)])
