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
from lra_fnet.errors import UserError

VERBS = cli._parser()._subparsers._group_actions[0].choices


@pytest.mark.parametrize("verb", VERBS)
def test_every_help_says_what_the_command_does_and_has_an_example_that_is_accepted(verb, capfd):
    with pytest.raises(SystemExit, match="0"):
        cli.main([verb, "--help"])
    text = capfd.readouterr().out
    assert re.search(r"\n\n[A-Z]\w+s [^\n]+\.\n", text)
    example = text.rpartition("example:\n")[2].replace("\\\n", " ")
    words = shlex.split(example)
    assert words[:2] == ["lra-fnet", verb]
    assert cli._parser().parse_args(words[1:]).call is VERBS[verb].get_default("call")


def test_the_command_alone_lists_its_commands_with_code_2(capfd):
    assert cli.main([]) == 2
    text = capfd.readouterr().err
    assert all(re.search(rf"^    {verb}\b", text, re.M) for verb in VERBS)


def test_the_version_is_that_of_the_package(capfd):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capfd.readouterr().out == f"lra-fnet {__version__}\n"


def test_help_lists_the_tasks_and_models_that_exist(capfd):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    words = set(re.findall(r"\w+", capfd.readouterr().out))
    assert words.issuperset(config.known("models"))
    with pytest.raises(SystemExit):
        cli.main(["data", "--help"])
    assert set(re.findall(r"\w+", capfd.readouterr().out)).issuperset(config.known("tasks"))


@pytest.mark.parametrize("kind", ["tasks", "models", "presets"])
def test_list_names_what_exists_with_a_sentence_each(command, kind):
    code, _, out = command("list", kind)
    assert code == 0
    lines = [line.split(maxsplit=1) for line in out.splitlines()]
    assert [name for name, _ in lines] == config.known(kind)
    assert all(about.rstrip().endswith((".", "?")) for _, about in lines)


def test_sentence_of_a_list_has_neither_title_nor_reference():
    assert config.about("models", "fnet") == "the real part of a 2-D DFT."
    assert (
        config.about("tasks", "pathx") == "Pathfinder with images of 128 by 128 pixels; 2 classes."
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("data --describe --task all", "unrecognized arguments: --describe"),
        ("report --compare a b", "unrecognized arguments"),
        ("evaluate --run r --attention-span", "unrecognized arguments: --attention-span"),
        ("sweep --name s --finish", "unrecognized arguments: --finish"),
        ("train --task listops --model fnet --forc", "unrecognized arguments: --forc"),
        ("trian --task listops", "unknown command 'trian' (did you mean train?); known commands: "),
        (
            "train --task listops --model fnet --set Run.num_steps = 20",
            "unrecognized arguments: = 20: write a binding without spaces around =, or in quotati",
        ),
        (
            "train --task listops --model fnet --set Run.num_steps=4 Run.eval_every=2",
            "arguments: Run.eval_every=2: repeat --set for each binding, or quote all of them",
        ),
        ("describe --data none", "--data expects a folder of prepared sets, none does not exist"),
        ("verify results --data none", "--data expects a folder of prepared sets, none does no"),
        ("list modls", "KIND expects tasks, models or presets, got 'modls' (see lra-fnet list --h"),
        ("sweep --sampler foo", "--sampler expects grid, random or tpe, got 'foo'"),
        ("train --task listops --model fnet --hosts slurm", "--hosts expects auto, got 'slurm'"),
        ("train --task listops --model fnet --sets a", "--sets a (see lra-fnet train --help)"),
        ("train --model fnet", "required: --task"),
        (
            "train --task listops --model fnet,linear",
            "--model expects one name, got 'fnet,linear': `lra-fnet sweep --models fnet,linear` "
            "(make sweep MODELS=fnet,linear) trains several",
        ),
        (
            "train --task all --model fnet",
            "--task expects one name, got 'all': `lra-fnet sweep --t",
        ),
        ("train --task= --model fnet", "--task expects a value, got none"),
        ("finish --name=", "--name expects a value, got none"),
        ("benchmark --task listops --models ,", "--models expects names separated by commas"),
        ("train --task listops --model my_mixer --gin-dir none", "none: there is no such folder"),
        ("list models --gin-dir none", "none: there is no such folder"),
        ("data --task images --dataset foo", "gray_32, or a name that ends in the side, as pets_"),
        ("train --task corpus --model fnet --preset cpu", "with corpus: cpu-pretrain, paper-pret"),
        (
            "train --task listops --model fnet --seed x",
            "--seed expects a whole number from 0 to 4294967295, got 'x'",
        ),
        (
            "train --task listops --model fnet --seed 4294967296",
            "--seed expects a whole number from",
        ),
        ("finish --name none", "no sweep 'none'"),
    ],
)
def test_a_wrong_command_fails_with_one_line(command, line, words):
    assert words in command(*line.split()).mistake


