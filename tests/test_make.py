"""The Makefile: a variable of the command line arrives or is refused; one installs at a time."""

import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from paths import ROOT

from lra_fnet import config


def make(*words, **environment):
    # `make test` runs these tests; a make below it would say which folder it enters.
    outer = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *words], cwd=ROOT, env=outer | environment, capture_output=True, text=True
    )


def commands(*words, **environment):
    """The words of each `lra-fnet` that make would run."""
    shown = make("-n", *words, **environment)
    assert not shown.stderr
    lines = shown.stdout.replace("\\\n", " ").splitlines()
    words = map(shlex.split, (line for line in lines if line.startswith("'.venv/bin/lra-fnet' ")))
    return [one[1:] for one in words]


def option(words, name):
    return words[words.index(f"--{name}") + 1] if f"--{name}" in words else None


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("sweep MODLE=fnet", "make sweep does not take MODLE; it takes ACCELERATOR DATA "),
        ("lra STEPS=1 TASK=text", "make lra does not take STEPS; "),
        ("lra MODELS=fnet TRIALS=3", "make lra does not take MODELS TRIALS; "),
        ("report SEED=1", "make report does not take SEED; it takes README RUNS PYTHON VENV."),
        ("test TASK=text", "make test does not take TASK; it takes PYTHON VENV."),
        ("lra SEEDS=x", "SEEDS expects a whole number of at least 1, got x."),
        ("lra SEEDS=2x", "SEEDS expects a whole number of at least 1, got 2x."),
        ("lra SEED=1 SEEDS=2", "make lra takes SEED or SEEDS, got both."),
        ("lra SEEDS=0", "SEEDS expects a whole number of at least 1, got 0."),
    ],
)
def test_a_variable_without_effect_is_refused_with_one_line(words, line):
    made = make("-n", *words.split())
    assert made.returncode == 2
    assert not made.stdout
    (said,) = made.stderr.splitlines()
    assert line in said


def test_model_serves_for_models_in_a_sweep():
    (words,) = commands("sweep", "TASK=listops", "MODEL=ff_only")
    assert option(words, "models") == "ff_only"
    (words,) = commands("sweep", "TASK=listops", "MODELS=fnet,linear", "SEEDS=3")
    assert (option(words, "models"), option(words, "seeds")) == ("fnet,linear", "3")
    (words,) = commands("sweep", "SWEEP=lra_table")
    assert words == shlex.split(
        "sweep --sweep lra_table --gin '' --grids '' --ranges '' --jobs 1 --runs runs --data data"
    )


@pytest.mark.parametrize("target", ["lra", "lra PRETRAIN=1", "sweep", "benchmark"])
def test_a_data_set_is_a_binding_of_each_run(target):
    line = [*target.split(), "TASK=csv"]
    assert {option(words, "set") for words in commands(*line, "DATASET=mine")} == {"DATASET=mine"}
    assert {option(words, "set") for words in commands(*line)} == {None}


def test_the_command_line_wins_over_the_environment():
    (words,) = commands("lra", "SEED=7", SEEDS="3")
    assert option(words, "seed") == "7"
    for target in ("sweep", "benchmark"):
        (words,) = commands(target, "TASK=listops", "MODELS=fnet,linear", MODEL="local")
        assert option(words, "models") == "fnet,linear"
        (words,) = commands(target, "TASK=listops", MODEL="local")
        assert option(words, "models") == "local"


def test_a_folder_of_two_words_is_one_in_every_command():
    removed = shlex.split(make("-n", "clean", "VENV=my env").stdout)
    assert {word for word in removed if "my" in word or "env" in word} == {
        f"my env{end}" for end in ("", ".lock", "-peers", "-peers.lock")
    }
    for target in ("report", "test", "peers"):
        lines = make("-n", target, "VENV=my env").stdout.splitlines()
        words = [word for line in lines for word in shlex.split(line) if "my" in word]
        assert words
        assert all(word.startswith("my env") for word in words)


def test_report_changes_the_readme_only_when_asked():
    assert [option(words, "readme") for words in commands("report")] == [None]
    assert [option(words, "readme") for words in commands("report", "README=1")] == ["README.md"]


def test_help_fits_a_terminal_and_names_every_target_and_preset():
    text = make("help").stdout
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[1].split()
    assert [name for name in targets if not re.search(rf"\b{name}\b", text)] == ["help"]
    named = re.findall(r"(?:PRESET=|--preset )(\w\S*\|[\w|-]+)", "\n".join(lines))
    assert sorted("|".join(named).split("|")) == config.known("presets")


@pytest.mark.parametrize("target", ["lra", "sweep", "benchmark"])
def test_a_job_without_a_preset_says_at_once_how_long_it_takes(target):
    first, *_ = make("-n", target, "TASK=text").stdout.replace("\\\n", "").splitlines()
    assert "PRESET=paper, hours to days without an accelerator; PRESET=cpu takes minutes" in first
    assert "echo" not in make("-n", target, "TASK=text", "PRESET=paper").stdout


def test_a_sweep_that_has_its_preset_elsewhere_says_nothing_about_it():
    assert "echo" not in make("-n", "sweep", "SWEEP=lra_table").stdout
    assert "echo" not in make("-n", "sweep", "NAME=begun").stdout


