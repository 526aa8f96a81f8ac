"""An exported run: the same bits, readable by others, whole or not there."""

import json
import shutil
import struct
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from made_runs import change, trained, untrained

import lra_fnet
from lra_fnet import cli
from lra_fnet.errors import UserError
from lra_fnet.run import folder as run_folder
from lra_fnet.train import checkpoint

MODELS = ("fnet", "random")  # random has constants
STEPS = ("Run.num_steps=12", "Run.eval_every=2", "Optimizer.learning_rate=0.03")
ROWS = [np.array([0, 1, 1], np.uint8), np.array([1], np.uint8)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A trained run of each model."""
    root = tmp_path_factory.mktemp("trained")
    return {model: trained(root / "runs", model, *STEPS) for model in MODELS}


@pytest.fixture
def export(capfd):
    """Calls the command; returns the exit code, standard error and output."""

    def call(folder, out, *more):
        code = cli.main(["export", "--run", str(folder), "--out", str(out), *more])
        captured = capfd.readouterr()
        return code, captured.err, captured.out

    return call


@pytest.fixture
def exported(folders, export, tmp_path):
    """An exported folder to damage."""
    assert export(folders["fnet"], tmp_path / "out")[0] == 0
    return tmp_path / "out"


def by_hand(file):
    """Arrays of a safetensors file by its definition: a length, a JSON header, the bytes."""
    content = file.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32"
        start, end = (8 + size + place for place in entry["data_offsets"])
        found[name] = np.frombuffer(content[start:end], "<f4").reshape(entry["shape"])
    return found


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", ["best", "last"])
def test_what_is_read_back_gives_the_same_bits(folders, export, tmp_path, model, kind):
    out = tmp_path / "a/new/folder"
    code, err, said = export(folders[model], out, "--checkpoint", kind)
    assert (code, err, said) == (0, "", f"exported to {out}\n")
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    ours, theirs = lra_fnet.load_run(folders[model], kind), lra_fnet.load_run(out)
    assert jax.tree.structure(ours.variables) == jax.tree.structure(theirs.variables)
    for one, other in zip(*map(jax.tree.leaves, (ours.variables, theirs.variables)), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(ours.logits(ROWS), theirs.logits(ROWS))
    for name in ("checkpoint", "step", "result", "task"):
        assert getattr(ours, name) == getattr(theirs, name)


def test_the_file_holds_parameters_and_constants_by_name(folders, export, tmp_path):
    export(folders["random"], tmp_path / "out")
    run = lra_fnet.load_run(folders["random"])
    found = by_hand(tmp_path / "out/model.safetensors")
    mlp = run.variables["params"]["encoder"]["block_0"]["mlp"]
    np.testing.assert_array_equal(found["encoder/block_0/mlp/wide/kernel"], mlp["wide"]["kernel"])
    constants = run.variables["constants"]["encoder"]["block_0"]["mixer"]
    name = "constants/encoder/block_0/mixer/sequence"
    np.testing.assert_array_equal(found[name], constants["sequence"])
    assert len(found) == len(jax.tree.leaves(run.variables))
    numbers = sum(array.size for name, array in found.items() if not name.startswith("constants/"))
    assert numbers == run.result["parameters"]


def test_the_config_says_what_the_model_is_and_where_it_comes_from(folders, export, tmp_path):
    export(folders["fnet"], tmp_path / "out", "--checkpoint", "last")
    found = run_folder.read_json(tmp_path / "out/config.json")
    result = run_folder.read_json(folders["fnet"] / "result.json")
    assert found["result"] == result
    assert found["parameters_sha256"] == result["parameters_sha256"]
    for name in ("task", "model", "preset", "overrides", "seed", "commit", "versions", "config"):
        assert found[name] == result[name]
    assert (found["checkpoint"], found["step"]) == ("last", 12)
    assert found["sizes"] == {
        **{"dim": 8, "num_heads": 2, "qkv_dim": 8, "mlp_dim": 8, "num_layers": 1},
        **{"mixer_length": 12, "num_classes": 2, "num_inputs": 1},
    }
    assert found["classes"] == ["0", "1"]
    assert found["vocabulary"]["num_ids"] == 3
    assert found["vocabulary"]["id"] == "the value + 1"


def test_the_card_has_the_counts_of_the_result(folders, exported):
    result = run_folder.read_json(folders["fnet"] / "result.json")
    text = (exported / "README.md").read_text()
    for split in ("validation", "test"):
        counts = result[split]["best"]
        share = f"{100 * counts['correct'] / counts['count']:.2f}"
        assert f"| {split} | {counts['correct']} | {counts['count']} | {share} | " in text
    assert f"{result['floor']['correct']} of 30 test rows" in text
    assert "Licence of the data: not stated." in text
    assert "The model sees the padding" in text
    assert "not read" not in text
    assert str(exported) not in text


def test_the_card_of_a_run_whose_test_split_is_closed_says_so(tmp_path, export):
    folder = untrained(tmp_path / "runs", "listops", "transformer")
    change(folder / "result.json", test=None, validation_is_test=True)
    assert export(folder, tmp_path / "out")[0] == 0
    text = (tmp_path / "out/README.md").read_text()
    assert "| test |" not in text
    assert "The test split was not read." in text
    assert "chosen on the test rows" in text
    assert "sees the padding" not in text
    assert "Licence of the data: generated here: as this repository." in text
    assert "# transformer+tiny on ListOps" in text


def test_an_export_replaces_only_an_export_and_only_when_told(folders, export, exported):
    code, err, _ = export(folders["random"], exported)
    assert code == 2
    assert err == (
        f"lra-fnet: {exported} holds an export: --force replaces it, or choose another folder\n"
    )
    assert lra_fnet.load_run(exported).result["model"] == "fnet"
    assert export(folders["random"], exported, "--force")[0] == 0
    assert lra_fnet.load_run(exported).result["model"] == "random"
    (exported / "thesis.tex").write_text("mine")
    code, err, _ = export(folders["random"], exported, "--force")
    assert code == 2
    assert "holds other files: choose a folder that is not there" in err
    assert (exported / "thesis.tex").read_text() == "mine"
    assert [path.name for path in exported.parent.iterdir()] == ["out"]


def test_an_empty_folder_is_taken(folders, export, tmp_path):
    (tmp_path / "out").mkdir()
    assert export(folders["fnet"], tmp_path / "out")[0] == 0
    assert lra_fnet.load_run(tmp_path / "out").step > 0


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_full_disk_leaves_what_was_there(folders, export, exported, monkeypatch, force):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    out = exported if force else exported.with_name("new")
    before = {path: path.read_bytes() for path in exported.iterdir()}
    monkeypatch.setattr(Path, "write_text", full)  # the weights are there by then
    code, err, _ = export(folders["random"], out, *force)
    assert code == 2
    assert err == (
        f"lra-fnet: {out} cannot be written (No space left on device): choose another --out\n"
    )
    assert {path: path.read_bytes() for path in exported.iterdir()} == before
    assert [path.name for path in exported.parent.iterdir()] == ["out"]


def test_out_must_be_no_file_and_run_a_run(folders, export, tmp_path):
    (tmp_path / "file").write_text("")
    code, err, _ = export(folders["fnet"], tmp_path / "file")
    assert (code, err.count("\n")) == (2, 1)
    assert "--out expects a folder" in err
    code, err, _ = export(tmp_path, tmp_path / "out")
    assert (code, err.count("\n")) == (2, 1)
    assert "is no run folder" in err
    assert not (tmp_path / "out").exists()


def flipped_bit(folder):
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-100] ^= 1
    (folder / "model.safetensors").write_bytes(content)


def half(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def no_weights(folder):
    (folder / "model.safetensors").unlink()


def another_name(folder):
    arrays = by_hand(folder / "model.safetensors")
    arrays["head/other"] = arrays.pop("head/logits/bias")
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")


def another_library(folder):
    (folder / "config.json").write_text('{"model_type": "bert"}')


def no_json(folder):
    (folder / "config.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flipped_bit, "model.safetensors: the parameters are not those of config.json: export"),
        (half, "model.safetensors cannot be read ("),
        (no_weights, "model.safetensors cannot be read ("),
        (another_name, "expected float32 [2] at head/logits/bias, found none: export it again"),
        (another_library, "config.json: expected the format 'lra-fnet 1', got None: export"),
        (no_json, "config.json is not valid JSON"),
        (shutil.rmtree, "is no run folder (it has no run.json) and no exported one"),
    ],
)
def test_a_damaged_export_is_one_line(exported, damage, words):
    damage(exported)
    with pytest.raises(UserError) as told:
        lra_fnet.load_run(exported)
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_an_export_holds_one_checkpoint(exported):
    assert lra_fnet.load_run(exported, "best").checkpoint == "best"
    with pytest.raises(UserError, match=r"holds the checkpoint 'best', not 'last': export that"):
        lra_fnet.load_run(exported, "last")


def test_the_hash_is_that_of_the_parameters(exported):
    said = run_folder.read_json(exported / "config.json")["parameters_sha256"]
    assert checkpoint.sha256(lra_fnet.load_run(exported).variables["params"]) == said
