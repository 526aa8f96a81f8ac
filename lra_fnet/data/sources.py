"""Raw files: resumable downloads, and one reader for "a folder or an archive of files".

An archive is read as a stream. Nothing is unpacked to disk.
"""

import contextlib
import gzip
import hashlib
import json
import lzma
import os
import re
import string
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, Any, NamedTuple

from lra_fnet import settings
from lra_fnet.errors import UserError, one_line
from lra_fnet.machine import disk
from lra_fnet.machine.progress import Bar

_BLOCK = 2**20  # bytes per read
_PAUSES = (1, 5, 20)  # seconds before each retry, as long as bytes come
DIGESTS = ("facts", "content")  # the quick one first
_MADE = ("*/*/fingerprint.json", "*/*/*/seed*/run.json")  # by us: prepared sets, and runs
_UNREACHABLE = (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError)
_UNREADABLE = (OSError, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError)


class Remote(NamedTuple):
    """A file that its publisher offers for download. An unknown size or sha256 is not checked."""

    url: str
    size: int | None = None  # bytes
    sha256: str | None = None
    about: str = "size unknown"  # the size in words, if it is not known exactly

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return PurePosixPath(urllib.parse.urlsplit(self.url).path).name

    def __str__(self):
        size = self.about if self.size is None else megabytes(self.size)
        return f"{self.name} ({size}) from {self.url}"


