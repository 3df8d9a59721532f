"""Two masters on one MariaDB, a thousand due occurrences: once each, in order, come what may."""

import signal
from collections import defaultdict

import pytest

from support.processes import kill
from support.run_log import exactly_once, in_order, never_two_at_once
from support.waiting import wait_until

pytestmark = [pytest.mark.verified, pytest.mark.extended]

MINUTE = 60
SCHEDULES = 100
OCCURRENCES = 10


class Backlog:
    """Schedules that have missed their last occurrences, and how far they have been caught up."""

    def __init__(self, service):
        self.runs = service.runs
        self.keys = [f"s{number}" for number in range(SCHEDULES)]
        with service.schedules() as schedules:
            now = schedules.add("clock").metadata().next_time
            schedules["clock"].delete()
            self.last = now - now % MINUTE
            first = self.last - (OCCURRENCES - 1) * MINUTE
            for key in self.keys:
                schedules.add(key, "recorder", cron="* * * * *", next_time=first)

    @property
    def occurrences(self):
        """All of them."""
        return {
            (key, self.last - number * MINUTE) for key in self.keys for number in range(OCCURRENCES)
        }

    @property
    def done(self):
        """The runs of these occurrences so far; the next minute's are not of the backlog."""
        return [run for run in self.runs.runs() if run.scheduled_time <= self.last]

    def wait_for(self, number):
        """Wait until so many occurrences have been completed."""
        wait_until(
            lambda: len({run.occurrence for run in self.done if run.completed}) >= number,
            what=f"{number} completed occurrences",
        )


@pytest.fixture
def busy(make_service, mariadb_server):
    """A service on MariaDB for two masters with two workers each."""
    name = mariadb_server.create_database()
    service = make_service(
        mariadb_server.url(name), processors=2, concurrency=2, max_tasks_per_child=25
    )
    service.init()
    yield service
    service.close()  # or its masters would hold the database open
    mariadb_server.drop_database(name)


@pytest.mark.mariadb
def test_two_masters_run_each_occurrence_once_and_in_order(busy):
    backlog = Backlog(busy)
    masters = [busy.start(generation=0) for _ in range(2)]

    backlog.wait_for(SCHEDULES * OCCURRENCES)
    assert [master.stop() for master in masters] == [0, 0]

    runs = backlog.done
    exactly_once(runs, backlog.occurrences)
    in_order(runs)
    never_two_at_once(runs)
    # Both have had their share.
    assert len({run.worker for run in runs}) == 4
    assert not any(" ERROR " in master.text for master in masters)


@pytest.mark.mariadb
def test_deaths_of_workers_and_masters_lose_nothing_and_double_only_what_they_killed(busy):
    busy.configure(alive_time=6)
    backlog = Backlog(busy)
    first, second = busy.start(generation=0), busy.start(generation=0)
    killed = set()

    backlog.wait_for(100)
    for master in first, second:
        worker = master.wait_for_workers(2)[0]
        killed.add(worker)
        kill(worker)
    backlog.wait_for(300)
    # A master alone: its workers see to what they ran.
    killed |= {*first.workers()}
    first.kill()
    third = busy.start()
    backlog.wait_for(500)
    # A host: a master with all its workers, so that nobody is left to release anything.
    lost = [third.pid, *third.workers()]
    killed |= {*lost}
    for number in signal.SIGSTOP, signal.SIGKILL:
        for pid in lost:
            kill(pid, number)
    backlog.wait_for(SCHEDULES * OCCURRENCES)
    wait_until(lambda: not held(busy), what="the end of all leases")
    assert second.stop() == 0

    runs = backlog.done
    assert {run.occurrence for run in runs if run.completed} == backlog.occurrences
    never_two_at_once(runs)
    in_order(runs)
    by_occurrence = defaultdict(list)
    for run in runs:
        by_occurrence[run.occurrence].append(run)
    for tried in by_occurrence.values():
        *cut, last = tried
        assert last.completed
        assert {run.worker for run in cut} <= killed


def held(service):
    """The schedules that somebody has leased."""
    with service.schedules() as schedules:
        return [seen.key for seen in schedules.list() if seen.row.owner is not None]
