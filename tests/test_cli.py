"""The command line itself: help, version, exit codes, and options that are gone."""

import re
import shlex

import pytest

from lra_fnet import __version__, cli, config

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


def test_a_relative_import_is_kept_as_an_absolute_path(outside):
    line = "train --task parity --model fnet --import a.py --import package.module"
    args = cli._parser().parse_args(line.split())
    assert args.imports == [str(outside / "a.py"), "package.module"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("data --describe --task all", "unrecognized arguments: --describe"),
        ("report --compare a b", "unrecognized arguments"),
        ("evaluate --run r --attention-span", "unrecognized arguments: --attention-span"),
        ("benchmark --task text --explain", "unrecognized arguments: --explain"),
        ("sweep --name s --finish", "unrecognized arguments: --finish"),
        ("trian --task listops", "invalid choice: 'trian'"),
        ("train --model fnet", "required: --task"),
        (
            "train --task listops --model fnet --seed x",
            "--seed expects a whole number of at least 0, got 'x'",
        ),
        ("train --task listops --model fnet --seed 4294967296", "from 0 to 4294967295"),
        ("explain --task text --lengths 16,x", "--lengths expects whole numbers like 1024,2048"),
        ("finish --name none", "no sweep 'none'"),
    ],
)
def test_a_wrong_command_fails_with_one_line(command, line, words):
    assert words in command(*line.split()).mistake


def test_system_error_before_the_command_begins_is_one_line(command, monkeypatch):
    def full(*args):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(config, "known", full)
    assert "Too many open files" in command("report").mistake
