"""Files are written completely or not at all, and a lock has one holder."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

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
    with pytest.raises(UserError, match=r"cannot be written \(No space left on device\): free"):
        disk.write_json(target, {"a": 2})
    assert json.loads(target.read_text()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("before", ["nothing", "empty", "file"])
@pytest.mark.parametrize("fails", [False, True])
def test_folder_is_replaced_in_one_step(tmp_path, before, fails):
    target = tmp_path / "out"
    if before != "nothing":
        target.mkdir()
    if before == "file":
        (target / "old").write_text("")

    with contextlib.suppress(ValueError), disk.partial(target) as folder:
        folder.mkdir()
        (folder / "new").write_text("")
        if fails:
            raise ValueError
    if fails:
        assert target.exists() == (before != "nothing")
    names = {"nothing": [], "empty": [], "file": ["old"]}[before] if fails else ["new"]
    assert [path.name for path in target.glob("*")] == names
    assert [path for path in tmp_path.iterdir() if path != target] == []


def test_of_a_link_the_link_is_removed_and_not_what_it_names(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to("kept")
    disk.remove(tmp_path / "link")
    disk.remove(tmp_path / "link")  # there is nothing
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_folder_stays_if_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/old").touch()
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"), disk.partial(tmp_path / "out") as folder:
        folder.mkdir()
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*"))
    assert left == ["out", "out/old"]


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"{", "cannot be read (Expecting"), (b"\xff", "cannot be read ("), (b"[]", "got a list")],
)
def test_damaged_json_fails_with_one_line(tmp_path, content, words):
    file = tmp_path / "a.json"
    assert disk.read_json(file) is None
    file.write_bytes(content)
    with pytest.raises(UserError) as raised:
        disk.read_json(file)
    assert words in str(raised.value)
    assert str(raised.value).endswith(": move it away")
    assert "\n" not in str(raised.value)


def test_file_without_permission_is_to_be_made_readable(tmp_path, monkeypatch):
    def refuse(*args):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "a.json")

    monkeypatch.setattr(Path, "read_text", refuse)  # root may read every file
    line = r"a.json cannot be read \(Permission denied\): make it readable$"
    with pytest.raises(UserError, match=line):
        disk.read_json(tmp_path / "a.json")


def test_line_that_is_being_written_is_skipped(tmp_path):
    file = tmp_path / "a.jsonl"
    assert disk.read_lines(file) == []
    file.write_text('{"a": 1}\n{"a": 2}\n{"a')
    assert disk.read_lines(file) == [{"a": 1}, {"a": 2}]


def test_bad_lines_are_left_out_with_a_warning(tmp_path, capfd):
    file = tmp_path / "a.jsonl"
    file.write_text('{"a\n{"a": 2}\n')
    with pytest.raises(UserError, match="cannot be read"):
        disk.read_lines(file)
    assert disk.read_lines(file, skip=True) == [{"a": 2}]
    assert "line 1 is damaged and left out" in capfd.readouterr().err


def test_line_is_appended_after_a_half_written_one(tmp_path):
    file = tmp_path / "a.jsonl"
    for number in range(2):
        disk.append_line(file, {"a": number})
    assert file.read_text() == '{"a": 0}\n{"a": 1}\n'
    file.write_text('{"a": 0}\n{"a"')
    disk.append_line(file, {"a": 2})
    assert file.read_text() == '{"a": 0}\n{"a"\n{"a": 2}\n'


def test_files_behind_a_link_are_neither_locked_nor_appended_to(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="cannot be written"):
        disk.append_line(tmp_path / "link", {"a": 1})
    with pytest.raises(OSError, match="symbolic links"):
        disk.try_lock(tmp_path / "link")
    assert (tmp_path / "mine").read_text() == "mine"


def wrapped():
    try:
        full()
    except OSError as error:
        raise RuntimeError("a library failed") from error


def quoted():
    raise RuntimeError("a library failed: No space left on device [source locations]")


@pytest.mark.parametrize("write", [full, wrapped, quoted])
def test_disk_error_becomes_one_line_that_names_the_option(tmp_path, write):
    line = r"a cannot be written \(No space left on device\): free .* folder with --out, then run"
    with pytest.raises(UserError, match=line), disk.writable(tmp_path / "a", "--out"):
        write()


def test_a_folder_that_is_read_only_needs_no_space(tmp_path):
    line = r"a cannot be written \(Read-only file system\): make it writable or choose another"
    with pytest.raises(UserError, match=line), disk.writable(tmp_path / "a"):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


@pytest.mark.parametrize("error", [KeyError("a"), UserError("a")])
def test_other_errors_pass_unchanged(tmp_path, error):
    with pytest.raises(type(error)) as raised, disk.writable(tmp_path):
        raise error
    assert raised.value is error


def test_what_a_killed_writer_left_is_removed_at_the_next_write(tmp_path):
    """That of a writer that still lives, and of another machine, stays."""
    write = "import os, sys; from pathlib import Path; from lra_fnet.machine import disk\n"
    write += "with disk.partial(Path('a')) as path: path.write_text(''); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", write], cwd=tmp_path, env=os.environ)
    (left,) = tmp_path.iterdir()
    alive, other = (
        left.with_name(f"{left.name[: left.name.rindex('-')]}-1"),
        tmp_path / ".a.node-99",
    )
    alive.touch()
    other.touch()
    disk.replace(tmp_path / "a", "new")
    assert {path.name for path in tmp_path.iterdir()} == {"a", alive.name, other.name}


HOLD = "import sys, time; from pathlib import Path; from lra_fnet.machine import disk\n"
HOLD += "handle = disk.try_lock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"


def test_text_that_is_missing_fails_with_one_line(tmp_path):
    with pytest.raises(UserError, match=r"a\.txt is missing: put it back, or name another$"):
        disk.read_text(tmp_path / "a.txt")


def test_lock_that_is_held_for_a_moment_is_waited_for(tmp_path):
    """As by a process that asks whether the lock is held."""
    handle = disk.try_lock(tmp_path / ".lock")
    threading.Timer(0.1, handle.close).start()
    again = disk.try_lock(tmp_path / ".lock", seconds=10)
    assert again is not None
    again.close()


def test_lock_has_one_holder_and_is_freed_by_a_kill(tmp_path, capfd):
    file = tmp_path / "a" / ".lock"
    file.parent.mkdir()
    with subprocess.Popen([sys.executable, "-c", HOLD, file], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        assert disk.try_lock(file) is None
        begun = time.monotonic()
        assert disk.try_lock(file, seconds=0.2) is None
        assert time.monotonic() - begun >= 0.2
        assert disk.holder(file) == str(process.pid)
        kill = threading.Timer(0.3, process.send_signal, [signal.SIGKILL])
        begun = time.monotonic()
        kill.start()
        with disk.lock(file, "waiting for another process"):
            assert time.monotonic() - begun > 0.2
            assert disk.holder(file) == str(os.getpid())
            assert disk.try_lock(file) is None
        kill.join()
    assert "waiting for another process" in capfd.readouterr().err
    with disk.lock(file, "waiting for another process"):
        pass
    assert "waiting" not in capfd.readouterr().err
    assert disk.holder(tmp_path / "none") == "unknown"


def test_a_user_without_a_home_gets_one_line(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(disk.Path, "home", homeless)
    with pytest.raises(UserError, match="no home folder for caches: set XDG_CACHE_HOME"):
        disk.user_cache()
