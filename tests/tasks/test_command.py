"""`lra-fnet data` and `lra-fnet describe`: sets that are prepared, described and missing."""

import dataclasses

import numpy as np
import pytest
from paths import OUTSIDE

from lra_fnet import cli, config, tasks
from lra_fnet.baselines import shallow
from lra_fnet.errors import UserError
from lra_fnet.tasks import command


@pytest.fixture(autouse=True)
def parity():
    """The task of tests/outside."""
    config.import_modules([str(OUTSIDE / "parity.py")])


@dataclasses.dataclass(frozen=True)
class Unreachable(tasks.Task):
    name = "unreachable"
    num_classes = 2
    vocab_size = 3
    configs = {"far": 4}  # noqa: RUF012

    def raw(self, source, jobs):
        raise UserError("nobody has it")


@dataclasses.dataclass(frozen=True)
class Dots(tasks.PixelTask):
    name = "dots"
    num_classes = 2
    label_names = ("dark", "bright")
    licence = "ours"
    configs = {"small": 16, "other": 16}  # noqa: RUF012
    pixel_mean = 127.5
    pixel_sd = 127.5

    def raw(self, source, jobs):
        images = [np.full(16, value, np.uint8) for value in (0, 255)]
        rows = [(images[i % 2], i % 2) for i in range(8)]
        return tasks.Raw(dict.fromkeys(tasks.SPLITS, rows), total=24)


def known(monkeypatch, *names):
    monkeypatch.setattr(config, "known", lambda kind, dirs=(): list(names))


def test_task_from_outside_is_prepared_from_the_command_line(tmp_path, capsys):
    arguments = ["data", "--task", "parity", "--data", str(tmp_path)]
    assert (
        cli.main([*arguments, "--import", str(OUTSIDE / "parity.py"), "--gin-dir", str(OUTSIDE)])
        == 0
    )
    assert "parity/full from generator, every record verified" in capsys.readouterr().out
    folder = tmp_path / "lra_parity" / "full" / "1.0.0"
    assert (folder / "fingerprint.json").exists()
    assert (folder / "shallow.12.json").exists()


def test_all_prepares_the_rest_if_one_set_fails(tmp_path, monkeypatch, capsys):
    known(monkeypatch, "unreachable", "parity")
    with pytest.raises(UserError, match="1 are missing: unreachable/far"):
        command.command("all", None, tmp_path, None)
    out, err = capsys.readouterr()
    assert "parity/full from generator" in out
    assert "missing: unreachable/far: nobody has it" in err


def test_single_task_fails_with_its_own_message(tmp_path, monkeypatch):
    known(monkeypatch, "unreachable")
    with pytest.raises(UserError, match=r"^nobody has it$"):
        command.command("unreachable", None, tmp_path, None)
    with pytest.raises(UserError, match=r"'listopps'.*unreachable, all"):
        command.command("listopps", None, tmp_path, None)
    with pytest.raises(UserError, match=r"^--source belongs to one task"):
        command.command("all", None, tmp_path, "somewhere")


def test_sets_are_those_that_the_presets_name():
    assert {*config.lengths("text")} == {"full", "lra_code", "pieces_v8000_128"}
    assert config.lengths("pathx").keys() == {"hard_128", "short_128"}
    assert config.lengths("parity", [OUTSIDE]).keys() == {"full"}
    assert command.datasets("text", None, []) == ["full", "lra_code"]
    assert command.datasets("text", "somewhere", []) == ["full", "lra_code"]
    assert command.datasets("image", "somewhere", []) == ["full", "full_16"]
    assert command.datasets("listops", "somewhere", []) == ["full"]
    assert command.datasets("retrieval", "somewhere", []) == ["aan"]
    for task in tasks.BUILT_IN:
        assert config.lengths(task).keys() <= set(tasks.make(task).configs)
        assert next(iter(tasks.make(task).configs)) in config.lengths(task)


def test_describe_lists_prepared_sets_and_those_that_presets_need(tmp_path, monkeypatch, capsys):
    known(monkeypatch, "dots", "parity")
    monkeypatch.setattr(config, "lengths", lambda task, dirs=(): {"small": {8}, "full": {8}})
    shallow.ensure(tasks.prepare(tasks.make("dots", "other"), tmp_path))
    command.describe("all", tmp_path)
    shown = capsys.readouterr().out
    lines = {line.split()[0]: line for line in shown.splitlines() if "/" in line}
    want = ["8 / 8 / 8", "16 / 16 / 16 / 16", " 2 ", "50.00 %", "generator", "ours"]
    want += ["16: 100.00 %, ridge on the histogram of gray values"]
    assert all(text in lines["dots/other"] for text in want), lines["dots/other"]
    assert "not prepared" in lines["dots/small"]
    assert "not prepared" in lines["parity/full"]


def test_lengths_are_those_that_presets_bind_with_a_set():
    def lengths(task, dataset):
        return command.lengths(tasks.make(task, dataset), [], 10**6)

    assert lengths("text", "full") == [512, 2048, 4000]
    assert lengths("text", "lra_code") == [1000]
    assert lengths("listops", "short_128") == [128]
    assert lengths("retrieval", "pairs") == [512, 1024, 4000]  # in no preset, but as long as "aan"
    assert lengths("pathfinder", "easy_32") == [1024]
    assert lengths("pathfinder", "easy_64") == [4096]
    assert lengths("pathx", "easy_256") == [65536]
    assert lengths("corpus", "v300_128") == lengths("corpus", "v8000_128") == [128]
    assert lengths("images", "pets_8") == [64]
    assert command.lengths(tasks.make("csv", "mails"), [], 600) == [512, 2048]


@pytest.mark.parametrize("length", [9, 25])
def test_images_are_neither_cut_nor_padded(length, tmp_path):
    with pytest.raises(UserError, match=f"got {length}: set MAX_LEN=16"):
        tasks.prepare(Dots("small", length), tmp_path)
