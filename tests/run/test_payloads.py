"""No hostile run folder or export runs code, changes a file of the user or ends in a traceback.

Each payload changes a copy of a good folder. Whoever opens it must neither make the file `marker`
nor change the file `victim`, and gets the model or one line.
"""

import json
import pickle
import shutil
import struct
import sys

import pytest
from made_runs import change
from paths import OUTSIDE

import lra_fnet
from lra_fnet.errors import UserError
from lra_fnet.run import evaluate, model, verify
from lra_fnet.run import result as results

PARITY = str(OUTSIDE / "parity.py")
EVIL = "evil_payload"  # a module in the folder, which the tests put on sys.path


class Bomb:
    """Makes the marker when it is unpickled."""

    def __reduce__(self):
        return exec, ("open('marker', 'w').close()",)


def config(text, *, only=False):
    """Puts gin text before the config of the result, or in its place."""

    def act(folder):
        exported = (folder / "config.json").exists()
        file = folder / ("config.json" if exported else "result.json")
        value = json.loads(file.read_text())
        result = value["result"] if exported else value
        result["config"] = text + "\n" + ("" if only else result["config"])
        change(file, **({"result": results.seal(result)} if exported else result))

    return act


def weights(content):
    def act(folder):
        for file in folder.glob("**/*.safetensors"):
            file.write_bytes(content)

    return act


def raw(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def changed(name, **fields):
    return lambda folder: change(folder / name, **fields)


def link(name):
    def act(folder):
        change(folder / "result.json", test=None)  # so that `evaluate` locks, scores and writes
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(folder / "victim")

    return act


DYNAMIC = "from __gin__ import dynamic_registration\nimport os\n"
BOTH = {
    "import": config(f"import {EVIL}"),
    "include": config(f"include '{EVIL}.gin'"),
    "dynamic registration": config(f"{DYNAMIC}os.system.command = 'touch marker'\nTASK=@os.system"),
    "python as a value": config("Encoder.dim = __import__('os').system('touch marker')"),
    "singleton": config("gin.singleton.constructor = @build\nTASK = @gin.singleton()", only=True),
    "deep brackets": config("Encoder.dim = " + "(" * 5000 + ")" * 5000, only=True),
    "pickle": weights(pickle.dumps(Bomb())),
    "header of 2^62 bytes": weights(struct.pack("<Q", 2**62) + b"{}"),
}
RUN = {
    "imports": changed("run.json", imports=[EVIL]),
    "override with a line break": changed("run.json", overrides=[f"A.b=@c\nimport {EVIL}"]),
    "task that climbs": changed("run.json", task="../../../up"),
    "model that climbs": changed("result.json", model="../../../up"),
    "lock is a link": link(".lock"),
    "log is a link": link("test_log.jsonl"),
    "nested JSON": raw("result.json", b"[" * 100_000),
}
EXPORT = {
    "imports": changed("config.json", imports=[EVIL]),
    "checkpoint that climbs": changed("config.json", checkpoint="../../../up"),
    "result that is a list": changed("config.json", result=[]),
}


@pytest.fixture
def plant(tmp_path, monkeypatch):
    """Copies a folder for a payload, and lets Python find modules in the copy."""

    def call(folder):
        copy = shutil.copytree(folder, tmp_path / "runs/cpu/parity/fnet+tiny/seed0")
        (copy / "victim").write_text("mine")
        (copy / f"{EVIL}.py").write_text("open('marker', 'w').close()\n")
        (copy / f"{EVIL}.gin").write_text(f"import {EVIL}\n")
        monkeypatch.syspath_prepend(str(copy))
        monkeypatch.chdir(copy)
        monkeypatch.delitem(sys.modules, EVIL, raising=False)
        return copy

    return call


@pytest.fixture(scope="session")
def exported(folders, tmp_path_factory):
    out = tmp_path_factory.mktemp("export") / "out"
    model.export(folders["fnet"], out, imports=[PARITY])
    return out


KNOWN = {"run": BOTH | RUN, "export": BOTH | EXPORT}


@pytest.mark.parametrize(
    ("kind", "name"), [(k, name) for k, known in KNOWN.items() for name in known]
)
def test_hostile_folder_is_harmless(folders, exported, plant, kind, name):
    folder = plant(folders["fnet"] if kind == "run" else exported)
    KNOWN[kind][name](folder)
    options = verify.Options(folder / "no data", (PARITY,), (OUTSIDE,))
    for use in (lra_fnet.load_run, evaluate.evaluate, lambda f: verify.verify(f, options)):
        line = ""
        try:
            use(folder)
        except UserError as error:
            line = str(error)
        assert "\n" not in line
        assert not (folder / "marker").exists()
        assert (folder / "victim").read_text() == "mine"
    assert EVIL not in sys.modules


def test_a_payload_runs_where_the_user_asks_for_it(folders, plant):
    """The payloads are live: with --import the marker appears."""
    folder = plant(folders["fnet"])
    RUN["imports"](folder)
    lra_fnet.load_run(folder, imports=[EVIL])
    assert (folder / "marker").exists()
