"""`lra-fnet settings`: each setting of a run, its value, and the place that binds it."""

import ast
import re
from pathlib import Path

import made_results
import pytest

from lra_fnet import cli, config
from lra_fnet.run import folder as run_files
from lra_fnet.run import settings_table
from lra_fnet.run.job import Job

ROOT = config.GIN_DIR.parent


def rows(*names, **fields):
    """The cells of the table, by setting."""
    table = settings_table.table(Job(*names, **fields))
    return {name: (value, source) for name, value, source in table.rows}


@pytest.mark.parametrize("denoise", [False, True])
@pytest.mark.parametrize(
    "names",
    [("text", "fnet", "cpu"), ("listops", "s5", "tuned"), ("image", "fnet_original", "lra-code")],
)
def test_the_named_line_binds_the_setting(names, denoise):
    found = rows(*names, denoise=denoise)
    experiment = Job(*names, denoise=denoise).load()
    assert found["Run.num_steps"][0] == str(experiment.run.num_steps)
    assert found["Encoder.dim"][0] == str(experiment.model.encoder.dim)
    in_files = {n: cells for n, cells in found.items() if cells[1] not in ("default", "derived")}
    assert len(in_files) > 25
    for name, (value, source) in in_files.items():
        place, _, changed = source.partition(": ")
        file, line = place.split(":")
        bound = (ROOT / file).read_text("utf-8").splitlines()[int(line) - 1]
        assert bound.split(" = ")[0].rpartition("/")[2] == name
        text = bound.split(" = ")[1].split("  #")[0].strip()
        if text[0] in "@%":
            assert value == text
        elif not changed:
            assert ast.literal_eval(value) == ast.literal_eval(text)


def test_settings_of_the_second_stage_are_those_of_the_steps_that_are_left(command, tmp_path):
    """And --init auto finds the first one."""
    short = ("Run.num_steps=20", "Optimizer.warmup=4")
    job = Job("listops", "fnet", "cpu", 0, short, "n", tmp_path / "runs", denoise=True)
    steps = {"step": 10, "correct": 5, "count": 10, "loss": 1.0}
    facts = job.identity() | {"test": None, "validation": {"best": steps, "last": steps}}
    experiment = job.load()
    result = made_results.a_result(**facts, config=experiment.config)
    folder = made_results.put(job.runs, result).parent
    begun = {"config": experiment.config, "data_sha256": result["data_sha256"]}
    run_files.write_begun(folder, job.to_json() | begun)
    words = ["--task=listops", "--model=fnet", "--preset=cpu", f"--runs={job.runs}", "--name=n"]
    words += ["--gin", " ".join(short)]
    for init in ("auto", str(folder)):
        code, err, out = command("settings", *words, "--init", init)
        assert code == 0, err
        assert "10 steps of" in " ".join(out.split())
        assert re.search(r"Optimizer.warmup +2 ", out), out
    assert "leave one out" in command("settings", *words, "--init=auto", "--pretrain").mistake


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
    assert found["Run.num_steps"] == ("500", "--set")
    assert found["Encoder.dim"] == ("32", f"{of_task}:9")
    assert found["Run.eval_every"] == ("50", f"{of_task}:5: 10 %")
    assert found["Optimizer.warmup"] == ("20", f"{of_task}:6: 40, scaled")
    assert found["Optimizer.steps_per_cycle"] == ("480", f"{of_task}:7: 960, scaled")
    assert found["Optimizer.beta1"] == ("0.9", "default")


def test_a_setting_that_the_rows_decide_is_derived(tmp_path):
    source = tmp_path / "mine.csv"
    lines = [f"{'yes' if i % 2 else 'no'},text {i}" for i in range(40)]
    source.write_text("\n".join(["label,text", *lines, ""]), "utf-8")
    found = rows("csv", "fnet", "cpu", data=tmp_path / "data", source=source)
    assert found["Csv.labels"] == ("('no', 'yes')", "derived")


def test_command_prints_folder_and_size_and_trains_nothing(tmp_path, capsys):
    line = f"settings --task listops --model fnet --preset cpu --data {tmp_path / 'data'}"
    assert cli.main(line.split()) == 0
    printed = capsys.readouterr().out
    experiment = Job("listops", "fnet", "cpu").load()
    count = sum(leaf.size for leaf in _leaves(experiment.init(0)["params"]))
    assert printed.startswith(f"runs/cpu/listops/fnet/seed0: {count:,} parameters; 3,000 steps")
    assert not Path(tmp_path, "data").exists()
    assert cli.main([*line.split(), "--set", "Encoder.dmi=3"]) == 2


def _leaves(tree):
    return [leaf for v in tree.values() for leaf in (_leaves(v) if isinstance(v, dict) else [v])]
