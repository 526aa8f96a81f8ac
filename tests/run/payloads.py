"""Hostile run folders and exports: what a stranger could put into one to run code or change files.

Each payload changes a copy of a good folder. Whoever opens it must neither make the file `marker`
nor change the file `victim`, and gets the model or one line. The sha256 of an edited result is
mended, so that it is consistent.
"""

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from lra_fnet.run import result as record

EVIL = "evil_payload"  # a module in the folder, which the tests put on sys.path


class Plant(NamedTuple):
    """Where a payload is planted."""

    folder: Path  # a copy of a run folder or of an export
    marker: Path  # appears if code runs
    victim: Path  # a file of the user

    @property
    def code(self) -> str:
        """Python that makes the marker."""
        return f"open({str(self.marker)!r}, 'w').close()"

    def module(self) -> None:
        """Writes the module evil_payload and evil_payload.gin, which imports it."""
        (self.folder / f"{EVIL}.py").write_text(
            f"import gin\n{self.code}\n\n@gin.configurable\ndef evil():\n    {self.code}\n"
        )
        (self.folder / f"{EVIL}.gin").write_text(f"import {EVIL}\n")

    def json(self, name: str, **changes) -> None:
        """Changes keys of a JSON file; a run.json and a result are sealed again."""
        file = self.folder / name
        value = json.loads(file.read_text()) | changes
        file.write_text(json.dumps(value if name == "config.json" else record.seal(value)))

    def config(self, text: str, *, only: bool = False) -> None:
        """Puts gin text before the config of the result, or in its place."""
        self.module()
        exported = (self.folder / "config.json").exists()
        name = "config.json" if exported else "result.json"
        value = json.loads((self.folder / name).read_text())
        result = value["result"] if exported else value
        result = record.seal(result | {"config": text + "\n" + ("" if only else result["config"])})
        self.json(name, **({"result": result} if exported else result))

    def binary(self, content: bytes) -> None:
        """Replaces every file of weights."""
        for pattern in ("*.safetensors", "checkpoints/**/*.safetensors", "checkpoints/*/*/*"):
            for file in self.folder.glob(pattern):
                if file.is_file():
                    file.write_bytes(content)


class Bomb:
    """Runs code when it is unpickled."""

    def __init__(self, code: str):
        self.code = code

    def __reduce__(self):
        return exec, (self.code,)


def _gin(text: str, **options) -> Callable[[Plant], None]:
    return lambda plant: plant.config(text, **options)


def _run(**changes) -> Callable[[Plant], None]:
    def act(plant):
        plant.module()
        plant.json("run.json", **changes)

    return act


def _result(**changes) -> Callable[[Plant], None]:
    return lambda plant: plant.json("result.json", **changes)


def _export(**changes) -> Callable[[Plant], None]:
    def act(plant):
        plant.module()
        plant.json("config.json", **changes)

    return act


def _imports_a_file(plant):
    plant.module()
    plant.json("run.json", imports=[str(plant.folder / f"{EVIL}.py")])


def _gin_folder(plant):
    plant.module()
    (plant.folder / "models").mkdir()
    (plant.folder / "models/fnet.gin").write_text(f"import {EVIL}\n")
    plant.json("run.json", gin_dirs=[str(plant.folder)])


def _config_gin(plant):
    plant.module()
    (plant.folder / "config.gin").write_text(f"import {EVIL}\n")


def _calls_the_system(plant):
    plant.config(f"Encoder.dim = __import__('os').system('touch {plant.marker}')")


def _dynamic(plant):
    plant.config(
        "from __gin__ import dynamic_registration\nimport os\n"
        f"os.system.command = 'touch {plant.marker}'\nTASK = @os.system()"
    )


def _dynamic_own(plant):
    plant.config(
        "from __gin__ import dynamic_registration\nimport lra_fnet.machine.disk\n"
        f"lra_fnet.machine.disk.replace.path = '{plant.marker}'\n"
        "TASK = @lra_fnet.machine.disk.replace()"
    )


