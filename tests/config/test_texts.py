"""Gin as text: names that have a file, titles, scopes, bindings, and configs that are compared."""

import re
import subprocess
import sys

import pytest
from refused import one_line

from lra_fnet import config, experiment
from lra_fnet.errors import UserError


@pytest.fixture
def write(tmp_path):
    """A function that writes a gin file to a folder of the user's own, which it returns."""

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return [tmp_path]

    return write


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("lisstops", "fnet", "cpu"), ["task 'lisstops'", "did you mean listops?"]),
        (("listops", "fnett", "cpu"), ["model 'fnett'", "did you mean fnet?"]),
        (("listops", "my_mixer", "cpu"), ["my_mixer", "performer", "--gin-dir"]),
        (("listops", "fnet", "gpu"), ["preset 'gpu'", "paper", "cpu", "lra-code"]),
        (("listops", "fnet", "cpu-pretrain"), ["cpu-pretrain", "listops", "corpus, text"]),
    ],
)
def test_an_unknown_name_fails_with_the_known_ones(names, words):
    with one_line(*words):
        experiment.load(*names)


def test_users_folders_may_be_strings_and_presets_of_any_name(write):
    folders = write("models/odd.gin", "# Odd: a model.\n")
    (folders[0] / "presets/my.v2").mkdir(parents=True)
    assert "odd" in config.known("models", [str(folders[0])])
    assert {*config.known("presets", folders)} - {*config.known("presets")} == {"my.v2"}
    with pytest.raises(UserError, match="nowhere"):
        config.known("models", ["nowhere"])


def test_a_sweep_is_found_by_its_name_or_path(tmp_path):
    assert config.sweep("lra_table").name == "lra_table.gin"
    (tmp_path / "mine").write_text("")
    assert config.sweep(str(tmp_path / "mine")) == tmp_path / "mine"
    with pytest.raises(UserError, match="lra_table, rates; got 'lra'"):
        config.sweep("lra")


def test_title_of_a_model_is_in_the_first_line_of_its_file(write):
    write("models/mine.gin", "# My encoder: made of wood.\n")
    folders = write("models/bare.gin", "# no title\nMIXERS = @Fourier  # a: b\n")
    titles = [config.title(name, folders) for name in ("mine", "bare", "absent", "fnet_mat")]
    assert titles == ["My encoder", "bare", "absent", "FNet (DFT matrices)"]
    shipped = {config.title(model) for model in config.known("models")}
    assert len(shipped - {*config.known("models")}) == len(config.known("models"))


SCOPES = """
mega/Encoder.dim = 1
listops/Encoder.dim = 2
listops/fnet/Encoder.dim = (
    3,
)
pretrain/Encoder:
    dim = 4
other/Encoder.dim = 5
Encoder.dim = 6
"""


def test_scopes_of_a_run_follow_all_other_bindings_at_their_lines(write):
    folders = write("presets/cpu/listops.gin", SCOPES)

    def lines(task, model, **stage):
        texts = config.texts(task, model, "cpu", folders, **stage)
        mine = [text.split("\n") for where, text in texts if where.startswith(str(folders[0]))]
        return [{n: line for n, line in enumerate(text, 1) if line} for text in mine]

    general, own = lines("listops", "fnet")
    assert general == {9: "other/Encoder.dim = 5", 10: "Encoder.dim = 6"}
    assert own == {3: "Encoder.dim = 2", 4: "Encoder.dim = (", 5: "    3,", 6: ")"}
    assert lines("listops", "fnet", denoise=True)[1] == own | {7: "Encoder:", 8: "    dim = 4"}
    assert lines("listops", "mega")[1] == {2: "Encoder.dim = 1", 3: "Encoder.dim = 2"}


