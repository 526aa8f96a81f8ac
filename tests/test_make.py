"""The Makefile: a variable of the command line arrives whole or is refused; installation."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from paths import ROOT

from lra_fnet import cli, config


def make(*words, **environment):
    # `make test` runs these tests; a make below it would say which folder it enters.
    outer = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *words], cwd=ROOT, env=outer | environment, capture_output=True, text=True
    )


def command(*words, **environment):
    """The words of the `lra-fnet` that make would run."""
    shown = make("-n", *words, **environment)
    assert not shown.stderr
    lines = shown.stdout.replace("\\\n", " ").splitlines()
    (line,) = (line for line in lines if line.startswith("'.venv/bin/lra-fnet' "))
    return shlex.split(line)[1:]


def test_a_variable_that_nobody_reads_is_refused_with_one_line():
    """One that this command does not take is an option that lra-fnet refuses."""
    made = make("-n", "sweep", "MODLE=fnet")
    assert (made.returncode, made.stdout) == (2, "")
    (said,) = made.stderr.splitlines()
    assert "make does not take MODLE; it takes TASK MODEL " in said
    with pytest.raises(cli.UserError, match="--models"):
        cli.parser().parse_args(command("lra", "TASK=text", "MODEL=fnet", "MODELS=fnet"))


def test_every_variable_is_an_option_of_some_command_and_the_environment_is_none():
    own = "TASK=text PRESET=cpu DATASET=d GIN=a.b=1 RUNS=r DATA=e SOURCE=s IMPORT=m GIN_DIR=g"
    given = {"MODEL": "fnet", "SEED": "7", "NAME": "n", "FORCE": "1", "ARGS": "--no-test"}
    words = command("lra", *own.split(), *map("=".join, given.items()), TASK="x", SEEDS="3")
    args = cli.parser().parse_args(words)
    assert (args.task, args.preset, args.set) == ("text", "cpu", ["DATASET=d", "a.b=1"])
    assert (args.imports, list(map(str, args.gin_dirs))) == (["m"], ["g"])
    flags = ["fnet", 7, "n", True, False]
    assert [args.model, args.seed, args.name, args.force, args.test] == flags
    assert tuple(map(str, (args.runs, args.data, args.source))) == ("r", "e", "s")
    words = command("sweep", *own.split(), "MODELS=a,b", "SEEDS=3", "GRID=A.b=[1]", "ARGS=--jobs 2")
    args = cli.parser().parse_args(words)
    assert (args.models, args.seeds, args.grid, args.jobs) == ("a,b", 3, ["A.b=[1]"], 2)
    assert command("data", "TASK=csv", "DATASET=d")[-2:] == ["--dataset", "d"]
    assert command("sweep", TASK="text", NAME="host") == ["sweep"]
    assert "--force" not in command("lra", "FORCE=0")


def test_a_folder_of_two_words_is_one_in_every_command():
    removed = shlex.split(make("-n", "clean", "VENV=my env").stdout)
    assert {word for word in removed if "my" in word or "env" in word} == {
        f"my env{end}" for end in ("", ".lock", "-peers", "-peers.lock")
    }
    for target in ("report", "test", "peers", "drill", "documents"):
        lines = make("-n", target, "VENV=my env").stdout.splitlines()
        words = [word for line in lines for word in shlex.split(line) if "my" in word]
        assert words
        assert all(word.startswith("my env") for word in words)


@pytest.mark.parametrize("value", ["it's", "\"a\" 'b'", "x; echo y", "[1, 2]"])
def test_a_value_arrives_whole(value):
    variables = {"GIN": "--gin", "NAME": "--name", "DATA": "--data", "SOURCE": "--source"}
    words = command("lra", *(f"{name}={value}" for name in variables))
    assert {words[words.index(name) + 1] for name in variables.values()} == {value}


def test_help_fits_a_terminal_and_names_every_target_and_preset():
    text = make("help").stdout
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    makefile = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.M)[1].split()
    assert [name for name in targets if not re.search(rf"\b{name}\b", text)] == []
    named = re.findall(r"PRESET=(\w\S*\|[\w|-]+)", text)
    assert sorted("|".join(named).split("|")) == config.known("presets")
    assert len(re.findall(r"^[A-Z_]+ *\??=", makefile, re.M)) <= 20


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


def test_only_pips_settings_of_sources_hold(tmp_path):
    """Those of a user, a target or hashes make no sense in the project's own environment."""
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    kept = "global.find-links='/my wheels'\\nglobal.user='yes'\\n:env:.index-url='https://mine/x'"
    python.write_text(
        f'#!/bin/sh\ncase $4 in list) printf "{kept}\\n";; -q) env >{tmp_path}/calls;; esac\n'
    )
    python.chmod(0o755)
    facts = b"".join((ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt"))
    key = subprocess.run("cksum", input=facts, capture_output=True).stdout.decode().strip()
    version = ".".join(map(str, sys.version_info[:2]))
    (tmp_path / "venv/.installed").write_text(f"{version} {key}\n")
    command = ["launch/install.sh", tmp_path / "venv", sys.executable, ""]
    settings = {"PATH": "/usr/bin:/bin", "PIP_USER": "1", "PIP_TARGET": "x"}
    subprocess.run(command, cwd=ROOT, env=settings, check=True)
    found = dict(line.split("=", 1) for line in (tmp_path / "calls").read_text().splitlines())
    mine = {name: value for name, value in found.items() if name.startswith("PIP_")}
    assert mine["PIP_INDEX_URL"] == "https://mine/x"
    assert mine["PIP_FIND_LINKS"] == "/my wheels"
    assert not {"PIP_USER", "PIP_TARGET"} & mine.keys()


def test_a_folder_that_make_did_not_make_is_not_deleted(tmp_path):
    work = tmp_path / "venv" / "work.txt"
    work.parent.mkdir()
    work.write_text("precious")
    command = ["launch/install.sh", work.parent, sys.executable, ""]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    (said,) = done.stderr.splitlines()
    assert said.startswith("expected VENV to be a new folder or an environment that make made")
    assert work.read_text() == "precious"
