"""Hosts whose clocks are wrong, or step: they do what honest ones do, at the same times.

When something is due, and when a lease ends, is the store's to say; a host counts its own seconds
on clocks that nobody sets. So the time of day that a host believes in is for its log alone.
"""

import itertools
import json
import os
import re
import sys
from datetime import datetime
from pathlib import Path

import pytest

from conftest import DATABASES, MARKS
from psched.base.clock import SystemClock
from psched.base.lease_times import SHORTEST_ALIVE_TIME
from support.faketime import HostClock
from support.run_log import completed, exactly_once, in_order, never_early, never_two_at_once
from support.servers import MariaDB
from support.verifying import keeps_its_promises
from support.waiting import wait_until

pytestmark = [pytest.mark.verified, pytest.mark.extended]

CLOCK = SystemClock()

FIVE_MINUTES = 300
HOUR = 3600
MINUTE = 60

with_a_clock_of_its_own = pytest.mark.parametrize(
    "database",
    [pytest.param(kind, marks=MARKS[kind]) for kind in DATABASES if kind != "sqlite"],
    indirect=True,
)
"""SQLite has none: its clock is the host's."""


@pytest.fixture
def make_clock(tmp_path):
    """A function that makes the clock of a host, wrong by some seconds."""
    numbers = itertools.count()

    def make(ahead=0):
        return HostClock(tmp_path / f"clock{next(numbers)}", ahead)

    return make


@pytest.fixture
def service(make_service, database):
    """A service for several hosts, with the shortest leases there are."""
    made = make_service(database.url, alive_time=SHORTEST_ALIVE_TIME, concurrency=4)
    made.init()
    yield made
    made.close()  # or its masters would hold the database open


def start(service, clock, **options):
    """Start a master on the host of this clock."""
    command = [*service.master_command, "-c", service.config.name]
    return service.start(*clock.command(*command), **options)


def offset(master):
    """By how many seconds a master's newest line in its log is ahead of the time."""
    stamps = re.findall(r"^(\S+)Z \[", master.text, re.MULTILINE)
    return datetime.fromisoformat(f"{stamps[-1]}+00:00").timestamp() - CLOCK.wall()


def wait_for_step(shown, ahead):
    """Wait until an offset that is shown is about this."""
    wait_until(lambda: abs(shown() - ahead) < 2, what=f"a step to {ahead} s")


def late(run):
    """By how many seconds a run began after its scheduled time."""
    return run.started - CLOCK.boottime() + CLOCK.wall() - run.scheduled_time


