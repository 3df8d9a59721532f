"""Tests that the audit trail names the user, the host and the program."""

import os
import pwd
import socket
import sys

import pytest

from psched.client.auditor import Author, this_process

NAME = pwd.getpwuid(os.geteuid()).pw_name

NOBODY = 4_000_000_000
"""A user id that has no name."""


@pytest.fixture(autouse=True)
def _without_sudo(monkeypatch):
    monkeypatch.delenv("SUDO_USER", raising=False)


def test_the_user_the_host_and_the_given_program_are_named():
    assert this_process("psched add") == Author(NAME, socket.gethostname(), "psched add")


@pytest.mark.parametrize(
    ("argument", "program"),
    [
        ("/srv/app/nightly.py", "nightly.py"),
        ("nightly", "nightly"),
        ("/srv/app/reports/__main__.py", "reports"),
        ("-c", "python -c"),
        ("", "python"),
        ("bad\udcff\x1b", r"bad\udcff\x1b"),
        ("x" * 300, "x" * 255),
    ],
)
def test_a_program_without_a_name_is_named_after_its_script(monkeypatch, argument, program):
    monkeypatch.setattr(sys, "argv", [argument, "an argument"])
    assert this_process().program == program


def test_a_user_id_without_a_name_is_shown_as_a_number(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    assert this_process("p").user == f"uid {NOBODY}"


def test_sudo_does_not_hide_who_has_called_it(monkeypatch):
    monkeypatch.setenv("SUDO_USER", "änn\x1b")
    assert this_process("p").user == rf"änn\x1b (as {NAME})"
    monkeypatch.setenv("SUDO_USER", NAME)
    assert this_process("p").user == NAME
