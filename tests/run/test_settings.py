"""`lra-fnet settings`: each setting of a run, its value, and the place that binds it."""

import re
from pathlib import Path

import pytest

from lra_fnet import cli, config
from lra_fnet.models.encoder import parameter_count
from lra_fnet.run.job import Job

ROOT = config.GIN_DIR.parent


def rows(*names, **fields):
    """The cells of the table, by setting."""
    table = Job(*names, **fields).settings()
    return {name: (value, source) for name, value, source in table.rows}


@pytest.mark.parametrize("denoise", [False, True])
def test_the_named_line_binds_the_setting(denoise):
    names = ("text", "fnet", "cpu")
    found = rows(*names, denoise=denoise)
    experiment = Job(*names, denoise=denoise).load()
    assert found["Run.num_steps"][0] == str(experiment.run.num_steps)
    in_files = {n: source for n, (_, source) in found.items() if re.search(r"\.gin:\d+", source)}
    assert len(in_files) > 25
    for name, source in in_files.items():
        file, line = source.partition(": ")[0].split(":")
        bound = (ROOT / file).read_text("utf-8").splitlines()[int(line) - 1]
        assert bound.split(" = ")[0].rpartition("/")[2] == name.rpartition("/")[2]


def test_the_last_file_wins_and_an_override_over_it(tmp_path):
    base = tmp_path / "presets/mine/base.gin"
    base.parent.mkdir(parents=True)
    base.write_text((ROOT / "gin/presets/cpu/base.gin").read_text("utf-8"), "utf-8")
    of_task = base.with_name("text.gin")
    of_task.write_text(
        '# A comment.\nDATASET = "full"\nMAX_LEN = 512\n\nRun.eval_every = "10 %"\n'
        "Optimizer.warmup = 40\nOptimizer.steps_per_cycle = 960\nRun.num_steps = 1_000\n"
        "Encoder.dim = 32\n",
        "utf-8",
    )
    overrides = ("Run.num_steps=500", "Encoder.num_layers=1")
    found = rows("text", "fnet", "mine", overrides=overrides, gin_dirs=(tmp_path,))
    assert found["Encoder.num_layers"] == ("1", "--set")
    assert found["Encoder.dim"] == ("32", f"{of_task}:9")
    assert found["Run.eval_every"] == ("50", f"{of_task}:5: 10 %")
    assert found["Optimizer.warmup"] == ("20", f"{of_task}:6: 40")
    assert found["Optimizer.beta1"] == ("0.9", "default")


def test_command_prints_folder_and_size_and_trains_nothing(tmp_path, capsys):
    line = f"settings --task listops --model fnet --preset cpu --data {tmp_path / 'data'}"
    assert cli.main(line.split()) == 0
    count = parameter_count(Job("listops", "fnet", "cpu").load().shapes())
    assert capsys.readouterr().out.startswith(f"runs/cpu/listops/fnet/seed0: {count:,} parameters")
    assert not Path(tmp_path, "data").exists()