class Ticks:
    """Schedules that are due every few seconds, from now on.

    Args:
        service: where they are added.
        gaps: their intervals.
    """

    def __init__(self, service, *gaps):
        self.service = service
        self.gaps = {f"every-{gap}": gap for gap in gaps}
        with service.schedules() as schedules:
            # It is not read after `add`: by then, the first occurrence can have been run.
            now = int(schedules.now())
            self.first = {key: (now // gap + 2) * gap for key, gap in self.gaps.items()}
            for key, gap in self.gaps.items():
                schedules.add(key, "recorder", cron=f"@every {gap}", next_time=self.first[key])

    def go_on(self, number=2):
        """Wait until each of them has been run so many times more."""
        for key in self.gaps:
            done = sum(run.completed for run in self.service.runs.runs(key))
            self.service.runs.wait(key, completed(done + number), what=f"{number} more runs")

    def occurrences(self):
        """All that have been due, up to where the schedules stand now."""
        return {
            (key, instant)
            for key, gap in self.gaps.items()
            for instant in range(self.first[key], self.service.row(key).next_time, gap)
        }


def worked(pids):
    """The seconds that processes have worked."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    ticks = sum(int(fields[11]) + int(fields[12]) for fields in stats)
    return ticks / os.sysconf("SC_CLK_TCK")


def not_a_word_of_trouble(*masters):
    """No master has warned of anything."""
    for master in masters:
        assert not re.search(" (WARNING|ERROR) ", master.text)


# --- hosts that are wrong ------------------------------------------------------------


@with_a_clock_of_its_own
def test_hosts_that_are_minutes_fast_and_slow_run_all_once_in_order_and_in_time(
    service, make_clock
):
    slow = start(service, make_clock(-FIVE_MINUTES))
    service.add("held-by-slow", data={"until": "gate"})
    service.runs.wait("held-by-slow")
    others = [start(service, make_clock(ahead), generation=0) for ahead in (FIVE_MINUTES, 0)]
    for master in others:
        master.wait_for_generation(1)
    held_since = CLOCK.boottime()

    ticks = Ticks(service, 1, 2, 3)
    with service.schedules() as schedules:
        last = ticks.first["every-1"] // MINUTE * MINUTE
        backlog = {
            (f"cron-{number}", last - age * MINUTE) for number in range(30) for age in range(4)
        }
        for key in {key for key, _ in backlog}:
            schedules.add(key, "recorder", cron="* * * * *", next_time=last - 3 * MINUTE)
    ticks.go_on()
    # Longer than the lease was without being extended.
    wait_until(
        lambda: CLOCK.boottime() > held_since + SHORTEST_ALIVE_TIME + 1, what="the end of a lease"
    )
    wait_until(
        lambda: {run.occurrence for run in service.runs.runs() if run.completed} >= backlog,
        what="the end of the backlog",
    )
    service.open_gate("gate")
    service.wait_for_finish("held-by-slow")
    masters = [slow, *others]
    for master, ahead in zip(masters, (-FIVE_MINUTES, FIVE_MINUTES, 0), strict=True):
        assert abs(offset(master) - ahead) < MINUTE
    workers = {worker for master in masters for worker in master.workers()}
    assert [master.stop() for master in masters] == [0, 0, 0]

    runs = [
        run
        for run in service.runs.runs()
        if not run.key.startswith("cron") or run.scheduled_time <= last
    ]
    exactly_once(runs, {("held-by-slow", 1_000_000_000), *backlog, *ticks.occurrences()})
    never_early(runs)
    in_order(runs)
    never_two_at_once(runs)
    assert {run.worker for run in runs} == workers  # each has had its share
    not_a_word_of_trouble(*masters)


@pytest.mark.mariadb
@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_a_host_whose_clock_steps_by_hours_goes_on_as_if_nothing_had_happened(service, make_clock):
    clock = make_clock()
    master = start(service, clock)
    service.add("long", data={"until": "gate"})
    ticks = Ticks(service, 1)
    ticks.go_on()
    own = [master.pid, *master.workers()]
    for ahead in HOUR, -HOUR:
        before, since = worked(own), CLOCK.boottime()
        clock.set(ahead)
        wait_for_step(lambda: offset(master), ahead)
        ticks.go_on()
        assert worked(own) - before < (CLOCK.boottime() - since) / 2
    service.open_gate("gate")
    service.wait_for_finish("long")
    assert master.stop() == 0

    runs = service.runs.runs()
    exactly_once(runs, {("long", 1_000_000_000), *ticks.occurrences()})
    never_early(runs)
    in_order(runs)
    not_a_word_of_trouble(master)


@pytest.mark.parametrize(
    ("database", "ahead"),
    [
        pytest.param("mariadb", FIVE_MINUTES, marks=MARKS["mariadb"]),
        pytest.param("postgresql", -FIVE_MINUTES, marks=MARKS["postgresql"]),
    ],
    indirect=["database"],
)
def test_on_a_wrong_host_commands_and_programs_count_from_the_time_of_the_store(
    service, make_clock, ahead
):
    clock = make_clock(ahead)
    begun = int(CLOCK.wall())
    service.add("overdue", next_time=begun - MINUTE)
    service.add("soon", next_time=begun + MINUTE)
    service.add("changed", cron="@yearly", next_time=None)
    service.write(
        "program.py",
        """
        import json, sys, time
        import psched

        with psched.open(sys.argv[1]) as schedules:
            task = schedules.poll()
            lease_end = schedules[task.key].metadata().next_run_time
            schedules["changed"].modify(cron="@every 1")
            rest = [task.key for task in iter(schedules.poll, None)]
            print(json.dumps([time.time(), task.key, lease_end, rest]))
        """,
    )
    added = service.run(
        *clock.command(*service.psched_command, "add", "new", "recorder", "@every 1")
    )
    program = service.run(*clock.command(sys.executable, "program.py", service.config.name))
    ended = CLOCK.wall() + 1

    assert (added.returncode, program.stderr) == (0, "")
    believed, key, lease_end, rest = json.loads(program.stdout)
    assert begun <= believed - ahead <= ended
    assert (key, "soon" in rest) == ("overdue", False)
    assert begun <= lease_end - SHORTEST_ALIVE_TIME - 1 <= ended
    new, changed = service.row("new"), service.row("changed")
    assert begun <= new.row.created_at <= new.next_time <= ended
    assert begun <= changed.next_time <= ended


# --- the store's own clock -----------------------------------------------------------


class SteppingMariaDB(MariaDB):
    """A MariaDB on a host whose clock can be set."""

    def _command(self):
        self.clock = HostClock(self.folder / "clock")
        return self.clock.command(*super()._command())

    @property
    def offset(self):
        """By how many seconds it is ahead of the time."""
        [[now]] = self.query("SELECT TIMESTAMPDIFF(SECOND, '1970-01-01', UTC_TIMESTAMP())")
        return now - CLOCK.wall()


@pytest.mark.mariadb
@pytest.mark.usefixtures("mariadb_server")  # which says if there is none
def test_a_store_whose_clock_steps_by_less_than_the_margin_loses_and_doubles_nothing(
    make_service, servers
):
    with SteppingMariaDB(servers) as server:
        service = make_service(server.url(server.create_database()), alive_time=60, concurrency=4)
        service.init()
        masters = [service.start() for _ in range(2)]
        service.add("long", data={"until": "gate"})
        ticks = Ticks(service, 1)
        ticks.go_on()
        for ahead in 3, 0:
            server.clock.set(ahead)
            wait_for_step(lambda: server.offset, ahead)
            ticks.go_on()
        service.open_gate("gate")
        service.wait_for_finish("long")
        assert [master.stop() for master in masters] == [0, 0]

        runs = service.runs.runs()
        exactly_once(runs, {("long", 1_000_000_000), *ticks.occurrences()})
        in_order(runs)
        never_two_at_once(runs)
        not_a_word_of_trouble(*masters)
        keeps_its_promises(service)
        service.close()


@pytest.mark.mariadb
@pytest.mark.usefixtures("mariadb_server")  # which says if there is none
def test_a_store_whose_clock_jumps_doubles_nothing_if_leases_are_observed(make_service, servers):
    with SteppingMariaDB(servers) as server:
        url = server.url(server.create_database())
        ours, theirs = (
            make_service(url, alive_time=SHORTEST_ALIVE_TIME, takeover="observed") for _ in range(2)
        )
        ours.init()
        master = ours.start()
        ours.add("long", data={"until": "gate"})
        ours.runs.wait("long")
        other = theirs.start()
        server.clock.set(HOUR)
        wait_for_step(lambda: server.offset, HOUR)
        over = CLOCK.boottime() + 3 * SHORTEST_ALIVE_TIME
        wait_until(lambda: CLOCK.boottime() > over, what="the ends of some leases")
        assert len([*ours.runs.runs("long"), *theirs.runs.runs("long")]) == 1
        not_a_word_of_trouble(master, other)
        master.kill()  # as if its host had died
        run = theirs.runs.wait("long")[0]
        assert run.fence == 2
        theirs.open_gate("gate")
        theirs.wait_for_finish("long")
        assert other.stop() == 0
        for service in ours, theirs:
            service.close()


# --- SQLite, whose clock is the host's -----------------------------------------------


def test_on_sqlite_a_host_whose_clock_is_set_back_waits_and_loses_nothing(
    make_service, make_clock, tmp_path
):
    clock = make_clock()
    service = make_service(
        f"sqlite:///{tmp_path}/psched.db", alive_time=SHORTEST_ALIVE_TIME, concurrency=4
    )
    service.init()
    masters = [start(service, clock) for _ in range(2)]
    service.add("long", data={"until": "gate"})
    ticks = Ticks(service, 1)
    ticks.go_on()
    clock.set(-3)
    ticks.go_on(4)
    service.open_gate("gate")
    service.wait_for_finish("long")
    assert [master.stop() for master in masters] == [0, 0]

    runs = service.runs.runs()
    exactly_once(runs, {("long", 1_000_000_000), *ticks.occurrences()})
    assert late(runs[-1]) > 2  # by the true time
    never_early(runs)
    in_order(runs)
    never_two_at_once(runs)
    not_a_word_of_trouble(*masters)


@pytest.mark.parametrize("hosts", [1, 2])
def test_on_sqlite_a_clock_that_is_set_forward_takes_nothing_from_a_running_task(
    make_service, make_clock, tmp_path, hosts
):
    clock = make_clock()
    service = make_service(
        f"sqlite:///{tmp_path}/psched.db", alive_time=SHORTEST_ALIVE_TIME, concurrency=4
    )
    service.init()
    masters = [start(service, clock) for _ in range(hosts)]
    service.add("long", data={"until": "gate"})
    service.runs.wait("long")
    clock.set(HOUR)
    service.wait_for_row("long", lambda row: row.next_run_time > CLOCK.wall() + HOUR - MINUTE)
    service.add("next")
    service.wait_for_finish("next")
    service.open_gate("gate")
    service.wait_for_finish("long")
    assert [master.stop() for master in masters] == [0] * hosts
    exactly_once(service.runs.runs(), {("long", 1_000_000_000), ("next", 1_000_000_000)})
    not_a_word_of_trouble(*masters)
