"""Telling a service manager how we are."""

import contextlib
import itertools
import os
import socket

import pytest

from psched.master.reports.sd_notify import Notifier
from support.isolated import isolated
from support.waiting import HANG_TIMEOUT


@contextlib.contextmanager
def manager(address):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address)
        listener.settimeout(HANG_TIMEOUT)
        yield listener


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_fields_arrive_as_one_datagram(kind, tmp_path):
    name = f"{tmp_path}/notify" if kind == "path" else f"@psched-{os.getpid()}"
    with manager(name.replace("@", "\0")) as listener:
        notifier = Notifier({"NOTIFY_SOCKET": name})
        notifier.send(RELOADING=1, MONOTONIC_USEC=123)
        notifier.send(READY=1)
        assert listener.recv(1000) == b"RELOADING=1\nMONOTONIC_USEC=123"
        assert listener.recv(1000) == b"READY=1"


def test_the_address_is_taken_out_of_the_environment():
    environment = {"NOTIFY_SOCKET": "/run/systemd/notify", "HOME": "/"}
    Notifier(environment)
    assert environment == {"HOME": "/"}


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": ""}])
def test_without_a_manager_nothing_is_said(environment):
    Notifier(environment).send(READY=1)


def test_a_manager_that_is_gone_is_no_error(tmp_path):
    name = f"{tmp_path}/notify"
    notifier = Notifier({"NOTIFY_SOCKET": name})
    notifier.send(READY=1)
    with manager(name):
        pass
    notifier.send(STOPPING=1)


def fill(name, fillers):
    """Send as much as one sender may; whether it was anything."""
    filler = fillers.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    filler.settimeout(0)
    for number in itertools.count():
        try:
            filler.sendto(b"STATUS=busy", name)
        except BlockingIOError:
            return number > 0
    return False


def before_a_deaf_manager():
    with manager("notify"), contextlib.ExitStack() as fillers:
        while fill("notify", fillers):
            pass
        Notifier({"NOTIFY_SOCKET": "notify"}).send(READY=1)
    return "done"


def test_a_manager_that_does_not_listen_holds_nobody_up_for_long():
    assert isolated(before_a_deaf_manager) == "done"
