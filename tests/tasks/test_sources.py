"""Downloads that resume, and folders and archives that are read in the same way."""

import hashlib
import io
import json
import lzma
import os
import socket
import tarfile
from pathlib import Path

import numpy as np
import pytest
import serving

from lra_fnet import tasks
from lra_fnet.data import sources
from lra_fnet.data.sources import Remote
from lra_fnet.errors import UserError

CONTENT = np.random.default_rng(0).bytes(3_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def served(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_PAUSES", (0.01, 0.01))
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "raw.bin").write_bytes(CONTENT)
    with serving.server(folder) as server:
        yield server


def one_line(caught):
    text = str(caught.value)
    assert "\n" not in text
    return text


# Downloads


def test_download_is_checked_and_made_once(served, tmp_path):
    remote = Remote(f"{served.url}raw.bin", len(CONTENT), SHA256)
    for _ in range(2):
        path = sources.fetch(remote, tmp_path / "downloads")
        assert path.read_bytes() == CONTENT
    assert len(served.asked) == 1
    assert [p.name for p in (tmp_path / "downloads").iterdir()] == ["raw.bin"]


@pytest.mark.parametrize("known", [True, False])
def test_download_resumes_after_a_broken_connection(known, served, tmp_path):
    served.cut = 1_700_000
    remote = Remote(f"{served.url}raw.bin", *((len(CONTENT), SHA256) if known else ()))
    assert sources.fetch(remote, tmp_path).read_bytes() == CONTENT
    assert [asked for _, asked in served.asked] == [None, "bytes=1700000-"]


def test_download_that_gets_no_further_ends(tmp_path, monkeypatch):
    """From a server that always begins at the first byte, and stops earlier and later in turn."""
    monkeypatch.setattr(sources, "_PAUSES", (0, 0))
    sizes = [1000, 2000] * 3

    def download(remote, part, notes, progress):
        part.write_bytes(bytes(sizes.pop(0)))
        raise ConnectionError("cut off")

    monkeypatch.setattr(sources, "_download", download)
    with pytest.raises(UserError, match=r"^raw.bin .* cannot be downloaded \(cut off\): "):
        sources.fetch(Remote("http://127.0.0.1/raw.bin"), tmp_path)
    assert len(sizes) == 2


def test_server_that_never_answers_is_named_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and sends nothing
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/mine.csv"
        with pytest.raises(UserError) as caught:
            sources.fetch(Remote(url), tmp_path)
    assert one_line(caught) == (
        f"mine.csv (size unknown) from {url} cannot be downloaded (the server sent nothing for 0.2 "
        "seconds): run the same command again, or get it in another way and give --source "
        "path/to/mine.csv"
    )


def test_stopped_download_resumes_in_the_next_process(served, tmp_path, monkeypatch):
    remote = Remote(f"{served.url}raw.bin", len(CONTENT), SHA256)
    served.cut = 1_700_000
    monkeypatch.setattr(sources, "_PAUSES", ())
    with pytest.raises(UserError, match=r"1\.7 MB are kept, the same command continues from there"):
        sources.fetch(remote, tmp_path)
    assert sources.fetch(remote, tmp_path).read_bytes() == CONTENT
    assert served.asked[-1][1] == "bytes=1700000-"


@pytest.mark.parametrize("notes", [b"", b'{"same": ', b"[1]", b"\xff", None])
def test_download_whose_notes_a_kill_damaged_starts_again(notes, served, tmp_path):
    (tmp_path / "raw.bin.part").write_bytes(CONTENT[:1000])
    if notes is not None:
        (tmp_path / "raw.bin.part.json").write_bytes(notes)
    path = sources.fetch(Remote(f"{served.url}raw.bin", len(CONTENT), SHA256), tmp_path)
    assert path.read_bytes() == CONTENT
    assert [asked for _, asked in served.asked] == [None]
    assert not list(tmp_path.glob("raw.bin.*"))


@pytest.mark.parametrize("kept", [CONTENT, CONTENT + b"more"])
def test_download_that_was_whole_before_it_got_its_name_ends(kept, served, tmp_path):
    """The server has no byte after those that are kept, and says so with status 416."""
    (tmp_path / "raw.bin.part").write_bytes(kept)
    tag = f'"{hashlib.md5(CONTENT).hexdigest()}"'
    (tmp_path / "raw.bin.part.json").write_text(json.dumps({"same": tag, "size": None}))
    assert sources.fetch(Remote(f"{served.url}raw.bin"), tmp_path).read_bytes() == CONTENT
    assert [asked for _, asked in served.asked] == [f"bytes={len(kept)}-", None]


def test_server_that_continues_at_another_byte_is_refused(served, tmp_path):
    served.cut, served.shift = 1_700_000, 500
    with pytest.raises(UserError, match="the server did not continue at byte 1700000"):
        sources.fetch(Remote(f"{served.url}raw.bin"), tmp_path)
    assert (tmp_path / "raw.bin.part").read_bytes() == CONTENT[:1_700_000]


def test_file_that_changed_on_the_server_is_downloaded_from_the_start(
    served, tmp_path, monkeypatch
):
    remote = Remote(f"{served.url}raw.bin")
    served.cut = 1_700_000
    monkeypatch.setattr(sources, "_PAUSES", ())
    with pytest.raises(UserError):
        sources.fetch(remote, tmp_path)
    other = CONTENT[::-1]
    (tmp_path / "served" / "raw.bin").write_bytes(other)
    assert sources.fetch(remote, tmp_path).read_bytes() == other


@pytest.mark.parametrize(
    ("size", "sha256", "words"),
    [
        (len(CONTENT), "0" * 64, ["sha256", "000000"]),
        (len(CONTENT) + 1, None, [f"expected {len(CONTENT) + 1} bytes", str(len(CONTENT))]),
    ],
)
def test_wrong_size_or_sha256_fails_with_one_line(size, sha256, words, served, tmp_path):
    with pytest.raises(UserError) as caught:
        sources.fetch(Remote(f"{served.url}raw.bin", size, sha256), tmp_path / "downloads")
    text = one_line(caught)
    assert all(word in text for word in [*words, "delete it"]), text
    assert not (tmp_path / "downloads" / "raw.bin").exists()


def test_no_network_and_missing_file_fail_with_size_and_address(served, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}/raw.bin"
    for url in (closed, f"{served.url}missing.bin"):
        with pytest.raises(UserError) as caught:
            sources.fetch(Remote(url, 84_125_825), tmp_path)
        text = one_line(caught)
        assert "(84.1 MB)" in text
        assert url in text


def test_a_failed_download_names_the_set_that_is_not_prepared(served, tmp_path, monkeypatch):
    task = tasks.make("image", "full_16")
    monkeypatch.setattr(type(task), "remote", Remote(f"{served.url}missing.bin"))
    line = r"^image/full_16 is not prepared, and missing.bin .* cannot be downloaded \("
    with pytest.raises(UserError, match=line):
        tasks.prepare(task, tmp_path)


# Archives


def write_tar(path, members, mode):
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def contents(source):
    return {str(file.path): file.read(2**22) for file in sources.files(source)}


MEMBERS = {"a/2.txt": b"two\nlines\n", "a/1.txt": b"", "b.bin": CONTENT[:100_000]}


def test_folder_and_every_kind_of_archive_give_the_same_files(tmp_path):
    for name, content in MEMBERS.items():
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for name, mode in {
        "x.tar": "w",
        "x.tar.gz": "w:gz",
        "x.gz": "w:gz",
        "x.tar.xz": "w:xz",
    }.items():
        write_tar(tmp_path / name, MEMBERS, mode)
        got = contents(tmp_path / name)
        assert got == MEMBERS
        assert list(got) == list(MEMBERS)
    got = contents(tmp_path / "folder")
    assert got == MEMBERS
    assert list(got) == sorted(MEMBERS)


def test_file_of_an_archive_can_be_read_in_part_and_by_lines(tmp_path):
    write_tar(tmp_path / "x.tar.gz", MEMBERS, "w:gz")
    seen = []
    for file in sources.files(tmp_path / "x.tar.gz"):
        seen.append((file.path.name, next(file.lines(), b"")))  # the rest is skipped
    assert [name for name, _ in seen] == ["2.txt", "1.txt", "b.bin"]
    assert seen[0][1] == b"two\n"


@pytest.mark.parametrize("name", ["../evil.txt", "/etc/evil.txt", "a/../../evil.txt"])
def test_name_that_leads_out_of_the_archive_is_an_error(name, tmp_path):
    write_tar(tmp_path / "x.tar", {name: b"x"}, "w")
    with pytest.raises(UserError, match="leads out of the archive"):
        list(sources.files(tmp_path / "x.tar"))


def test_a_name_that_is_twice_in_an_archive_is_an_error(tmp_path):
    """As after `tar rf`; tar itself would keep the last one."""
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for content in (b"old", b"newer"):
            info = tarfile.TarInfo("./a.txt")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    with pytest.raises(UserError, match=r"a\.txt' is there twice; pack it anew"):
        contents(tmp_path / "x.tar")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_links_and_devices_in_an_archive_are_errors(kind, tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(UserError, match="is not a regular file"):
        list(sources.files(tmp_path / "x.tar"))


def test_archive_that_claims_too_much_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_LARGEST", 100_005)
    write_tar(tmp_path / "x.tar", MEMBERS, "w")
    with pytest.raises(UserError, match="unpacks to more than"):
        list(sources.files(tmp_path / "x.tar"))


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_name_of_many_megabytes_is_an_error_before_it_is_read(kind, tmp_path):
    write_tar(tmp_path / "x.tar", {"a": b"1"}, "w")
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = kind, 2**30
    content = (tmp_path / "x.tar").read_bytes()[:1024]
    (tmp_path / "x.tar").write_bytes(content + info.tobuf(tarfile.GNU_FORMAT) + b"a" * 2**20)
    with pytest.raises(UserError, match=r"x.tar is damaged.* \(a name of 1\.1 GB\)"):
        list(sources.files(tmp_path / "x.tar"))


def test_members_that_were_read_take_no_memory(tmp_path, monkeypatch):
    archives = []
    open_ = tarfile.open
    monkeypatch.setattr(
        tarfile,
        "open",
        lambda *args, **kwargs: archives.append(open_(*args, **kwargs)) or archives[0],
    )
    with open_(tmp_path / "x.tar", "w") as archive:
        for i in range(50):
            archive.addfile(tarfile.TarInfo(f"{'x' * 120}/{i}"))
    for number, file in enumerate(sources.files(tmp_path / "x.tar")):
        assert file.path.name == str(number)
        assert len(archives[0].members) <= 1
    assert number == 49


def test_unreadable_subfolder_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    scan = os.scandir

    def refuse(path):
        if str(path).endswith("b"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UserError, match=r"cannot be read \(Permission denied\): make it readable"):
        list(sources.files(tmp_path))


def test_unreadable_archive_is_not_taken_for_a_full_disk(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "raw.bin").touch()
    monkeypatch.setattr(sources, "_check", refuse)
    with pytest.raises(
        UserError, match=r"raw.bin cannot be read \(Permission denied\): make it readable"
    ):
        sources.locate(tmp_path / "raw.bin", Remote("https://example.org/raw.bin"), tmp_path)


@pytest.mark.parametrize("mode", ["w:gz", "w:xz"])
@pytest.mark.parametrize("damage", ["cut", "flip", "checksum"])
def test_damaged_archive_fails_with_one_line(damage, mode, tmp_path):
    path = tmp_path / "x.tar.z"
    write_tar(path, MEMBERS, mode)
    content = bytearray(path.read_bytes())
    if damage == "cut":
        del content[len(content) // 2 :]
    elif damage == "flip":
        content[len(content) // 2] ^= 255
    else:
        content[-7 if mode == "w:gz" else -20] ^= 255
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        contents(path)
    text = one_line(caught)
    assert str(path) in text
    assert "is damaged, unreadable or not what its name says" in text


@pytest.mark.parametrize("damage", ["flip", "cut in the header", "cut before the header"])
def test_header_that_is_damaged_is_not_the_end_of_a_plain_archive(damage, tmp_path):
    path = tmp_path / "x.tar"
    write_tar(path, MEMBERS, "w")
    with tarfile.open(path) as archive:
        begin = archive.getmembers()[-1].offset
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[begin] ^= 255
    else:
        del content[begin + 100 * (damage == "cut in the header") :]
    path.write_bytes(content)
    with pytest.raises(UserError, match="is damaged, unreadable or not what its name says"):
        contents(path)


def test_hidden_files_are_skipped_and_links_to_folders_refused(tmp_path):
    raw, other = tmp_path / "raw", tmp_path / "other"
    for place in (raw / ".hidden", other):
        place.mkdir(parents=True)
    for path in (raw / "a", raw / ".b", raw / ".hidden" / "c", other / "d"):
        path.write_bytes(b"x")
    archive = tmp_path / "raw.tar"
    with tarfile.open(archive, "w") as made:
        made.add(raw, ".")
    for source in (raw, archive):
        assert [str(file.path) for file in sources.files(source)] == ["a"]
    (raw / "e").symlink_to(other / "d")
    assert [str(file.path) for file in sources.files(raw)] == ["a", "e"]
    for target, kind in ((other, "a folder"), (tmp_path / "none", "nothing")):
        (raw / "f").symlink_to(target)
        with pytest.raises(UserError, match=f"raw/f is a link to {kind}: replace it"):
            list(sources.files(raw))
        (raw / "f").unlink()


def test_missing_source_or_other_file_fails_with_one_line(tmp_path):
    (tmp_path / "x.tar.gz").write_bytes(b"<html>not found</html>" * 100)
    (tmp_path / "y.xz").write_bytes(lzma.compress(b"plain text\n" * 1000))
    os.mkfifo(tmp_path / "pipe")
    for name, words in {
        "x.tar.gz": "x.tar.gz: expected a folder, or a tar archive that is plain or compressed",
        "y.xz": "got another file, or a damaged one: name another, or get another copy",
        "z": "no such file",
        "pipe": "pipe: is neither a file nor a folder",
    }.items():
        with pytest.raises(UserError, match=words):
            list(sources.files(tmp_path / name))
    remote = Remote("https://example.org/raw.bin")
    with pytest.raises(UserError, match=r"//\[x/y: no such file"):  # no URL either
        sources.locate("//[x/y", remote, tmp_path)


def test_file_over_the_limit_fails_with_one_line(tmp_path):
    (tmp_path / "x").write_bytes(b"12345")
    for file in sources.files(tmp_path):
        assert str(file) == f"{tmp_path}/x"
        with pytest.raises(UserError, match=r"/x: expected at most 4 bytes, got more"):
            file.read(4)
    for file in sources.files(tmp_path):
        assert file.read(5) == b"12345"


# Mirrors


def test_url_of_the_same_name_is_a_mirror_and_must_have_the_publishers_sha256(served, tmp_path):
    official = Remote("https://example.org/data/raw.bin", len(CONTENT), SHA256)
    for number, kind in enumerate((str, Path)):  # a Path merges the slashes of a URL
        path = sources.locate(kind(f"{served.url}raw.bin"), official, tmp_path / str(number))
        assert path.read_bytes() == CONTENT
    (tmp_path / "served" / "raw.bin").write_bytes(CONTENT[::-1])
    kept = sources.locate(f"{served.url}raw.bin", official, tmp_path / "0", force=True)
    assert kept.read_bytes() == CONTENT
    with pytest.raises(UserError, match="expected the publisher's sha256"):
        sources.locate(f"{served.url}raw.bin", official, tmp_path / "downloads")
    (tmp_path / "served" / "other.bin").write_bytes(b"x")
    path = sources.locate(f"{served.url}other.bin", official, tmp_path / "downloads")
    assert path.read_bytes() == b"x"
    assert sources.locate(None, None, tmp_path) is None


def test_letters_of_a_url_are_encoded_and_it_must_end_with_a_name(served, tmp_path):
    (tmp_path / "served" / "%C3%A4%20b.bin").write_bytes(b"x")  # as the server is asked for it
    path = sources.locate(f"{served.url}ä b.bin", None, tmp_path / "downloads")
    assert path.read_bytes() == b"x"
    for url in (served.url, f"{served.url}..", "http://[::1", f"{served.url}{'x' * 300}"):
        with pytest.raises(UserError, match="a URL that ends with the name of a file, got"):
            sources.locate(url, None, tmp_path / "downloads")
    with pytest.raises(UserError, match="File name too long"):
        sources.locate("x" * 300, None, tmp_path)


def test_source_without_a_name_gets_that_of_its_folder(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "link.gz").symlink_to(tmp_path / "a" / "b")
    monkeypatch.chdir(tmp_path / "a")
    names = [sources.locate(given, None, tmp_path).name for given in (".", "b/..", "link.gz")]
    assert names == ["a", "a", "link.gz"]


def test_another_file_of_equal_size_and_time_has_another_digest(tmp_path):
    """As members of archives may have; a touched file keeps the digest of its content."""
    one, two = tmp_path / "one", tmp_path / "two"
    for path in (one, two):
        path.write_text(path.name)
        os.utime(path, (0, 0))
    assert one.stat().st_size == two.stat().st_size
    for content in (False, True):
        assert sources.digest(one, content=content) == sources.digest(one, content=content)
        assert sources.digest(one, content=content) != sources.digest(two, content=content)
    before = sources.digest(one, content=True)
    os.utime(one, (1, 1))
    assert sources.digest(one, content=True) == before
