"""The nonces that a killed master leaves to the next."""

import subprocess
import sys

import pytest

from psched.supervisor.will import Will, inherited, of_service


def test_what_is_written_is_read_by_the_next_and_nothing_leaves_no_file(tmp_path):
    path = tmp_path / "nonces"
    will = Will(path)
    assert Will(path).read() == []
    will.write({"a", "b"})
    assert sorted(Will(path).read()) == ["a", "b"]
    will.write({"b"})
    assert Will(path).read() == ["b"]
    will.write([])
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_is_gone_is_said_and_costs_nothing(tmp_path, caplog):
    Will(tmp_path / "gone" / "nonces").write(["a"])
    assert "its tasks wait for alive_time" in caplog.text


@pytest.mark.parametrize("environ", [{}, {"RUNTIME_DIRECTORY": "/run/x"}, {"INVOCATION_ID": "1"}])
def test_only_a_service_of_systemds_has_one(environ):
    will = of_service(environ)
    will.write(["a"])
    assert will.read() == []


def test_while_something_of_the_last_master_may_live_nothing_is_inherited(tmp_path):
    will = of_service({"RUNTIME_DIRECTORY": f"{tmp_path}:/other", "INVOCATION_ID": "1"})
    will.write(["a"])
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert inherited(will) == []
        other.communicate(b"\n")
