"""The command line itself: help, version, exit codes, and options that are gone."""

import os
import re
import shlex
import subprocess
import sys

import jax
import pytest
from paths import ROOT

from lra_fnet import __version__, cli, config


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_help_says_what_the_command_does_and_has_an_example_that_is_accepted(verb, capfd):
    with pytest.raises(SystemExit, match="0"):
        cli.main([verb, "--help"])
    text = capfd.readouterr().out
    assert re.search(r"\n\n[A-Z]\w+s [^\n]+\.\n", text)
    example = text.rpartition("example:\n")[2].replace("\\\n", " ")
    words = shlex.split(example)
    assert words[:2] == ["lra-fnet", verb]
    assert cli.parser().parse_args(words[1:]).call is cli.VERBS[verb][0]


def test_the_command_alone_lists_its_commands_with_code_2(capfd):
    assert cli.main([]) == 2
    text = capfd.readouterr().err
    assert all(re.search(rf"^    {verb}\b", text, re.M) for verb in cli.VERBS)


def test_the_version_is_that_of_the_package(capfd):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capfd.readouterr().out == f"lra-fnet {__version__}\n"


@pytest.mark.parametrize("kind", ["tasks", "models", "presets"])
def test_list_names_what_exists_with_a_sentence_each(command, kind):
    code, _, out = command("list", kind)
    assert code == 0
    lines = [line.split(maxsplit=1) for line in out.splitlines()]
    assert [name for name, _ in lines] == config.known(kind)
    assert all(about.rstrip().endswith((".", "?")) for _, about in lines)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("data --describe --task all", "--describe"),
        ("train --task listops --model fnet --forc", "--forc"),
        ("trian --task listops", "'trian'"),
        ("train --task listops --model fnet --set Run.num_steps = 20", "= 20"),
        ("verify results --data none", "--data expects a folder, none"),
        ("report --runs none", "--runs expects a folder, none"),
        ("list modls", "modls"),
        ("train --task listops --model fnet --hosts slurm", "--hosts: invalid choice: 'slurm'"),
        ("train --model fnet", "--task"),
        ("train --task listops --model fnet,linear", "'fnet,linear'"),
        ("train --task all --model fnet", "unknown task 'all'"),
        ("train --task= --model fnet", "--task: expects a value, got none"),
        ("finish --name none", "no sweep 'none'"),
        ("train --task listops --model my_mixer --gin-dir none", "none: there is no such folder"),
        ("data --task images --dataset foo", "gray_32"),
        ("train --task corpus --model fnet --preset cpu", "preset 'cpu' has no task 'corpus'"),
        ("train --task listops --model fnet --seed x", "from 0 to 4294967295, got 'x'"),
        ("train --task listops --model fnet --seed 4294967296", "from 0 to 4294967295"),
    ],
)
def test_a_wrong_command_fails_with_one_line(command, line, words):
    assert words in command(*line.split()).mistake


@pytest.mark.parametrize("line", ["--help", "train --help"])
def test_a_reader_that_is_gone_ends_a_command_with_141(line, tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "lra_fnet", *line.split()],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""},
        stdout=writing,
        stderr=subprocess.PIPE,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_full_disk_behind_standard_output_fails_with_one_line(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-m", "lra_fnet", "list", "models"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            program, cwd=tmp_path, env=environment, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    assert done.stderr == "lra-fnet: [Errno 28] No space left on device\n"


def test_device_that_is_full_fails_with_one_line_with_code_1(command, monkeypatch):
    errors = ["INTERNAL: a defect", "RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nmore"]

    def fail(*args):
        raise jax.errors.JaxRuntimeError(errors.pop())

    monkeypatch.setattr(cli, "parser", fail)
    code, err, out = command("report")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "lra-fnet: out of device memory (RESOURCE_EXHAUSTED: Out of memory allocating 9" in err
    with pytest.raises(jax.errors.JaxRuntimeError, match="a defect"):
        command("report")


@pytest.mark.parametrize("command", ["train", "pretrain"])
def test_a_process_reads_its_place_from_the_environment_and_options_win(command, monkeypatch):
    names = {"COORDINATOR": "a:1", "PROCESSES": "3", "PROCESS": "2", "JOIN_SECONDS": "90"}
    for name, value in names.items():
        monkeypatch.setenv(f"LRA_FNET_{name}", value)
    words = [command, "--task", "text", "--model", "fnet", "--process", "1"]
    args = cli.parser().parse_args(words)
    assert (args.coordinator, args.processes, args.process) == ("a:1", 3, 1)
    assert args.join_seconds == 90


def test_of_two_bindings_of_a_setting_the_last_one_counts(command):
    """Whether by --set or --gin; make gives its GIN last."""
    run = ["sweep", "--task", "listops", "--models", "fnet", "--preset", "cpu", "--dry-run"]
    words = ["--gin", "Encoder.dim=8 Run.num_steps=3", "--set", "Encoder.dim=16"]
    for given, dim in ((words, 16), ([*words[2:], *words[:2]], 8)):
        args = cli.parser().parse_args(shlex.split(command(*run, *given).out)[1:])
        assert set(args.set) == {f"Encoder.dim={dim}", "Run.num_steps=3"}
