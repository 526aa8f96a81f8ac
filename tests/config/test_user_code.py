"""Modules and files that --import names."""

import hashlib
import subprocess
import sys

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
        with pytest.raises(UserError) as caught:
            config.import_modules([name])
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
    assert config.code_of([file]).keys() == parts | {config.code_name(file)}
    mine = {f"own_package/{name}.py" for name in ("mixers", "sizes", "deep", "deep/down")}
    code = config.code_of([package])
    assert code.keys() == parts | mine | {"own_package.py"}
    digits = hashlib.sha256((tmp_path / "own_package/sizes.py").read_bytes()).hexdigest()[:12]
    assert code["own_package/sizes.py"] == digits
    (tmp_path / "second_part.py").write_text("")
    with pytest.raises(UserError, match=r"second_part.py has changed since it was imported"):
        config.import_modules([package])


def test_a_run_uses_what_its_modules_import(tmp_path):
    mixer = (
        "import gin\n"
        "from lra_fnet.models.mixer import Mixer\n"
        "@gin.configurable\n"
        "class {}(Mixer):\n"
        "    uses_mask = True\n"
    )
    texts = {"upper": "import lower\n" + mixer, "lower": mixer, "other": "import lower\n" + mixer}
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


def test_code_does_not_depend_on_what_is_loaded(tmp_path):
    """A helper that is imported on use, or for types only, counts either way."""
    texts = {
        "for_types.py": "",
        "a_package/__init__.py": "",
        "a_package/deep.py": "",
        "unreadable.py": "def (",
        "loading_it.py": "import for_types, a_package.deep\n",
        "on_use.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import for_types\n"
        "def use():\n    from a_package.deep import nothing\n    import unreadable\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    program = (
        "import sys\nfrom lra_fnet import config\nconfig.import_modules(sys.argv[1:])\n"
        "print(*sorted(config.code_of([sys.argv[-1]])))\n"
    )
    said = {
        subprocess.check_output(
            [sys.executable, "-c", program, *(str(tmp_path / f"{name}.py") for name in names)],
            text=True,
        )
        for names in (["on_use"], ["loading_it", "on_use"])
    }
    assert said == {"a_package.py a_package/deep.py for_types.py on_use.py unreadable.py\n"}


def test_module_of_another_folder_in_place_of_ones_own_is_refused(tmp_path):
    for part in ("one", "two"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "equally_named.py").write_text(f"part = {part!r}\n")
        (tmp_path / part / f"from_{part}.py").write_text("import equally_named\n")
    config.import_modules([str(tmp_path / "one" / "from_one.py")])
    second = tmp_path / "two" / "from_two.py"
    for _ in range(2):
        with pytest.raises(UserError, match=r"one/equally_named.py is named equally_named too: re"):
            config.import_modules([str(second)])