@pytest.mark.parametrize(
    ("line", "extras"),
    [
        ("data TASK=corpus SOURCE=texts", "corpus"),
        ("data TASK=text DATASET=pieces_v8000_128", "corpus"),
        ("lra TASK=text PRESET=cpu-pretrain MODEL=fnet", "corpus"),
        ("lra TASK=text PRESET=cpu MODEL=fnet", ""),
        ("lra TASK=text MODEL=fnet PRESET=cpu GIN='DATASET=\"pieces_v300_64\"'", "corpus"),
        ("benchmark TASK=corpus PRESET=cpu-pretrain ACCELERATOR=cuda", "cuda,corpus"),
    ],
)
def test_tasks_of_pieces_install_what_they_need(line, extras):
    shown = make("-n", *shlex.split(line)).stdout.splitlines()
    (words,) = (shlex.split(one) for one in shown if one.startswith("launch/install.sh"))
    assert words[3].strip(",") == extras


def test_seeds_of_one_model_are_one_run_each():
    runs = commands("lra", "TASK=listops", "MODEL=fnet", "SEEDS=3")
    assert [option(words, "seed") for words in runs] == ["0", "1", "2"]
    assert [option(words, "seed") for words in commands("lra", "SEED=7")] == ["7"]
    assert [option(words, "seed") for words in commands("lra", SEED="5")] == ["5"]


def test_a_switch_is_off_with_0_and_no():
    for value in ("0", "no", "false"):
        (words,) = commands("lra", *(f"{name}={value}" for name in ("FORCE", "PRETRAIN")))
        assert words[0] == "train"
        assert "--force" not in words
    assert "--force" in commands("lra", "FORCE=1")[0]


def test_pretraining_is_a_stage_before_each_seed():
    runs = commands("lra", "TASK=image", "MODEL=fnet", "SEEDS=2", "PRETRAIN=1")
    stages = [(words[0], option(words, "seed"), option(words, "init")) for words in runs]
    assert stages == [(v, s, i) for s in "01" for v, i in (("pretrain", None), ("train", "auto"))]


@pytest.mark.parametrize("value", ["it's", "\"a\" 'b'", "x; echo y", "[1, 2]"])
def test_a_value_arrives_whole(value):
    variables = {"GIN": "gin", "NAME": "name", "DATA": "data", "SOURCE": "source"}
    (words,) = commands("lra", *(f"{name}={value}" for name in variables))
    assert {option(words, name) for name in variables.values()} == {value}


def test_two_installations_at_once_do_not_mix(tmp_path):
    """The second one waits, finds everything installed, and does nothing."""
    uv = tmp_path / "bin/uv"
    uv.parent.mkdir()
    uv.write_text(
        f'#!/bin/sh\necho "$1" >>{tmp_path}/calls; sleep 0.5\n'
        f'[ "$1" = pip ] || {{ mkdir -p {tmp_path}/venv/bin; : >{tmp_path}/venv/bin/python; }}\n'
    )
    uv.chmod(0o755)
    command = ["launch/install.sh", tmp_path / "venv", sys.executable, "dev"]
    environment = os.environ | {"PATH": f"{uv.parent}{os.pathsep}{os.environ['PATH']}"}
    both = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert (tmp_path / "calls").read_text().split() == ["venv", "pip"]
    assert sum("waiting for another installation" in text for text in said) == 1


def test_a_folder_that_make_did_not_make_is_not_deleted(tmp_path):
    work = tmp_path / "venv" / "work.txt"
    work.parent.mkdir()
    work.write_text("precious")
    command = ["launch/install.sh", work.parent, sys.executable, ""]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("expected VENV to be a new folder or an environment that make made")
    assert work.read_text() == "precious"


def test_extras_that_do_not_exist_are_refused(tmp_path):
    command = ["launch/install.sh", tmp_path / "venv", sys.executable, "gpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith('expected extras out of cuda corpus slurm tf dev peers, got "gpu"')


def fake(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("settings", "code", "calls"),
    [
        ("global.extra-index-url='https://example.org'", 0, ["pip uv<1", "uv -e .[dev]"]),
        (":env:.find-links='/wheels'", 0, ["pip uv<1", "uv -e .[dev]"]),
        ("", 1, ["pip uv<1", "uv -e .[dev]", "pip -e .[dev]"]),  # uv finds no package, say
        ("global.index-url='https://example.org'", 0, ["pip -e .[dev]"]),
    ],
)
def test_uv_installs_where_it_can_and_pip_where_it_cannot(tmp_path, settings, code, calls):
    """With pip and a copy of uv that record what they were asked for."""
    path = "/usr/bin:/bin"
    if shutil.which("uv", path=path):
        pytest.skip("uv of the system would be used")
    venv, note = tmp_path / "venv", tmp_path / "calls"
    last = 'for word; do before=$last last=$word; done; [ "$before" = -e ] && last="-e $last"'
    fake(tmp_path / "uv", last, f'echo "uv $last" >>{note}; mkdir -p $UV_CACHE_DIR; exit {code}')
    fake(
        tmp_path / "python",
        '[ "$2" = venv ] && { mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; exit; }',
        '[ "$1" = -c ] && { echo 3.11; exit; }',
        f'case "$*" in *\'config list\') echo "{settings}"; exit;; esac',
        f'{last}; echo "pip $last" >>{note}',
        f"[ \"$last\" != 'uv<1' ] || cp {tmp_path}/uv {venv}/bin/uv",
    )
    command = ["launch/install.sh", venv, tmp_path / "python", "dev"]
    environment = os.environ | {"PATH": path}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    assert note.read_text().splitlines() == calls
    assert not (venv / ".cache").exists()
    assert "dev" in (venv / ".installed").read_text().split()
