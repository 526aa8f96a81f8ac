"""Raw files of a data set: in a folder, in an archive, and refused with one line."""

import io
import tarfile

import pytest

from lra_fnet import tasks
from lra_fnet.errors import UserError


def write(files, folder):
    """Writes the files {path: content} to a folder; returns it."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def pack(files, path, mode="w:gz"):
    """Writes the files {path: content} to an archive, in their order; returns its path."""
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def assert_refused(task, folder, source, fragment):
    """A preparation fails with one line, and leaves no set."""
    with pytest.raises(UserError, match=fragment) as caught:
        tasks.prepare(task, folder / "data", source, jobs=1)
    assert "\n" not in str(caught.value)
    assert not list((folder / "data").rglob("fingerprint.json"))
