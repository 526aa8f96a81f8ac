"""What was searched: the page made from ledgers, its choices, and the rules of the protocol."""

import json

from made_results import a_result, a_trial, put, put_sweep
from paths import ROOT

from lra_fnet import config, experiment
from lra_fnet.report.sections import protocol
from lra_fnet.report.sources import SweepFiles
from lra_fnet.sweep import plan
from tools import keep_sweep
from tools.documents import sweeps


def test_ledgers_keep_minutes_but_no_paths_and_ties_go_to_the_earlier_point(tmp_path):
    trials = [a_trial(n, layers=n, validation=v) for n, v in enumerate((0.25, 0.5, 0.5))]
    trials += [a_trial(3, "linear", 0, validation=0.75), a_trial(4, "linear", 1, state="running")]
    names = {"variant": "num_layers-1", "overrides": trials[1]["overrides"]}
    put(tmp_path, a_result(**names, wall_seconds=240.0))
    keep_sweep.keep(put_sweep(tmp_path, "layers", trials, data="/data", source="/raw"), tmp_path)
    ledger, about = (tmp_path / f"layers/{name}.json" for name in ("trials", "sweep"))
    assert '"/' not in about.read_text()
    seconds = {t["folder"]: t["wall_seconds"] or 0.0 for t in json.loads(ledger.read_text())}
    fnet, linear = sweeps.grid([SweepFiles(about)], seconds).rows
    assert fnet == ["ListOps, Run.num_steps=100", "FNet", "25.00", "50.00", "50.00", "4"]
    assert linear[1:] == ["Linear", "75.00", "-", "-", "0"]  # not decided yet
    assert [i for i, t in enumerate((*fnet, *linear)) if getattr(t, "style", "")] == [3]


def test_preset_and_rows_have_what_the_committed_searches_chose():
    for sweep in map(SweepFiles, (ROOT / "results/sweeps").glob("*/sweep.json")):
        for choice in sweeps.chosen(sweep):
            wanted = dict(map(config.split, choice.overrides))
            if "Encoder.batch_norm" in wanted:  # of no preset: the chosen runs are rows themselves
                assert all((ROOT / "results" / folder).exists() for folder in choice.folders)
                continue
            bound = config.values(experiment.load(choice.task, choice.model, choice.preset).config)
            for axis in sweep.about.axes:
                assert config.literal(bound[axis]) == config.literal(wanted[axis]), choice


def test_the_protocol_says_what_the_sweep_files_and_the_preset_do():
    rules = dict(protocol().rows)
    for name in ("rates", "dropout_pooling"):
        sweep = plan.read(config.sweep(name), {}, [])
        titles = [config.title(model) for model in sweep.models]
        assert rules["Main rows"] == f"{', '.join(titles[:-1])} and {titles[-1]}."
        assert all(str(v) in rules["Equal search"] for axis in sweep.axes.values() for v in axis)
        for task in sweep.tasks:
            encoder = experiment.load(task, "transformer", "cpu").model.encoder
            assert encoder.qkv_dim == encoder.dim