def _pickle(plant):
    plant.binary(pickle.dumps(Bomb(plant.code)))


def _header(value) -> Callable[[Plant], None]:
    text = json.dumps(value).encode()
    return lambda plant: plant.binary(struct.pack("<Q", len(text)) + text)


def _link(name: str) -> Callable[[Plant], None]:
    def act(plant):
        plant.module()
        if (plant.folder / "result.json").exists():
            plant.json("result.json", test=None)  # so that `evaluate` locks, scores and writes
        (plant.folder / name).unlink(missing_ok=True)
        (plant.folder / name).symlink_to(plant.victim)

    return act


def _raw(name: str, content: bytes) -> Callable[[Plant], None]:
    return lambda plant: (plant.folder / name).write_bytes(content)


UP = "../../../up"
_TRAVERSAL = {f"../../{EVIL}": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
_GIN = {
    "import": _gin(f"import {EVIL}"),
    "import under our name": _gin(f"import {EVIL} as lra_fnet"),
    "import from": _gin(f"from {EVIL} import evil"),
    "import of a package": _gin("import antigravity"),
    "include": _gin(f"include '{EVIL}.gin'"),
    "include of a system file": _gin("include '/etc/passwd'"),
    "dynamic registration of os": _dynamic,
    "dynamic registration of ours": _dynamic_own,
    "python as a value": _calls_the_system,
    "unknown reference": _gin("TASK = @evil()"),
    "reference to the builder": _gin("TASK = @build()", only=True),
    "singleton of the builder": _gin(
        "gin.singleton.constructor = @build\nTASK = @gin.singleton()", only=True
    ),
    "macro of itself": _gin("TASK = %TASK", only=True),
    "deep brackets": _gin("Encoder.dim = " + "(" * 5000 + ")" * 5000, only=True),
    "text for a number": _gin("Encoder.dim = 'eight'", only=True),
    "negative size": _gin("Encoder.dim = -8", only=True),
    "null bytes": _gin("import\x00 os", only=True),
}
_WEIGHTS = {
    "pickle for weights": _pickle,
    "header of 2^62 bytes": lambda plant: plant.binary(struct.pack("<Q", 2**62) + b"{}"),
    "names that climb": _header(_TRAVERSAL),
    "offsets beyond the end": _header(
        {"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}
    ),
    "no weights": lambda plant: plant.binary(b""),
}

RUN: dict[str, Callable[[Plant], None]] = {
    **_GIN,
    **_WEIGHTS,
    "imports a file": _imports_a_file,
    "imports a module": _run(imports=[EVIL]),
    "gin folder": _gin_folder,
    "config.gin": _config_gin,
    "override with a line break": _run(overrides=[f"A.b=@c\nimport {EVIL}"]),
    "data elsewhere": _run(data=UP),
    "source by URL": _run(source="http://127.0.0.1:9/x", data=UP),
    "task that climbs": _run(task=UP),
    "name that climbs": _run(variant=UP),
    "preset that climbs": _result(preset=".."),
    "model that climbs": _result(model=UP),
    "HTML in a name": _result(model="<script>alert(1)</script>"),
    "escape codes in a name": _result(model="\x1b]0;owned\x07"),
    "lock is a link": _link(".lock"),
    "log is a link": _link("test_log.jsonl"),
    "nested JSON": _raw("result.json", b"[" * 100_000),
    "JSON in UTF-16": _raw("result.json", '{"schema": 1}'.encode("utf-16")),
    "number of a million digits": _raw("result.json", b'{"schema": ' + b"9" * 1_000_000 + b"}"),
}
EXPORT: dict[str, Callable[[Plant], None]] = {
    **_GIN,
    **_WEIGHTS,
    "imports a module": _export(imports=[EVIL]),
    "checkpoint that climbs": _export(checkpoint=UP),
    "result that is a list": _export(result=[]),
    "imports that are no list": _export(imports=EVIL),
    "step that is text": _export(step="1; import os"),
    "nested JSON": _raw("config.json", b'{"a":' * 100_000),
}