def megabytes(size: int) -> str:
    """Returns a number of bytes as text for people: "170.1 MB", "7.7 GB"."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def url_name(source: str | Path) -> str:
    """Returns the last part of a path or URL."""
    return Remote(_url(source)).name


def own_url(source: str | Path | None, remote: Remote | None) -> str | None:
    """Returns the URL that the user named; None for a path, or a mirror of the publisher's file.

    Raises:
        UserError: the URL does not end with the name of a file.
    """
    if source is None or not is_url(source):
        return None
    url, name = _url(source), url_name(source)
    if name in ("", ".."):
        raise UserError(f"expected a URL that ends with the name of a file, got {url[:200]!r}")
    return None if remote is not None and remote.name == name else url


def given(source: Any, folder: Path) -> str | None:
    """Returns the path or URL of a source that a program names.

    Several files, a table in memory, or a dict of these by split become a folder below `folder`, of
    links and tables.

    Raises:
        UserError: it is none of these, or there is no such file.
    """
    if source is None:
        return None
    if isinstance(source, str | os.PathLike):
        return str(source) if is_url(source) else str(settings.path(source))
    files: dict[str, str | Path] = {}
    for split, some in source.items() if isinstance(source, Mapping) else [("", source)]:
        for one in some if isinstance(some, list | tuple) else [some]:
            if isinstance(one, str | os.PathLike):
                check_exists(content := settings.path(one).absolute())
            elif hasattr(one, "columns") and hasattr(one, "to_csv"):  # a data frame of pandas
                content = one.to_csv(index=False)
            else:
                raise UserError(
                    "source expects a path, a URL, a list of files, a data frame with the columns "
                    f"label and text, or a dict of these by split, got {type(one).__name__}"
                )
            name = content.name if isinstance(content, Path) else "table.csv"
            files[str(Path(str(split), str(len(files)), name))] = content
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:12]
    target = folder / "given" / digest
    if not target.exists():
        with disk.writable(target, "data_dir"), disk.partial(target) as part:
            for name, content in files.items():
                (place := part / name).parent.mkdir(parents=True)
                if isinstance(content, Path):
                    place.symlink_to(content)
                else:
                    place.write_text(content, "utf-8")
    return str(target)


def is_url(source: Any) -> bool:
    """Returns whether a source is a URL."""
    return "://" in str(source)


def _url(source: Any) -> str:
    """Returns a source as a URL, with letters outside ASCII and spaces percent-encoded."""
    safe = string.printable.strip()
    return urllib.parse.quote(source, safe=safe) if is_url(source) else str(source)


def locate(
    source: str | Path | None, remote: Remote | None, downloads: Path, *, force: bool = False
) -> Path | None:
    """Returns the raw files on this machine, after downloading them if necessary.

    Args:
        source: what the user named: a folder, a file or a URL; None takes `remote`.
        remote: the publisher's file. A URL of the same file name is a mirror of it: size and
            sha256 must be the publisher's, and so must those of a local file of that name.
        downloads: folder for downloaded files; those of any other URL have a folder there.
        force: whether to download a file anew that is there, unless it is the publisher's.

    Returns:
        A folder or a file that has a name; None if neither a source nor a remote is given.

    Raises:
        UserError: if there is no such file, it is not the publisher's, or a download fails.
    """
    own = own_url(source, remote)
    if own is not None:
        remote, downloads = Remote(own), downloads / hashlib.sha256(own.encode()).hexdigest()[:12]
    elif remote is not None and is_url(source):
        remote = remote._replace(url=_url(source))
    elif source is not None:
        check_exists(source)
        path = Path(source)
        if remote is not None and path.is_file() and path.name == remote.name:
            with readable(path):
                _check(path, remote)
        # The name of a symbolic link stays: some readers go by its ending.
        return path.resolve() if path.name in ("", "..") else path
    if remote is None:
        return None
    with disk.lock(downloads / ".lock", f"waiting for another download to {downloads}"):
        return fetch(remote, downloads, force=force and own is not None)


def check_exists(source: str | Path) -> None:
    """Raises a UserError if a source is a path where nothing is."""
    if not is_url(source) and not os.path.exists(source):
        raise UserError(f"--source {source}: no such file or folder, or not readable")


def fetch(remote: Remote, folder: Path, *, force: bool = False) -> Path:
    """Downloads a file to `folder` unless it is there and not `force`, and returns its path.

    The start of a file whose download was interrupted is kept as `<name>.part`. The next download
    continues from there if the server still has the same file (If-Range with its ETag or date,
    which are in `<name>.part.json`).
    The downloaders of requests, TFDS and pooch start again from the beginning, so none is used.

    Raises:
        UserError: if the server cannot be reached or stops answering, or the size or sha256 is not
            the publisher's.
        OSError: if the folder cannot be written.
    """
    path = folder / remote.name
    if path.is_file() and not force:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    part, notes = folder / f"{remote.name}.part", folder / f"{remote.name}.part.json"
    with Bar(f"downloading {remote.name}", remote.size, _size(part), unit="bytes") as progress:
        for pause in (*_PAUSES, None):
            before = _size(part)
            try:
                _download(remote, part, notes, progress)
                break
            except _UNREACHABLE as error:
                refused = getattr(error, "code", 500) < 500  # of an HTTP error
                if pause is None or refused or _size(part) == before:
                    raise UserError(
                        f"{remote} cannot be downloaded ({one_line(error, 100)}): the same command "
                        f"continues after {megabytes(_size(part))}, or name your own with --source"
                    ) from None
                time.sleep(pause)
    _check(part, remote)
    part.replace(path)
    notes.unlink(missing_ok=True)
    return path


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _download(remote: Remote, part: Path, notes: Path, progress: Bar) -> None:
    """Sends one request: for the rest of the file, or for all of it if the file has changed."""
    size, known = _size(part), disk.read_json(notes) or {}
    if size and size == (remote.size or known.get("size")):
        return
    request = urllib.request.Request(remote.url, headers={"User-Agent": "lra-fnet"})
    if size and known.get("same"):
        request.add_header("Range", f"bytes={size}-")
        request.add_header("If-Range", known["same"])
    with urllib.request.urlopen(request, timeout=30) as reply:  # seconds without a byte
        if reply.status == 206:
            if not reply.headers.get("Content-Range", "").startswith(f"bytes {size}-"):
                raise ConnectionError(f"the server did not continue at byte {size}")
        else:  # the whole file
            length = reply.headers.get("Content-Length")
            date, tag = reply.headers.get("Last-Modified"), reply.headers.get("ETag")
            # A weak ETag does not promise the same bytes.
            same = tag if tag and not tag.startswith("W/") else date
            size, known = 0, {"same": same, "size": int(length) if length else None}
            disk.replace(notes, json.dumps(known))
        with part.open("ab" if size else "wb") as file:
            progress.update(size)
            while block := reply.read(_BLOCK):
                size += file.write(block)
                progress.update(size)
    if known.get("size") not in (None, size):
        raise ConnectionError(f"the connection ended after {size} of {known['size']} bytes")


def _check(path: Path, remote: Remote) -> None:
    """Raises a UserError if a file does not have the publisher's size and sha256."""
    size, problem = path.stat().st_size, ""
    if remote.size not in (None, size):
        problem = f"{remote.size} bytes, got {size}: the file is incomplete or not the publisher's"
    elif remote.sha256 and remote.sha256 != (actual := disk.sha256(path)):
        problem = f"the publisher's sha256 {remote.sha256}, got {actual}"
    if problem:
        raise UserError(f"{path}: expected {problem}; delete it and get {remote} again")


