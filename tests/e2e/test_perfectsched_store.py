"""psched beside PerfectSched's own workers, on PerfectSched's table; and the commands on it."""

import contextlib
import itertools
import json
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from support import perfectsched
from support.owned_process import OwnedProcess
from support.processes import kill
from support.run_log import exactly_once, in_order, never_two_at_once
from support.stores import Sql
from support.waiting import wait_for_end, wait_for_text, wait_until

pytestmark = pytest.mark.extended

MINUTE = 60
TESTS = Path(__file__).parents[1]


class Mixed:
    """A table of PerfectSched's with a backlog, psched, and workers of PerfectSched's.

    Args:
        service: psched.
        url: the database's.
        schedules: how many, each due every minute.
        occurrences: how many each has missed.
    """

    def __init__(self, service, url, *, schedules, occurrences):
        self.service = service
        self._url = url
        self._sql = Sql(url)
        self._running = contextlib.ExitStack()
        service.init()
        self.last = self._now()
        self.first = first = self.last - (occurrences - 1) * MINUTE
        self.occurrences = {
            (f"s{number}", first + n * MINUTE)
            for number in range(schedules)
            for n in range(occurrences)
        }

    def fill(self):
        """Insert the schedules; their backlog is due at once."""
        for key in sorted({key for key, _ in self.occurrences}):
            # As PerfectSched inserts them.
            self._sql(
                "INSERT INTO {table} (id, timeout, next_time, cron, delay, data, timezone)"
                " VALUES (:id, :time, :time, '* * * * *', 0, :data, NULL)",
                id=key,
                time=self.first,
                data=b'{"type":"recorder"}',
            )

    def start_peer(self, *, alive_time=60, seconds=0.002):
        """Start a worker of PerfectSched's; returns its pid."""
        script = Path(perfectsched.__file__)
        peer = OwnedProcess(
            [
                sys.executable,
                str(script),
                self._url,
                "psched",
                str(self.service.runs.path),
                str(alive_time),
                str(seconds),
            ],
            output=self.service.folder / "peers.log",
            cwd=self.service.folder,
            env={**self.service.env, "PYTHONPATH": str(TESTS)},
        )
        self._running.callback(peer.close)
        wait_for_text(self.service.folder / "peers.log", f"{peer.pid} works\n")
        return peer.pid

    def hold(self, key, **data):
        """Make psched's handler do what these data say."""
        text = json.dumps({"type": "recorder", **data}).encode()
        self._sql("UPDATE {table} SET data = :data WHERE id = :id", id=key, data=text)

    def modify(self, key, cron, timezone):
        """Change a trigger as PerfectSched's client does."""
        self._sql(
            "UPDATE {table} SET cron = :cron, timezone = :timezone WHERE id = :id",
            id=key,
            cron=cron,
            timezone=timezone,
        )

    def run_by(self, pid):
        """The runs of one worker."""
        return [run for run in self.done if run.worker == pid]

    def close(self):
        """End the workers of PerfectSched's."""
        self._running.close()

    @property
    def done(self):
        """The runs of the backlog so far, without those of later minutes."""
        return [run for run in self.service.runs.runs() if run.scheduled_time <= self.last]

    def wait_for(self, number):
        """Wait until so many occurrences have been completed."""

        def there():
            return len({run.occurrence for run in self.done if run.completed}) >= number

        wait_until(there, what=f"{number} completed occurrences")

    def _now(self):
        with self.service.schedules() as schedules:
            schedules.add("clock", cron="* * * * *")
            following = schedules["clock"].metadata().next_time
            schedules["clock"].delete()
        return following - MINUTE


@pytest.fixture
def mix(make_service, database):
    """Makes mixed installations, and closes them at the end."""
    with contextlib.ExitStack() as made:

        def make(*, schedules, occurrences, **settings):
            settings = {"on_return": "finish", **settings}  # the recorder does not call finish
            service = make_service(database.url, type="rdb_compat", table="psched", **settings)
            mixed = Mixed(service, database.url, schedules=schedules, occurrences=occurrences)
            made.callback(service.close)
            made.callback(mixed.close)
            return mixed

        yield make


@pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)], indirect=True
)
def test_beside_perfectscheds_workers_each_occurrence_is_run_once_and_in_order(mix):
    mixed = mix(schedules=24, occurrences=25, processors=2, concurrency=2, max_tasks_per_child=25)
    peers = {mixed.start_peer() for _ in range(2)}
    master = mixed.service.start()
    master.wait_for_workers(2)

    mixed.fill()
    mixed.wait_for(len(mixed.occurrences))
    assert master.stop() == 0
    mixed.close()

    runs = mixed.done
    exactly_once(runs, mixed.occurrences)
    in_order(runs)
    never_two_at_once(runs)
    # Both systems have run some.
    workers = [run.worker for run in runs]
    assert peers < {*workers}
    assert len([worker for worker in workers if worker not in peers]) > len(runs) / 20
    assert " ERROR " not in master.text


@pytest.mark.mariadb
@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_while_triggers_are_modified_no_occurrence_is_lost(mix):
    mixed = mix(schedules=4, occurrences=60, processors=2)
    master = mixed.service.start()
    master.wait_for_workers(2)
    mixed.fill()
    # Every one of the triggers fires every five minutes.
    counted = {one for one in mixed.occurrences if one[1] % (5 * MINUTE) == 0}
    crons = itertools.cycle(["* * * * *", "*/5 * * * *", "0-59 * * * *", "*/1 * * * *"])
    zones = itertools.cycle(["Asia/Tokyo", "UTC", "Asia/Kolkata"])

    def modify_all():
        for key in {key for key, _ in mixed.occurrences}:
            mixed.modify(key, next(crons), next(zones))

    def changed_under_a_task():
        modify_all()
        return "its trigger was changed from" in master.text

    def all_done():
        modify_all()
        return counted <= {run.occurrence for run in mixed.done if run.completed}

    wait_until(changed_under_a_task, what="a change while a task runs")
    # Only now, because a worker of PerfectSched's may be so fast that it runs nearly all.
    mixed.start_peer()
    wait_until(all_done, what="every fifth minute")
    assert master.stop() == 0
    mixed.close()
    runs = mixed.done
    assert len({run.occurrence for run in runs}) == len(runs)
    in_order(runs)
    never_two_at_once(runs)


@pytest.mark.mariadb
@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_whoever_is_killed_nothing_is_lost_and_only_what_was_killed_is_run_again(mix):
    mixed = mix(schedules=12, occurrences=20, alive_time=6, concurrency=2, max_tasks_per_child=25)
    mixed.fill()
    mixed.hold("s0", until="gate")
    first = mixed.service.start(generation=0)
    (held,) = mixed.service.runs.wait("s0")
    mixed.wait_for(40)
    # The whole host dies: the master as well, so that no process releases the leases.
    hosts = [first.pid, *first.workers()]
    for pid in hosts:
        kill(pid)
    wait_for_end(held.pid)
    mixed.service.open_gate("gate")
    # A worker of PerfectSched's, in the middle of a task.
    slow = mixed.start_peer(alive_time=6, seconds=60)
    wait_until(lambda: mixed.run_by(slow), what="a task of the slow worker")
    kill(slow)

    for _ in range(2):
        mixed.start_peer(alive_time=6)
    second = mixed.service.start(generation=0)
    mixed.wait_for(len(mixed.occurrences))
    # The peers can have run all before it serves.
    second.wait_for_generation(1)
    assert second.stop() == 0
    mixed.close()

    runs = mixed.done
    assert {run.occurrence for run in runs if run.completed} == mixed.occurrences
    in_order(runs)
    never_two_at_once(runs)
    tries = defaultdict(list)
    for run in runs:
        tries[run.occurrence].append(run)
    again = [of_one for of_one in tries.values() if len(of_one) > 1]
    assert {of_one[0].worker for of_one in again} <= {*hosts, slow}
    cut_short = {run.occurrence for run in runs if not run.completed}
    assert {("s0", mixed.first), *(run.occurrence for run in mixed.run_by(slow))} <= cut_short


