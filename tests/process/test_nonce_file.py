"""The nonces that a killed master leaves to the next."""

import os
import subprocess
import sys

import pytest

from psched.master import nonce_file
from psched.master.nonce_file import NonceFile
from psched.process import cgroup
from support.leaving import KINDS, leave


@pytest.fixture
def heir():
    """The will of another process than this one."""

    def heir(folder, place):
        nonce_file = NonceFile(folder, place)
        nonce_file._name = "nonces.1.1"
        return nonce_file

    return heir


def test_what_is_written_is_inherited_once_by_the_next_in_the_same_place(tmp_path, heir):
    nonce_file = NonceFile(tmp_path, "/here")
    nonce_file.write({"a"})
    nonce_file.write({"a", "b"})
    assert heir(tmp_path, "/elsewhere").inherit() == []

    next_one = heir(tmp_path, "/here")
    assert next_one.inherit() == ["a", "b"]
    # Now they are of that one's will.
    assert [path.name for path in tmp_path.iterdir()] == ["nonces.1.1"]
    assert NonceFile(tmp_path, "/here").inherit() == ["a", "b"]


def test_two_masters_that_share_a_folder_do_not_touch_each_others(tmp_path, heir):
    one, other = NonceFile(tmp_path, "/one"), heir(tmp_path, "/other")
    one.write({"a"})
    other.write({"b"})
    assert (one.inherit(), other.inherit()) == ([], [])
    one.write([])
    assert [path.name for path in tmp_path.iterdir()] == ["nonces.1.1"]
    other.write([])
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_is_gone_is_said_and_costs_nothing(tmp_path, caplog):
    NonceFile(tmp_path / "gone", "/here").write(["a"])
    assert "its tasks wait for alive_time" in caplog.text


@pytest.mark.parametrize("kind", [*KINDS, "bytes", "names", "nothing", "too much"])
def test_what_a_task_leaves_beside_it_is_removed_and_stops_nobody(tmp_path, heir, kind):
    left = tmp_path / "nonces.7.7"
    content = {
        "bytes": b"/here\n\xff\xfe\n",
        "names": b"/here\nnonce\n../\x1b[2J\n",
        "nothing": b"",
        "too much": b"/here\n" + b"nonce\n" * 20_000,
    }
    if kind in content:
        left.write_bytes(content[kind])
    else:
        leave(kind, left)
    NonceFile(tmp_path, "/here").write({"a"})
    assert heir(tmp_path, "/here").inherit() == ["a"]
    assert not os.path.lexists(left)


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_where_it_is_to_be_written_is_replaced(tmp_path, heir, kind):
    ours = NonceFile(tmp_path, "/here")
    for name in ours._name, f".{ours._name}":
        leave(kind, tmp_path / name)
    ours.write({"a"})
    assert heir(tmp_path, "/here").inherit() == ["a"]
    leave(kind, tmp_path / ours._name)
    ours.write([])
    assert not os.path.lexists(tmp_path / ours._name)


@pytest.mark.parametrize("environ", [{}, {"RUNTIME_DIRECTORY": "/run/x"}, {"INVOCATION_ID": "1"}])
def test_only_a_service_of_systemds_has_one(environ):
    ours = nonce_file.make(environ)
    ours.write(["a"])
    assert ours.inherit() == []


def test_while_something_of_the_last_master_may_live_nothing_is_inherited(tmp_path, heir):
    heir(tmp_path, str(cgroup.own_path())).write(["a"])
    ours = nonce_file.make({"RUNTIME_DIRECTORY": f"{tmp_path}:/other", "INVOCATION_ID": "1"})
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert nonce_file.inherited(ours) == []
        other.communicate(b"\n")
