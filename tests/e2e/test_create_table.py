"""The setting create_table: workers create a missing table when they start, and change none."""

import contextlib
import signal
import socket

import pytest

from psched.app import make_store, read_config
from psched.base.errors import SchemaError
from support.waiting import HANG_TIMEOUT, wait_until


def test_a_missing_table_is_created_at_the_start_of_several_hosts_at_once(make_service, database):
    hosts = [make_service(database.url, create_table=True, processors=2) for _ in range(2)]
    masters = [host.start(generation=0) for host in hosts]
    for master in masters:
        master.wait_for_workers(2)

    def is_there():
        with contextlib.suppress(SchemaError), hosts[0].schedules() as schedules:
            return schedules.now()
        return None

    wait_until(is_there, what="the table")
    hosts[0].add("s1")
    hosts[0].wait_for_finish("s1")
    for master in masters:
        assert master.stop() == 0
    # Nothing was missing after the start.
    assert make_store(read_config(hosts[0].config)).init() == []


def test_a_missing_sqlite_file_is_created_with_its_folder(make_service, tmp_path):
    service = make_service(f"sqlite:///{tmp_path}/a/b/psched.db", create_table=True)
    master = service.start()
    master.wait_for_log("created table psched_info")
    service.add("s1")
    service.wait_for_finish("s1")
    assert master.stop() == 0


def test_a_file_that_was_moved_away_while_in_use_is_not_created_anew(make_service, tmp_path):
    service = make_service(f"sqlite:///{tmp_path}/psched.db", create_table=True)
    (tmp_path / "psched.db-wal").write_bytes(b"what was written last")
    master = service.start()
    master.wait_for_log("no database at .*psched.db: run `psched init`")
    assert master.stop() == 0
    assert not (tmp_path / "psched.db").exists()
    assert (tmp_path / "psched.db-wal").read_bytes() == b"what was written last"


def test_check_accepts_a_table_that_the_workers_create(make_service, database):
    service = make_service(database.url, create_table=True)
    done = service.psched("check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "the table psched does not exist yet; workers create it when they start" in done.stdout
    service.configure(create_table=False)
    done = service.psched("check")
    assert (done.returncode, done.stderr.count("run `psched init`")) == (1, 1)


def test_check_does_not_accept_a_file_that_was_moved_away(make_service, tmp_path):
    service = make_service(f"sqlite:///{tmp_path}/psched.db", create_table=True)
    (tmp_path / "psched.db-wal").write_bytes(b"what was written last")
    done = service.psched("check")
    assert (done.returncode, done.stderr.count("run `psched init`")) == (1, 1)


def test_an_older_table_is_not_changed_and_init_is_named(make_service, tmp_path):
    service = make_service(f"sqlite:///{tmp_path}/psched.db", create_table=True)
    service.init()
    with service.sql() as database:
        database.execute("DROP INDEX psched_retain")
        database.execute("UPDATE psched_info SET value = '1' WHERE name = 'schema_version'")
    master = service.start()
    master.wait_for_log("has schema version 1, .* run `psched init`, which upgrades it in place")
    assert master.stop() == 0
    with service.sql() as database:
        names = [row[1] for row in database.execute("PRAGMA index_list(psched)")]
    assert "psched_due" in names
    assert "psched_retain" not in names


@pytest.fixture
def manager(tmp_path):
    """The socket at which a service manager listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(HANG_TIMEOUT)
        yield listening


def last_status(manager):
    """The last status line that the service manager was sent before the master ended."""
    manager.settimeout(0)
    said = None
    with contextlib.suppress(BlockingIOError):
        while True:
            fields = dict(line.split("=", 1) for line in manager.recv(4096).decode().splitlines())
            said = fields.get("STATUS", said)
    return said


class TestTheReasonOfAFailedStart:
    """The service manager still shows it when the service has ended."""

    @pytest.mark.parametrize(
        ("settings", "status", "reason"),
        [
            ({"table": "7"}, 78, "cannot start: {config}:"),
            ({"log": "/nosuch/log"}, 78, "cannot start: log: cannot be opened: [Errno 2]"),
            (
                {"dispatch": "nowhere:D"},
                65,
                (
                    "cannot start: its first worker exited with status 65: its handlers cannot be"
                    " loaded: there is no module 'nowhere'"
                ),
            ),
        ],
        ids=["configuration", "log", "handlers"],
    )
    def test_is_the_last_status(self, service, manager, settings, status, reason):
        service.env["NOTIFY_SOCKET"] = manager.getsockname()
        service.configure(**settings)
        master = service.start(generation=0)
        assert master.wait() == status
        assert last_status(manager).startswith(reason.format(config=service.config))

    def test_a_stop_while_the_table_is_missing_keeps_the_reason_until_then(self, service, manager):
        service.env["NOTIFY_SOCKET"] = manager.getsockname()
        service.configure(table="another")
        master = service.start(generation=0)
        master.wait_for_log("psched init")
        reason = (
            "the database cannot be used: the table 'another' does not exist; run `psched init`"
        )
        said = ""
        while reason not in said:
            said = manager.recv(4096).decode()
        assert (
            reason.removeprefix("the database cannot be used: ") in service.psched("status").stdout
        )
        assert master.stop(signal.SIGTERM) == 0