@pytest.mark.mariadb
@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_the_commands_work_on_perfectscheds_table(make_service, database):
    service = make_service(database.url, type="rdb_compat", table="jobs")
    assert "created table jobs" in service.psched("init").stdout
    assert "created" not in service.invoke("init").stdout
    sql = Sql(database.url, "jobs")
    sql(
        "INSERT INTO {table} (id, timeout, next_time, cron, delay, data, timezone) VALUES"
        " ('report.daily', 4102444, 4102444, '0 0 */2 * 1', 30, :data, 'Asia/Tokyo')",
        data=b"",
    )

    check = service.psched("check")
    assert (check.returncode, check.stderr) == (0, "")
    assert "claims by: cas, beside PerfectSched's workers" in check.stdout
    added = service.psched("add", "k1", "t1", "5/15 * * * *", '{"a":1}', "-s", "2030-01-01T00:00")
    assert added.stdout == "k1: first at 2030-01-01 00:05:00 UTC\n"
    listed = [json.loads(line) for line in service.psched("list", "--json").stdout.splitlines()]
    shown = [(row["key"], row["type"], row["data"], row["timezone"]) for row in listed]
    assert shown == [("report.daily", "report", {}, "Asia/Tokyo"), ("k1", "t1", {"a": 1}, "UTC")]
    assert "2030-01-01 00:05:00 UTC" in service.invoke("list", "--legacy").stdout
    (stored,) = sql("SELECT timeout, next_time, delay, data, timezone FROM {table} WHERE id='k1'")
    assert json.loads(stored[3]) == {"a": 1, "type": "t1"}
    assert (stored[0], stored[1], stored[2], stored[4]) == (1893456300, 1893456300, 0, "UTC")

    for command, refusal in [
        (("add", "k1", "t1", "@daily"), "the key 'k1' is taken"),
        (("add", "k2", "t1", "22-2 * * * *"), "is refused by PerfectSched's workers"),
        (("add", "k2", "t1", "@every 90"), "nor what PerfectSched knows"),
        (
            ("add", "k2", "t1", "@daily", "--catchup", "skip"),
            "catchup: PerfectSched's table has no",
        ),
        (("add", "k2", "t1", "@daily", "-s", "2040-01-01T00:00"), "start: must be from 0 to"),
        (("delete", "k2"), "no schedule has the key 'k2'"),
    ]:
        refused = service.invoke(*command)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert refusal in refused.stderr
        assert len(refused.stderr.splitlines()) == 1

    assert service.psched("delete", "k1").stdout == "k1: deleted\n"
    assert [row.id for row in sql("SELECT id FROM {table}")] == ["report.daily"]


def test_a_handler_that_returns_without_finishing_is_run_again_as_perfectscheds(
    make_service, tmp_path
):
    service = make_service(
        f"sqlite:///{tmp_path}/own.db",
        type="rdb_compat",
        table="schedules",
        alive_time=6,
        dispatch="jobs:Dispatch",
    )
    text = """
        import psched.application as a
        class Job(a.Base):
            def before_perform(self):
                print("attempt", self.task.attempt, flush=True)
                return self.task.attempt > 1
            def perform(self):
                self.task.finish()
        class Dispatch(a.Dispatch):
            routes = {"job": "Job"}
        """
    service.write("jobs.py", text)
    service.init()
    service.add("s1", "job", cron="0 0 1 1 *", next_time=1_735_689_600)  # 2025-01-01T00:00Z
    master = service.start()

    master.wait_for_log(r"attempt 1\n")
    master.wait_for_log("failed after .*: returned without finish")
    master.wait_for_log(r"s1\.1735689600\] finished")
    assert service.row("s1").next_time > 1_735_689_600
    assert master.stop() == 0
