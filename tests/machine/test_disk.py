"""Files are written completely or not at all, and a lock has one holder."""

import contextlib
import errno
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from lra_fnet.errors import UserError
from lra_fnet.machine import disk


def full(*_, **__):
    raise OSError(28, "No space left on device")


def test_json_file_is_complete_or_absent(tmp_path, monkeypatch):
    target = tmp_path / "result.json"
    disk.write_json(target, {"a": 1})
    with pytest.raises(TypeError):
        disk.write_json(target, {"a": object()})
    assert disk.read_json(target) == {"a": 1}
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match=r"cannot be written \(No space left on device\)"):
        disk.write_json(target, {"a": 2})
    assert json.loads(target.read_text()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("before", ["nothing", "file"])
@pytest.mark.parametrize("fails", [False, True])
def test_folder_is_replaced_by_a_complete_one(tmp_path, before, fails):
    target = tmp_path / "out"
    if before == "file":
        target.mkdir()
        (target / "old").write_text("")
    with contextlib.suppress(ValueError), disk.partial(target) as folder:
        folder.mkdir()
        (folder / "new").write_text("")
        if fails:
            raise ValueError
    names = {"nothing": [], "file": ["old"]}[before] if fails else ["new"]
    assert [path.name for path in target.glob("*")] == names
    assert [path for path in tmp_path.iterdir() if path != target] == []


@pytest.mark.parametrize(
    ("read", "content", "fragment"),
    [
        (disk.read_json, b"{", "Expecting"),
        (disk.read_json, b"\xff", "cannot be read"),
        (disk.read_json, b"[]", "got a list"),
        (disk.read_lines, b'{"a\n{"a": 2}\n', "damaged"),
        (disk.read_lines, b"[]3\n", "damaged"),
        (disk.read_text, None, "is missing"),
    ],
)
def test_damaged_or_missing_file_fails_with_one_line(tmp_path, read, content, fragment):
    file = tmp_path / "a"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError) as raised:
        read(file)
    assert fragment in str(raised.value)
    assert "\n" not in str(raised.value)


def test_lines_are_appended_and_read_around_half_written_ones(tmp_path):
    file = tmp_path / "a.jsonl"
    assert disk.read_lines(file) == []
    disk.append_line(file, {"a": 1})
    file.write_text('{"a": 1}\n{"a"')
    assert disk.read_lines(file) == [{"a": 1}]
    disk.append_line(file, {"a": 2})
    assert file.read_text() == '{"a": 1}\n{"a"\n{"a": 2}\n'
    assert disk.read_lines(file, skip=True) == [{"a": 1}, {"a": 2}]


def wrapped():
    try:
        full()
    except OSError as error:
        raise RuntimeError("a library failed") from error


def quoted():
    raise RuntimeError("a library failed: File too large; at byte 7000")


def read_only():
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


@pytest.mark.parametrize("write", [full, wrapped, quoted, read_only])
def test_disk_error_becomes_one_line_that_names_the_option(tmp_path, write):
    line = r"a cannot be written \((No space|Read-only|File too large).*\): .* folder with --out"
    with pytest.raises(UserError, match=line), disk.writable(tmp_path / "a", "--out"):
        write()


def test_what_a_killed_writer_left_is_removed_at_the_next_write(tmp_path):
    """That of a writer that still lives, and of another machine, stays."""
    write = "import os, sys; from pathlib import Path; from lra_fnet.machine import disk\n"
    write += "with disk.partial(Path('a')) as path: path.write_text(''); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", write], cwd=tmp_path)
    (left,) = tmp_path.iterdir()
    alive, other = left.with_name(f"{left.name.rpartition('-')[0]}-1"), tmp_path / ".a.node-99"
    alive.touch()
    other.touch()
    disk.replace(tmp_path / "a", "new")
    assert {path.name for path in tmp_path.iterdir()} == {"a", alive.name, other.name}


HOLD = "import sys, time; from pathlib import Path; from lra_fnet.machine import disk\n"
HOLD += "handle = disk.try_lock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"


def test_lock_has_one_holder_and_is_freed_by_a_kill(tmp_path, capfd):
    file = tmp_path / "a" / ".lock"
    file.parent.mkdir()
    with subprocess.Popen([sys.executable, "-c", HOLD, file], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        begun = time.monotonic()
        assert disk.try_lock(file, seconds=0.2) is None
        assert time.monotonic() - begun >= 0.2
        assert file.read_text() == f"{process.pid}\n"
        threading.Timer(0.3, process.kill).start()
        with disk.lock(file, "waiting for another process"):
            assert disk.try_lock(file) is None
    assert "waiting for another process" in capfd.readouterr().err
    with disk.lock(file, "waiting for another process"):
        pass
    assert "waiting" not in capfd.readouterr().err
