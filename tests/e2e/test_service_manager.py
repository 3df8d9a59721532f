"""What a service manager such as systemd is told, and by whom."""

import signal
import socket

import pytest

from support.waiting import HANG_TIMEOUT


@pytest.fixture
def manager(tmp_path):
    """The socket at which a service manager listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(HANG_TIMEOUT)
        yield listening


def told(manager, *wanted):
    """The next message that has one of these fields."""
    while True:
        fields = dict(line.split("=", 1) for line in manager.recv(4096).decode().splitlines())
        if not wanted or not fields.keys().isdisjoint(wanted):
            return fields


STEPS = ("READY", "RELOADING", "STOPPING")


def test_a_service_manager_is_told_of_every_step_by_the_master_alone(service, manager):
    service.env["NOTIFY_SOCKET"] = manager.getsockname()
    service.configure(dispatch="jobs:Dispatch")
    service.write("jobs.py", "from recorder import Dispatch")
    master = service.start(generation=0)

    ready = told(manager, *STEPS)
    assert ready == {"READY": "1", "STATUS": "generation 1, 1 workers, 0 tasks, 1 of 1 slots free"}
    service.add("s1", "exec", data={"command": "env >environ", "shell": True})
    service.wait_for_finish("s1")
    assert "NOTIFY_SOCKET" not in (service.folder / "environ").read_text()

    master.send(signal.SIGHUP)
    reloading = told(manager, *STEPS)
    assert reloading["RELOADING"] == "1"
    assert int(reloading["MONOTONIC_USEC"]) > 0
    assert told(manager, *STEPS)["READY"] == "1"

    service.write("jobs.py", "broken(")
    master.send(signal.SIGHUP)
    assert told(manager, *STEPS)["RELOADING"] == "1"
    failed = told(manager, *STEPS)
    assert failed["READY"] == "1"
    problem = (
        "its first worker exited with status 65: its handlers cannot be loaded: importing 'jobs'"
        " failed: SyntaxError: '(' was never closed (jobs.py, line 1)"
    )
    assert failed["STATUS"].endswith(f"; restart failed: {problem}")

    master.send(signal.SIGTERM)
    stopping = told(manager, *STEPS)
    assert stopping["STOPPING"] == "1"
    assert stopping["EXTEND_TIMEOUT_USEC"] == "30000000"
    assert master.wait() == 0


def test_it_is_ready_only_when_it_has_looked_for_due_rows_and_asks_for_patience_until_then(
    service, manager
):
    service.env["NOTIFY_SOCKET"] = manager.getsockname()
    with service.sql() as database:
        database.execute("alter table psched rename to away")
    master = service.start(generation=0)
    master.wait_for_log("psched init")

    starting = told(manager, "STATUS", *STEPS)
    assert starting["EXTEND_TIMEOUT_USEC"] == "30000000"
    assert "READY" not in starting
    reason = "the table is not as psched needs it, run `psched init`: "
    while f"; the database cannot be used: {reason}" not in starting["STATUS"]:
        starting = told(manager, "STATUS", *STEPS)
        assert "READY" not in starting

    with service.sql() as database:
        database.execute("alter table away rename to psched")
    assert told(manager, *STEPS)["READY"] == "1"
    assert master.stop() == 0


def feed(service, manager, interval):
    """Start a master that has a watchdog, whose interval is so many seconds."""
    service.env["NOTIFY_SOCKET"] = manager.getsockname()
    service.env["WATCHDOG_USEC"] = str(int(interval * 1_000_000))
    return service.start()


def test_the_watchdog_is_fed_again_and_again(service, manager):
    master = feed(service, manager, 1.5)
    for _ in range(4):
        assert told(manager, "WATCHDOG")["WATCHDOG"] == "1"
    assert master.stop() == 0


@pytest.mark.quiet  # the interval is one of real time, as the service manager's is
def test_the_watchdog_is_fed_within_its_interval(service, manager):
    master = feed(service, manager, 1.5)
    manager.settimeout(1.5)
    for _ in range(4):
        assert told(manager, "WATCHDOG")["WATCHDOG"] == "1"
    manager.settimeout(HANG_TIMEOUT)
    assert master.stop() == 0
