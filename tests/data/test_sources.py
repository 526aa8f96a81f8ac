"""Downloads that resume, and folders and archives that are read in the same way."""

import hashlib
import json
import lzma
import os
import tarfile
import zipfile

import numpy as np
import pytest
import serving
from raw_files import pack, write
from refused import one_line

from lra_fnet.data import sources
from lra_fnet.data.sources import Remote
from lra_fnet.errors import UserError

CONTENT = np.random.default_rng(0).bytes(3_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def served(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "raw.bin").write_bytes(CONTENT)
    with serving.server(folder) as server:
        yield server


# Downloads


def test_download_is_checked_and_made_once(served, tmp_path):
    remote = Remote(f"{served.url}raw.bin", len(CONTENT), SHA256)
    for _ in range(2):
        path = sources.fetch(remote, tmp_path / "downloads")
        assert path.read_bytes() == CONTENT
    assert len(served.asked) == 1
    assert [p.name for p in (tmp_path / "downloads").iterdir()] == ["raw.bin"]


def notes(content=CONTENT):
    return json.dumps({"same": f'"{hashlib.md5(content).hexdigest()}"', "size": len(CONTENT)})


@pytest.mark.parametrize("known", [True, False])
def test_download_resumes_after_a_broken_connection(known, served, tmp_path):
    served.cut = 1_700_000
    remote = Remote(f"{served.url}raw.bin", *((len(CONTENT), SHA256) if known else ()))
    assert sources.fetch(remote, tmp_path).read_bytes() == CONTENT
    assert [asked for _, asked in served.asked] == [None, "bytes=1700000-"]


@pytest.mark.parametrize(
    ("noted", "asked"),
    [
        (notes(), "bytes=1000-"),
        (notes(CONTENT[::-1]), "bytes=1000-"),  # the file has changed: the server sends all of it
        (None, None),
    ],
)
def test_download_of_a_stopped_process_resumes_or_starts_again(noted, asked, served, tmp_path):
    (tmp_path / "raw.bin.part").write_bytes(CONTENT[:1000])
    if noted:
        (tmp_path / "raw.bin.part.json").write_text(noted)
    assert sources.fetch(Remote(f"{served.url}raw.bin"), tmp_path).read_bytes() == CONTENT
    assert [range for _, range in served.asked] == [asked]
    assert not list(tmp_path.glob("raw.bin.*"))


def test_server_that_continues_at_another_byte_is_refused(served, tmp_path):
    served.shift = 500
    (tmp_path / "raw.bin.part").write_bytes(CONTENT[:1000])
    (tmp_path / "raw.bin.part.json").write_text(notes())
    with pytest.raises(UserError, match=r"did not continue at byte 1000.*0\.0 MB"):
        sources.fetch(Remote(f"{served.url}raw.bin"), tmp_path)
    assert (tmp_path / "raw.bin.part").read_bytes() == CONTENT[:1000]


@pytest.mark.parametrize(
    ("size", "sha256", "words"),
    [
        (len(CONTENT), "0" * 64, ["sha256", "000000"]),
        (len(CONTENT) + 1, None, [f"expected {len(CONTENT) + 1} bytes", str(len(CONTENT))]),
    ],
)
def test_wrong_size_or_sha256_fails_with_one_line(size, sha256, words, served, tmp_path):
    with one_line(*words, "delete it"):
        sources.fetch(Remote(f"{served.url}raw.bin", size, sha256), tmp_path / "downloads")
    assert not (tmp_path / "downloads" / "raw.bin").exists()


# Archives


def contents(source):
    return {str(file.path): file.read() for file in sources.files(source)}


MEMBERS = {"a/2.txt": b"two\nlines\n", "a/1.txt": b"", "b.bin": CONTENT[:100_000]}
HEADER = 3 * 512  # offset of that of b.bin in a plain archive


def test_folder_and_every_kind_of_archive_give_the_same_files(tmp_path):
    write(MEMBERS, tmp_path / "folder")
    for name, mode in (
        ("x.tar", "w"),
        ("x.tar.gz", "w:gz"),
        ("x.gz", "w:gz"),
        ("x.tar.xz", "w:xz"),
    ):
        pack(MEMBERS, tmp_path / name, mode)
        got = contents(tmp_path / name)
        assert got == MEMBERS
        assert list(got) == list(MEMBERS)
    got = contents(tmp_path / "folder")
    assert got == MEMBERS
    assert list(got) == sorted(MEMBERS)


@pytest.mark.parametrize(
    ("mode", "begin", "flip"),
    [
        ("w:gz", 50_000, False),  # the file is cut there
        ("w:xz", 50_000, False),
        ("w:gz", 50_000, True),
        ("w:xz", 50_000, True),
        ("w:gz", -7, True),  # in the checksum
        ("w:xz", -20, True),
        ("w", HEADER, True),
        ("w", HEADER, False),  # where a plain archive could have its end
        ("w", HEADER + 100, False),
    ],
)
def test_damaged_archive_fails_with_one_line(mode, begin, flip, tmp_path):
    path = pack(MEMBERS, tmp_path / "x.tar.z", mode)
    content = bytearray(path.read_bytes())
    if flip:
        content[begin] ^= 255
    else:
        del content[begin:]
    path.write_bytes(content)
    with one_line(str(path), "is damaged"):
        contents(path)


def test_hidden_files_are_skipped_and_links_followed_but_for_loops(tmp_path):
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
    for name, folder in (("f", other), ("g", other), ("loop", raw), ("above", tmp_path)):
        (raw / name).symlink_to(folder)
    (other / "back").symlink_to(raw)
    assert [str(file.path) for file in sources.files(raw)] == ["a", "e", "f/d", "g/d"]


# Mirrors


def test_url_of_the_same_name_is_a_mirror_and_must_have_the_publishers_sha256(served, tmp_path):
    official = Remote("https://example.org/data/raw.bin", len(CONTENT), SHA256)
    path = sources.locate(f"{served.url}raw.bin", official, tmp_path)
    assert path.read_bytes() == CONTENT
    (tmp_path / "served" / "raw.bin").write_bytes(CONTENT[::-1])
    kept = sources.locate(f"{served.url}raw.bin", official, tmp_path, force=True)
    assert kept.read_bytes() == CONTENT
    with pytest.raises(UserError, match="expected the publisher's sha256"):
        sources.locate(f"{served.url}raw.bin", official, tmp_path / "downloads")
    (tmp_path / "served" / "other.bin").write_bytes(b"x")
    path = sources.locate(f"{served.url}other.bin", official, tmp_path / "downloads")
    assert path.read_bytes() == b"x"
    assert sources.locate(None, None, tmp_path) is None


def test_another_file_of_equal_size_and_time_has_another_digest(tmp_path):
    """As members of archives may have; a touched file keeps the digest of its content."""
    one, two = tmp_path / "one", tmp_path / "two"
    for path in (one, two):
        path.write_text(path.name)
        os.utime(path, (0, 0))
    assert one.stat().st_size == two.stat().st_size
    for kind in sources.DIGESTS:
        assert sources.digest(one, kind) == sources.digest(one, kind)
        assert sources.digest(one, kind) != sources.digest(two, kind)
    before = sources.digest(one, "content")
    os.utime(one, (1, 1))
    assert sources.digest(one, "content") == before


def link(path, kind=tarfile.SYMTYPE):
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)


@pytest.mark.parametrize(
    ("make", "fragment"),
    [
        (link, "link"),
        (lambda path: link(path, tarfile.CHRTYPE), "link"),
        (lambda path: pack({"./a": b"old", "a": b"newer"}, path, "w"), "twice"),
        (lambda path: path.write_bytes(b"<html>not found</html>" * 100), "damaged"),
        (lambda path: path.write_bytes(lzma.compress(b"plain text" * 1000)), "damaged"),
        (lambda path: zipfile.ZipFile(path, "w").close(), "zip"),
        (lambda path: None, "no such file"),
    ],
)
def test_a_source_that_is_not_read_is_named(make, fragment, tmp_path):
    make(tmp_path / "x.tar")
    with pytest.raises(UserError, match=f"x.tar.*{fragment}"):
        list(sources.files(tmp_path / "x.tar"))


def test_a_url_must_end_with_a_name(tmp_path):
    for url in ("http://a.org/", "http://a.org/.."):
        with pytest.raises(UserError, match="ends with the name of a file"):
            sources.locate(url, None, tmp_path)
