"""Tests of opening only regular files in folders where tasks can create anything."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

from psched.base import regular_files
from psched.base.regular_files import NotRegularError
from support.isolated import isolated
from support.odd_files import EMPTY, KINDS, leave

WAYS = {
    "to read": os.O_RDONLY,
    "to write": os.O_WRONLY | os.O_CREAT,
    "for both": os.O_RDWR | os.O_CREAT,
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_neither_opened_nor_waited_for(path, kind, way):
    leave(kind, path)
    with pytest.raises(NotRegularError, match="no regular file"):
        regular_files.open_file(path, WAYS[way])


def test_a_regular_file_is_opened_and_not_inherited(path):
    descriptor = regular_files.open_file(path, os.O_WRONLY | os.O_CREAT, 0o640)
    os.write(descriptor, b"content")
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)
    assert stat.S_IMODE(path.stat().st_mode) & ~0o640 == 0
    assert regular_files.read(path) == b"content"


def test_a_device_is_opened_for_who_wants_it():
    null = Path(os.devnull)
    os.close(regular_files.open_file(null, os.O_WRONLY, devices=True))
    with pytest.raises(NotRegularError, match="is a device"):
        regular_files.open_file(null, os.O_WRONLY)


def test_a_missing_file_is_missing(path):
    with pytest.raises(FileNotFoundError):
        regular_files.read(path)


def test_a_file_that_is_too_long_is_not_read(path):
    path.write_bytes(b"x" * regular_files.LARGEST)
    assert len(regular_files.read(path)) == regular_files.LARGEST
    path.write_bytes(b"x" * (regular_files.LARGEST + 1))
    with pytest.raises(OSError, match="too large"):
        regular_files.read(path)


@pytest.mark.parametrize("kind", EMPTY)
def test_what_holds_nothing_is_discarded_and_nothing_is_followed(path, kind):
    leave(kind, path)
    regular_files.discard(path)
    assert not os.path.lexists(path)
    if kind == "link to a file":
        assert path.with_name("file.precious").read_text() == "content"


@pytest.mark.parametrize("kind", ["full folder", "device"])
def test_what_may_be_somebodys_is_not_discarded(path, kind):
    leave(kind, path)
    with pytest.raises(NotRegularError):
        regular_files.discard(path)
    assert path.exists()


@pytest.mark.parametrize("kind", [*KINDS, "nothing"])
def test_a_name_of_our_own_is_cleared_and_a_file_put_there(path, kind):
    leave(kind, path)
    regular_files.clear(path)
    assert not os.path.lexists(path)
    leave(kind, path)
    regular_files.replace(path, b"ours")
    assert regular_files.read(path) == b"ours"


def reading_without_the_rights_of_root(path, changed):
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    for each in changed:
        Path(each).chmod(0)
    with pytest.raises(PermissionError):
        Path(path).read_bytes()
    return regular_files.read(Path(path)).decode()


@pytest.mark.parametrize("what", [["file"], ["folder"], ["file", "folder"]])
@pytest.mark.slow
def test_a_file_of_ours_that_may_not_be_opened_is_taken_back(what):
    with tempfile.TemporaryDirectory(prefix="psched-regular-") as folder:
        path = Path(folder, "file")
        path.write_text("ours")
        if os.geteuid() == 0:
            for each in folder, path:
                os.chown(each, 65534, 65534)
        changed = [{"file": str(path), "folder": folder}[each] for each in what]
        assert isolated(reading_without_the_rights_of_root, str(path), changed) == "ours"