def test_a_file_may_include_others(write):
    write("models/part.gin", "linear/Linear.init = 'x'\nFourier.method = 'rfft'\n")
    lines = ["# Mine.", "include 'part.gin'", "MIXERS = @Fourier", "include 'models/fnet.gin'"]
    folders = write("models/mine.gin", "\n".join(lines))
    texts = config.texts("listops", "mine", "cpu", folders)
    parts = [(where.rpartition("/")[2], text) for where, text in texts if "models/" in where]
    assert [name for name, text in parts if text.strip()] == [
        "mine.gin",
        "part.gin",
        "mine.gin",
        "fnet.gin",
    ]
    assert parts[2][1] == "\n\nMIXERS = @Fourier"
    assert experiment.load("listops", "mine", "cpu", gin_dirs=folders)
    for line in ("include 'no.gin'", "include 'mine.gin'"):
        write("models/mine.gin", f"\n{line}")
        with pytest.raises(UserError, match=rf"mine\.gin, line 2: {line}"):
            experiment.load("listops", "mine", "cpu", gin_dirs=folders)


def test_a_scope_wins_over_other_files_and_an_override_over_it(write):
    folders = write("presets/cpu/base.gin", (config.GIN_DIR / "presets/cpu/base.gin").read_text())
    with open(folders[0] / "presets/cpu/base.gin", "a") as file:
        file.write("text/Run.batch_size = 7\ntext/fnet/Run.num_steps = 20\n")

    def run(model, *overrides):
        return experiment.load("text", model, "cpu", overrides, gin_dirs=folders).run

    assert (run("fnet").batch_size, run("fnet").num_steps) == (7, 20)
    assert run("linear").num_steps != 20
    assert run("fnet", "Run.num_steps=9").num_steps == 9
    with open(folders[0] / "presets/cpu/base.gin", "a") as file:
        file.write("text/fnett/Run.num_steps = 20\n")
    with pytest.raises(UserError, match=r"text/fnett/.*Run\.num_steps"):
        run("fnet")


def test_bindings_are_split_at_spaces_outside_quotes_and_brackets():
    text = """A.x=[1, 2,3]  B.y="two words" C.z=(0.9, 0.98) D.w = 'it is' E.v= None"""
    want = ["A.x=[1, 2,3]", 'B.y="two words"', "C.z=(0.9, 0.98)", "D.w = 'it is'", "E.v= None"]
    assert config.split_bindings(text) == want
    assert config.normalise("A.x='b, c=d;'") == "A.x = 'b, c=d;'"
    with pytest.raises(UserError, match="closed quotes and brackets"):
        config.split_bindings("A.x=[1, 2")


def test_a_setting_that_one_config_lacks_has_its_default_there():
    new = experiment.load("listops", "fnet", "cpu", ["Optimizer.beta1=0.8"]).config
    old = new.replace("Optimizer.beta1 = 0.8\n", "").replace("Run.microbatch = 0\n", "")
    assert config.differing(old, new) == [("Optimizer.beta1", "absent", "0.8")]
    assert config.differing(new, old) == [("Optimizer.beta1", "0.8", "absent")]
    old = new.replace("Run.num_steps", "Run.num_updates")  # which today's code does not know
    names = {difference.name for difference in config.differing(old, new)}
    assert names == {"Run.num_steps", "Run.num_updates"}
    old = new.replace("Run.stop_on_collapse = True\n", "")  # changes no run that trains
    assert old != new
    assert config.differing(old, new) == []


def test_defaults_of_modules_that_are_not_imported_yet_make_no_difference():
    """As in `compare`, of a run before the setting and one after it."""
    old = "import lra_fnet.models.mixers.attention as lra_fnet2\nimport lra_fnet.gone\n"
    new = "Attention.projections = 'lra'\nAttention.block_size = 7\n"
    code = f"from lra_fnet import config\nprint(*config.differing({old!r}, {new!r}), sep=chr(10))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Attention.block_size: absent -> 7\n"


def test_settings_of_speed_alone_are_bound_and_no_other_mixer_chooses_a_way():
    bound = set()
    for path in (config.GIN_DIR / "models").glob("*.gin"):
        bound |= set(re.findall(r"^(\w+\.\w+) *=", path.read_text(encoding="utf-8"), re.M))
    assert set(config.SPEED_ONLY) <= bound
    ways = {name for name in bound if name.endswith((".method", ".implementation"))}
    assert ways <= set(config.SPEED_ONLY)
