"""The nonces that a killed master leaves to the next."""

import subprocess
import sys

import pytest

from psched.supervisor import cgroup, will
from psched.supervisor.will import Will


@pytest.fixture
def heir():
    """The will of another process than this one."""

    def heir(folder, place):
        will = Will(folder, place)
        will._name = "nonces.1.1"
        return will

    return heir


def test_what_is_written_is_inherited_once_by_the_next_in_the_same_place(tmp_path, heir):
    will = Will(tmp_path, "/here")
    will.write({"a"})
    will.write({"a", "b"})
    assert heir(tmp_path, "/elsewhere").inherit() == []

    next_one = heir(tmp_path, "/here")
    assert next_one.inherit() == ["a", "b"]
    # Now they are of that one's will.
    assert [path.name for path in tmp_path.iterdir()] == ["nonces.1.1"]
    assert Will(tmp_path, "/here").inherit() == ["a", "b"]


def test_two_masters_that_share_a_folder_do_not_touch_each_others(tmp_path, heir):
    one, other = Will(tmp_path, "/one"), heir(tmp_path, "/other")
    one.write({"a"})
    other.write({"b"})
    assert (one.inherit(), other.inherit()) == ([], [])
    one.write([])
    assert [path.name for path in tmp_path.iterdir()] == ["nonces.1.1"]
    other.write([])
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_is_gone_is_said_and_costs_nothing(tmp_path, caplog):
    Will(tmp_path / "gone", "/here").write(["a"])
    assert "its tasks wait for alive_time" in caplog.text


@pytest.mark.parametrize("environ", [{}, {"RUNTIME_DIRECTORY": "/run/x"}, {"INVOCATION_ID": "1"}])
def test_only_a_service_of_systemds_has_one(environ):
    ours = will.make(environ)
    ours.write(["a"])
    assert ours.inherit() == []


def test_while_something_of_the_last_master_may_live_nothing_is_inherited(tmp_path, heir):
    heir(tmp_path, str(cgroup.own_path())).write(["a"])
    ours = will.make({"RUNTIME_DIRECTORY": f"{tmp_path}:/other", "INVOCATION_ID": "1"})
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert will.inherited(ours) == []
        other.communicate(b"\n")
