"""What a service manager such as systemd is told, and by whom."""

import signal
import socket

import pytest


@pytest.fixture
def manager(tmp_path):
    """The socket at which a service manager listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(20)
        yield listening


def told(manager):
    """What has been told since the last call, one message."""
    return dict(line.split("=", 1) for line in manager.recv(4096).decode().splitlines())


def test_a_service_manager_is_told_of_every_step_by_the_master_alone(service, manager):
    service.env["NOTIFY_SOCKET"] = manager.getsockname()
    service.configure(dispatch="jobs:Dispatch")
    service.write("jobs.py", "from canary import Dispatch")
    master = service.start(generation=0)

    assert told(manager) == {"READY": "1"}
    service.add("s1", "exec", data={"command": "env >environ", "shell": True})
    service.wait_for_finish("s1")
    assert "NOTIFY_SOCKET" not in (service.folder / "environ").read_text()

    master.send(signal.SIGHUP)
    reloading = told(manager)
    assert reloading["RELOADING"] == "1"
    assert int(reloading["MONOTONIC_USEC"]) > 0
    assert told(manager) == {"READY": "1"}

    service.write("jobs.py", "broken(")
    master.send(signal.SIGHUP)
    assert told(manager)["RELOADING"] == "1"
    failed = told(manager)
    assert failed["READY"] == "1"
    assert failed["STATUS"] == "restart failed: its first worker exited with status 65"

    master.send(signal.SIGTERM)
    assert told(manager) == {"STOPPING": "1"}
    assert master.wait() == 0
