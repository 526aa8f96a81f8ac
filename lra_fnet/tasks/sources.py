"""Raw files on their way in: downloads that go on where they stopped, archives that are streamed.

Nothing of an archive is unpacked to disk, so no name in it can point anywhere.
"""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, NamedTuple, cast

from lra_fnet.errors import UserError
from lra_fnet.machine.progress import Bar

_BLOCK = 2**20  # bytes a read
_TIMEOUT = 30.0  # seconds without a byte
_PAUSES = (1, 5, 20)  # seconds before each new attempt; begun anew after any progress
_LARGEST = 2**38  # bytes that an archive may claim to unpack to
_MAGIC = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\x00": lzma.open, b"BZh": bz2.open}
_CORRUPT = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


class Remote(NamedTuple):
    """A file as its publisher offers it. What is unknown is not checked."""

    url: str
    size: int | None = None  # bytes
    sha256: str | None = None
    about: str = "size unknown"  # the size as a person reads it, where it is not known exactly

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return PurePosixPath(urllib.parse.urlsplit(self.url).path).name

    def __str__(self):
        size = self.about if self.size is None else megabytes(self.size)
        return f"{self.name} ({size}) from {self.url}"


def megabytes(size: int) -> str:
    """A size in bytes as a person reads it."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def is_url(source: str | Path) -> bool:
    """Whether a source is to be downloaded. A Path has lost one of the slashes."""
    return str(source).startswith(("http:/", "https:/"))


def fetch(remote: Remote, folder: Path) -> Path:
    """Downloads a file into `folder`, unless it is there; shows progress on stderr.

    What a stopped download has left in `<name>.part` is kept: the next one goes on from there, if
    the server still has the same file (If-Range with its ETag or date).

    Raises:
        UserError: if the server cannot be reached or stops answering, or what came has another size
            or sha256 than the publisher's.
        OSError: if the folder cannot be written.
    """
    path = folder / remote.name
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{remote.name}.part"
    pauses = list(_PAUSES)
    title = f"downloading {remote.name}"
    with Bar(title, remote.size, done=_size(part), unit="bytes") as progress:
        while True:
            before = _size(part)
            try:
                _continue(remote, part, progress)
                break
            except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
                if isinstance(error, urllib.error.HTTPError):
                    error.close()
                    if error.code < 500:
                        pauses.clear()
                if _size(part) > before:
                    pauses = list(_PAUSES)
                if not pauses or not _size(part):
                    raise UserError(_unreachable(remote, error, _size(part))) from None
                time.sleep(pauses.pop(0))
    check(part, remote)
    part.replace(path)
    _notes(part).unlink(missing_ok=True)
    return path


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _notes(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _unreachable(remote: Remote, error: Exception, have: int) -> str:
    reason = getattr(error, "reason", None) or error
    kept = f"; {megabytes(have)} are kept, the same command goes on from there" if have else ""
    return f"{remote} cannot be downloaded ({' '.join(str(reason).split())[:120]}){kept}"


def _continue(remote: Remote, part: Path, progress: Bar) -> None:
    """One request: the rest of the file, or all of it if the server has another one by now."""
    have = _size(part)
    known = json.loads(_notes(part).read_text()) if have and _notes(part).exists() else {}
    if have and have == (remote.size or known.get("size")):
        return
    request = urllib.request.Request(remote.url, headers={"User-Agent": "lra-fnet"})
    if have and known.get("same"):
        request.add_header("Range", f"bytes={have}-")
        request.add_header("If-Range", known["same"])
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as reply:
        total = reply.headers.get("Content-Length")
        if reply.status == 206:
            whole = known.get("size")
        else:
            have, whole = 0, int(total) if total else None
            same = reply.headers.get("ETag") or reply.headers.get("Last-Modified")
            if same and same.startswith("W/"):  # a weak ETag does not promise the same bytes
                same = reply.headers.get("Last-Modified")
            _notes(part).write_text(json.dumps({"same": same, "size": whole}))
        with part.open("ab" if have else "wb") as file:
            progress.update(have)
            while block := reply.read(_BLOCK):
                file.write(block)
                have += len(block)
                progress.update(have)
    if whole is not None and have < whole:
        raise ConnectionError(f"the connection ended after {have} of {whole} bytes")


def check(path: Path, remote: Remote) -> None:
    """Compares a file with the publisher's size and sha256.

    Raises:
        UserError: if it is another file.
    """
    size = path.stat().st_size
    if remote.size is not None and size != remote.size:
        raise UserError(
            f"{path}: expected {remote.size} bytes, found {size}: it is cut or not the publisher's "
            f"file; delete it and get {remote} again"
        )
    if remote.sha256 is None:
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != remote.sha256:
        raise UserError(
            f"{path}: its sha256 is {found[:16]}..., the publisher's is {remote.sha256[:16]}...; "
            f"delete it and get {remote} again"
        )


def files(source: Path) -> Iterator[tuple[PurePosixPath, BinaryIO]]:
    """Every regular file of a folder (sorted by path) or of a tar archive (in its order), streamed.

    The archive may be plain or compressed with gzip, xz or bzip2. The path is relative to the
    source. A file can be read until the next one is asked for.

    Raises:
        UserError: if the source is not there, is no such archive, is cut or damaged, holds links
            or names that lead out of it, or claims to hold more than 256 GiB; also while a file of
            it is read.
    """
    if source.is_dir():
        for path in sorted(source.rglob("*")):
            if path.is_file():
                try:
                    with path.open("rb") as file:
                        yield PurePosixPath(path.relative_to(source).as_posix()), file
                except PermissionError as error:
                    raise UserError(f"{path} cannot be read: {error.strerror}") from None
        return
    if not source.is_file():
        raise UserError(f"SOURCE={source}: no such file or folder")
    try:
        with _unpacked(source) as stream:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                yield from _members(archive, source)
            while stream.read(_BLOCK):  # to the checksum that stands at the end
                pass
    except _CORRUPT as error:
        raise _damaged(source, error) from None


def _unpacked(source: Path) -> IO[bytes]:
    with source.open("rb") as file:
        head = file.read(6)
    for magic, opener in _MAGIC.items():
        if head.startswith(magic):
            return cast(IO[bytes], opener(source, "rb"))
    return source.open("rb")


def _members(archive: tarfile.TarFile, source: Path) -> Iterator[tuple[PurePosixPath, BinaryIO]]:
    claimed = 0
    for member in archive:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts:
            raise UserError(f"{source}: {member.name!r} leads out of the archive; get another copy")
        if member.isdir():
            continue
        if not member.isfile():
            raise UserError(f"{source}: {member.name!r} is no regular file; get another copy")
        claimed += member.size
        if claimed > _LARGEST:
            raise UserError(f"{source}: unpacks to more than {megabytes(_LARGEST)}; not read on")
        file = archive.extractfile(member)
        assert file is not None
        yield path, cast(BinaryIO, io.BufferedReader(_Member(file, source), _BLOCK))


class _Member(io.RawIOBase):
    """A file of an archive; damage found while it is read is told as the archive's."""

    def __init__(self, file: IO[bytes], source: Path):
        super().__init__()
        self._file, self._source = file, source

    def readable(self):
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            block = self._file.read(len(buffer))
        except _CORRUPT as error:
            raise _damaged(self._source, error) from None
        buffer[: len(block)] = block
        return len(block)


def _damaged(source: Path, error: Exception) -> UserError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return UserError(
        f"{source} is no tar archive, or is cut or damaged ({reason[:80]}): get it again"
    )
