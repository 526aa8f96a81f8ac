"""Downloads that go on where they stopped, and archives that nothing gets out of."""

import hashlib
import io
import lzma
import socket
import tarfile

import numpy as np
import pytest
import serving

from lra_fnet.errors import UserError
from lra_fnet.tasks import sources
from lra_fnet.tasks.sources import Remote

CONTENT = np.random.default_rng(0).bytes(3_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def served(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_PAUSES", (0.01, 0.01))
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "raw.bin").write_bytes(CONTENT)
    with serving.server(folder) as found:
        yield found


def one_line(caught):
    text = str(caught.value)
    assert "\n" not in text
    return text


# Downloads


def test_a_download_is_checked_and_made_once(served, tmp_path):
    remote = Remote(f"{served.url}raw.bin", len(CONTENT), SHA256)
    for _ in range(2):
        path = sources.fetch(remote, tmp_path / "downloads")
        assert path.read_bytes() == CONTENT
    assert len(served.asked) == 1
    assert [p.name for p in (tmp_path / "downloads").iterdir()] == ["raw.bin"]


@pytest.mark.parametrize("known", [True, False])
def test_a_broken_connection_is_taken_up_where_it_broke(known, served, tmp_path):
    served.cut = 1_700_000
    remote = Remote(f"{served.url}raw.bin", *((len(CONTENT), SHA256) if known else ()))
    assert sources.fetch(remote, tmp_path).read_bytes() == CONTENT
    assert [asked for _, asked in served.asked] == [None, "bytes=1700000-"]


def test_a_stopped_download_goes_on_in_the_next_process(served, tmp_path, monkeypatch):
    remote = Remote(f"{served.url}raw.bin", len(CONTENT), SHA256)
    served.cut = 1_700_000
    monkeypatch.setattr(sources, "_PAUSES", ())
    with pytest.raises(UserError, match=r"1\.7 MB are kept, the same command goes on from there"):
        sources.fetch(remote, tmp_path)
    assert sources.fetch(remote, tmp_path).read_bytes() == CONTENT
    assert served.asked[-1][1] == "bytes=1700000-"


def test_a_file_that_changed_meanwhile_is_begun_anew(served, tmp_path, monkeypatch):
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
def test_another_file_than_the_publishers_is_refused(size, sha256, words, served, tmp_path):
    with pytest.raises(UserError) as caught:
        sources.fetch(Remote(f"{served.url}raw.bin", size, sha256), tmp_path / "downloads")
    text = one_line(caught)
    assert all(word in text for word in [*words, "delete it"]), text
    assert not (tmp_path / "downloads" / "raw.bin").exists()


def test_no_network_and_no_such_file_are_one_line_with_name_size_and_address(served, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}/raw.bin"
    for url in (closed, f"{served.url}missing.bin"):
        with pytest.raises(UserError) as caught:
            sources.fetch(Remote(url, 84_125_825), tmp_path)
        text = one_line(caught)
        assert "(84.1 MB)" in text
        assert url in text


# Archives


def write_tar(path, members, mode):
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


MEMBERS = {"a/2.txt": b"two\nlines\n", "a/1.txt": b"", "b.bin": CONTENT[:100_000]}


def test_every_archive_and_the_folder_hold_the_same_files(tmp_path):
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
        got = {str(path): file.read() for path, file in sources.files(tmp_path / name)}
        assert got == MEMBERS
        assert list(got) == list(MEMBERS)
    got = {str(path): file.read() for path, file in sources.files(tmp_path / "folder")}
    assert got == MEMBERS
    assert list(got) == sorted(MEMBERS)


def test_a_file_of_an_archive_can_be_read_in_part_and_by_lines(tmp_path):
    write_tar(tmp_path / "x.tar.gz", MEMBERS, "w:gz")
    seen = []
    for path, file in sources.files(tmp_path / "x.tar.gz"):
        seen.append((path.name, file.readline()))  # the rest is skipped
    assert [name for name, _ in seen] == ["2.txt", "1.txt", "b.bin"]
    assert seen[0][1] == b"two\n"


@pytest.mark.parametrize("name", ["../evil.txt", "/etc/evil.txt", "a/../../evil.txt"])
def test_a_name_that_leads_out_is_refused(name, tmp_path):
    write_tar(tmp_path / "x.tar", {name: b"x"}, "w")
    with pytest.raises(UserError, match="leads out of the archive"):
        list(sources.files(tmp_path / "x.tar"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(kind, tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(UserError, match="is no regular file"):
        list(sources.files(tmp_path / "x.tar"))


def test_an_archive_that_claims_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_LARGEST", 100_005)
    write_tar(tmp_path / "x.tar", MEMBERS, "w")
    with pytest.raises(UserError, match="unpacks to more than"):
        list(sources.files(tmp_path / "x.tar"))


@pytest.mark.parametrize("mode", ["w:gz", "w:xz"])
@pytest.mark.parametrize("damage", ["cut", "flip", "checksum"])
def test_a_damaged_archive_is_one_line_that_names_it(damage, mode, tmp_path):
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
        [file.read() for _, file in sources.files(path)]
    text = one_line(caught)
    assert str(path) in text
    assert "cut or damaged" in text


def test_what_is_no_archive_or_not_there_is_one_line(tmp_path):
    (tmp_path / "x.tar.gz").write_bytes(b"<html>not found</html>" * 100)
    (tmp_path / "y.xz").write_bytes(lzma.compress(b"plain text\n" * 1000))
    for name, words in {
        "x.tar.gz": "no tar archive",
        "y.xz": "no tar",
        "z": "no such file",
    }.items():
        with pytest.raises(UserError, match=words):
            list(sources.files(tmp_path / name))
