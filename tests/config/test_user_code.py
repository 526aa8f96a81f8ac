"""Modules and files that --import names."""

import hashlib

import pytest
from refused import one_line

from lra_fnet import config
from lra_fnet.errors import UserError

MIXER = (
    "import gin\n"
    "from lra_fnet.models.mixer import Mixer\n"
    "@gin.configurable\n"
    "class {0}(Mixer):\n"
    "    uses_mask = True\n"
    "@gin.configurable\n"
    "def made_{0}(**sizes):\n"
    "    return {0}(**sizes)\n"
)


def test_a_run_uses_the_modules_of_its_configurables_or_those_without_any(tmp_path):
    (tmp_path / "doubling.py").write_text(MIXER.format("Doubling"))
    (tmp_path / "patching.py").write_text("names = ['Fourier', print, int]\n")
    imports = (str(tmp_path / "doubling.py"), str(tmp_path / "patching.py"), "json")
    config.import_modules(imports)
    assert config.used_imports(imports, "MIXERS = @Fourier") == imports[1:]
    for mixers in ("@Doubling", "@made_Doubling", "(@Fourier, @doubling.Doubling)"):
        assert config.used_imports(imports, f"MIXERS = {mixers}") == imports


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("odd_syntax.py", "def broken(:", "SyntaxError: invalid syntax (odd_syntax.py, line 1)"),
        ("odd_value.py", "raise ValueError('a\\nb')", "ValueError: a b"),
        ("odd_exit.py", "import sys; sys.exit(3)", "SystemExit: 3"),
        ("odd_import.py", "import nothing_like_it", "No module named 'nothing_like_it'"),
        ("odd_absent.py", None, "'odd_absent.py'"),
    ],
)
def test_an_import_with_a_mistake_fails_with_one_line(name, text, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / name).write_text(text)
    for _ in range(2):  # a failed import is not taken for a complete one
        with one_line(words):
            config.import_modules([name])


def test_files_that_an_import_imports_belong_to_its_code(tmp_path, monkeypatch):
    """They lie in the folder of the file or, if dotted, in the current one; NumPy is not theirs."""
    monkeypatch.chdir(tmp_path)
    texts = {
        "of_a_file.py": "import first_part, numpy as np\nfrom gin import configurable\n",
        "first_part.py": "def later():\n    import second_part\nimport second_part as s\n",
        "second_part.py": "from lra_fnet.models import mixer\n",
        "own_package/__init__.py": "",
        "own_package/mixers.py": "from . import sizes\nfrom .deep.down import depth\n",
        "own_package/sizes.py": "size = 1\n",
        "own_package/unused.py": "",
        "own_package/deep/__init__.py": "",
        "own_package/deep/down.py": "import first_part\ndepth = 2\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    file, package = str(tmp_path / "of_a_file.py"), "own_package.mixers"
    config.import_modules([file, package])
    parts = {"first_part.py", "second_part.py"}
    assert config.code_of([file]).keys() == parts | {"of_a_file.py"}
    mine = {f"own_package/{name}.py" for name in ("mixers", "sizes", "deep", "deep/down")}
    code = config.code_of([package])
    assert code.keys() == parts | mine | {"own_package.py"}
    digits = hashlib.sha256((tmp_path / "own_package/sizes.py").read_bytes()).hexdigest()[:12]
    assert code["own_package/sizes.py"] == digits
    (tmp_path / "second_part.py").write_text("")
    with pytest.raises(UserError, match=r"second_part.py has changed since it was imported"):
        config.import_modules([package])


def test_a_run_uses_what_its_modules_import(tmp_path):
    texts = {"upper": "import lower\n" + MIXER, "lower": MIXER, "other": "import lower\n" + MIXER}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text.format(name.capitalize() + "Mixer"))
    names = [str(tmp_path / f"{name}.py") for name in ("lower", "other", "upper")]
    config.import_modules(names)
    lower, other, upper = names
    for order in (names, names[::-1]):
        used = config.used_imports(order, "MIXERS = @UpperMixer")
        assert sorted(used) == sorted([lower, upper])
    assert config.used_imports(names, "MIXERS = @LowerMixer") == (lower, other, upper)
    assert config.used_imports([upper], "MIXERS = @LowerMixer") == (upper,)
    assert config.used_imports(names, "MIXERS = @Fourier") == ()


def test_a_module_of_another_folder_in_place_of_ones_own_is_refused(tmp_path):
    texts = {
        "one/shared_name.py": "",
        "one/first_import.py": "import shared_name\n",
        "two/shared_name.py": "",
        "two/second_import.py": "import shared_name\n",
        "random.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    config.import_modules([str(tmp_path / "one/first_import.py")])
    for name in ("two/second_import.py", "two/shared_name.py", "random.py"):
        with pytest.raises(UserError, match=r"(shared_name|random) too: rename"):
            config.import_modules([str(tmp_path / name)])