def test_bindings_in_several_options_add_up(command):
    words = "train --task listops --model fnet --preset cpu --gin Run.log_every=7 --gin A.b=1"
    assert "A.b" in command(*words.split()).mistake
    words = "train --task listops --model fnet --preset cpu --gin A.b=1 --gin Run.log_every=7"
    assert "A.b" in command(*words.split()).mistake


def test_an_empty_option_is_as_good_as_none():
    """So make passes on variables that are not set; `--runs ''` would be the current folder."""
    parse = cli._parser().parse_args
    required = ["train", "--task=listops", "--model=fnet"]
    bare = vars(parse(required))
    empty = ["--preset=", "--name=", "--runs=", "--data=", "--source=", "--gin="]
    assert vars(parse([*required, *empty])) == bare
    bare = vars(parse(["benchmark", "--task=text"]))
    empty = ["--models=", "--lengths=", "--what=", "--devices="]
    assert vars(parse(["benchmark", "--task=text", *empty])) == bare


def test_an_empty_init_is_a_mistake(command):
    """Not "from scratch": the number would pass for a pre-trained one."""
    for verb in ("train", "settings"):
        words = [verb, "--task=listops", "--model=fnet", "--init="]
        assert "--init expects a value, got none" in command(*words).mistake


@pytest.mark.parametrize("line", ["list models", "describe"])
def test_a_reader_that_is_gone_ends_a_command_with_141(line, tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "lra_fnet", *line.split()],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=writing,
        stderr=subprocess.PIPE,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("line", ["list models"])
def test_a_full_disk_behind_standard_output_fails_with_one_line(line, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-m", "lra_fnet", *line.split()]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            program, cwd=tmp_path, env=environment, stdout=full, stderr=subprocess.PIPE
        )
    words = b"lra-fnet: standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, words)


def test_system_error_before_the_command_begins_fails_with_one_line(command, monkeypatch):
    def full(*args):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(cli, "_parser", full)
    assert "Too many open files" in command("report").mistake


def test_device_that_is_full_fails_with_one_line_with_code_1(command, monkeypatch):
    errors = ["INTERNAL: a defect", "RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nmore"]

    def fail(*args):
        raise jax.errors.JaxRuntimeError(errors.pop())

    monkeypatch.setattr(cli, "_parser", fail)
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
    args = cli._parser().parse_args(words)
    assert (args.coordinator, args.processes, args.process) == ("a:1", 3, 1)
    assert args.join_seconds == 90


def test_an_empty_variable_gives_no_place_and_a_wrong_one_is_named(monkeypatch):
    for name in ("COORDINATOR", "PROCESSES", "PROCESS", "JOIN_SECONDS", "HOSTS"):
        monkeypatch.setenv(f"LRA_FNET_{name}", "")
    words = ["train", "--task", "text", "--model", "fnet"]
    args = cli._parser().parse_args(words)
    assert args.coordinator is args.processes is args.process is args.join_seconds is None
    assert args.hosts is None
    monkeypatch.setenv("LRA_FNET_HOSTS", "false")
    with pytest.raises(UserError, match="--hosts expects auto, got 'false'"):
        cli._parser().parse_args(words)


def test_of_two_bindings_of_a_setting_the_last_one_counts():
    """Whether by --set or --gin; make gives its GIN last."""
    run = ["train", "--task", "listops", "--model", "fnet", "--preset", "cpu"]
    words = ["--gin", "Encoder.dim=8 Run.num_steps=3", "--set", "Encoder.dim=16"]
    for given, dim in ((words, 16), ([*words[2:], *words[:2]], 8)):
        job = cli._job(cli._parser().parse_args([*run, *given]))
        assert set(job.overrides) == {f"Encoder.dim={dim}", "Run.num_steps=3"}
