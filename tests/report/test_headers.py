"""The heads of the presets' files say what was measured, and nothing else in the files changes."""

from made_results import INIT, a_failure, put, put_curve, with_test

from lra_fnet import config
from lra_fnet.report import cells, headers
from lra_fnet.report.sources import Sources

GIN = "# ListOps, short.\n# More prose.\nRun.num_steps = 1000  # steps\n"


def presets(folder):
    path = folder / "presets/cpu/listops.gin"
    path.parent.mkdir(parents=True)
    path.write_text(GIN)
    (path.parent / "base.gin").write_text(GIN)
    (path.parent / "listops.performer.gin").write_text(GIN)
    return path


def test_head_has_a_row_for_each_model_with_what_it_gives_and_costs(tmp_path):
    for seed, correct in enumerate((600, 620, 640)):
        put_curve(put(tmp_path, with_test(correct, seed=seed)), steps=600)
    put(tmp_path, with_test(500, model="linear", wall_seconds=60.0))
    put(tmp_path, with_test(900, variant="v", overrides=["Encoder.dim=8"]))
    put(tmp_path, with_test(900, variant="pretrained", init=INIT))
    path = presets(tmp_path)
    texts = headers.files(Sources([tmp_path]), tmp_path / "presets")
    assert list(texts) == [path]
    prose, bindings = GIN.splitlines()[:2], GIN.splitlines()[2:]
    lines = texts[path].splitlines()
    assert (lines[:2], lines[-1:]) == (prose, bindings)
    assert all(line.startswith(headers.MARK) for line in lines[2:-1])
    table = [line.removeprefix(headers.MARK).split() for line in lines[-3:-1]]
    device = ["1", "x", "Some", "CPU", "(cpu,", "2", "cores)"]
    assert table == [
        ["linear", "1", "25.00", "1.0", "-", "-", *device],
        ["fnet", "3", "31.00", "±", "1.00", "2.0", "10.00", "50.00", *device],
    ]


def test_head_gives_minutes_for_each_device(tmp_path):
    gpu = {"name": "Some GPU", "platform": "gpu", "count": 1, "processes": 1, "cores": 16}
    runs = (120.0, {}), (90.0, {}), (6.0, {"device": gpu}), (12.0, {"device": gpu})
    for seed, (seconds, device) in enumerate(runs):
        put(tmp_path, with_test(600, seed=seed, wall_seconds=seconds, **device))
    path = presets(tmp_path)
    lines = headers.files(Sources([tmp_path]), tmp_path / "presets")[path].splitlines()
    (row,) = (line for line in lines if line.startswith(f"{headers.MARK}fnet"))
    assert "  1.5; 0.1  " in row
    assert row.endswith("1 x Some CPU (cpu, 2 cores); 1 x Some GPU (gpu, 16 cores)")


def test_head_says_which_seeds_failed_and_what_was_selected_on_test(tmp_path):
    for seed, correct in enumerate((600, 620, 640)):
        put(tmp_path, with_test(correct, seed=seed, validation_is_test=True))
    put(tmp_path, a_failure("diverged", seed=3))
    put(tmp_path, a_failure("OOM", model="linear"))
    put(tmp_path, with_test(360, model="dct"))  # the majority floor
    path = presets(tmp_path)
    lines = headers.files(Sources([tmp_path]), tmp_path / "presets")[path].splitlines()
    rows = {line.split()[1]: line.split()[2:8] for line in lines if line.startswith(headers.MARK)}
    assert rows["fnet"][:6] == ["3", "of", "4", "31.00", "±", "1.00†"]
    assert rows["linear"][:4] == ["0", "of", "1", "OOM"]
    assert rows["dct"][:4] == ["1", "did", "not", "train"]
    assert f"{headers.MARK}{cells.MARKS['validation_is_test']}" in lines


def test_seeds_on_other_data_have_a_row_of_their_own_in_the_head(tmp_path):
    put(tmp_path, with_test(600))
    put(tmp_path, with_test(900, seed=1, data_sha256="e" * 64))
    path = presets(tmp_path)
    lines = headers.files(Sources([tmp_path]), tmp_path / "presets")[path].splitlines()
    rows = [line.split()[1:4] for line in lines if line.startswith(f"{headers.MARK}fnet")]
    assert rows == [["fnet", "1", "30.00"], ["fnet", "1", "45.00"]]


def test_head_is_replaced_and_without_runs_says_so(tmp_path):
    path = presets(tmp_path)
    for results, state in ((True, "Measured"), (False, "Not measured.")):
        if results:
            put(tmp_path / "results", with_test(600))
        else:
            (tmp_path / "results/cpu/listops/fnet/seed0/result.json").unlink()
        text = headers.files(Sources([tmp_path / "results"]), tmp_path / "presets")[path]
        path.write_text(text)
        assert text.splitlines()[2].startswith(headers.MARK + state)
        assert "".join(line for line in text.splitlines(True) if "#|" not in line) == GIN
        assert not headers.files(Sources([tmp_path / "results"]), tmp_path / "presets")


def test_heads_of_the_committed_presets_are_up_to_date():
    results = Sources([config.GIN_DIR.parent / "results"])
    assert not headers.files(results, config.GIN_DIR / "presets")