@contextlib.contextmanager
def readable(path: object, *more: type[Exception]) -> Iterator[None]:
    """Turns errors of reading a file or an archive into a one-line UserError that names `path`."""
    try:
        yield
    except PermissionError as error:
        raise UserError(f"{error}: make {path} readable") from None
    except (*_UNREADABLE, *more) as error:
        raise UserError(
            f"{path} is damaged, unreadable or not what its name says ({one_line(error, 100)}): "
            "get another copy; unpack a zip archive"
        ) from None


def _refuse(error: OSError) -> None:
    raise UserError(f"{error.filename} cannot be read ({error.strerror})")


def _paths(folder: Path) -> list[Path]:
    """Returns the files below a folder, sorted.

    Links to folders are followed, but for those to a folder that they are in. Hidden files and
    folders do not count, nor do prepared sets and runs, whose place may be in the source.
    """
    found = []
    for place, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        here = Path(os.path.abspath(place))
        above = {os.path.realpath(path) for path in (here, *here.parents)}
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and os.path.realpath(here / name) not in above
            and not any(next(Path(place, name).glob(made), None) for made in _MADE)
        ]
        found += [Path(place, name) for name in names if not name.startswith(".")]
    return sorted(found)


def digest(source: Path, kind: str, endings: tuple[str, ...] = ("",)) -> str:
    """Returns a sha256 of a source: of names and "content", or of names and "facts" of the files.

    The facts are size, times and inode: another file of the same size may have the same time of its
    last change, if both were unpacked from archives, say.

    The place of the source and the name of a single file do not count. Of a folder only the files
    with these endings do.
    """
    sha256, source = hashlib.sha256(), source.resolve()
    for path in _paths(source) if source.is_dir() else [source]:
        if path != source and not path.name.lower().endswith(endings):
            continue
        with readable(path):
            facts = path.stat()
            numbers = facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino
            fact = disk.sha256(path) if kind == "content" else numbers
        sha256.update(os.fsencode(path.relative_to(source)) + f"\0{fact}\n".encode())
    return sha256.hexdigest()


class _Member(tarfile.TarInfo):
    """A member of an archive; tarfile would take a damaged header for the end of the archive."""

    @classmethod
    def frombuf(cls, buf, encoding, errors):
        """Returns the member of a header."""
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # pyright: ignore[reportAttributeAccessIssue]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from None


def ending(path: PurePath) -> str:
    """Returns a file's ending in lower case, without the .gz of a gzip file: ".csv", say."""
    return PurePath(path.name.lower().removesuffix(".gz")).suffix


class File:
    """A file of a folder or an archive. It can be read until the next file is asked for.

    Its text, for error messages, is the path of the source followed by the path inside it.
    """

    def __init__(
        self, source: Path, path: PurePosixPath, stream: IO[bytes], *, alone: bool = False
    ):
        self.source, self.path, self.alone, self._stream = source, path, alone, stream

    def __str__(self):
        return str(self.source) if self.alone else f"{self.source}/{self.path}"

    def read(self) -> bytes:
        """Returns the content."""
        with readable(self):
            return self._stream.read()

    def unpacked(self) -> "File":
        """Returns a gzip file unpacked, under the same name; another file as it is."""
        if self.path.suffix.lower() != ".gz":
            return self
        stream: Any = gzip.GzipFile(fileobj=self._stream)
        return File(self.source, self.path, stream, alone=self.alone)

    def lines(self) -> Iterator[bytes]:
        """Yields the lines with their line ends."""
        with readable(self):
            yield from self._stream


