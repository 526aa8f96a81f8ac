"""An exported run gives the same bits, is readable by others, and is complete or absent."""

import json
import struct
from pathlib import Path

import jax
import numpy as np
import pytest
from made_runs import change, flip_bit
from refused import one_line

import lra_fnet
from lra_fnet.errors import UserError
from lra_fnet.machine import disk
from lra_fnet.run import evaluate

ROWS = [np.array([0, 1, 1], np.uint8), np.array([1], np.uint8)]


@pytest.fixture
def export(command):
    """Calls the command; returns the exit code, standard error and standard output."""

    def call(folder, out, *options):
        return command("export", "--run", folder, "--out", out, *options)

    return call


@pytest.fixture
def exported(folders, export, tmp_path):
    """An exported folder that the test may damage."""
    assert export(folders["fnet"], tmp_path / "out")[0] == 0
    return tmp_path / "out"


def by_hand(file):
    """Reads a safetensors file by its definition: a length, a JSON header, the bytes."""
    content = file.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32"
        start, end = (8 + size + place for place in entry["data_offsets"])
        arrays[name] = np.frombuffer(content[start:end], "<f4").reshape(entry["shape"])
    return arrays


@pytest.mark.parametrize(("model", "kind"), [("fnet", "best"), ("random", "last")])
def test_exported_run_gives_the_same_bits(folders, export, tmp_path, model, kind):
    out = tmp_path / "a/new/folder"
    code, err, output = export(folders[model], out, "--checkpoint", kind)
    assert (code, err, output) == (0, "", f"exported to {out}\n")
    names = {"README.md", "config.json", "model.safetensors"}
    assert {path.name for path in out.iterdir()} == names
    ours, theirs = lra_fnet.load_run(folders[model], kind), lra_fnet.load_run(out)
    assert jax.tree.structure(ours.variables) == jax.tree.structure(theirs.variables)
    for a, b in zip(*map(jax.tree.leaves, (ours.variables, theirs.variables)), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(ours.logits(ROWS), theirs.logits(ROWS))
    for name in ("checkpoint", "step", "task"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.result.raw == theirs.result.raw


def test_weights_file_holds_parameters_and_constants_by_name(folders, export, tmp_path):
    export(folders["random"], tmp_path / "out")
    run = lra_fnet.load_run(folders["random"])
    arrays = by_hand(tmp_path / "out/model.safetensors")
    mlp = run.variables["params"]["encoder"]["block_0"]["mlp"]
    np.testing.assert_array_equal(arrays["encoder/block_0/mlp/wide/kernel"], mlp["wide"]["kernel"])
    constants = run.variables["constants"]["encoder"]["block_0"]["mixer"]
    name = "constants/encoder/block_0/mixer/sequence"
    np.testing.assert_array_equal(arrays[name], constants["sequence"])
    assert len(arrays) == len(jax.tree.leaves(run.variables))
    count = sum(array.size for name, array in arrays.items() if not name.startswith("constants/"))
    assert count == run.result.parameters


def test_card_has_the_counts_of_the_result(folders, exported):
    result = disk.read_json(folders["fnet"] / "result.json")
    text = (exported / "README.md").read_text()
    counts = result["test"]["best"]
    share = f"{100 * counts['correct'] / counts['count']:.2f}"
    assert f"| test | {counts['correct']} | {counts['count']} | {share} | " in text
    assert f"{result['floor']['correct']} of 30 test rows" in text
    assert "The model sees the padding" in text
    assert str(exported) not in text
    assert "\n\n\n" not in text


def test_export_replaces_only_an_export_and_only_with_force(folders, export, exported):
    assert f"{exported} holds an export" in export(folders["random"], exported).mistake
    assert lra_fnet.load_run(exported).result.model == "fnet"
    assert export(folders["random"], exported, "--force")[0] == 0
    assert lra_fnet.load_run(exported).result.model == "random"
    (exported / "thesis.tex").write_text("mine")
    assert "other files" in export(folders["random"], exported, "--force").mistake
    assert (exported / "thesis.tex").read_text() == "mine"
    assert [path.name for path in exported.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_full_disk_leaves_the_folder_unchanged(folders, export, exported, monkeypatch, force):
    write = Path.write_bytes

    def full(file, content):
        if file.name == "README.md":  # the others are written before
            raise OSError(28, "No space left on device")
        write(file, content)

    out = exported if force else exported.with_name("new")
    before = {path: path.read_bytes() for path in exported.iterdir()}
    monkeypatch.setattr(Path, "write_bytes", full)
    line = export(folders["random"], out, *force).mistake
    assert line.startswith(f"lra-fnet: {out} cannot be written (No space left on device): ")
    assert {path: path.read_bytes() for path in exported.iterdir()} == before
    assert [path.name for path in exported.parent.iterdir()] == ["out"]


def another_library(folder):
    (folder / "config.json").write_text('{"model_type": "bert"}')


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: flip_bit(f / "model.safetensors", -100), "model.safetensors: the parameters"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors cannot"),
        (another_library, "config.json cannot be read (checkpoint is missing)"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json cannot be read ("),
        (lambda folder: change(folder / "config.json", result={}), "config.json cannot be read"),
    ],
)
def test_damaged_export_fails_with_one_line(exported, damage, words):
    damage(exported)
    with one_line(words):
        lra_fnet.load_run(exported)


def test_export_holds_one_checkpoint_and_no_data(exported):
    with pytest.raises(UserError, match="is not a run folder"):
        evaluate.evaluate(exported)
    run = lra_fnet.load_run(exported, "best")
    assert run.checkpoint == "best"
    with pytest.raises(UserError, match=r"is an export, without data: name the run folder"):
        run.data()
    with pytest.raises(UserError, match=r"holds the checkpoint 'best', not 'last'"):
        lra_fnet.load_run(exported, "last")