def files(source: Path) -> Iterator[File]:
    """Yields the files of a folder (sorted by path) or of a tar archive (in its order).

    Hidden files and folders are skipped. The archive may be uncompressed or compressed with gzip,
    xz or bzip2.

    Raises:
        UserError: if the source does not exist, cannot be read, is not such an archive or is
            damaged, or contains links or a name twice.
    """
    if source.is_dir():
        for path in _paths(source):
            with readable(path), path.open("rb") as stream:
                yield File(source, PurePosixPath(path.relative_to(source).as_posix()), stream)
        return
    check_exists(source)
    seen = set()
    # tarfile raises ValueError where a header's number is none.
    with readable(source, ValueError), tarfile.open(source, "r:*", tarinfo=_Member) as archive:
        for member in archive:
            # tarfile would keep 0.5 kB of each member.
            archive.members = []  # pyright: ignore[reportAttributeAccessIssue]
            path = PurePosixPath(member.name)
            if member.isdir() or any(part.startswith(".") for part in path.parts):
                continue
            stream = archive.extractfile(member) if member.isfile() else None
            if stream is None or path in seen:
                problem = "is there twice" if path in seen else "is not a regular file"
                raise UserError(f"{source}: {member.name!r} {problem}; pack it anew")
            seen.add(path)
            yield File(source, path, stream)
        while archive.fileobj and archive.fileobj.read(_BLOCK):  # up to the checksum at the end
            pass


def files_or_single(source: Path, endings: tuple[str, ...]) -> Iterator[File]:
    """Yields the files of a folder or an archive with these endings, or one file that is neither.

    Gzip files count by their names without .gz.
    """
    with readable(source):
        alone = source.is_file() and not tarfile.is_tarfile(source)
    if not alone:
        for file in files(source):
            if file.path.name.lower().removesuffix(".gz").endswith(endings):
                yield file
        return
    with readable(source), source.open("rb") as stream:
        yield File(source, PurePosixPath(source.name), stream, alone=True)


def read_tables(
    source: Path,
    name: str,
    splits: Mapping[str, str],
    parse: Callable[[bytes], Any],
    remedy: str,
    counts: Mapping[str, int] | None = None,
    header: bytes | None = None,
) -> Iterator[tuple[str, Any]]:
    """Yields (split, row) for each line of one file per split, at any depth in `source`.

    Args:
        source: a folder or an archive. With `counts`, an archive is read only until all files are
            complete: the rest of Long-Range Arena's release is 7 GB of other tasks.
        name: file name with {} for a key of `splits`; "<name>" matches any text.
        splits: the word in a file's name, and its split.
        parse: turns a line, with its line end, into a row; raises a ValueError for a bad line.
        remedy: what the user should do about a bad file.
        counts: rows that each split must have.
        header: first line that a file may have, without its line end.

    Raises:
        UserError: if a file is missing, occurs twice or has another number of rows; for a bad line
            (names file, line number and reason).
    """
    pattern = re.escape(name).replace("<name>", "[^.].*")
    pattern = re.compile(pattern.replace(r"\{\}", f"({'|'.join(splits)})"))
    places: dict[str, str] = {}
    for file in files(source):
        if (match := pattern.fullmatch(file.path.name)) is None:
            continue
        split, count = splits[match[1]], 0
        if split in places:
            raise UserError(
                f"{source}: expected one file for {split}, got {places[split]} and {file}"
            )
        places[split] = str(file)
        for number, line in enumerate(file.lines(), start=1):
            try:
                if number == 1 and line.rstrip(b"\r\n") == header:
                    continue
                row = parse(line)
            except ValueError as error:
                raise UserError(f"{file}, line {number}: {error}; {remedy}") from None
            yield split, row
            count += 1
        if counts and count != counts[split]:
            raise UserError(f"{file}: expected {counts[split]} rows, got {count}; {remedy}")
        if counts and source.is_file() and len(places) == len(splits):
            return
    if missing := [name.format(key) for key, split in splits.items() if split not in places]:
        raise UserError(f"{source}: expected {' and '.join(missing)}, found none; {remedy}")
